"""Items that are written later, together."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from tenantry.db.background import stop
from tenantry.db.connection import Connection
from tenantry.db.database import Database
from tenantry.db.write_behind import WriteBehind
from tests.support.emptying import SharedDatabase
from tests.support.patience import patient_database


class Shelf:
    """Where items are stored. The first store waits for `goes_on`."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.stored: list[dict[str, int]] = []

    async def store(self, _connection: Connection, items: Mapping[str, int]) -> None:
        self.began.set()
        await self.goes_on.wait()
        self.stored.append(dict(items))


@pytest.fixture
async def database(shared_database: SharedDatabase) -> AsyncIterator[Database]:
    async with patient_database(shared_database.conninfo, pool_size=1) as database:
        yield database


async def test_what_an_interrupted_write_held_is_written_by_the_next(database: Database) -> None:
    shelf = Shelf()
    pending = WriteBehind(database, "numbers", shelf.store)
    pending.record("a", 1)
    writing = asyncio.create_task(pending.write())
    await shelf.began.wait()
    await stop(writing)
    shelf.goes_on.set()
    await pending.write()
    await pending.write()
    assert shelf.stored == [{"a": 1}]


async def test_what_is_collected_during_a_write_is_written_by_the_next(database: Database) -> None:
    shelf = Shelf()
    pending = WriteBehind(database, "numbers", shelf.store, lambda old, new: old < new)
    pending.record("a", 2)
    writing = asyncio.create_task(pending.write())
    await shelf.began.wait()
    pending.record("a", 1)  # does not replace what is being written
    pending.record("b", 3)
    shelf.goes_on.set()
    await writing
    pending.record("a", 4)
    await pending.write()
    assert shelf.stored == [{"a": 2}, {"a": 4, "b": 3}]
