"""The order of the feed: no late commit, failover, copy or filter hides an event from a reader."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from tenantry.common.clock import Timeouts, system_clock
from tenantry.db.connection import ACROSS_TENANTS, API, TENANT
from tenantry.db.database import Database
from tenantry.domain.errors import CursorExpiredError
from tenantry.domain.outbound_events import NOW, EventType, FeedPage
from tenantry.outbound import events_store as store
from tenantry.outbound.events_store import BEGINNING, MAX_SCANNED_EVENTS, EventFilter
from tenantry.outbound.feed import ChangeFeed
from tenantry.outbound.publishing import begin_epoch
from tenantry.server.dispatch import Dispatcher
from tenantry.server.load_shedding import OVERLOAD_DETECTOR, OverloadDetector
from tenantry.server.shutdown import SHUTDOWN, Shutdown
from tests.support.app import OPERATOR_TOKEN, client_of, lifespan, make_app
from tests.support.billing import rows, until_blocked
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.service import PROJECTS, Service

EVENTS: Final = "/api/v1/operator/events"
CREATED: Final = EventType.TENANT_CREATED
UPDATED: Final = EventType.TENANT_UPDATED
ALL: Final = EventFilter(list(EventType))
MOST: Final = 100
SOON: Final = 30
PUBLISH: Final = """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
SELECT (SELECT outbound_epoch()), %s, org_id, now(), now(), '{}' FROM unnest(%s::text[]) org_id
"""
PUBLISH_MANY: Final = """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
SELECT (SELECT outbound_epoch()), %s, 'many', now(), now(), '{}' FROM generate_series(1, %s)
"""
SAME_FILES_ELSEWHERE: Final = "UPDATE outbound_epochs SET timeline = timeline - 1"
"""As if the newest epoch had begun on another server, which this one has replaced."""
ROWS_READ: Final = """
SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'outbound_events'
"""
EPOCHS: Final = "SELECT count(*) AS number, max(epoch) AS newest FROM outbound_epochs"


def publish(connection: psycopg.Connection[Any], *orgs: str) -> None:
    connection.execute(PUBLISH, (CREATED, list(orgs)))


def published(conninfo: str, *orgs: str) -> None:
    """Publish an event of each of these tenants in one transaction."""
    with psycopg.connect(conninfo) as connection:
        publish(connection, *orgs)


def execute(conninfo: str, statement: str, *values: object) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute(statement, values)


class Reader:
    """A reader of a feed, which continues where it was."""

    def __init__(self, feed: ChangeFeed, cursor: str | None = None) -> None:
        self.feed = feed
        self.cursor = cursor

    async def page(
        self, limit: int = MOST, wanted: EventFilter = ALL, wait: timedelta = timedelta()
    ) -> FeedPage:
        page = await self.feed.read(self.cursor, wanted, limit, wait)
        self.cursor = page.next_cursor
        return page

    async def orgs(self, limit: int = MOST, wanted: EventFilter = ALL) -> list[str]:
        """The tenants of the events of the next page."""
        return [event.org_id for event in (await self.page(limit, wanted)).data]


@asynccontextmanager
async def feed_of(conninfo: str) -> AsyncIterator[ChangeFeed]:
    async with patient_database(conninfo, pool_size=2) as database:
        yield ChangeFeed(database)


@pytest.fixture
async def database(conninfo: str) -> AsyncIterator[Database]:
    async with patient_database(conninfo, pool_size=2) as database:
        yield database


@pytest.fixture
def feed(database: Database) -> ChangeFeed:
    return ChangeFeed(database)


@pytest.fixture
def reader(feed: ChangeFeed) -> Reader:
    return Reader(feed)


@pytest.fixture
def writer(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database whose epoch has begun."""
    with psycopg.connect(conninfo) as connection:
        connection.execute("SELECT outbound_epoch()")
        connection.commit()
        yield connection


# Transactions


async def test_a_late_commit_is_read_before_what_began_after_it(
    reader: Reader, conninfo: str, writer: psycopg.Connection[Any]
) -> None:
    publish(writer, "early")
    published(conninfo, "later")
    assert await reader.orgs() == []
    publish(writer, "last")  # its version is the highest of all
    writer.commit()
    assert await reader.orgs() == ["early", "last", "later"]


async def test_events_before_an_open_transaction_are_read(
    reader: Reader, conninfo: str, writer: psycopg.Connection[Any]
) -> None:
    published(conninfo, "before")
    publish(writer, "open")
    assert await reader.orgs() == ["before"]
    writer.commit()
    assert await reader.orgs() == ["open"]


async def test_what_is_rolled_back_leaves_a_gap_that_hides_nothing(
    reader: Reader, conninfo: str, writer: psycopg.Connection[Any]
) -> None:
    published(conninfo, "first")
    publish(writer, "never")
    published(conninfo, "second")
    assert await reader.orgs() == ["first"]
    writer.rollback()
    page = await reader.page()
    assert [event.org_id for event in page.data] == ["second"]
    published(conninfo, "third")
    assert await reader.orgs() == ["third"]


async def test_the_id_of_a_lost_transaction_may_be_given_again(
    reader: Reader, conninfo: str, writer: psycopg.Connection[Any]
) -> None:
    """After a crash, for a transaction whose records had not reached the disk."""
    now = Reader(reader.feed, NOW)
    [[xid]] = writer.execute("SELECT pg_current_xact_id()").fetchall()
    writer.rollback()
    assert await reader.orgs() == await now.orgs() == []
    published(conninfo, "one")
    execute(conninfo, "UPDATE outbound_events SET xid = %s", xid)
    assert await reader.orgs() == await now.orgs() == ["one"]


async def test_a_transaction_that_only_reads_delays_nothing(
    reader: Reader, conninfo: str, writer: psycopg.Connection[Any]
) -> None:
    writer.execute("SELECT count(*) FROM tenants")
    published(conninfo, "one")
    assert await reader.orgs() == ["one"]


async def test_a_page_may_end_within_the_events_of_a_transaction(
    reader: Reader, conninfo: str
) -> None:
    published(conninfo, "a", "b", "c", "d", "e")
    assert [await reader.orgs(limit=2) for _ in range(4)] == [["a", "b"], ["c", "d"], ["e"], []]


async def test_a_page_costs_no_more_behind_or_before_many_events(
    database: Database, conninfo: str
) -> None:
    execute(conninfo, PUBLISH_MANY, CREATED, 1000)
    execute(conninfo, "ANALYZE outbound_events")  # as PostgreSQL itself does, a minute later
    async with database.transaction(ACROSS_TENANTS, is_snapshot=True) as connection:
        until = await store.horizon(connection, await store.newest_epoch(connection))
        page = await store.read(connection, BEGINNING, until, ALL, 10)
        await store.newest_position(connection, until.epoch)
        examined = await connection.fetch_count(ROWS_READ)
    assert len(page.events) == 10
    assert examined < 50


async def test_two_readers_get_all_events_each(feed: ChangeFeed, conninfo: str) -> None:
    eager, lazy = Reader(feed), Reader(feed)
    expected = [f"org{number}" for number in range(4)]
    seen = []
    for org in expected:
        published(conninfo, org)
        seen += await eager.orgs()
    assert seen == await lazy.orgs() == expected


async def test_now_begins_with_the_changes_that_follow(feed: ChangeFeed, conninfo: str) -> None:
    published(conninfo, "before")
    reader = Reader(feed, NOW)
    assert await reader.orgs() == []
    published(conninfo, "after")
    assert await reader.orgs() == ["after"]


# Filters


async def test_a_filter_finds_an_event_behind_many_others(reader: Reader, conninfo: str) -> None:
    execute(conninfo, PUBLISH_MANY, UPDATED, 2 * MAX_SCANNED_EVENTS + 1)
    published(conninfo, "wanted")
    assert await reader.orgs(wanted=EventFilter([CREATED])) == ["wanted"]


async def test_a_filter_of_a_tenant_finds_its_event_behind_many_others(
    reader: Reader, conninfo: str
) -> None:
    execute(conninfo, PUBLISH_MANY, CREATED, MAX_SCANNED_EVENTS + 1)
    published(conninfo, "wanted", "other")
    published(conninfo, "wanted")
    assert await reader.orgs(wanted=EventFilter([CREATED], "wanted")) == ["wanted", "wanted"]


async def test_a_filter_that_matches_nothing_advances_the_cursor(
    reader: Reader, conninfo: str
) -> None:
    execute(conninfo, PUBLISH_MANY, UPDATED, MAX_SCANNED_EVENTS + 1)
    assert await reader.orgs(wanted=EventFilter([CREATED])) == []
    assert await reader.orgs(wanted=ALL) == []


# Waiting


async def test_a_waiting_reader_gets_an_event_as_soon_as_it_is_committed(
    reader: Reader, conninfo: str
) -> None:
    async with asyncio.timeout(SOON):
        waiting = asyncio.create_task(reader.page(wait=timedelta(hours=1)))
        await Reader(reader.feed).page()
        assert not waiting.done()
        published(conninfo, "one")
        assert [event.org_id for event in (await waiting).data] == ["one"]


async def test_a_reader_waits_for_events_that_its_filter_lets_pass(
    reader: Reader, conninfo: str
) -> None:
    async with asyncio.timeout(SOON):
        wanted = EventFilter([CREATED], "wanted")
        waiting = asyncio.create_task(reader.page(wanted=wanted, wait=timedelta(hours=1)))
        published(conninfo, "other")
        await Reader(reader.feed).page(wait=timedelta(hours=1))
        assert not waiting.done()
        published(conninfo, "wanted")
        assert [event.org_id for event in (await waiting).data] == ["wanted"]


async def test_an_event_behind_an_open_transaction_wakes_a_waiting_reader_at_its_end(
    reader: Reader, conninfo: str, writer: psycopg.Connection[Any]
) -> None:
    async with asyncio.timeout(SOON):
        writer.execute("SELECT pg_current_xact_id()")
        published(conninfo, "one")
        waiting = asyncio.create_task(reader.page(wait=timedelta(hours=1)))
        await Reader(reader.feed).page()
        assert not waiting.done()
        writer.rollback()
        assert [event.org_id for event in (await waiting).data] == ["one"]


async def test_the_wait_ends_without_an_event(reader: Reader, conninfo: str) -> None:
    async with asyncio.timeout(SOON):
        assert (await reader.page(wait=timedelta(milliseconds=1))).data == []
    published(conninfo, "one")
    assert await reader.orgs() == ["one"]


async def test_a_process_that_stops_answers_readers_that_wait(conninfo: str) -> None:
    app = make_app(conninfo)
    assert isinstance(app, Dispatcher)
    headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
    async with lifespan(app), client_of(app) as client:
        asking = client.get(EVENTS, params={"after": NOW, "wait": 20}, headers=headers)
        waiting = asyncio.create_task(asking)
        await client.get(EVENTS, headers=headers)
        assert not waiting.done()
        shutdown = app.state[SHUTDOWN]
        assert isinstance(shutdown, Shutdown)
        shutdown.close()
        async with asyncio.timeout(SOON):
            response = await waiting
    assert response.status_code == 200
    assert response.json()["data"] == []


@pytest.mark.thorough
async def test_many_waiting_readers_leave_room_for_other_requests(service: Service) -> None:
    org = await service.organization()
    reads = await service.key(org.owner, org.id, "projects:read")
    start = (await service.operator.get(EVENTS, after=NOW)).json()["nextCursor"]
    readers = [
        asyncio.create_task(service.operator.get(EVENTS, after=start, wait=20, orgId=org.id))
        for _ in range(200)
    ]
    lists = await asyncio.gather(*(reads.caller.get(PROJECTS) for _ in range(50)))
    events = await asyncio.gather(*(service.operator.get(EVENTS, limit=1) for _ in range(20)))
    assert {response.status_code for response in (*lists, *events)} == {200}
    changed = await org.owner.patch(org.path, {"name": "Renamed"})
    assert changed.status_code == 200
    async with asyncio.timeout(SOON):
        answers = [response.json() for response in await asyncio.gather(*readers)]
    found = {tuple(event["type"] for event in answer["data"]) for answer in answers}
    assert found == {("tenant.updated",)}


async def test_a_waiting_reader_has_no_deadline_and_counts_as_no_load(conninfo: str) -> None:
    app = make_app(conninfo, system_clock, Timeouts(request=0.5))
    assert isinstance(app, Dispatcher)
    detector = app.state[OVERLOAD_DETECTOR]
    assert isinstance(detector, OverloadDetector)
    headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
    async with lifespan(app), client_of(app) as client:
        asking = client.get(EVENTS, params={"after": NOW, "wait": 1}, headers=headers)
        waiting = asyncio.create_task(asking)
        await client.get("/healthz")
        assert detector._excluded() == 1
        assert (await waiting).status_code == 200


# Epochs


async def test_a_cursor_is_valid_after_a_failover(reader: Reader, conninfo: str) -> None:
    published(conninfo, "before")
    [before] = (await reader.page()).data
    execute(conninfo, SAME_FILES_ELSEWHERE)
    published(conninfo, "after")
    [after] = (await reader.page()).data
    assert after.org_id == "after"
    assert after.version > before.version


async def test_a_change_is_published_in_the_newest_epoch(
    fresh_service: Service,
) -> None:
    execute(fresh_service.conninfo, "SELECT outbound_epoch()")
    execute(fresh_service.conninfo, SAME_FILES_ELSEWHERE)
    await fresh_service.organization()
    found = await rows(fresh_service.conninfo, "SELECT DISTINCT epoch FROM outbound_events")
    assert found == [{"epoch": 2}]


async def test_events_follow_those_of_former_epochs_whatever_their_transactions(
    reader: Reader, conninfo: str
) -> None:
    published(conninfo, "first")
    execute(conninfo, "UPDATE outbound_events SET xid = '9000000000'")
    execute(conninfo, SAME_FILES_ELSEWHERE)
    published(conninfo, "second")
    assert await reader.orgs(limit=1) == ["first"]
    published(conninfo, "third")
    assert await reader.orgs() == ["second", "third"]


async def test_a_reader_alone_finds_the_last_events_before_a_failover(
    reader: Reader, conninfo: str
) -> None:
    published(conninfo, "first")
    execute(conninfo, "UPDATE outbound_events SET xid = '9000000000'")
    execute(conninfo, SAME_FILES_ELSEWHERE)
    assert await reader.orgs() == ["first"]


@pytest.mark.parametrize("first", [1, 2**52], ids=["clock runs", "clock was set back"])
async def test_the_versions_of_an_epoch_begin_above_all_that_were_lost(
    database: Database, reader: Reader, conninfo: str, first: int
) -> None:
    execute(conninfo, "SELECT setval('outbound_versions', %s)", first)
    published(conninfo, "kept", "lost", "lost")
    [kept, _, lost] = (await reader.page()).data
    execute(conninfo, "DELETE FROM outbound_events WHERE org_id = 'lost'")
    execute(conninfo, "SELECT setval('outbound_versions', %s)", kept.version)
    await begin_epoch(database)
    published(conninfo, "new")
    [new] = (await Reader(reader.feed, kept.id).page()).data
    assert new.org_id == "new"
    assert new.version > lost.version


async def test_a_copy_continues_with_the_cursors_of_its_original(
    conninfo: str, postgres: PostgresServer
) -> None:
    published(conninfo, "first", "second")
    async with feed_of(conninfo) as feed:
        reader = Reader(feed)
        [first] = (await reader.page(limit=1)).data
    with postgres.database(like=conninfo) as copy:
        async with feed_of(copy) as feed:
            continued = Reader(feed, reader.cursor)
            assert await continued.orgs() == ["second"]
            published(copy, "third")
            [third] = (await continued.page()).data
            assert third.version > first.version


async def test_a_cursor_of_a_copy_has_expired_for_others(
    conninfo: str, postgres: PostgresServer
) -> None:
    published(conninfo, "first")
    cursors = []
    for _ in range(2):
        with postgres.database(like=conninfo) as copy:
            async with feed_of(copy) as feed:
                published(copy, "second")
                reader = Reader(feed)
                assert await reader.orgs() == ["first", "second"]
                cursors.append(reader.cursor)
    async with feed_of(conninfo) as feed:
        for cursor in cursors:
            with pytest.raises(CursorExpiredError):
                await Reader(feed, cursor).page()
    with postgres.database(like=conninfo) as copy:
        published(copy, "third")  # its epoch has the number of the others
        async with feed_of(copy) as feed:
            with pytest.raises(CursorExpiredError):
                await Reader(feed, cursors[0]).page()


async def test_a_cursor_beyond_all_transactions_has_expired(reader: Reader, conninfo: str) -> None:
    """The files of the database were replaced by older ones."""
    published(conninfo, "lost")
    execute(conninfo, "UPDATE outbound_events SET xid = '9000000000'")
    execute(conninfo, SAME_FILES_ELSEWHERE)
    assert await reader.orgs(limit=1) == ["lost"]
    execute(conninfo, "DELETE FROM outbound_epochs WHERE epoch = 2")
    execute(conninfo, "UPDATE outbound_epochs SET timeline = timeline + 1")
    with pytest.raises(CursorExpiredError):
        await reader.page()


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_cursor_whose_event_was_lost_has_expired(
    reader: Reader, conninfo: str, by_id: bool
) -> None:
    """A backup, or a standby that lacked the last commits, has replaced the database. Its epoch is
    that of before: only the event is missing.
    """
    published(conninfo, "kept")
    [kept] = (await reader.page()).data
    published(conninfo, "lost")
    [lost] = (await reader.page()).data
    execute(conninfo, "DELETE FROM outbound_events WHERE org_id = 'lost'")
    execute(conninfo, SAME_FILES_ELSEWHERE)
    published(conninfo, "after")
    with pytest.raises(CursorExpiredError):
        await Reader(reader.feed, lost.id if by_id else reader.cursor).page()
    assert await Reader(reader.feed, kept.id).orgs() == ["after"]


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
async def test_transactions_at_once_begin_one_epoch(conninfo: str, ends: str) -> None:
    async def epoch(connection: psycopg.AsyncConnection[Any]) -> int:
        async with connection:
            cursor = await connection.execute("SELECT outbound_epoch()")
            [[number]] = await cursor.fetchall()
            return int(number)

    connections = [await psycopg.AsyncConnection.connect(conninfo) for _ in range(7)]
    with psycopg.connect(conninfo, autocommit=True) as first:
        first.execute("BEGIN")
        assert first.execute("SELECT outbound_epoch()").fetchall() == [(1,)]
        others = [asyncio.create_task(epoch(connection)) for connection in connections]
        await until_blocked(conninfo, len(others))
        first.execute(ends.encode())
        assert await asyncio.gather(*others) == [1] * len(others)
    assert await rows(conninfo, EPOCHS) == [{"number": 1, "newest": 1}]


async def test_an_epoch_begins_after_the_transactions_of_the_former_one(
    database: Database, reader: Reader, conninfo: str, writer: psycopg.Connection[Any]
) -> None:
    publish(writer, "former")
    beginning = asyncio.create_task(begin_epoch(database))
    await until_blocked(conninfo)
    assert await rows(conninfo, EPOCHS) == [{"number": 1, "newest": 1}]
    writer.commit()
    await beginning
    assert await rows(conninfo, EPOCHS) == [{"number": 2, "newest": 2}]
    published(conninfo, "new")
    assert await reader.orgs() == ["former", "new"]


# Privileges


@pytest.fixture
def api(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    """The role of the API, in the transaction of a tenant."""
    options = f"-c role={API} -c {TENANT}=own"
    with psycopg.connect(make_conninfo(conninfo, options=options)) as connection:
        yield connection


async def test_the_api_publishes_events_of_its_tenant(
    reader: Reader, api: psycopg.Connection[Any]
) -> None:
    publish(api, "own")
    api.commit()
    assert await reader.orgs() == ["own"]


def test_the_api_cannot_publish_events_of_another_tenant(api: psycopg.Connection[Any]) -> None:
    with pytest.raises(InsufficientPrivilege, match="row-level security"):
        publish(api, "other")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT version FROM outbound_events",
        "DELETE FROM outbound_events",
        "UPDATE outbound_events SET data = '{}'",
        "SELECT token FROM outbound_epochs",
        "INSERT INTO outbound_epochs (epoch, cluster, timeline, database) VALUES (9, 1, 1, 1)",
        "SELECT begin_outbound_epoch()",
        "SELECT setval('outbound_versions', 1)",
    ],
)
def test_the_api_can_do_no_more_with_events(api: psycopg.Connection[Any], statement: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        api.execute(statement.encode())
