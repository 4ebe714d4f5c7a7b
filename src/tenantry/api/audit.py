"""Routes of the audit trail."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.params import QueryParameter
from litestar.response import Stream

from tenantry.api.guards import Caller, needs, needs_operator, raises
from tenantry.api.parameters import DEFAULT_LIMIT, Cursor, Limit, nul_faults, zone_faults
from tenantry.api.services import Services
from tenantry.audit.trail import AuditFilter
from tenantry.db.pagination import Page
from tenantry.domain.audit import Action, AuditEvent
from tenantry.domain.errors import ValidationError

PATH: Final = "/api/v1/audit-events"
OPERATOR_PATH: Final = "/api/v1/operator/audit-events"
EXPORT_TYPE: Final = "application/x-ndjson"

WantedEvents = NamedDependency[AuditFilter]


def audit_filter(
    action: Annotated[
        Action | None, QueryParameter(name="action", description="Only what was done so.")
    ] = None,
    actor_id: Annotated[
        str | None,
        QueryParameter(
            name="actorId", max_length=255, description="Only what this key or user did."
        ),
    ] = None,
    target_id: Annotated[
        str | None,
        QueryParameter(
            name="targetId",
            max_length=255,
            description="Only what was done to this project, key, member or tenant.",
        ),
    ] = None,
    since: Annotated[
        datetime | None, QueryParameter(name="since", description="From this moment on (RFC 3339).")
    ] = None,
    until: Annotated[
        datetime | None, QueryParameter(name="until", description="Before this moment (RFC 3339).")
    ] = None,
) -> AuditFilter:
    """Make the filter of a request's parameters. Raises `ValidationError`."""
    faults = zone_faults({"since": since, "until": until})
    faults += nul_faults({"actorId": actor_id, "targetId": target_id})
    if faults:
        raise ValidationError(*faults)
    return AuditFilter(action, actor_id, target_id, since, until)


_reader = needs("audit:read")
_parameters = {"wanted": Provide(audit_filter, sync_to_thread=False)}


@get(
    PATH,
    guards=[_reader],
    dependencies=_parameters,
    summary="List audit events",
    opt=raises("mode_mismatch"),
)
async def list_audit_events(
    services: Services,
    principal: Caller,
    wanted: WantedEvents,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[AuditEvent]:
    """List the audit trail of the caller's tenant, newest first. It has no test mode."""
    return await services.trail.list_page(
        principal,
        wanted,
        limit,
        cursor,
    )


@get(
    PATH + "/export",
    guards=[_reader],
    dependencies=_parameters,
    summary="Export the audit trail",
    media_type=EXPORT_TYPE,
    opt=raises("mode_mismatch"),
)
async def export_audit_events(
    services: Services, principal: Caller, wanted: WantedEvents
) -> Stream:
    """Return the audit trail, or the selected part of it, newest first: one JSON object a
    line.
    """
    pages = services.trail.export(principal, wanted)
    # what is refused is refused before the answer begins
    first: list[AuditEvent] = await anext(pages)
    return Stream(ndjson(first, pages), media_type=EXPORT_TYPE)


@get(
    OPERATOR_PATH,
    guards=[needs_operator()],
    summary="Export the audit trail of all tenants (operator)",
    media_type=EXPORT_TYPE,
)
async def export_any_audit_events(
    services: Services,
    since: Annotated[
        datetime | None, QueryParameter(name="since", description="From this moment on (RFC 3339).")
    ] = None,
) -> Stream:
    """Return the audit trail of all tenants, also of ended ones: one JSON object a line, tenant by
    tenant, newest first.

    Store it outside the database: `tenantry admin after-restore` needs it.
    """
    if faults := zone_faults({"since": since}):
        raise ValidationError(*faults)
    parts = services.directory.export_trail(since)
    first: list[AuditEvent] = await anext(parts)
    return Stream(ndjson(first, parts), media_type=EXPORT_TYPE)


async def ndjson(
    first: list[AuditEvent], rest: AsyncIterator[list[AuditEvent]]
) -> AsyncIterator[bytes]:
    """Entries as one line of JSON each."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode_lines(first)
    async for page in rest:
        yield encoder.encode_lines(page)
