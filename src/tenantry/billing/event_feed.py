"""The event feed: notifies open dashboard pages of new events in a tenant's ledger."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Final

from tenantry.billing import ledger_queries_store as store
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.errors import OverloadedError

INTERVAL: Final = 1.0
"""Seconds between polls of the watched ledgers."""
MOST_OF_ONE: Final = 10


class FeedWatcher:
    """A client that watches a tenant's ledger and has seen it up to an arrival number.

    ``has_ended`` is set when the process stops: no more events follow.
    """

    def __init__(self, tenant_id: str, seen: int) -> None:
        self.tenant_id = tenant_id
        self.newest = seen
        self.has_ended = False
        self._changed = asyncio.Event()

    async def wait(self, seconds: float) -> int | None:
        """Return the arrival number of the newest event as soon as there is a new one.

        None after a timeout and at the end.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return None
        self._changed.clear()
        return None if self.has_ended else self.newest

    def notify(self, arrival: int) -> None:
        if arrival > self.newest:
            self.newest = arrival
            self._changed.set()

    def end(self) -> None:
        self.has_ended = True
        self._changed.set()


@dataclass(eq=False)
class EventFeed:
    """The watchers of this process. A loop calls `poll` for all of them together.

    A process has at most ``most`` watchers, ``most_of_tenant`` of one tenant, and ``most_of_one``
    of one client.
    """

    database: Database
    _: KW_ONLY
    most: int = 200
    most_of_tenant: int = 50
    most_of_one: int = MOST_OF_ONE

    def __post_init__(self) -> None:
        self._watchers: dict[FeedWatcher, bytes] = {}
        self._has_ended = False

    def __len__(self) -> int:
        return len(self._watchers)

    def check_room(self, client: bytes, tenant_id: str) -> None:
        """Raise `OverloadedError` if this client or tenant cannot have another watcher."""
        of_one = list(self._watchers.values()).count(client)
        of_tenant = [watcher.tenant_id for watcher in self._watchers].count(tenant_id)
        is_full = len(self._watchers) >= self.most or of_tenant >= self.most_of_tenant
        if self._has_ended or is_full or of_one >= self.most_of_one:
            raise OverloadedError(
                "Too many pages are receiving live updates. Reload this page to see new events."
            )

    @contextmanager
    def watch(self, tenant_id: str, client: bytes, seen: int) -> Iterator[FeedWatcher]:
        """Watch a tenant's ledger during the block. Raises `OverloadedError`."""
        self.check_room(client, tenant_id)
        watcher = FeedWatcher(tenant_id, seen)
        self._watchers[watcher] = client
        try:
            yield watcher
        finally:
            del self._watchers[watcher]

    def end(self) -> None:
        """End all watchers, because the process stops."""
        self._has_ended = True
        for watcher in self._watchers:
            watcher.end()

    async def poll(self) -> None:
        """Query the watched ledgers for new events, if there are any, and notify the watchers.

        Raises `DatabaseUnavailableError` and `psycopg.Error`.
        """
        if not self._watchers:
            return
        watched: dict[str, int] = {}
        for watcher in self._watchers:
            watched[watcher.tenant_id] = min(
                watcher.newest, watched.get(watcher.tenant_id, watcher.newest)
            )
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            found = await store.arrivals_after(connection, watched)
        for watcher in self._watchers:
            watcher.notify(found.get(watcher.tenant_id, 0))
