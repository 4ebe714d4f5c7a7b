"""Follow the feed of a deployment whose processes are killed."""

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from bench.faults.deployment import OPERATOR, DatabaseKind, Deployment, copy_logs, started
from bench.faults.fault_types import kill_server
from bench.faults.supervisor import ProcessSupervisor
from bench.feed.checks import FeedResult, compare, read_state, reversals
from bench.feed.faults import FeedFault
from bench.feed.follower import TOKEN, EventFile, FollowedEvent
from bench.feed.writers import OWN, ChangeWriters
from bench.ours import PLANS_WITHOUT_LIMITS
from tests.support.database_server import server_folder

SERVER_KILLED: Final = "server process killed"
FOLLOWER_KILLED: Final = "follower killed"
_FIVE_MINUTES: Final = 300.0
_OPEN_SECONDS: Final = 30.0
_BETWEEN_KILLS: Final = (1.0, 5.0)
"""Bounds in seconds."""
_CATCH_UP: Final = 60.0
"""Seconds for the follower's last events."""
_POLL: Final = 0.1
_SHOWN: Final = 5


class FeedRun(NamedTuple):
    """The result of a run."""

    kind: DatabaseKind
    injected: Counter[str]
    """How often, by fault."""
    acknowledged: int
    result: FeedResult
    has_expired: bool


@contextlib.asynccontextmanager
async def _running(kind: DatabaseKind, python: str, logs: Path | None) -> AsyncIterator[Deployment]:
    with server_folder() as folder, contextlib.ExitStack() as stack:
        site = Deployment(kind, folder, (), python=python)
        stack.callback(copy_logs, site, logs)
        catalog = folder / "plans.toml"
        catalog.write_text(PLANS_WITHOUT_LIMITS)
        async with started(site, TENANTRY_PLANS=str(catalog), DRAIN_SECONDS="0"):
            yield site


async def run_feed(
    kind: DatabaseKind,
    faults: Sequence[FeedFault],
    seconds: float,
    chance: random.Random,
    pause: float,
    logs: Path | None,
    python: str = sys.executable,
) -> FeedRun:
    """Inject the faults in any order during so many seconds."""
    async with _running(kind, python, logs) as site:
        owners = await asyncio.to_thread(site.create_tenants, OWN)
        writers = ChangeWriters(site.ports, owners, chance, pause)
        path = site.folder / "followed.sqlite"
        file = EventFile(path)
        follower = _follower(site, path)
        follower.start()
        injected = Counter[str]()
        async with asyncio.TaskGroup() as group:
            group.create_task(writers.run())
            killing = group.create_task(_kill(site, follower, chance, injected))
            await _inject(site, faults, seconds, chance, injected)
            killing.cancel()
            writers.end()
        followed = await _caught_up(site, file)
        await asyncio.to_thread(follower.stop)
        state = await asyncio.to_thread(read_state, site)
        result = compare(state, followed, writers)
        for text in islice(reversals(followed, state), _SHOWN):
            print(f"  versions reversed: {text}", flush=True)
        acknowledged = len(writers.acknowledged) + writers.plan_changes.total()
        return FeedRun(kind, injected, acknowledged, result, file.has_expired)


def _follower(site: Deployment, path: Path) -> ProcessSupervisor:
    command = [sys.executable, "-m", "bench.feed.follower", str(path), *map(str, site.ports)]
    return ProcessSupervisor(command, {TOKEN: OPERATOR}, site.folder / "follower.log")


async def _inject(
    site: Deployment,
    faults: Sequence[FeedFault],
    seconds: float,
    chance: random.Random,
    injected: Counter[str],
) -> None:
    """Inject each fault as often as its share of the time asks for, at least once."""
    share = seconds / _FIVE_MINUTES
    planned = [fault for fault in faults for _ in range(max(1, round(fault.times * share)))]
    chance.shuffle(planned)
    ends = time.monotonic() + seconds
    for number, fault in enumerate(planned, start=1):
        left = ends - time.monotonic()
        await asyncio.sleep(chance.uniform(0, max(0.0, left / (1 + len(planned) - number))) / 2)
        print(f"  {site.kind.name.lower()} {number}/{len(planned)}: {fault.name}", flush=True)
        await fault.inject(site, chance, _OPEN_SECONDS * min(1.0, share * 2))
        injected[fault.name] += 1
    await asyncio.sleep(max(0.0, ends - time.monotonic()))


async def _kill(
    site: Deployment,
    follower: ProcessSupervisor,
    chance: random.Random,
    injected: Counter[str],
) -> None:
    """Kill service processes and the follower until canceled."""
    while True:
        await asyncio.sleep(chance.uniform(*_BETWEEN_KILLS))
        if chance.random() < 0.5:
            injected[SERVER_KILLED] += await kill_server(site, chance) or 0
        else:
            for process in follower.processes():
                process.kill()
                injected[FOLLOWER_KILLED] += 1


async def _caught_up(site: Deployment, file: EventFile) -> list[FollowedEvent]:
    """Wait until the follower has all committed events, or long enough."""
    committed = set((await asyncio.to_thread(read_state, site)).order)
    deadline = time.monotonic() + _CATCH_UP
    while time.monotonic() < deadline:
        followed = file.events()
        if committed <= {event.id for event in followed}:
            return followed
        await asyncio.sleep(_POLL)
    return file.events()
