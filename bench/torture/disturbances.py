"""The disturbances. Each function causes one, waits, undoes it, and returns the number of processes
that it killed.
"""

import asyncio
import contextlib
import math
import random
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import psutil
import psycopg

from bench.torture.client import NO_ANSWER
from bench.torture.clients import AnsweredRequest
from bench.torture.deployment import SERVICE, DatabaseKind, Deployment
from bench.torture.load import READS, SUCCESSES
from tests.support.database_server import DatabaseServer

Cause = Callable[[Deployment, random.Random], Awaitable[int | None]]

EVENTS: Final = ("event", "twin", "event again")
EVERYTHING: Final = frozenset(SUCCESSES)
WRITES: Final = EVERYTHING.difference(READS)
_CHECKOUTS: Final = ("checkout",)
_SHORT: Final = (1.0, 4.0)
"""Bounds of a duration in seconds."""
_LONG: Final = (6.0, 14.0)
"""The same for what outlasts timeouts."""
_BEHIND: Final = (0.5, 1.5)
"""The same for how far a standby is behind."""
_AWAY: Final = (1.0, 7.0)
"""The same for a standby: shorter and longer than a lease, and than the three seconds after which
primary and standby give up their connection.
"""
_DOWN: Final = (0.0, 3.0)
"""The same for a standby that was killed."""
_SUSPENDED: Final = 2.0
_QUIET: Final = 5.0
_OPEN: Final = 10.0
_FIND_TIMEOUT: Final = 30.0
"""Seconds to wait for a process to kill."""
_POLL: Final = 0.05
PARALLEL_MAILS: Final = 4
"""Mails that a worker sends at the same time."""
UNREPLICATED_MAILS: Final = 5 * PARALLEL_MAILS
"""Mails whose record an asynchronous standby may lack."""
_PUBLISH: Final = """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
VALUES (outbound_epoch(), 'grant.set', 'open', now(), now(), '{"id": "open"}')
"""


class Disturbance(NamedTuple):
    """A kind of disturbance, and the answers that it explains."""

    name: str
    cause: Cause
    kills: bool = False
    """Whether it is a kill -9."""
    breaks: bool = False
    """Whether it breaks connections of clients."""
    loses: bool = False
    """Whether acknowledged changes of the last seconds may be lost."""
    mails: float = 0
    """How many mails of each worker may be sent again."""
    restore: Cause | None = None
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


@contextlib.contextmanager
def _suspended(processes: Sequence[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


async def do_nothing(_: Deployment, __: random.Random) -> None:
    """Leave everything as it is."""
    await asyncio.sleep(_QUIET)


# Processes of the service


async def kill_server(site: Deployment, chance: random.Random) -> int:
    """Kill one server process."""
    return await _kill(lambda: _one(chance, site.server_processes()))


async def kill_parent(site: Deployment, _: random.Random) -> int:
    """Kill the parent of several server processes."""
    return await _kill(site.parents)


async def kill_worker(site: Deployment, _: random.Random) -> int:
    """Kill the worker."""
    return await _kill(lambda: site.worker.processes() if site.worker else [])


async def suspend_servers(site: Deployment, chance: random.Random) -> None:
    """Suspend one to three server processes for two seconds."""
    with _suspended(chance.sample(site.server_processes(), chance.randint(1, 3))):
        await asyncio.sleep(_SUSPENDED)


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


async def open_transaction(site: Deployment, _: random.Random) -> None:
    """Publish an event in a transaction that stays open for ten seconds."""
    async with await psycopg.AsyncConnection.connect(site.conninfo) as connection:
        await connection.execute(_PUBLISH)
        await asyncio.sleep(_OPEN)


async def fail_over(site: Deployment, _: random.Random) -> int:
    """Kill the primary for good; promote the standby."""
    site.stop_supervision()
    await asyncio.to_thread(site.pair.fail_over)
    await asyncio.to_thread(site.pair.demand, synchronous=False)
    site.supervise()
    return 1  # `fail_over` raises if there is no process


async def fail_over_behind(site: Deployment, chance: random.Random) -> int:
    """The same with a standby that lacks the last changes, which callers have seen."""
    sender = await asyncio.to_thread(_part, site.database, "walsender")
    if sender is not None:
        sender.send_signal(signal.SIGSTOP)
    await _wait(chance, _BEHIND)
    return await fail_over(site, chance)


async def rejoin(site: Deployment, chance: random.Random) -> None:
    """Bring the old primary back as the standby."""
    await _wait(chance)
    await asyncio.to_thread(site.pair.rejoin)
    await asyncio.to_thread(site.pair.demand, synchronous=site.kind is DatabaseKind.SYNCHRONOUS)


async def lose_standby(site: Deployment, chance: random.Random) -> int:
    """Kill the only standby and start it again after a while."""
    return await _kill_and_start(site.pair.standby, chance, _LONG)


async def _kill_and_start(
    server: DatabaseServer, chance: random.Random, bounds: tuple[float, float]
) -> int:
    await asyncio.to_thread(server.kill)
    await _wait(chance, bounds)
    await asyncio.to_thread(server.start)
    return 1  # `kill` raises if there is no process


# One of several standbys


async def stop_receiver(site: Deployment, chance: random.Random) -> None:
    """Suspend a standby's WAL receiver: it gets no log, and its replay goes no further."""
    await _suspend_part(site, chance, "walreceiver")


async def freeze_startup(site: Deployment, chance: random.Random) -> None:
    """Suspend a standby's startup process: it gets the log and replays none."""
    await _suspend_part(site, chance, "startup")


async def _suspend_part(site: Deployment, chance: random.Random, title: str) -> None:
    process = await asyncio.to_thread(_part, _standby(site, chance), title)
    if process is not None:
        with _suspended([process]):
            await _wait(chance, _AWAY)


def _part(server: DatabaseServer, title: str) -> psutil.Process | None:
    """Find the process of a server that has this word in its title; None if there is none now."""
    assert server.process is not None
    for child in psutil.Process(server.process.pid).children():
        if title in " ".join(child.cmdline()):
            return child
    return None


def _standby(site: Deployment, chance: random.Random) -> DatabaseServer:
    return site.replicated.servers[chance.choice(site.replicated.standby_names)]


async def pause_replay(site: Deployment, chance: random.Random) -> None:
    """Pause the replay of a standby, as an operator may."""
    server = _standby(site, chance)
    await asyncio.to_thread(server.rows, "SELECT pg_wal_replay_pause()")
    await _wait(chance, _AWAY)
    await asyncio.to_thread(server.rows, "SELECT pg_wal_replay_resume()")


async def kill_standby(site: Deployment, chance: random.Random) -> int:
    """Kill a standby as a power cut would, and start it again."""
    return await _kill_and_start(_standby(site, chance), chance, _DOWN)


async def cut_standby(site: Deployment, chance: random.Random) -> None:
    """Drop all packets of a standby, or only those from and to the primary or the service."""
    assert site.network is not None
    standby = chance.choice(site.replicated.standby_names)
    other = chance.choice((None, site.replicated.primary_name, SERVICE))
    if other is None:
        site.network.isolate(standby)
    else:
        site.network.cut((standby, other))
    await _wait(chance, _AWAY)
    site.network.heal()


async def switch_over(site: Deployment, chance: random.Random) -> None:
    """Make a standby the primary, in order, and the former primary its standby."""
    successor = chance.choice(site.replicated.standby_names)
    await asyncio.to_thread(site.replicated.switch_over, successor)


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


def _of_database(*disturbances: Disturbance) -> tuple[Disturbance, ...]:
    """Return them with what each failure of the database explains."""
    return tuple(
        each._replace(
            mails=UNREPLICATED_MAILS if each.loses else PARALLEL_MAILS, rejects=EVERYTHING
        )
        for each in disturbances
    )


KILL_SERVER: Final = Disturbance("server process killed", kill_server, kills=True, breaks=True)
OF_SERVICE: Final = (
    KILL_SERVER,
    Disturbance("supervisor killed", kill_parent, kills=True, breaks=True),
    Disturbance("worker killed", kill_worker, kills=True, mails=PARALLEL_MAILS),
)
KILL_DATABASE, *_OTHERS = _of_database(
    Disturbance("PostgreSQL killed", kill_database, kills=True),
    Disturbance("backend killed", kill_backend, kills=True),
    Disturbance("PostgreSQL restarted", restart_database),
)
OF_DATABASE: Final = (KILL_DATABASE, *_OTHERS)
[FAIL_OVER, FAIL_OVER_BEHIND] = _of_database(
    Disturbance("failover, synchronous", fail_over, kills=True, restore=rejoin),
    Disturbance("failover, asynchronous", fail_over_behind, kills=True, loses=True, restore=rejoin),
)
LOSE_STANDBY: Final = Disturbance(
    "standby away", lose_standby, kills=True, mails=PARALLEL_MAILS, rejects=WRITES
)
OPEN_TRANSACTION: Final = Disturbance("transaction open for 10 s", open_transaction)
OF_MAIL: Final = (
    Disturbance("mail server down", stop_mail),
    Disturbance("mail server hangs", hang_mail, mails=PARALLEL_MAILS),
    Disturbance("mail server says later", defer_mail),
    Disturbance("mail server dies after taking", disconnect_mail, mails=math.inf),
)
OF_PROVIDER: Final = (
    Disturbance("provider down", cut_provider, rejects=_CHECKOUTS),
    Disturbance("provider hangs", hang_provider, rejects=_CHECKOUTS),
    Disturbance("provider answers 500", fail_provider, rejects=_CHECKOUTS),
)
BEHIND: Final = (
    Disturbance("WAL receiver stopped", stop_receiver),
    Disturbance("replay paused", pause_replay),
)
"""They let one of several standbys fall behind."""
OF_STANDBYS: Final = (
    Disturbance("no disturbance", do_nothing),
    *BEHIND,
    Disturbance("startup process frozen", freeze_startup),
    Disturbance("standby killed", kill_standby, kills=True),
    Disturbance("standby cut off", cut_standby),
    Disturbance("processes suspended", suspend_servers),
    Disturbance("primary switched over", switch_over),
)
"""The last one slows changes for two minutes: the promoted server is still registered."""
