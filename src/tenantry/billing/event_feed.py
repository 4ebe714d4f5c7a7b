"""News of tenants' ledgers, for those who are looking at them at the moment."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from tenantry.billing import event_feed_store as news
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError, OverloadedError

INTERVAL: Final = 1.0
"""Seconds between looks at the ledgers that are watched."""
MOST: Final = 200
MOST_OF_TENANT: Final = 50
MOST_OF_ONE: Final = 10

logger = logging.getLogger(__name__)


class Watch:
    """Somebody who looks at a tenant's ledger, and has seen it up to an arrival number."""

    def __init__(self, tenant_id: str, seen: int) -> None:
        self.tenant_id = tenant_id
        self.seen = seen
        self.has_ended = False
        """Whether there will be no more news, because this process stops."""
        self._newest = seen
        self._told = asyncio.Event()

    async def wait(self, seconds: float) -> int | None:
        """The arrival number of the newest event, as soon as there is one that was not seen; None if none comes."""
        try:
            async with asyncio.timeout(seconds):
                await self._told.wait()
        except TimeoutError:
            return None
        self._told.clear()
        news, self.seen = self._newest > self.seen, self._newest
        return self._newest if news else None

    def tell(self, arrival: int) -> None:
        """There is an event of this arrival number."""
        if arrival > self._newest:
            self._newest = arrival
            self._told.set()

    def end(self) -> None:
        """There will be no more news."""
        self.has_ended = True
        self._told.set()


class LedgerNews:
    """Who watches which ledger in this process. `run` asks the database for all of them together.

    A process has at most ``most`` watches, ``most_of_tenant`` of one tenant, and ``most_of_one`` of one person.
    """

    def __init__(
        self,
        database: Database,
        *,
        most: int = MOST,
        most_of_tenant: int = MOST_OF_TENANT,
        most_of_one: int = MOST_OF_ONE,
    ) -> None:
        self._database = database
        self._most = most
        self._most_of_tenant = most_of_tenant
        self._most_of_one = most_of_one
        self._watches: dict[Watch, bytes] = {}
        self._somebody = asyncio.Event()
        self._is_away = False
        self._has_ended = False

    def __len__(self) -> int:
        """How many watches there are."""
        return len(self._watches)

    def check_room(self, watcher: bytes, tenant_id: str) -> None:
        """Raise `OverloadedError` unless there is room for one more watch of this watcher, and of this tenant."""
        of_one = sum(1 for other in self._watches.values() if other == watcher)
        of_tenant = sum(1 for watch in self._watches if watch.tenant_id == tenant_id)
        is_full = len(self._watches) >= self._most or of_tenant >= self._most_of_tenant
        if self._has_ended or is_full or of_one >= self._most_of_one:
            raise OverloadedError("Too many pages are being kept up to date at the moment. Reload this one instead.")

    @contextmanager
    def watch(self, tenant_id: str, watcher: bytes, seen: int) -> Iterator[Watch]:
        """Watch a tenant's ledger during the block. Raises `OverloadedError`."""
        self.check_room(watcher, tenant_id)
        watch = Watch(tenant_id, seen)
        self._watches[watch] = watcher
        self._somebody.set()
        try:
            yield watch
        finally:
            del self._watches[watch]

    def end(self) -> None:
        """End all watches: the process stops, and waits for nobody who only watches."""
        self._has_ended = True
        for watch in self._watches:
            watch.end()

    async def run(self) -> None:
        """Look for news every `INTERVAL` seconds while somebody watches, until cancelled."""
        while True:
            await self._somebody.wait()
            if not self._watches:
                self._somebody.clear()
                continue
            await self.look()
            await asyncio.sleep(INTERVAL)

    async def look(self) -> None:
        """Ask for news of everything that is watched, and tell those who watch."""
        watched: dict[str, int] = {}
        for watch in self._watches:
            watched[watch.tenant_id] = min(watch.seen, watched.get(watch.tenant_id, watch.seen))
        try:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                found = await news.arrivals_after(connection, watched)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            if not self._is_away:
                logger.info("there is no news of ledgers: %s", error.__cause__ or error)
            self._is_away = True
            return
        self._is_away = False
        for watch in self._watches:
            watch.tell(found.get(watch.tenant_id, 0))
