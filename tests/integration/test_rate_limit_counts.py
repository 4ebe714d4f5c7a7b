"""The table of counted requests: concurrent requests together never exceed a limit."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import pytest

from tenantry.auth.rate_limits import subject_of_tenant
from tenantry.auth.rate_limits_store import LOCK_SUBJECTS, take
from tenantry.billing.ledger_store import lock_names
from tenantry.db.connection import Connection
from tenantry.db.database import Database
from tenantry.domain.billing.ledger import NameLock
from tenantry.domain.rate_limits import SLOTS, Policy, RateSubject
from tenantry.domain.shares import ShareRequest
from tests.support.billing import until_blocked
from tests.support.patience import patient_database

NOW = 1_800_000_000
NEVER = -61


@pytest.fixture
async def database(emptied: str) -> AsyncIterator[Database]:
    database = patient_database(emptied, pool_size=1)
    yield database
    await database.close()


@pytest.fixture
async def connection(emptied: str) -> AsyncIterator[Connection]:
    async with await Connection.connect(emptied) as connection:
        yield connection


class Granted(NamedTuple):
    """The number granted, the total, and the counted second that frees more at its end."""

    number: int
    total: int
    frees_at: int


def request(  # a row of a table
    name: str,
    limit: int,
    wanted: int,
    counted_in: int,
    unused: int,
    missing: int = 0,
    within: str = "",
) -> ShareRequest[RateSubject]:
    subject = RateSubject(Policy.KEY, name, within)
    return ShareRequest(subject, limit, wanted, counted_in, unused, missing)


async def taken_by(
    connection: Connection, requests: Sequence[ShareRequest[RateSubject]], now: int
) -> dict[str, Granted]:
    granted = await take(connection, requests, now)
    return {
        name: Granted(each.number, each.total, each.resets_at - SLOTS)
        for name, each in granted.items()
    }


async def take_one(connection: Connection, wanted: int, limit: int = 10, now: int = NOW) -> Granted:
    return (await taken_by(connection, [request("a", limit, wanted, NEVER, 0)], now))["a"]


async def counts_of(connection: Connection) -> list[tuple[int, int]]:
    cursor = await connection.execute("SELECT second, number FROM request_counts ORDER BY second")
    return await cursor.fetchall()


async def test_no_more_is_granted_than_is_left(connection: Connection) -> None:
    assert await take_one(connection, 7) == Granted(7, 7, NOW)
    assert await take_one(connection, 7) == Granted(3, 10, NOW)
    assert await take_one(connection, 7) == Granted(0, 10, NOW)
    assert await counts_of(connection) == [(NOW, 10)]


async def test_second_counts_for_sixty_seconds_after_it(connection: Connection) -> None:
    await take_one(connection, 10)
    assert await take_one(connection, 1, now=NOW + 60) == Granted(0, 10, NOW)
    assert await take_one(connection, 1, now=NOW + 61) == Granted(1, 1, NOW + 61)


async def test_seconds_past_the_window_are_removed(connection: Connection) -> None:
    await take_one(connection, 4)
    await take_one(connection, 4, now=NOW + 30)
    await take_one(connection, 4, now=NOW + 61)
    assert await counts_of(connection) == [(NOW + 30, 4), (NOW + 61, 4)]


async def test_returned_shares_are_granted_again_immediately(connection: Connection) -> None:
    await take_one(connection, 10)
    returned = await taken_by(connection, [request("a", 10, 5, NOW, 3)], NOW + 1)
    assert returned == {"a": Granted(3, 10, NOW)}
    assert await counts_of(connection) == [(NOW, 7), (NOW + 1, 3)]


async def test_no_more_is_returned_than_was_counted(connection: Connection) -> None:
    await take_one(connection, 2)
    assert await taken_by(connection, [request("a", 10, 20, NOW, 9)], NOW + 1) == {
        "a": Granted(10, 10, NOW + 1)
    }
    assert await taken_by(connection, [request("b", 10, 20, NOW, 9)], NOW + 1) == {
        "b": Granted(10, 10, NOW + 1)
    }


async def test_returned_share_of_the_current_second_is_subtracted(connection: Connection) -> None:
    await take_one(connection, 5)
    await taken_by(connection, [request("a", 10, 0, NOW, 2)], NOW)
    assert await counts_of(connection) == [(NOW, 3)]


async def test_retry_after_is_the_second_that_accepts_one_more(connection: Connection) -> None:
    for second, wanted in ((NOW, 1), (NOW + 1, 2), (NOW + 2, 7)):
        await take_one(connection, wanted, now=second)
    assert await take_one(connection, 1, limit=10, now=NOW + 3) == Granted(0, 10, NOW)
    assert await take_one(connection, 1, limit=9, now=NOW + 3) == Granted(0, 10, NOW + 1)
    assert await take_one(connection, 1, limit=8, now=NOW + 3) == Granted(0, 10, NOW + 1)
    assert await take_one(connection, 1, limit=7, now=NOW + 3) == Granted(0, 10, NOW + 2)


async def test_counts_of_a_clock_ahead_limit_the_clocks_behind(connection: Connection) -> None:
    await take_one(connection, 10, now=NOW + 5)
    assert await take_one(connection, 1) == Granted(0, 10, NOW + 5)


async def test_subjects_are_counted_apart(connection: Connection) -> None:
    taken = await taken_by(connection, [request(name, 3, 2, NEVER, 0) for name in "ba"], NOW)
    assert taken == {"a": Granted(2, 2, NOW), "b": Granted(2, 2, NOW)}


async def test_tenant_is_charged_only_for_shares_granted_to_its_keys(
    connection: Connection,
) -> None:
    tenant = request("tenant", 7, 12, NEVER, 0, 12)
    keys = [
        request("key 1", 3, 10, NEVER, 0, 10, "tenant"),
        request("key 2", 3, 2, NEVER, 0, 2, "tenant"),
    ]
    taken = await taken_by(connection, [tenant, *keys], NOW)
    assert {name: granted.number for name, granted in taken.items()} == {
        "tenant": 5,
        "key 1": 3,
        "key 2": 2,
    }


async def test_waiting_statement_sees_the_committed_counts(
    emptied: str, connection: Connection
) -> None:
    await connection.run_batch(LOCK_SUBJECTS(["a"]))
    async with await Connection.connect(emptied) as other:
        waiting = asyncio.create_task(take_one(other, 10))
        await until_blocked(emptied)
        await connection.execute("INSERT INTO request_counts VALUES ('a', %s, 8)", (NOW,))
        await connection.commit()
        assert await waiting == Granted(2, 10, NOW)


async def test_open_transaction_on_the_tenant_blocks_no_request(
    emptied: str, connection: Connection
) -> None:
    await lock_names(connection, [NameLock("tenant one", claimed=True)])
    async with await Connection.connect(emptied, options="-c lock_timeout=1s") as other:
        taken = await taken_by(other, [request(subject_of_tenant("one"), 10, 1, NEVER, 0)], NOW)
    assert [granted.number for granted in taken.values()] == [1]


async def test_concurrent_statements_grant_the_limit_without_deadlock(database: Database) -> None:
    lanes = [database.lane() for _ in range(4)]
    names = [f"subject {number}" for number in range(8)]

    async def keep_taking(number: int) -> Counter[str]:
        got: Counter[str] = Counter()
        for turn in range(25):
            order = names[(number + turn) % 8 :] + names[: (number + turn) % 8]
            async with lanes[number].use() as connection:
                taken = await taken_by(
                    connection, [request(name, 100, 3, NEVER, 0) for name in order], NOW + turn
                )
            got.update({name: granted.number for name, granted in taken.items()})
        return got

    taken = await asyncio.gather(*(keep_taking(number) for number in range(4)))
    assert sum(taken, Counter()) == dict.fromkeys(names, 100)
