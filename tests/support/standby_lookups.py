"""Lookups of a process that may ask a standby."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tenantry.common.clock import lease_clock
from tenantry.db.background import BackgroundGroup
from tenantry.db.database import Database
from tenantry.db.standby_lane import StandbyLane
from tenantry.db.standbys import Standbys
from tenantry.db.statements import Statement
from tenantry.domain.standby_checks import RENEWAL_INTERVAL, CheckSource
from tenantry.domain.telemetry import Telemetry

_PATIENCE: Final = 30.0
_LOOK: Final = 0.02
_IS_STANDBY: Final = Statement("SELECT pg_is_in_recovery()")


@dataclass
class MovableClock:
    """The process's monotonic clock, ahead by what `move` adds."""

    ahead: float = 0

    def __call__(self) -> float:
        return lease_clock() + self.ahead

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.ahead += seconds


@dataclass
class Lookups:
    """A lane, and where its lookups were answered."""

    standbys: Standbys
    lane: StandbyLane
    sources: list[CheckSource] = field(default_factory=list)

    async def value(self, sql: str) -> Any:
        """Look up one value."""
        [[[value]]] = await self.lane.look_up([Statement(sql)()], 1)
        return value

    async def source(self) -> CheckSource:
        """Look something up, and return where it was answered, once that is seen to be true."""
        [[[is_standby]]] = await self.lane.look_up([_IS_STANDBY()], 1)
        assert is_standby == (self.sources[-1] is CheckSource.STANDBY)
        return self.sources[-1]

    async def until(self, *expected: CheckSource) -> None:
        """Look up until it is answered so."""
        async with asyncio.timeout(_PATIENCE):
            while await self.source() not in expected:  # noqa: ASYNC110  # replication gives no notice
                await asyncio.sleep(_LOOK)

    async def until_host(self, expected: int) -> None:
        """Wait until the connection leads to the standby at this place."""
        async with asyncio.timeout(_PATIENCE):
            while (link := await self.lane.standby.link()) is None or link.host != expected:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK)


class _Sources(Telemetry):
    """Remembers where checks were answered."""

    def __init__(self) -> None:
        self.sources: list[CheckSource] = []

    def checked(self, source: CheckSource, checks: int) -> None:  # noqa: ARG002  # an override
        self.sources.append(source)


@asynccontextmanager
async def lookups(
    primary: str, standbys: str, clock: Callable[[], float] = lease_clock
) -> AsyncIterator[Lookups]:
    """A lane on these connection strings, while the block runs."""
    telemetry = _Sources()
    async with Database(primary, pool_size=1) as database:
        both = Standbys(database, standbys, telemetry, clock)
        lane = both.lane(database.lane())
        async with BackgroundGroup() as group:
            group.push_async_callback(both.close)
            group.repeat("checks on standbys", both.renew, every=RENEWAL_INTERVAL)
            yield Lookups(both, lane, telemetry.sources)
