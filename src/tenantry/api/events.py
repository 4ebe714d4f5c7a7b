"""The route of the change feed, for applications beside the service."""

from datetime import timedelta
from typing import Annotated, Final

from litestar import get
from litestar.params import QueryParameter

from tenantry.api.guards import needs_operator, raises
from tenantry.api.parameters import LONGEST_CURSOR, MOST_ON_A_PAGE, Limit, check_texts
from tenantry.api.services import Services
from tenantry.domain.outbound_events import FeedPage, parse_types
from tenantry.outbound.events_store import EventFilter
from tenantry.outbound.feed import LONGEST_WAIT
from tenantry.server.waiting_paths import MAY_WAIT

PATH: Final = "/api/v1/operator/events"
_LONGEST_TYPES: Final = 2000


@get(
    PATH,
    guards=[needs_operator()],
    summary="Read the changes of all tenants (operator)",
    opt=raises("cursor_expired") | MAY_WAIT,
)
async def list_events(  # the parameters of the route
    services: Services,
    after: Annotated[
        str | None,
        QueryParameter(
            name="after",
            max_length=LONGEST_CURSOR,
            description="A `nextCursor`, or the `id` of an event: only the events that follow it. `now`: only those of "
            "later changes. Absent: from the oldest that is kept.",
        ),
    ] = None,
    types: Annotated[
        str | None,
        QueryParameter(
            name="types",
            max_length=_LONGEST_TYPES,
            description="Only these types, separated by commas; `member.*` means all of members. Absent: all but "
            "`audit.*`, the entries of the audit trail.",
        ),
    ] = None,
    org_id: Annotated[
        str | None,
        QueryParameter(name="orgId", max_length=64, description="Only this tenant."),
    ] = None,
    limit: Limit = MOST_ON_A_PAGE,
    wait: Annotated[
        int,
        QueryParameter(
            name="wait",
            ge=0,
            le=int(LONGEST_WAIT.total_seconds()),
            description="How many seconds the response may wait for the first event.",
        ),
    ] = 0,
) -> FeedPage:
    """Read what changed, in an order in which no later response adds an event before this one's
    `nextCursor`.

    Events are kept for 30 days. An event appears once all transactions that began to write before
    its own have ended.
    """
    check_texts({"orgId": org_id})
    wanted = EventFilter(parse_types(types).types(), org_id)
    return await services.changes.read(after, wanted, limit, timedelta(seconds=wait))
