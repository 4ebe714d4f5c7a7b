"""Routes of usage: how many requests the API keys of a tenant, or of all tenants, sent."""

from datetime import datetime
from typing import Annotated, Final, Literal

from litestar import get
from litestar.params import QueryParameter

from tenantry.api.guards import Caller, needs, needs_operator, raises
from tenantry.api.parameters import check_texts
from tenantry.api.services import Services
from tenantry.domain.errors import ValidationError
from tenantry.domain.usage import (
    OperatorGroup,
    UsageGroup,
    UsageInterval,
    UsageReport,
    usage_query,
)

PATH: Final = "/api/v1/usage"
OPERATOR_PATH: Final = "/api/v1/operator/usage"

Since = Annotated[
    datetime | None,
    QueryParameter(
        name="since",
        description="From the hour or day of this moment on (RFC 3339); by default the last 24 hours, or 30 days.",
    ),
]
Until = Annotated[
    datetime | None,
    QueryParameter(name="until", description="Before this moment (RFC 3339); by default now."),
]
Interval = Annotated[
    Literal["hour", "day"],
    QueryParameter(
        name="interval",
        description="One count an hour, for at most 31 days at a time; or one a day (UTC), for at most 400 days.",
    ),
]
KeyFilter = Annotated[
    str | None, QueryParameter(name="keyId", max_length=255, description="Only this API key.")
]


@get(
    PATH,
    guards=[needs("usage:read", in_quota=False)],
    summary="Get the usage of API keys",
    opt=raises("mode_mismatch"),
)
async def get_usage(
    services: Services,
    principal: Caller,
    since: Since = None,
    until: Until = None,
    interval: Interval = "hour",
    group_by: Annotated[
        UsageGroup,
        QueryParameter(name="groupBy", description="What each count is of, besides its time."),
    ] = "none",
    key_id: KeyFilter = None,
) -> UsageReport:
    """Count the requests of the caller's tenant, oldest first. It has no test mode.

    Hours are kept for 90 days, days for 400. Each server process adds its counts once a minute.
    """
    check_texts({"keyId": key_id})
    wanted = usage_query(
        UsageInterval(interval),
        since,
        until,
        services.clock(),
        group=group_by,
        key_id=key_id,
    )
    return await services.usage.read(principal, wanted)


@get(OPERATOR_PATH, guards=[needs_operator()], summary="Get the usage of all tenants (operator)")
async def get_any_usage(
    services: Services,
    since: Since = None,
    until: Until = None,
    interval: Interval = "hour",
    group_by: Annotated[
        OperatorGroup,
        QueryParameter(name="groupBy", description="What each count is of, besides its time."),
    ] = "none",
    org_id: Annotated[
        str | None,
        QueryParameter(name="orgId", max_length=64, description="Only this tenant."),
    ] = None,
    key_id: KeyFilter = None,
) -> UsageReport:
    """Count the requests of all tenants, or of one, oldest first. `keyId` needs `orgId`.

    Hours are kept for 90 days, days for 400. Each server process adds its counts once a minute.
    """
    check_texts({"orgId": org_id, "keyId": key_id})
    if key_id is not None and org_id is None:
        raise ValidationError(("keyId", "needs orgId, too"))
    wanted = usage_query(
        UsageInterval(interval),
        since,
        until,
        services.clock(),
        group=group_by,
        org_id=org_id,
        key_id=key_id,
    )
    return await services.usage.read_any(wanted)
