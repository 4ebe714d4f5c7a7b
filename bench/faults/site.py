"""The set-up under test: PostgreSQL, two sets of server processes, a worker, a mail server and the provider's API."""

import asyncio
import contextlib
import itertools
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from bench import support
from bench.faults.keeper import DatabaseKeeper, Keeper
from tenantry.db.migrate import grant, migrate
from tenantry_devkit.simulator import SECRET_KEY, Simulator
from tenantry_devkit.simulator.http import Receive, Scope, Send
from tenantry_devkit.simulator.server import serving
from tests.support.database_server import DatabaseServer, Machine, Pair, server_folder
from tests.support.issuer import AUDIENCE, running_issuer
from tests.support.link import Link
from tests.support.postgres import as_url
from tests.support.smtp import MailServer, running

OWNERS: Final = ("owner0", "owner1")
"""Tenants whose keys and members come and go."""
OPERATOR: Final = "operator-of-the-faults-0123456789abcdef"
WORKERS: Final = (2, 1)
"""Processes of each set of servers."""
CLOCK_LIBRARIES: Final = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
"""Debian's faketime, where it is installed."""
RIGHT: Final = "+0"
_LOGIN: Final = "tenantry_service"
"""Who the service is to the database: a login that owns nothing."""
_DATA_SIZE: Final = "700m"
_WAL_SIZE: Final = "300m"
_OPTIONS: Final = ("shared_buffers=128MB", "max_connections=200", "max_wal_size=128MB", "min_wal_size=80MB")
_PATIENCE: Final = 60.0
_LOOK: Final = 0.1


class Database(StrEnum):
    """What the database of a set-up is."""

    ALONE = "one PostgreSQL"
    CLOCK = "one PostgreSQL, and one set of servers with a clock of its own"
    FULL = "one PostgreSQL on file systems of a fixed size"
    SYNCHRONOUS = "a primary and a synchronous standby"
    ASYNCHRONOUS = "a primary and an asynchronous standby"

    @property
    def has_standby(self) -> bool:
        """Whether there are two."""
        return self in (Database.SYNCHRONOUS, Database.ASYNCHRONOUS)


class Provider:
    """The provider's API, which can be told to answer 500."""

    def __init__(self, simulator: Simulator) -> None:
        self.is_failing = False
        self._simulator = simulator

    @property
    def url(self) -> str:
        """Where it is served."""
        return self._simulator.url

    @url.setter
    def url(self, url: str) -> None:
        self._simulator.url = url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.is_failing:
            await self._simulator(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


class Site:
    """What runs, and the ways to harm it."""

    def __init__(
        self, kind: Database, folder: Path, options: Sequence[str], machines: Sequence[Machine | None] = (None, None)
    ) -> None:
        """``machines`` are those of a primary and a standby."""
        self.kind = kind
        self.host = "127.0.0.1"
        """Where the load is sent to, at any of the ``ports``."""
        self.link = Link(lambda: _connect(self.provider.url))
        """The way to the provider's API."""
        self.mail = MailServer()
        self.simulator = Simulator()
        self.provider = Provider(self.simulator)
        self.keys: list[str] = []
        self.owners: dict[str, str] = {}
        self.servers: list[Keeper] = []
        self.worker: Keeper | None = None
        self.workers = 1
        self.ports = [support.free_port() for _ in WORKERS]
        self.clock = folder / "clock"
        """What the clock of the second set of servers shows, as faketime has it."""
        self.data, self.wal = folder / "data", folder / "wal"
        self.folder = folder
        settings = (*_OPTIONS, *options)
        self.pair: Pair | None = None
        if kind.has_standby:
            self.pair = Pair(folder, settings, machines)
        else:
            for place in (self.data, self.wal):
                place.mkdir()
            self._server = DatabaseServer(self.data, settings, wal=self.wal)
        self._keeper: DatabaseKeeper | None = None

    @property
    def database(self) -> DatabaseServer:
        """The server that is written to."""
        return self.pair.primary if self.pair else self._server

    @property
    def conninfo(self) -> str:
        """How the service finds its database."""
        return (self.pair or self._server).conninfo

    def keep(self) -> None:
        """Let the primary be started anew when it dies."""
        self._keeper = DatabaseKeeper(self.database)
        self._keeper.start()

    def let_go(self) -> None:
        """Leave it as it is when it dies."""
        if self._keeper is not None:
            self._keeper.stop()

    def processes(self) -> dict[str, list[psutil.Process]]:
        """The service's processes, by what they are."""
        found: dict[str, list[psutil.Process]] = {"worker": self.worker.family() if self.worker else []}
        for number, keeper in zip(WORKERS, self.servers, strict=True):
            family = keeper.family()
            if number > 1:
                found["supervisor"], found[f"server of {number}"] = family[:1], family[1:]
            else:
                found["server alone"] = family
        return found

    # Building up

    def prepare(self) -> None:
        """Start the database and fill it with tenants and keys."""
        if self.pair:
            self.pair.start()
            self.pair.demand(synchronous=self.kind is Database.SYNCHRONOUS)
        else:
            self._server.initialise()
            self._server.start()
        migrate(self.conninfo)
        with psycopg.connect(self.conninfo) as connection:
            connection.execute(f"CREATE ROLE {_LOGIN} LOGIN")
        grant(self.conninfo, _LOGIN)
        self.keys = support.load(self.conninfo)
        with psycopg.connect(self.conninfo) as connection:
            for owner in OWNERS:
                connection.execute(
                    "INSERT INTO tenants (id, name, owner_id, owner_email) "
                    "VALUES (%(id)s, %(id)s, %(id)s, 'owner@example.com')",
                    {"id": owner},
                )
        self.owners = dict(zip(OWNERS, support.create_owner_keys(self.conninfo, OWNERS), strict=True))
        for number in range(support.TENANTS):
            self.simulator.customer(f"cus_{number}")
        self.keep()

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the service's processes."""
        settings = {
            "DATABASE_URL": as_url(make_conninfo(self.conninfo, user=_LOGIN)), "API_KEY_PEPPER": support.PEPPER,
            "SESSION_SECRET": support.PEPPER, "PROVIDER_WEBHOOK_SECRET": support.SECRET, "OPERATOR_TOKEN": OPERATOR,
            **variables,
        }  # fmt: skip
        self.clock.write_text(RIGHT)
        for number, port in zip(WORKERS, self.ports, strict=True):
            own = {"WORKERS": str(number), "PORT": str(port)}
            if number == 1 and self.kind is Database.CLOCK:
                own |= {
                    "LD_PRELOAD": str(CLOCK_LIBRARIES[-1]), "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                    "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                }  # fmt: skip
            command = [sys.executable, "-m", "tenantry", "serve", "--no-jobs", "--no-migrate"]
            self.servers.append(Keeper(command, {**settings, **own}, self.folder / f"serve-{number}.log"))
        command = [sys.executable, "-m", "tenantry", "worker"]
        self.worker = Keeper(command, settings, self.folder / "worker.log")
        for keeper in (*self.servers, self.worker):
            keeper.start()

    def until_ready(self) -> None:
        """Wait until both sets of servers answer. Raises `TimeoutError`."""
        deadline = time.monotonic() + _PATIENCE
        for port in self.ports:
            while not _is_ready(port):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody is ready at port {port}")
                time.sleep(_LOOK)

    def stop(self) -> None:
        """End everything."""
        for keeper in (*self.servers, *([self.worker] if self.worker else [])):
            keeper.stop()
        self.let_go()
        (self.pair or self._server).stop()


@contextlib.asynccontextmanager
async def running_site(
    kind: Database, options: Sequence[str] = (), keep_logs: Path | None = None
) -> AsyncIterator[Site]:
    """A set-up, running; ``options`` are settings of PostgreSQL. The logs are copied to a folder at the end."""
    with server_folder() as folder:
        site = Site(kind, folder, options)
        async with contextlib.AsyncExitStack() as stack:
            if kind is Database.FULL:
                stack.enter_context(_mounted(site.data, _DATA_SIZE))
                stack.enter_context(_mounted(site.wal, _WAL_SIZE))
            stack.callback(copy_logs, site, keep_logs)
            await stack.enter_async_context(started(site))
            yield site


@contextlib.asynccontextmanager
async def started(site: Site, outside: str = "127.0.0.1", **variables: str) -> AsyncIterator[None]:
    """All of a set-up, ready; ``outside`` is the address of the world outside, which runs here."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(site.mail))
        await stack.enter_async_context(serving(site.provider))
        issuer = await stack.enter_async_context(running_issuer(host=outside))
        await site.link.restore()
        stack.push_async_callback(site.link.cut)
        stack.push_async_callback(asyncio.to_thread, site.stop)
        await asyncio.to_thread(site.prepare)
        await asyncio.to_thread(
            site.start,
            {
                "SMTP_URL": f"smtp://{outside}:{site.mail.port}", "MAIL_FROM": "billing@example.com",
                "PROVIDER_SECRET_KEY": SECRET_KEY, "PROVIDER_API_BASE": f"http://{outside}:{site.link.port}",
                "OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE, **variables,
            },
        )  # fmt: skip
        await asyncio.to_thread(site.until_ready)
        yield


def copy_logs(site: Site, logs: Path | None) -> None:
    """Keep what all processes of a set-up logged, where there is a folder for it."""
    if logs is None:
        return
    for log in site.folder.rglob("*log"):
        if log.is_file():
            name = f"{site.kind.name.lower()}-{'-'.join(log.relative_to(site.folder).parts)}"
            (logs / name).write_bytes(log.read_bytes())


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


def _is_ready(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _mounted(place: Path, size: str) -> Iterator[None]:
    """A file system in memory, of a fixed size."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all the room that a file system has left; returns the file to delete."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        out.writelines(itertools.repeat(bytes(4096)))
    return filler
