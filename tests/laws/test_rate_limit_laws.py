"""However several processes take while time goes by: never more than the limit in 60 seconds.
Through the real ones.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenantry.auth.rate_limits import RateLimiter
from tenantry.auth.rate_limits_store import SESSION
from tenantry.common.clock import Timeouts
from tenantry.db.database import Database
from tenantry.domain.errors import RateLimitedError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import parse_catalog
from tenantry.domain.rate_limits import DISTANT_DATABASE, NEAR_DATABASE, SLOTS, WINDOW
from tenantry.domain.shares import ShareTerms
from tests.support import figures
from tests.support.principals import NOW, make_principal, on_plan

PROCESSES = 3
TERMS = {
    "near": (NEAR_DATABASE,) * PROCESSES,
    "distant": (DISTANT_DATABASE,) * PROCESSES,
    "mixed": (NEAR_DATABASE, DISTANT_DATABASE, DISTANT_DATABASE),
}
PATIENCE = 60.0
"""Seconds: a machine that stalls is no database that is gone, whose requests are refused."""
LIMITS = (1, 5, 250, 700)
CATALOG = parse_catalog(
    '[[plans]]\nid = "free"\n'
    + "".join(
        f'[[plans]]\nid = "{limit}"\n[plans.limits]\nrequests_per_minute = {limit}\n'
        for limit in LIMITS
    )
)
Value = TypeVar("Value")


class Step(NamedTuple):
    """So many requests at a process, all at once, and the microseconds that go by after them."""

    process: int
    requests: int
    gives_back: bool
    passes: int


steps = st.builds(
    Step,
    st.integers(0, PROCESSES - 1),
    st.integers(0, 300),
    st.booleans(),
    st.sampled_from(
        [
            0,
            1,
            400_000,
            999_999,
            1_000_000,
            3_000_000,
            4_000_000,
            7_300_000,
            29_999_999,
            59_999_999,
            60_000_000,
            61_000_000,
            64_999_999,
        ]
    ),
)


class World:
    """Several processes' limiters on one database, and a clock that stands still until it is
    moved.
    """

    def __init__(self, conninfo: str, terms_of: Sequence[ShareTerms]) -> None:
        self._runner = asyncio.Runner()
        self._databases = [
            Database(conninfo, pool_size=1, timeouts=Timeouts(rate_limits=PATIENCE))
            for _ in range(PROCESSES)
        ]
        self.now = NOW
        self.limiters = [
            RateLimiter(database.lane(SESSION), CATALOG, lambda: self.now, terms=terms)
            for database, terms in zip(self._databases, terms_of, strict=True)
        ]
        self.tenants = 0

    def new_tenant(self, limit: int) -> RequestPrincipal:
        """A caller of a tenant that nothing has been counted of."""
        self.tenants += 1
        return on_plan(
            msgspec.structs.replace(make_principal(), org_id=f"org-{self.tenants}"), str(limit)
        )

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self._runner.run(work)

    def close(self) -> None:
        for limiter in self.limiters:
            self.run(limiter.close())
        for database in self._databases:
            self.run(database.close())
        self._runner.close()


async def let_through(limiter: RateLimiter, caller: RequestPrincipal, requests: int) -> int:
    """How many of so many requests at once get through."""

    async def one() -> int:
        try:
            if limiter.count_locally(caller) is None:
                await limiter.count(caller)
        except RateLimitedError:
            return 0
        return 1

    return sum(await asyncio.gather(*(one() for _ in range(requests))))


def most_in_a_window(through: Sequence[tuple[datetime, int]], window: timedelta) -> int:
    """The most that got through in any window of this length that is open at its end."""
    return max(
        (
            sum(number for moment, number in through if since <= moment < since + window)
            for since, _ in through
        ),
        default=0,
    )


BOUNDED = settings(suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("places", TERMS)
def test_no_window_ever_sees_more_than_the_limit(
    conninfo: str, record_property: figures.RecordProperty, places: str
) -> None:
    world, ran = World(conninfo, TERMS[places]), Counter[str]()

    @BOUNDED
    @given(st.sampled_from(LIMITS), st.lists(steps, max_size=25))
    def check(limit: int, taken: list[Step]) -> None:
        caller, through = world.new_tenant(limit), []
        for step in taken:
            limiter = world.limiters[step.process]
            through.append((world.now, world.run(let_through(limiter, caller, step.requests))))
            world.now += timedelta(microseconds=step.passes)
            if step.gives_back:
                world.run(limiter.return_unused())
                world.run(limiter.renew())
            ran["requests"] += step.requests
        most = most_in_a_window(through, timedelta(seconds=WINDOW))
        ran["windows"] += len(through)
        ran["over"] += most > limit
        assert most <= limit

    try:
        check()
    finally:
        world.close()
        figures.record(
            record_property,
            f"rate limits, any interleaving of three processes ({places})",
            {name: ran[name] for name in ("windows", "requests")},
            {"over the limit": ran["over"]},
        )


@pytest.mark.parametrize("places", ["near", "distant"])
def test_single_process_accepts_exactly_the_limit(conninfo: str, places: str) -> None:
    world = World(conninfo, TERMS[places])

    @BOUNDED
    @given(st.sampled_from(LIMITS), st.lists(st.integers(0, 300), max_size=SLOTS))
    def check(limit: int, demand: list[int]) -> None:
        caller, limiter = world.new_tenant(limit), world.limiters[0]
        through = 0
        for requests in demand:
            through += world.run(let_through(limiter, caller, requests))
            world.now += timedelta(seconds=1)
            world.run(limiter.renew())
        assert through == min(limit, sum(demand))

    try:
        check()
    finally:
        world.close()


@pytest.mark.parametrize(("places", "parts"), [("near", 100), ("distant", 20)])
def test_shares_of_processes_are_all_that_others_lack(
    conninfo: str, places: str, parts: int
) -> None:
    world = World(conninfo, TERMS[places])

    @BOUNDED
    @given(
        st.sampled_from(LIMITS),
        st.lists(st.tuples(st.integers(0, PROCESSES - 1), st.integers(0, 99)), max_size=20),
    )
    def check(limit: int, demand: list[tuple[int, int]]) -> None:
        caller = world.new_tenant(limit)
        through = sum(
            world.run(let_through(world.limiters[process], caller, number))
            for process, number in demand
        )
        last = world.run(let_through(world.limiters[0], caller, limit + 1))
        held = (PROCESSES - 1) * max(1, limit // parts) if limit >= 2 * parts else 0
        assert limit - held <= through + last <= limit

    try:
        check()
    finally:
        world.close()
