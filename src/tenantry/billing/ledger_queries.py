"""Reading the billing ledger: a tenant's events for its principals, raw bodies for the operator."""

from datetime import datetime
from typing import Annotated

import msgspec

from tenantry.billing import ledger_queries_store as store
from tenantry.billing.ledger_queries_store import LedgerRecord
from tenantry.common.clock import from_epoch
from tenantry.common.encoding import Position, doc
from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.db.database import Database
from tenantry.db.pagination import MAX_SCANNED_ROWS, Page, SearchEnd, SearchPage, parse_cursor, to_page, to_search_page
from tenantry.domain.access import Principal
from tenantry.domain.billing.events import Outcome
from tenantry.domain.errors import InvalidCursorError, NotFoundError


class BillingFields(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a tenant that events write."""

    plan: Annotated[str, doc("The plan's id; `free` is the fallback and downgrade plan.", "pro")]
    subscription_status: Annotated[
        str,
        doc(
            "The provider's subscription status, such as `active`, `past_due` or `canceled`; `none` before any.",
            "active",
        ),
    ]
    current_period_end: Annotated[
        datetime | None, doc("End of the current billing period; null when there is none.", "2026-12-01T00:00:00Z")
    ]
    cancel_at_period_end: Annotated[bool, doc("Whether the subscription ends with the period.", example=False)]


class BillingEventView(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the tenant's ledger: its outcome and reason, the tenant before and after, and anomalies."""

    id: Annotated[str, doc("The provider's event id; tenantry's own for a snapshot.", "evt_1SQk7xLm3Rk2pXw7")]
    type: Annotated[
        str,
        doc(
            "The provider's event type, or `tenantry.subscription.snapshot` for a snapshot of the provider's API.",
            "customer.subscription.updated",
        ),
    ]
    created: Annotated[
        datetime, doc("When the provider created the event; events are ordered by it.", "2026-11-01T00:00:02Z")
    ]
    received_at: Annotated[datetime, doc("When tenantry received it.", "2026-11-01T00:00:04Z")]
    livemode: Annotated[
        bool | None,
        doc("Whether the event is of the provider's live mode; null if the event does not say.", example=True),
    ]
    outcome: Annotated[Outcome, doc("The effect of the event on arrival.", "applied")]
    reason: Annotated[
        str, doc("The reason for the outcome.", "The subscription is active: price price_pro means plan pro.")
    ]
    before: Annotated[
        BillingFields | None, doc("The tenant's billing fields before the event; null if it is not part of the order.")
    ]
    after: Annotated[BillingFields | None, doc("The tenant's billing fields after the event.")]
    anomalies: Annotated[
        list[str], doc("Unexpected facts about the event, such as `unknown_price`; usually empty.", [])
    ]


class LedgerQueries:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_events(self, principal: Principal, limit: int, cursor: str | None) -> Page[BillingEventView]:
        """Return a page of the ledger, the newest event first. Raises `InvalidCursorError`."""
        after = _parse_cursor(cursor)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            rows = await store.read_entries(connection, principal.org_id, limit, after)
        page = to_page(rows, limit, _position)
        return Page([view(row) for row in page.data], page.next_cursor)

    async def seek_events(
        self, principal: Principal, limit: int, cursor: str | None, *, event_type: str | None, outcome: Outcome | None
    ) -> SearchPage[BillingEventView]:
        """Return a page of the events of one type and outcome, where given. Raises `InvalidCursorError`."""
        after = _parse_cursor(cursor)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            rows, end = await store.seek_entries(
                connection, principal.org_id, limit, after, event_type=event_type, outcome=outcome
            )
        last = None if end is None else SearchEnd(Position(end[0], str(end[1])), from_epoch(end[0]), MAX_SCANNED_ROWS)
        page = to_search_page(rows, limit, _position, last)
        return SearchPage([view(row) for row in page.data], page.next_cursor, page.looked_at, page.looked_back_to)

    async def newest_arrival(self, principal: Principal) -> int:
        """Return the arrival number of the latest event; 0 if there is none."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            return await store.newest_arrival(connection, principal.org_id)

    async def get_body(self, principal: Principal, event_id: str) -> bytes | None:
        """Return the raw body of an event; None if the tenant has no such event or its body was removed."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            return await store.find_body_of_tenant(connection, principal.org_id, event_id)

    async def get_event(self, principal: Principal, event_id: str) -> BillingEventView:
        """Return one entry. Raises `NotFoundError`."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            row = await store.find_entry(connection, principal.org_id, event_id)
        if row is None:
            raise NotFoundError("billing event")
        return view(row)


def _parse_cursor(cursor: str | None) -> tuple[int, int] | None:
    if (position := parse_cursor(cursor)) is None:
        return None
    if not position.id.isdecimal():
        raise InvalidCursorError("The cursor is invalid. Use a nextCursor of this API.")
    return position.key, min(int(position.id), 2**62)


def _position(row: LedgerRecord) -> Position:
    return Position(row.created, str(row.arrival))


def view(row: LedgerRecord) -> BillingEventView:
    """Return an entry as the API shows it."""
    return msgspec.convert(row, BillingEventView, from_attributes=True, strict=False)


async def raw_body(database: Database, event_id: str) -> bytes:
    """Return the raw body of an event of any tenant. Raises `NotFoundError`."""
    async with database.transaction(ACROSS_TENANTS) as connection:
        exists, body = await store.find_body(connection, event_id) if event_id.isprintable() else (False, None)
    if not exists:
        raise NotFoundError(f"event: {event_id}")
    if body is None:
        raise NotFoundError(f"body: {event_id} is older than RAW_BODY_DAYS, or a snapshot")
    return body
