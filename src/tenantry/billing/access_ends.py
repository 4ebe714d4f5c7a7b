"""Recording access that ended by time, which no event reports, and asking the provider about it."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from tenantry.billing import access_ends_store as store
from tenantry.billing import batch_store
from tenantry.billing.access_ends_store import EndedAccess
from tenantry.common.clock import Clock, from_epoch
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import find_tenants
from tenantry.domain.access import end_reason
from tenantry.domain.billing.events import ACCESS_ENDED, BillingEvent, Outcome
from tenantry.domain.billing.ledger import LedgerEntry, ReceivedEvent, SnapshotRequest
from tenantry.domain.outbound_events import EventType, NewEvent
from tenantry.domain.plans import Catalog
from tenantry.outbound.publishing import publish

_RECORDED_FOR: Final = timedelta(days=30)
"""How long after its end access is recorded: no worker may have run meanwhile."""
_MOST_AT_ONCE: Final = 200
_MOST_ROUNDS: Final = 20

logger = logging.getLogger(__name__)


async def record_access_ends(
    database: Database, outbox: Outbox, catalog: Catalog, clock: Clock, *, asks_provider: bool
) -> int:
    """Add an entry to the ledger of each tenant whose access ended by time, publish the change of
    that moment, and ask the provider about the tenant.

    The access itself ends without this. Several processes may run it at the same time. Returns the
    number of entries. Raises `DatabaseUnavailableError`.
    """
    now, total = clock(), 0
    for _ in range(_MOST_ROUNDS):
        async with database.transaction(ACROSS_TENANTS) as connection:
            ended = await store.lock_ended(connection, now - _RECORDED_FOR, now, _MOST_AT_ONCE)
            entries = [_entry(each, now, asks_provider=asks_provider) for each in ended]
            await batch_store.write(connection, batch_store.insert_entries(entries), commit=False)
            tenants = sorted({each.tenant_id for each in ended})
            await _publish(connection, ended, catalog, now)
            await outbox.defer_snapshots(
                connection, [SnapshotRequest(each, later=False) for each in tenants]
            )
        total += len(ended)
        if len(ended) < _MOST_AT_ONCE:
            break
    if total:
        logger.info("access that ended by time is in the ledger: %d entries", total)
    return total


async def _publish(
    connection: Connection, ended: Sequence[EndedAccess], catalog: Catalog, now: datetime
) -> None:
    """Publish each end with the tenant as it was at that moment."""
    tenants = await find_tenants(connection, [each.tenant_id for each in ended])
    events = list[NewEvent]()
    for each in ended:
        moment = from_epoch(each.at)
        shown = tenants[each.tenant_id].managed(catalog, moment)
        events.append(NewEvent(EventType.ACCESS_CHANGED, each.tenant_id, moment, shown))
    await publish(connection, events, now)


def _entry(ended: EndedAccess, now: datetime, *, asks_provider: bool) -> LedgerEntry:
    event = BillingEvent(
        id=ended.entry_id,
        type=ACCESS_ENDED,
        created=ended.at,
        arrival=ended.arrival,
        org_id=ended.tenant_id,
    )
    reason = end_reason(ended.phases, ended.at)
    asked = " The provider is asked." if asks_provider else ""
    return LedgerEntry(
        ReceivedEvent(event, now), ended.tenant_id, Outcome.NO_CHANGE, f"{reason}{asked}"
    )
