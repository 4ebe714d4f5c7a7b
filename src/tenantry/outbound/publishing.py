"""Publishing changes, in their own transaction."""

from collections.abc import Sequence
from datetime import datetime

from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.domain.outbound_events import NewEvent
from tenantry.outbound import events_store as store


async def publish(connection: Connection, events: Sequence[NewEvent], now: datetime) -> None:
    """Publish changes, in one round trip."""
    if events:
        await connection.run_batch(*store.publication(events, now))


async def begin_epoch(database: Database) -> None:
    """Let the versions of all later changes follow those of changes that a restore has lost."""
    async with database.transaction(ACROSS_TENANTS) as connection:
        await store.begin_epoch(connection)
