"""Several limiters on one database: unused leases return, and unused counts are deleted."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

from tenantry.auth.rate_limits import RateLimiter
from tenantry.db.connection import Connection
from tenantry.domain.errors import AuthUnavailableError
from tenantry.domain.plans import parse_catalog
from tenantry.jobs.retention import RetentionService
from tests.support.billing import until_blocked
from tests.support.database_link import database_link
from tests.support.logs import watched
from tests.support.patience import patient_database
from tests.support.principals import make_principal, on_plan
from tests.support.rate_limits import let_through, limiter_on
from tests.support.service import ManualClock

CATALOG = parse_catalog("""
[[plans]]
id = "free"
[plans.limits]
requests_per_minute = 1000
[[plans]]
id = "small"
[plans.limits]
requests_per_minute = 5
""")
WIDE = make_principal()
SMALL = on_plan(msgspec.structs.replace(WIDE, org_id="little"), "small")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def limiter(emptied: str, clock: ManualClock) -> AsyncIterator[RateLimiter]:
    async with limiter_on(emptied, clock, CATALOG) as limiter:
        yield limiter


@pytest.fixture
async def connection(emptied: str) -> AsyncIterator[Connection]:
    async with await Connection.connect(emptied, autocommit=True) as connection:
        yield connection


async def counted(connection: Connection) -> int:
    cursor = await connection.execute("SELECT coalesce(sum(number), 0) FROM request_counts")
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def test_single_process_accepts_exactly_the_limit(
    limiter: RateLimiter, clock: ManualClock
) -> None:
    through = 0
    for _ in range(50):
        through += await let_through(limiter, 21, WIDE)
        clock.advance(seconds=1)
    assert through == 1000


async def test_idle_process_returns_unused_shares(
    limiter: RateLimiter, clock: ManualClock, connection: Connection
) -> None:
    await let_through(limiter, 5, WIDE)
    assert await counted(connection) == 7
    clock.advance(seconds=1)
    await limiter.return_unused()
    assert await counted(connection) == 5


async def test_returned_shares_are_available_to_others(
    emptied: str, limiter: RateLimiter, clock: ManualClock
) -> None:
    async with limiter_on(emptied, clock, CATALOG) as other:
        await let_through(limiter, 5, WIDE)
        assert await let_through(other, 1000, WIDE) == 993
        clock.advance(seconds=1)
        await limiter.return_unused()
        assert await let_through(other, 1000, WIDE) == 2


async def test_valid_share_is_kept(limiter: RateLimiter, connection: Connection) -> None:
    await let_through(limiter, 5, WIDE)
    await limiter.return_unused()
    assert await counted(connection) == 7


async def test_stopping_process_returns_all_shares(
    emptied: str, clock: ManualClock, connection: Connection
) -> None:
    async with limiter_on(emptied, clock, CATALOG) as limiter:
        await let_through(limiter, 5, WIDE)
    assert await counted(connection) == 5


async def test_counts_of_an_idle_subject_are_removed_after_the_window(
    limiter: RateLimiter, clock: ManualClock, connection: Connection
) -> None:
    await let_through(limiter, 5, WIDE)
    clock.advance(seconds=60)
    await limiter.return_unused()
    assert await counted(connection) == 5
    clock.advance(seconds=1)
    await limiter.return_unused()
    cursor = await connection.execute("SELECT count(*) FROM request_counts")
    assert await cursor.fetchone() == (0,)
    assert await let_through(limiter, 2000, WIDE) == 1000


async def test_canceled_waiting_request_is_not_counted(
    emptied: str, limiter: RateLimiter, clock: ManualClock
) -> None:
    async with await Connection.connect(emptied) as locking:
        await locking.execute("LOCK TABLE request_counts")
        waiting = asyncio.create_task(limiter.count(SMALL))
        await until_blocked(emptied)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await let_through(limiter, 10, SMALL) == 5


async def test_late_share_is_requested_again_for_its_second(
    emptied: str, limiter: RateLimiter, clock: ManualClock, connection: Connection
) -> None:
    async with await Connection.connect(emptied) as locking:
        await locking.execute("LOCK TABLE request_counts")
        waiting = asyncio.create_task(limiter.count(SMALL))
        await until_blocked(emptied)
        first = int(clock().timestamp())
        clock.advance(seconds=1)
    await waiting
    cursor = await connection.execute(
        "SELECT second - %s, number FROM request_counts ORDER BY second", (first,)
    )
    assert await cursor.fetchall() == [(0, 0), (1, 1)]


async def test_late_shares_are_returned_before_the_next_batch(
    emptied: str, limiter: RateLimiter, clock: ManualClock, connection: Connection
) -> None:
    async with await Connection.connect(emptied) as locking:
        await locking.execute("LOCK TABLE request_counts")
        first_batch = asyncio.gather(*(limiter.count(WIDE) for _ in range(12)))
        await until_blocked(emptied)
        second_batch = asyncio.gather(*(limiter.count(WIDE) for _ in range(12)))
        await asyncio.sleep(0)
        clock.advance(seconds=1)
    await asyncio.gather(first_batch, second_batch)
    assert await counted(connection) == 24


async def test_only_reserved_shares_are_used_while_the_database_is_unavailable(
    emptied: str, clock: ManualClock
) -> None:
    async with database_link(emptied) as link, limiter_on(link.conninfo, clock, CATALOG) as limiter:
        await let_through(limiter, 5, WIDE)
        await link.cut()
        assert limiter.count_locally(WIDE) is not None
        assert limiter.count_locally(SMALL) is None
        with pytest.raises(AuthUnavailableError):
            await limiter.count(SMALL)
        clock.advance(seconds=1)
        with watched("tenantry.auth.share_counting") as log:
            await limiter.return_unused()
        assert log.count("are not returned") == 1
        await link.restore()
        assert await let_through(limiter, 2, WIDE) == 2


async def test_counts_that_a_killed_process_left_are_removed_after_an_hour(
    emptied: str, clock: ManualClock, connection: Connection
) -> None:
    now = int(clock().timestamp())
    await connection.execute(
        "INSERT INTO request_counts SELECT 'tenant a', %s - age, 1 FROM generate_series(3599, 3602) AS age",
        (now,),
    )
    database = patient_database(emptied, pool_size=1)
    await database.open()
    removed = await RetentionService(database, timedelta(days=90), clock).run()
    await database.close()
    assert removed["request counts"] == 2
    assert await counted(connection) == 2


async def test_counts_of_a_clock_far_ahead_do_not_block_others(
    limiter: RateLimiter, emptied: str
) -> None:
    ahead = ManualClock()
    ahead.advance(hours=26)
    async with limiter_on(emptied, ahead, CATALOG) as mistaken:
        assert await let_through(mistaken, 10, SMALL) == 5
        assert await let_through(limiter, 10, SMALL) == 5


async def test_a_clock_that_is_set_back_blocks_no_request(
    limiter: RateLimiter, clock: ManualClock
) -> None:
    clock.advance(hours=26)
    assert await let_through(limiter, 10, SMALL) == 5
    clock.advance(hours=-26)
    assert await let_through(limiter, 10, SMALL) == 5


async def test_shares_from_before_the_clock_was_set_back_are_dropped(
    limiter: RateLimiter, clock: ManualClock, connection: Connection
) -> None:
    clock.advance(hours=26)
    assert await let_through(limiter, 1, WIDE) == 1
    clock.advance(hours=-26)
    await limiter.return_unused()
    await limiter.return_unused()
    assert await counted(connection) == 0
