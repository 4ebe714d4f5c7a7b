"""Publishing changes, in their own transaction."""

from collections.abc import Sequence
from datetime import datetime

from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.statements import BoundStatement
from tenantry.domain.outbound_events import NewEvent
from tenantry.outbound import events_store as store


def publication(events: Sequence[NewEvent], now: datetime) -> list[BoundStatement]:
    """Return what publishes changes once the transaction that runs it is committed.

    The transaction holds the lock of each changed object, or has made it.
    """
    return store.insert(events, now)


async def publish(connection: Connection, events: Sequence[NewEvent], now: datetime) -> None:
    """Run the `publication` of changes, in one round trip."""
    if events:
        await connection.run_batch(*publication(events, now))


async def begin_epoch(database: Database) -> None:
    """Let the versions of all later changes follow those of changes that a restore has lost."""
    async with database.transaction(ACROSS_TENANTS) as connection:
        await store.begin_epoch(connection)
