"""The feed of changes after a crash, on a promoted standby, and in a restored copy."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tenantry.db.migrate import migrate
from tenantry.domain.errors import CursorExpiredError
from tenantry.domain.outbound_events import EventType, OutboundEvent
from tenantry.outbound.events_store import EventFilter
from tenantry.outbound.feed import ChangeFeed
from tests.support.backup import Cluster, own_binaries
from tests.support.database_server import DatabaseServer, Pair, server_folder
from tests.support.patience import patient_database

ALL: Final = EventFilter(list(EventType))
MOST: Final = 100
PUBLISH: Final = """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
VALUES (outbound_epoch(), 'tenant.created', %s, now(), now(), '{}')
RETURNING xid::text::bigint
"""
NO_LOG_REACHES_THE_DISK: Final = ("wal_writer_delay=10s", "bgwriter_delay=10s")
"""Except that of commits."""
LOST_TRANSACTIONS: Final = 20


def publish(conninfo: str, org: str) -> int:
    """Publish an event; return the id of its transaction."""
    with psycopg.connect(conninfo) as connection:
        [[xid]] = connection.execute(PUBLISH, (org,)).fetchall()
        return int(xid)


async def read(
    conninfo: str, cursor: str | None = None, limit: int = MOST
) -> tuple[list[OutboundEvent], str]:
    async with _feed(conninfo) as feed:
        page = await feed.read(cursor, ALL, limit, timedelta())
        return page.data, page.next_cursor


@asynccontextmanager
async def _feed(conninfo: str) -> AsyncIterator[ChangeFeed]:
    async with patient_database(conninfo, pool_size=1) as database:
        yield ChangeFeed(database)


@pytest.fixture
def server() -> Iterator[DatabaseServer]:
    with server_folder() as folder:
        server = DatabaseServer(folder, NO_LOG_REACHES_THE_DISK)
        server.initialise()
        server.start()
        migrate(server.conninfo)
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with server_folder() as folder:
        pair = Pair(folder)
        pair.start()
        migrate(pair.conninfo)
        pair.demand(synchronous=True)
        try:
            yield pair
        finally:
            pair.stop()


async def test_ids_that_a_crash_gives_again_hide_no_event(server: DatabaseServer) -> None:
    lost = 0
    await asyncio.to_thread(publish, server.conninfo, "before")
    _, cursor = await read(server.conninfo)
    with psycopg.connect(server.conninfo) as connection:
        for _ in range(LOST_TRANSACTIONS):
            lost = connection.execute("SELECT pg_current_xact_id()::text::int").fetchall()[0][0]
            connection.rollback()
    events, cursor = await read(server.conninfo, cursor)
    assert events == []
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    xid = await asyncio.to_thread(publish, server.conninfo, "after")
    assert xid <= lost
    events, _ = await read(server.conninfo, cursor)
    assert [event.org_id for event in events] == ["after"]


async def test_a_promoted_standby_continues_in_a_new_epoch(pair: Pair) -> None:
    for org in ("first", "second"):
        await asyncio.to_thread(publish, pair.conninfo, org)
    [first], cursor = await read(pair.conninfo, limit=1)
    await asyncio.to_thread(pair.fail_over)
    await asyncio.to_thread(pair.demand, synchronous=False)
    await asyncio.to_thread(publish, pair.conninfo, "third")
    [second, third], _ = await read(pair.conninfo, cursor)
    assert [event.org_id for event in (first, second, third)] == ["first", "second", "third"]
    assert first.version < second.version < third.version
    assert pair.primary.rows("SELECT count(*) FROM outbound_epochs") == [(2,)]


async def test_a_dump_continues_in_another_cluster(place: Path) -> None:
    for name in ("original", "copy"):
        (place / name).mkdir()
    original = Cluster(place / "original", own_binaries())
    with original.running(migrated=True):
        for org in ("first", "second"):
            await asyncio.to_thread(publish, original.conninfo, org)
        _, cursor = await read(original.conninfo, limit=1)
        dumped = await asyncio.to_thread(original.script, "backup.sh", place)
        assert dumped.returncode == 0, dumped.stderr
        await asyncio.to_thread(publish, original.conninfo, "lost")
        [_, lost], cursor_of_lost = await read(original.conninfo, cursor)
    copy = Cluster(place / "copy", own_binaries())
    with copy.running():
        restored = await asyncio.to_thread(copy.script, "restore.sh", dumped.stdout.strip())
        assert restored.returncode == 0, restored.stderr
        await asyncio.to_thread(publish, copy.conninfo, "third")
        [second, third], cursor_of_copy = await read(copy.conninfo, cursor)
        assert [second.org_id, third.org_id] == ["second", "third"]
        assert third.version > lost.version
        with pytest.raises(CursorExpiredError):
            await read(copy.conninfo, cursor_of_lost)
    with original.running(), pytest.raises(CursorExpiredError):
        await read(original.conninfo, cursor_of_copy)
