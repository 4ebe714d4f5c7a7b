"""Publishing changes, in their own transaction."""

from collections.abc import Sequence
from datetime import datetime

from tenantry.db.connection import Connection
from tenantry.domain.outbound_events import NewEvent
from tenantry.outbound import events_store as store


async def publish(connection: Connection, events: Sequence[NewEvent], now: datetime) -> None:
    """Publish changes once the transaction of the connection is committed.

    The transaction holds the lock of each changed object, or has made it.
    """
    if events:
        await store.insert(connection, events, now)
