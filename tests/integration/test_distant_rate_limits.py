"""Rate limits in a process that is far from the database: few turns, and exact all the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from tenantry.auth.rate_limits import RateLimiter, subject_of_tenant
from tenantry.auth.rate_limits_store import count_requests
from tenantry.db.connection import Connection
from tenantry.domain.errors import AuthUnavailableError, RateLimitedError
from tenantry.domain.plans import parse_catalog
from tenantry.domain.rate_limits import DISTANT_DATABASE, NEAR_DATABASE
from tenantry.domain.shares import ShareTerms
from tests.support import rate_limits
from tests.support.billing import until_blocked
from tests.support.catalogs import catalog_file
from tests.support.database_link import database_link
from tests.support.principals import make_principal, on_plan
from tests.support.rate_limits import let_through, limiter_on, tenant_of
from tests.support.service import PROJECTS, ManualClock, running_service

CATALOG = parse_catalog("""
[[plans]]
id = "free"
[plans.limits]
requests_per_minute_per_key = 6000
[[plans]]
id = "narrow"
[plans.limits]
requests_per_minute_per_key = 1000
[[plans]]
id = "both"
[plans.limits]
requests_per_minute = 1500
requests_per_minute_per_key = 1000
""")
CALLER = make_principal()
NARROW = on_plan(CALLER, "narrow")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def connection(emptied: str) -> AsyncIterator[Connection]:
    async with await Connection.connect(emptied, autocommit=True) as connection:
        yield connection


def distant(conninfo: str, clock: ManualClock) -> AbstractAsyncContextManager[RateLimiter]:
    """The limiter of a distant process."""
    return limiter_on(conninfo, clock, CATALOG, DISTANT_DATABASE)


async def counted(connection: Connection) -> int:
    return await connection.fetch_count("SELECT coalesce(sum(number), 0) FROM request_counts")


@pytest.mark.parametrize(
    ("terms", "plan", "turns"),
    [
        (NEAR_DATABASE, "free", 22),
        (DISTANT_DATABASE, "free", 7),
        (NEAR_DATABASE, "narrow", 103),
        (DISTANT_DATABASE, "narrow", 22),
    ],
)
async def test_turns_that_a_thousand_requests_of_a_key_take(
    emptied: str, clock: ManualClock, terms: ShareTerms, plan: str, turns: int
) -> None:
    taken: list[int] = []

    def observe(items: int, _waited: float, _took: float) -> None:
        taken.append(items)

    async with limiter_on(emptied, clock, CATALOG, terms, observe) as limiter:
        assert await let_through(limiter, 1000, on_plan(CALLER, plan)) == 1000
        assert len(taken) == turns


async def test_a_steady_caller_waits_for_no_turn_after_the_first_seconds(
    emptied: str, clock: ManualClock
) -> None:
    waits = []
    async with distant(emptied, clock) as limiter:
        for second in range(60):
            for _ in range(50):
                if limiter.count_locally(CALLER) is None:
                    waits.append(second)
                    await limiter.count(CALLER)
            clock.advance(seconds=1)
            await limiter.return_unused()
            await limiter.renew()
    assert set(waits) <= {0, 1}


async def test_a_share_stays_usable_while_it_is_renewed(
    emptied: str, clock: ManualClock, connection: Connection
) -> None:
    async with distant(emptied, clock) as limiter:
        assert await let_through(limiter, 60, CALLER) == 60  # of 1 + 8 + 64
        clock.advance(seconds=3)
        async with await Connection.connect(emptied) as locking:
            await locking.execute("LOCK TABLE request_counts")
            renewal = asyncio.create_task(limiter.renew())
            await until_blocked(emptied)
            assert all(limiter.count_locally(CALLER) for _ in range(10))
        await renewal
        clock.advance(seconds=4)
        assert limiter.count_locally(CALLER) is not None
    assert await counted(connection) == 71


async def test_requests_of_an_exhausted_key_leave_the_share_of_its_tenant_alone(
    emptied: str, clock: ManualClock, connection: Connection
) -> None:
    caller = on_plan(CALLER, "both")
    exhausted = msgspec.structs.replace(caller, id="key_exhausted")
    async with distant(emptied, clock) as limiter, limiter_on(emptied, clock, CATALOG) as near:
        assert await let_through(near, 1001, exhausted) == 1000
        assert await let_through(limiter, 60, caller) == 60
        clock.advance(seconds=3)
        async with await Connection.connect(emptied) as locking:
            await locking.execute("LOCK TABLE request_counts")
            waiting = [asyncio.create_task(limiter.count(exhausted)) for _ in range(100)]
            await until_blocked(emptied)
            assert all(limiter.count_locally(caller) for _ in range(10))
        refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in refused} == {RateLimitedError}
    subject = subject_of_tenant(caller.org_id)
    assert await count_requests(connection, subject, since=0) == 1070


async def test_a_share_ends_after_its_seconds(
    emptied: str, clock: ManualClock, connection: Connection
) -> None:
    async with distant(emptied, clock) as limiter:
        assert await let_through(limiter, 2, CALLER) == 2
        clock.advance(seconds=4)
        assert limiter.count_locally(CALLER) is not None
        clock.advance(seconds=1)
        assert limiter.count_locally(CALLER) is None
        await limiter.return_unused()
        assert await counted(connection) == 3


async def test_nothing_is_accepted_or_returned_that_a_failed_renewal_may_have_returned(
    emptied: str, clock: ManualClock, connection: Connection
) -> None:
    async with database_link(emptied) as link, distant(link.conninfo, clock) as limiter:
        assert await let_through(limiter, 60, CALLER) == 60
        clock.advance(seconds=3)
        await link.cut()
        await limiter.renew()
        assert limiter.count_locally(CALLER) is None
        with pytest.raises(AuthUnavailableError):
            await limiter.count(CALLER)
        await link.restore()
    assert await counted(connection) == 73


async def test_requests_of_a_distant_process_count_for_others_until_a_minute_after_its_share(
    emptied: str, clock: ManualClock
) -> None:
    async with distant(emptied, clock) as limiter, limiter_on(emptied, clock, CATALOG) as near:
        assert await let_through(limiter, 1001, NARROW) == 1000
        clock.advance(seconds=64)
        assert await let_through(near, 1, NARROW) == 0
        clock.advance(seconds=1)
        assert await let_through(near, 1001, NARROW) == 1000


@pytest.mark.parametrize("checks", [False, True])
async def test_processes_that_check_on_standbys_reserve_for_several_seconds(
    emptied: str, connection: Connection, checks: bool
) -> None:
    standbys = {"DATABASE_URL": emptied, "DATABASE_CHECKS_URL": emptied} if checks else {}
    plans = catalog_file(rate_limits.CATALOG)
    async with running_service(emptied, TENANTRY_PLANS=plans, **standbys) as service:
        org = await tenant_of(service, "wide")
        assert (await org.owner.get(PROJECTS)).status_code == 200
        second = int(service.clock().timestamp())
        counts_in = await connection.fetch_value("SELECT max(second) FROM request_counts")
        assert counts_in - second == (4 if checks else 0)
