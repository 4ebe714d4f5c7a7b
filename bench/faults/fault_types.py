"""The faults. Each function causes a fault, waits, undoes it, and returns the number of processes
that it killed.
"""

import asyncio
import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import psutil
import psycopg

from bench.faults.client import NO_ANSWER
from bench.faults.deployment import CLOCK_LIBRARIES, CORRECT_TIME, DatabaseKind, Deployment, fill
from bench.faults.load import READS, SUCCESSES, AnsweredRequest

Injection = Callable[[Deployment, random.Random], Awaitable[int | None]]

EVENTS: Final = ("event", "twin", "event again")
EVERYTHING: Final = frozenset(SUCCESSES)
WRITES: Final = EVERYTHING.difference(READS)
_CHECKOUTS: Final = ("checkout",)
_SHORT: Final = (1.0, 4.0)
"""Bounds of a fault's duration in seconds."""
_LONG: Final = (6.0, 14.0)
"""The same for faults that outlast timeouts."""
_FIND_TIMEOUT: Final = 30.0
"""Seconds to wait for a process to kill."""
_POLL: Final = 0.05
_WAL_SWITCHES: Final = 40
_HOURS: Final = (1, 26)
_CLOCK_LAG: Final = 2.5
"""Seconds until faketime reads its file again: it does so once its second is over one past that of
the last read.
"""
PARALLEL_MAILS: Final = 4
"""Mails that a worker sends at the same time."""
UNREPLICATED_MAILS: Final = 5 * PARALLEL_MAILS
"""Mails whose record an asynchronous standby may lack."""


class InjectedFault(NamedTuple):
    """A kind of fault, and the answers that it explains."""

    name: str
    inject: Injection
    needs: DatabaseKind = DatabaseKind.ALONE
    kills: bool = False
    """Whether it is a kill -9."""
    breaks: bool = False
    """Whether it breaks connections of clients."""
    loses: bool = False
    """Whether acknowledged changes of the last seconds may be lost."""
    mails: float = 0
    """How many mails of each worker may be sent again."""
    restore: Injection | None = None
    """What restores the deployment after the service has recovered."""
    rejects: Collection[str] = ()
    """Kinds of requests that may get 503 with Retry-After."""
    answers: Mapping[str, set[int]] = {}
    """Other statuses that it explains, by kind of request."""

    def explains(self, request: AnsweredRequest) -> bool:
        """Return whether it explains an unsuccessful answer."""
        if request.status == NO_ANSWER:
            return self.breaks
        if request.is_retryable:
            return request.kind in self.rejects
        return request.status in self.answers.get(request.kind, ())

    @property
    def obstacle(self) -> str | None:
        """Why it can't be injected here; None if it can."""
        if self.needs is DatabaseKind.FULL and os.geteuid():
            return "needs root, to mount file systems of a fixed size"
        if self.needs is DatabaseKind.CLOCK and not CLOCK_LIBRARIES:
            return "needs Debian's faketime"
        return None


async def _wait(chance: random.Random, bounds: tuple[float, float] = _SHORT) -> None:
    await asyncio.sleep(chance.uniform(*bounds))


async def _kill(find: Callable[[], Sequence[psutil.Process]]) -> int:
    """Kill the processes as soon as any are found; return how many."""
    deadline = time.monotonic() + _FIND_TIMEOUT
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess, psycopg.OperationalError):
            processes = await asyncio.to_thread(find)
            for process in processes:
                process.kill()
            if processes:
                return len(processes)
        await asyncio.sleep(_POLL)
    return 0


def _one(chance: random.Random, processes: Sequence[psutil.Process]) -> Sequence[psutil.Process]:
    return [chance.choice(processes)] if processes else []


# Processes of the service


async def kill_server(site: Deployment, chance: random.Random) -> int:
    """Kill one server process."""

    def find() -> Sequence[psutil.Process]:
        named = site.processes().items()
        return _one(
            chance,
            [each for kind, processes in named if kind.startswith("server") for each in processes],
        )

    return await _kill(find)


async def kill_supervisor(site: Deployment, _: random.Random) -> int:
    """Kill the parent of several server processes."""
    return await _kill(lambda: site.processes()["supervisor"])


async def kill_worker(site: Deployment, _: random.Random) -> int:
    """Kill the worker."""
    return await _kill(lambda: site.processes()["worker"])


# PostgreSQL


async def kill_database(site: Deployment, _: random.Random) -> int:
    """Kill PostgreSQL's first process; the others notice and end."""

    def find() -> Sequence[psutil.Process]:
        process = site.database.process
        return (
            [psutil.Process(process.pid)] if process is not None and process.poll() is None else []
        )

    return await _kill(find)


async def kill_backend(site: Deployment, chance: random.Random) -> int:
    """Kill the backend of one connection; PostgreSQL then ends all backends and recovers."""
    return await _kill(lambda: _one(chance, site.database.backends()))


async def restart_database(site: Deployment, _: random.Random) -> None:
    """Restart PostgreSQL in fast mode."""
    process = site.database.process
    if process is not None:
        process.send_signal(signal.SIGINT)


async def fail_over(site: Deployment, _: random.Random) -> int:
    """Kill the primary for good; promote the standby."""
    assert site.pair is not None
    site.stop_supervision()
    await asyncio.to_thread(site.pair.fail_over)
    await asyncio.to_thread(site.pair.demand, synchronous=False)
    site.supervise()
    return 1  # `fail_over` raises if there is no process


async def rejoin(site: Deployment, chance: random.Random) -> None:
    """Bring the old primary back as the standby."""
    assert site.pair is not None
    await _wait(chance)
    await asyncio.to_thread(site.pair.rejoin)
    await asyncio.to_thread(site.pair.demand, synchronous=site.kind is DatabaseKind.SYNCHRONOUS)


async def lose_standby(site: Deployment, chance: random.Random) -> int:
    """Kill the synchronous standby and start it again after a while."""
    assert site.pair is not None
    await asyncio.to_thread(site.pair.standby.kill)
    await _wait(chance, _LONG)
    await asyncio.to_thread(site.pair.standby.start)
    return 1  # `kill` raises if there is no process


async def fill_data(site: Deployment, chance: random.Random) -> None:
    """Fill the disk of the tables."""
    filler = await asyncio.to_thread(fill, site.data)
    await _wait(chance, _LONG)
    filler.unlink()


async def fill_wal(site: Deployment, chance: random.Random) -> None:
    """Fill the disk of the write-ahead log, and use up its reserve."""
    filler = await asyncio.to_thread(fill, site.wal)
    for _ in range(_WAL_SWITCHES):
        with contextlib.suppress(psycopg.Error):
            await asyncio.to_thread(
                site.database.rows, "SELECT pg_logical_emit_message(true, '', repeat('x', 4000000))"
            )
        await asyncio.sleep(0.1)
    await _wait(chance)
    filler.unlink()


# The mail server


async def stop_mail(site: Deployment, chance: random.Random) -> None:
    """Refuse connections to the mail server."""
    await site.mail.stop()
    await _wait(chance)
    await site.mail.start()


async def hang_mail(site: Deployment, chance: random.Random) -> None:
    """Accept mails without an answer."""
    site.mail.hold = held = asyncio.Event()
    await _wait(chance, _LONG)
    site.mail.hold = None
    held.set()


async def defer_mail(site: Deployment, chance: random.Random) -> None:
    """Answer mails with a temporary failure."""
    site.mail.replies_to_data.extend(["451 4.3.0 later"] * 10_000)
    await _wait(chance)
    site.mail.replies_to_data.clear()


async def disconnect_mail(site: Deployment, chance: random.Random) -> None:
    """Accept mails and disconnect before the answer."""
    site.mail.hang_up = 10_000
    await _wait(chance)
    site.mail.hang_up = 0


# The provider's API


async def cut_provider(site: Deployment, chance: random.Random) -> None:
    """Refuse connections to the provider's API."""
    await site.link.cut()
    await _wait(chance)
    await site.link.restore()


async def hang_provider(site: Deployment, chance: random.Random) -> None:
    """Accept the provider's requests without an answer."""
    site.link.block()
    await _wait(chance, _LONG)
    site.link.unblock()


async def fail_provider(site: Deployment, chance: random.Random) -> None:
    """Answer the provider's requests with 500."""
    site.provider.is_failing = True
    await _wait(chance)
    site.provider.is_failing = False


# The clock


async def step_clock(site: Deployment, chance: random.Random) -> None:
    """Move the clock of one set of servers by hours, and back."""
    site.clock.write_text(f"{chance.choice('+-')}{chance.randint(*_HOURS)}h")
    await _wait(chance, _LONG)
    site.clock.write_text(CORRECT_TIME)
    await asyncio.sleep(_CLOCK_LAG)


_OF_DATABASE: Final = (
    InjectedFault("PostgreSQL killed", kill_database, kills=True),
    InjectedFault("backend killed", kill_backend, kills=True),
    InjectedFault("PostgreSQL restarted", restart_database),
    InjectedFault("data disk full", fill_data, DatabaseKind.FULL),
    InjectedFault("WAL disk full", fill_wal, DatabaseKind.FULL),
    InjectedFault(
        "failover, synchronous", fail_over, DatabaseKind.SYNCHRONOUS, kills=True, restore=rejoin
    ),
    InjectedFault(
        "failover, asynchronous",
        fail_over,
        DatabaseKind.ASYNCHRONOUS,
        kills=True,
        loses=True,
        restore=rejoin,
    ),
)
FAULTS: Final = (
    InjectedFault("server process killed", kill_server, kills=True, breaks=True),
    InjectedFault("supervisor killed", kill_supervisor, kills=True, breaks=True),
    InjectedFault("worker killed", kill_worker, kills=True, mails=PARALLEL_MAILS),
    *(
        fault._replace(
            mails=UNREPLICATED_MAILS if fault.loses else PARALLEL_MAILS, rejects=EVERYTHING
        )
        for fault in _OF_DATABASE
    ),
    InjectedFault(
        "standby away",
        lose_standby,
        DatabaseKind.SYNCHRONOUS,
        kills=True,
        mails=PARALLEL_MAILS,
        rejects=WRITES,
    ),
    InjectedFault("mail server down", stop_mail),
    InjectedFault("mail server hangs", hang_mail, mails=PARALLEL_MAILS),
    InjectedFault("mail server says later", defer_mail),
    InjectedFault("mail server dies after taking", disconnect_mail, mails=math.inf),
    InjectedFault("provider down", cut_provider, rejects=_CHECKOUTS),
    InjectedFault("provider hangs", hang_provider, rejects=_CHECKOUTS),
    InjectedFault("provider answers 500", fail_provider, rejects=_CHECKOUTS),
    InjectedFault(
        "clock stepped", step_clock, DatabaseKind.CLOCK, answers={kind: {400} for kind in EVENTS}
    ),
)
