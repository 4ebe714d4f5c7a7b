"""Writes that may wait: collected in memory, written every few seconds, many in one transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import psycopg

from tenantry.db.background import BackgroundGroup
from tenantry.db.connection import ACROSS_TENANTS, Connection, TransactionScope
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError

Item = TypeVar("Item")

# seconds between writes: a process that is killed loses at most the items of this time
INTERVAL: Final = 5.0
# more would exceed the time limit of a statement and lock their rows for as long
_MAX_ITEMS: Final = 1000


@dataclass(eq=False)
class WriteBehind(Generic[Item]):
    """Collects items, one for each key, and writes them in transactions of ``scope``.

    ``name`` describes the items in the log; ``replaces`` says whether a new item replaces the old
    one, and ``read_by_checks`` whether they change what checks read.
    """

    database: Database
    name: str
    store: Callable[[Connection, Mapping[str, Item]], Awaitable[None]]
    replaces: Callable[[Item, Item], bool] = lambda _old, _new: True
    scope: TransactionScope = ACROSS_TENANTS
    read_by_checks: bool = False
    items: dict[str, Item] = field(default_factory=dict, init=False, repr=False)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)

    def record(self, key: str, item: Item) -> None:
        """Collect an item for the next write."""
        if key not in self.items or self.replaces(self.items[key], item):
            self.items[key] = item

    def repeat_in(self, group: BackgroundGroup) -> None:
        """Write the collected items every `INTERVAL` seconds, and the last ones at the end."""
        group.repeat(f"writes of {self.name}", self.write, every=INTERVAL, last=self.write)

    async def write_early(self) -> None:
        """Write the collected items before their time. A failure changes nothing: the loop tries
        again.
        """
        with suppress(DatabaseUnavailableError, psycopg.Error):
            await self.write()

    async def write(self) -> None:
        """Write the collected items. Each is kept until it is written: for the next time where the
        database does not accept it, or the write is canceled.

        Raises `DatabaseUnavailableError` and `psycopg.Error`.
        """
        transact = self.database.change if self.read_by_checks else self.database.transaction
        async with self._writing:
            due = list(self.items)
            for start in range(0, len(due), _MAX_ITEMS):
                batch = {key: self.items[key] for key in due[start : start + _MAX_ITEMS]}
                async with transact(self.scope) as connection:
                    await self.store(connection, batch)
                self._forget(batch)

    def _forget(self, written: Mapping[str, Item]) -> None:
        """Forget written items, unless another one was collected meanwhile."""
        for key, item in written.items():
            if self.items.get(key) is item:
                del self.items[key]
