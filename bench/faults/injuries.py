"""The faults: each does its harm, waits, undoes it, and returns when nothing more stands in anybody's way.

Those that kill return how many processes they have killed.
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

from bench.faults.load import READS, SUCCESSES, Moment
from bench.faults.site import CLOCK_LIBRARIES, RIGHT, Database, Site, fill
from bench.soak_load import NO_ANSWER

Injury = Callable[[Site, random.Random], Awaitable[int | None]]

EVENTS: Final = ("event", "twin", "event again")
EVERYTHING: Final = frozenset(SUCCESSES)
WRITES: Final = EVERYTHING.difference(READS)
_CHECKOUTS: Final = ("checkout",)
_HELD: Final = (1.0, 4.0)
"""Seconds that a fault lasts, at least and at most."""
_HANG: Final = (6.0, 14.0)
"""The same where somebody's patience is to be used up."""
_PATIENCE: Final = 30.0
"""Seconds to wait for somebody to kill."""
_LOOK: Final = 0.05
_SWITCHES: Final = 40
_HOURS: Final = (1, 26)
_CLOCK_LAG: Final = 2.5
"""Seconds until faketime has looked again: it does once its second is more than one past that of its last look."""
AT_ONCE: Final = 4
"""Mails that a worker sends at the same time."""
RECORDED: Final = 5 * AT_ONCE
"""Mails whose record a standby may lack that had not received everything."""


class Fault(NamedTuple):
    """A kind of fault."""

    name: str
    inflict: Injury
    needs: Database = Database.ALONE
    kills: bool = False
    """Whether it is a kill -9."""
    breaks: bool = False
    """Whether it ends connections of clients, so that they get no answer."""
    loses: bool = False
    """Whether what was acknowledged may be lost, and keys and members be as they were before."""
    mails: float = 0
    """How many mails of each worker may be sent once more because of it."""
    restore: Injury | None = None
    """What is to be done after the service has recovered, so that the fault can come again."""
    refuses: Collection[str] = ()
    """Kinds of requests that may be told to come again: 503 with Retry-After."""
    answers: Mapping[str, set[int]] = {}
    """Other statuses that may come of it, by kind of request."""

    def explains(self, moment: Moment) -> bool:
        """Whether an answer that is no success may come of it."""
        if moment.status == NO_ANSWER:
            return self.breaks
        return moment.kind in self.refuses if moment.is_refusal else moment.status in self.answers.get(moment.kind, ())

    @property
    def hindrance(self) -> str | None:
        """Why it cannot be inflicted here; None if it can."""
        if self.needs is Database.FULL and os.geteuid():
            return "needs root, to mount file systems of a fixed size"
        if self.needs is Database.CLOCK and not CLOCK_LIBRARIES:
            return "needs Debian's faketime"
        return None


async def _wait(chance: random.Random, span: tuple[float, float] = _HELD) -> None:
    await asyncio.sleep(chance.uniform(*span))


async def _kill(find: Callable[[], Sequence[psutil.Process]]) -> int:
    """Kill the processes that are found, once there are any; returns how many."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = await asyncio.to_thread(find)
            for process in processes:
                process.kill()
            if processes:
                return len(processes)
        await asyncio.sleep(_LOOK)
    return 0


def _one(chance: random.Random, processes: Sequence[psutil.Process]) -> Sequence[psutil.Process]:
    return [chance.choice(processes)] if processes else []


# Processes of the service


async def kill_server(site: Site, chance: random.Random) -> int:
    """One of the processes that serve."""

    def one() -> Sequence[psutil.Process]:
        families = site.processes().items()
        return _one(chance, [each for kind, family in families if kind.startswith("server") for each in family])

    return await _kill(one)


async def kill_supervisor(site: Site, _: random.Random) -> int:
    """The process above several that serve."""
    return await _kill(lambda: site.processes()["supervisor"])


async def kill_worker(site: Site, _: random.Random) -> int:
    """The worker."""
    return await _kill(lambda: site.processes()["worker"])


# PostgreSQL


async def kill_database(site: Site, _: random.Random) -> int:
    """PostgreSQL's first process; the others notice, and end."""

    def first() -> Sequence[psutil.Process]:
        process = site.database.process
        return [psutil.Process(process.pid)] if process is not None and process.poll() is None else []

    return await _kill(first)


async def kill_backend(site: Site, chance: random.Random) -> int:
    """A process that serves a connection; PostgreSQL then ends all of them and recovers."""

    def one() -> Sequence[psutil.Process]:
        with contextlib.suppress(psycopg.OperationalError):
            return _one(chance, site.database.backends())
        return []

    return await _kill(one)


async def restart_database(site: Site, _: random.Random) -> None:
    """A restart in order, without waiting for clients."""
    process = site.database.process
    if process is not None:
        process.send_signal(signal.SIGINT)


async def fail_over(site: Site, _: random.Random) -> int:
    """The primary dies at once, and stays down; the standby takes its place."""
    assert site.pair is not None
    site.let_go()
    await asyncio.to_thread(site.pair.fail_over)
    await asyncio.to_thread(site.pair.demand, synchronous=False)
    site.keep()
    return 1  # it would have raised where there is none


async def rejoin(site: Site, chance: random.Random) -> None:
    """The old primary comes back as the standby."""
    assert site.pair is not None
    await _wait(chance)
    await asyncio.to_thread(site.pair.rejoin)
    await asyncio.to_thread(site.pair.demand, synchronous=site.kind is Database.SYNCHRONOUS)


async def lose_standby(site: Site, chance: random.Random) -> int:
    """The synchronous standby dies, and is back after a while."""
    assert site.pair is not None
    await asyncio.to_thread(site.pair.standby.kill)
    await _wait(chance, _HANG)
    await asyncio.to_thread(site.pair.standby.start)
    return 1  # as above


async def fill_data(site: Site, chance: random.Random) -> None:
    """No room for tables."""
    filler = await asyncio.to_thread(fill, site.data)
    await _wait(chance, _HANG)
    filler.unlink()


async def fill_wal(site: Site, chance: random.Random) -> None:
    """No room for the write-ahead log, once what is kept in reserve is used up."""
    filler = await asyncio.to_thread(fill, site.wal)
    for _ in range(_SWITCHES):
        with contextlib.suppress(psycopg.Error):
            await asyncio.to_thread(
                site.database.rows, "SELECT pg_logical_emit_message(true, '', repeat('x', 4000000))"
            )
        await asyncio.sleep(0.1)
    await _wait(chance)
    filler.unlink()


# The mail server


async def refuse_mail(site: Site, chance: random.Random) -> None:
    """Nobody listens at the mail server's port."""
    await site.mail.stop()
    await _wait(chance)
    await site.mail.start()


async def hang_mail(site: Site, chance: random.Random) -> None:
    """The mail server takes mails and says nothing."""
    site.mail.hold = held = asyncio.Event()
    await _wait(chance, _HANG)
    site.mail.hold = None
    held.set()


async def put_mail_off(site: Site, chance: random.Random) -> None:
    """The mail server asks to try again later."""
    site.mail.replies_to_data.extend(["451 4.3.0 later"] * 10_000)
    await _wait(chance)
    site.mail.replies_to_data.clear()


async def drop_mail(site: Site, chance: random.Random) -> None:
    """The mail server takes mails, and dies before it says so."""
    site.mail.hang_up = 10_000
    await _wait(chance)
    site.mail.hang_up = 0


# The provider's API


async def cut_provider(site: Site, chance: random.Random) -> None:
    """Nobody listens at the provider's address."""
    await site.link.cut()
    await _wait(chance)
    await site.link.restore()


async def hang_provider(site: Site, chance: random.Random) -> None:
    """The provider takes questions and says nothing."""
    site.link.block()
    await _wait(chance, _HANG)
    site.link.unblock()


async def fail_provider(site: Site, chance: random.Random) -> None:
    """The provider answers 500."""
    site.provider.is_failing = True
    await _wait(chance)
    site.provider.is_failing = False


# The clock


async def step_clock(site: Site, chance: random.Random) -> None:
    """The clock of one set of servers is hours ahead or behind, and then right again."""
    site.clock.write_text(f"{chance.choice('+-')}{chance.randint(*_HOURS)}h")
    await _wait(chance, _HANG)
    site.clock.write_text(RIGHT)
    await asyncio.sleep(_CLOCK_LAG)


_OF_DATABASE: Final = (
    Fault("PostgreSQL killed", kill_database, kills=True),
    Fault("backend killed", kill_backend, kills=True),
    Fault("PostgreSQL restarted", restart_database),
    Fault("data disk full", fill_data, Database.FULL),
    Fault("WAL disk full", fill_wal, Database.FULL),
    Fault("failover, synchronous", fail_over, Database.SYNCHRONOUS, kills=True, restore=rejoin),
    Fault("failover, asynchronous", fail_over, Database.ASYNCHRONOUS, kills=True, loses=True, restore=rejoin),
)
FAULTS: Final = (
    Fault("server process killed", kill_server, kills=True, breaks=True),
    Fault("supervisor killed", kill_supervisor, kills=True, breaks=True),
    Fault("worker killed", kill_worker, kills=True, mails=AT_ONCE),
    *(fault._replace(mails=RECORDED if fault.loses else AT_ONCE, refuses=EVERYTHING) for fault in _OF_DATABASE),
    Fault("standby away", lose_standby, Database.SYNCHRONOUS, kills=True, mails=AT_ONCE, refuses=WRITES),
    Fault("mail server down", refuse_mail),
    Fault("mail server hangs", hang_mail, mails=AT_ONCE),
    Fault("mail server says later", put_mail_off),
    Fault("mail server dies after taking", drop_mail, mails=math.inf),
    Fault("provider down", cut_provider, refuses=_CHECKOUTS),
    Fault("provider hangs", hang_provider, refuses=_CHECKOUTS),
    Fault("provider answers 500", fail_provider, refuses=_CHECKOUTS),
    Fault("clock stepped", step_clock, Database.CLOCK, answers={kind: {400} for kind in EVENTS}),
)
