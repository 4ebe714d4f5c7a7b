"""One deployment under load, which is disturbed again and again."""

import asyncio
import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.torture.clients import Clients
from bench.torture.deployment import DatabaseKind, Deployment
from bench.torture.disturbances import Disturbance
from bench.torture.report import Report

TIMEOUT: Final = 120.0
"""Seconds for a recovery, and for the last requests of the load."""
_BETWEEN: Final = (0.5, 3.0)
"""Bounds in seconds."""


class Injection(NamedTuple):
    """One disturbance that was caused; times are on the monotonic clock."""

    disturbance: Disturbance
    began: float
    ended: float
    killed: int
    recovered: float
    """When everything worked again."""


class Run(ABC):
    """A deployment under load, and the disturbances that were caused in it."""

    loads: Sequence[Clients]

    def __init__(self, site: Deployment, chance: random.Random) -> None:
        self.site = site
        self.injections: list[Injection] = []
        self._chance = chance

    def beside(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return what runs beside the load, until it is canceled."""
        return ()

    async def begin(self) -> None:
        """Wait until the load can be disturbed."""
        await self.until_recovered()

    async def until_recovered(self) -> None:
        """Wait until everything works again."""
        await asyncio.to_thread(self.site.until_ready)

    async def settle(self) -> None:
        """Wait until what the load has begun is done."""
        await self.until_recovered()

    @abstractmethod
    async def report(self) -> Report:
        """Check what happened."""

    @contextlib.asynccontextmanager
    async def loading(self, *beside: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Load the deployment meanwhile; also run something ``beside``, until all is done.

        Raises `TimeoutError` if the load does not end.
        """
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(each) for each in (*self.beside(), *beside)]
            loading = [group.create_task(load.run()) for load in self.loads]
            await self.begin()
            yield
            for load in self.loads:
                load.end()
            async with asyncio.timeout(TIMEOUT):
                await asyncio.gather(*loading)
            await self.settle()
            for task in watching:
                task.cancel()

    async def inject(self, disturbance: Disturbance) -> None:
        """Cause a disturbance, and wait until everything works again."""
        await asyncio.sleep(self._chance.uniform(*_BETWEEN))
        began = time.monotonic()
        killed = await disturbance.cause(self.site, self._chance) or 0
        ended = time.monotonic()
        await self.until_recovered()
        self.injections.append(Injection(disturbance, began, ended, killed, time.monotonic()))
        if disturbance.restore is not None:
            await disturbance.restore(self.site, self._chance)

    def by_disturbance(self) -> Mapping[str, Sequence[Injection]]:
        """Return what was caused, by the name of the disturbance."""
        names = dict.fromkeys(each.disturbance.name for each in self.injections)
        return {
            name: [each for each in self.injections if each.disturbance.name == name]
            for name in names
        }

    def nothing_killed(self) -> Iterable[str]:
        """Return a violation for each kill that found no process."""
        for each in self.injections:
            if each.disturbance.kills and not each.killed:
                yield f"{each.disturbance.name}: found no process to kill"


class Subject(NamedTuple):
    """What a run checks."""

    run: type[Run]
    plan: Mapping[DatabaseKind, Sequence[Disturbance]]
    """The disturbances of each deployment."""
    mistakes: Mapping[str, tuple[DatabaseKind, Sequence[Disturbance]]]
    """Deliberate faults in the code, of `tests.faults`, with what must then break a promise."""
    plans: str | None = None
    """The catalog of plans, for that of the package."""
