"""Events that belong to no tenant, for the operator, with the command that places each."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tenantry.billing import unplaced_events_store as store
from tenantry.billing.unplaced_events_store import UnplacedRow
from tenantry.common.clock import Clock, from_epoch
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.pagination import Page, window_after
from tenantry.domain.billing.unplaced_events import UnplacedEvent

LISTED_FOR: Final = timedelta(days=30)
"""How long events without a tenant's name are listed; parked ones wait as long."""


@dataclass(frozen=True)
class UnplacedEvents:
    database: Database
    clock: Clock

    async def list_page(self, limit: int, cursor: str | None) -> Page[UnplacedEvent]:
        """Read a page as `list_rows`, each event with the command that places it."""
        page = await self.list_rows(limit, cursor)
        return Page([_shown(row) for row in page.data], page.next_cursor)

    async def list_rows(self, limit: int, cursor: str | None) -> Page[UnplacedRow]:
        """Read a page of events that belong to no tenant, the last received first. Raises
        `InvalidCursorError`.
        """
        window, since = window_after(limit, cursor), self.clock() - LISTED_FOR
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await store.read_page(connection, since, window)


def _shown(row: UnplacedRow) -> UnplacedEvent:
    placement = row.placement
    return UnplacedEvent(
        row.id,
        row.type,
        from_epoch(row.created),
        row.received_at,
        row.outcome,
        row.reason,
        row.org_id,
        row.customer_id,
        row.subscription_id,
        row.invoice_id,
        None if placement is None else placement.command,
    )
