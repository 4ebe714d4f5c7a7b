"""The route of rejections: why requests of a tenant were refused."""

from datetime import datetime
from typing import Annotated, Final

from litestar import get
from litestar.params import QueryParameter

from tenantry.api.guards import Caller, needs
from tenantry.api.parameters import DEFAULT_LIMIT, Cursor, Limit, nul_faults, zone_faults
from tenantry.api.services import Services
from tenantry.db.pagination import Page
from tenantry.domain.errors import ValidationError
from tenantry.domain.rejections import Rejection

PATH: Final = "/api/v1/rejections"


@get(PATH, guards=[needs("audit:read", in_quota=False)], summary="List rejections")
async def list_rejections(
    services: Services,
    principal: Caller,
    key_id: Annotated[
        str | None,
        QueryParameter(name="keyId", max_length=255, description="Only those of this API key."),
    ] = None,
    since: Annotated[
        datetime | None, QueryParameter(name="since", description="From this moment on (RFC 3339).")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Rejection]:
    """List the refused requests of the tenant's keys and users in the caller's mode, newest first.

    They are written a few seconds late. Equal ones of a minute are one; the newest 1,000 of a
    tenant are kept, at most 200 of a key or user, for 7 days.
    """
    if faults := zone_faults({"since": since}) + nul_faults({"keyId": key_id}):
        raise ValidationError(*faults)
    return await services.rejections.list_page(principal, limit, cursor, key_id=key_id, since=since)
