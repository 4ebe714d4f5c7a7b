"""The faults: each function causes one, waits, and undoes it."""

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import psutil

from bench.standbys.deployment import StandbyDeployment

Injection = Callable[[StandbyDeployment, random.Random], Awaitable[None]]

_SECONDS: Final = (1.0, 7.0)
"""Bounds of a fault's duration: shorter and longer than a lease, and than the three seconds after
which primary and standby give up their connection.
"""
_DOWN: Final = (0.0, 3.0)
"""The same for a standby that was killed."""
_SUSPENDED: Final = 2.0
_QUIET: Final = 5.0


class StandbyFault(NamedTuple):
    """A kind of fault."""

    name: str
    inject: Injection


async def do_nothing(_: StandbyDeployment, __: random.Random) -> None:
    """Leave everything as it is."""
    await asyncio.sleep(_QUIET)


async def stop_receiver(site: StandbyDeployment, chance: random.Random) -> None:
    """Suspend a standby's WAL receiver: it gets no log, and its replay goes no further."""
    await _suspend(site, chance, "walreceiver")


async def freeze_startup(site: StandbyDeployment, chance: random.Random) -> None:
    """Suspend a standby's startup process: it gets the log and replays none."""
    await _suspend(site, chance, "startup")


async def _suspend(site: StandbyDeployment, chance: random.Random, title: str) -> None:
    name = chance.choice(site.replicated.standby_names)
    process = await asyncio.to_thread(site.replicated.process, name, title)
    if process is not None:
        with _suspended([process]):
            await asyncio.sleep(chance.uniform(*_SECONDS))


async def pause_replay(site: StandbyDeployment, chance: random.Random) -> None:
    """Pause the replay of a standby, as an operator may."""
    server = site.replicated.servers[chance.choice(site.replicated.standby_names)]
    await asyncio.to_thread(server.rows, "SELECT pg_wal_replay_pause()")
    await asyncio.sleep(chance.uniform(*_SECONDS))
    await asyncio.to_thread(server.rows, "SELECT pg_wal_replay_resume()")


async def kill_standby(site: StandbyDeployment, chance: random.Random) -> None:
    """Kill a standby as a power cut would, and start it again."""
    server = site.replicated.servers[chance.choice(site.replicated.standby_names)]
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(chance.uniform(*_DOWN))
    await asyncio.to_thread(server.start)


async def cut_standby(site: StandbyDeployment, chance: random.Random) -> None:
    """Drop all packets of a standby, or only those from and to the primary or the service."""
    standby = chance.choice(site.replicated.standby_names)
    services = [process.machine for process in site.service_processes]
    others: tuple[list[str], ...] = ([], [site.replicated.primary_name], services)
    chosen = chance.choice(others)
    if chosen:
        site.network.cut(*((standby, other) for other in chosen))
    else:
        site.network.isolate(standby)
    await asyncio.sleep(chance.uniform(*_SECONDS))
    site.network.heal()


async def switch_over(site: StandbyDeployment, chance: random.Random) -> None:
    """Make a standby the primary, in order, and the former primary its standby."""
    successor = chance.choice(site.replicated.standby_names)
    await asyncio.to_thread(site.replicated.switch_over, successor)


async def suspend_processes(site: StandbyDeployment, chance: random.Random) -> None:
    """Suspend one to three processes of the service for two seconds."""
    processes = chance.sample(site.running_processes(), chance.randint(1, 3))
    with _suspended(processes):
        await asyncio.sleep(_SUSPENDED)


@contextlib.contextmanager
def _suspended(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


FAULTS: Final = (
    StandbyFault("no fault", do_nothing),
    StandbyFault("WAL receiver stopped", stop_receiver),
    StandbyFault("replay paused", pause_replay),
    StandbyFault("startup process frozen", freeze_startup),
    StandbyFault("standby killed", kill_standby),
    StandbyFault("standby cut off", cut_standby),
    StandbyFault("processes suspended", suspend_processes),
    StandbyFault("primary switched over", switch_over),
)
"""The last one slows changes for two minutes: the promoted server is still registered."""
REVEALING: Final = ("WAL receiver stopped", "replay paused")
"""Names of faults that let a standby fall behind, and so show what a mistake in the code does."""
