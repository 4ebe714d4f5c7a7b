"""The deployment under test: PostgreSQL, two sets of servers, a worker, a mail server and the
provider's API.
"""

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
from typing import Any, Final

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from bench import support
from bench.faults.client import LOOPBACK
from bench.faults.supervisor import DatabaseSupervisor, ProcessSupervisor
from tenantry.db.migrate import grant, migrate
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import SECRET_KEY, Simulator
from tests.support.database_server import DatabaseServer, Machine, Pair, server_folder
from tests.support.issuer import AUDIENCE, running_issuer
from tests.support.link import Link
from tests.support.postgres import as_url
from tests.support.smtp import MailServer, running

OWNERS: Final = ("owner0", "owner1")
"""Tenants whose keys and members the load changes."""
OPERATOR: Final = "operator-of-the-faults-0123456789abcdef"
WORKERS: Final = (2, 1)
"""Processes of each set of servers."""
CLOCK_LIBRARIES: Final = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
"""Debian's faketime, if installed."""
CORRECT_TIME: Final = "+0"
LOGIN: Final = "tenantry_service"
"""The service's login, which owns nothing."""
_DATA_SIZE: Final = "700m"
_WAL_SIZE: Final = "300m"
_OPTIONS: Final = (
    "shared_buffers=128MB",
    "max_connections=200",
    "max_wal_size=128MB",
    "min_wal_size=80MB",
)
_TIMEOUT: Final = 60.0
_POLL: Final = 0.1


class DatabaseKind(StrEnum):
    """The database of a deployment."""

    ALONE = "one PostgreSQL"
    CLOCK = "one PostgreSQL, and one set of servers with a separate clock"
    FULL = "one PostgreSQL on file systems of a fixed size"
    SYNCHRONOUS = "a primary and a synchronous standby"
    ASYNCHRONOUS = "a primary and an asynchronous standby"


class FailingProvider(Simulator):
    """The simulated provider, which answers 500 while ``is_failing``."""

    is_failing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.is_failing:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


class Deployment:
    """All processes of a run."""

    def __init__(
        self,
        kind: DatabaseKind,
        folder: Path,
        options: Sequence[str],
        machines: Sequence[Machine | None] = (None, None),
        outside: str = LOOPBACK,
        python: str = sys.executable,
    ) -> None:
        """``machines`` are those of a primary and a standby; mail server and provider listen at
        ``outside``. ``python`` is the interpreter whose tenantry is run.
        """
        self.kind = kind
        self.folder = folder
        self.outside = outside
        self.python = python
        self.host = LOOPBACK
        """The load's target, at any of the ``ports``."""
        self.ports = [support.free_port() for _ in WORKERS]
        self.workers = 1
        self.mail = MailServer(host=outside)
        self.provider = FailingProvider()
        self.link = Link(lambda: _connect(self.provider.url), outside)
        """The connection to the provider's API."""
        self.keys: list[str] = []
        self.owners: dict[str, str] = {}
        self.servers: list[ProcessSupervisor] = []
        self.worker: ProcessSupervisor | None = None
        self.clock = folder / "clock"
        """faketime's file for the second set of servers."""
        self.data, self.wal = folder / "data", folder / "wal"
        self.pair: Pair | None = None
        if kind in (DatabaseKind.SYNCHRONOUS, DatabaseKind.ASYNCHRONOUS):
            self.pair = Pair(folder, (*_OPTIONS, *options), machines)
        else:
            for place in (self.data, self.wal):
                place.mkdir()
            self._server = DatabaseServer(self.data, (*_OPTIONS, *options), wal=self.wal)
        self._supervisor: DatabaseSupervisor | None = None

    @property
    def database(self) -> DatabaseServer:
        """The server that accepts writes."""
        return self.pair.primary if self.pair else self._server

    @property
    def conninfo(self) -> str:
        """A superuser's connection string."""
        return (self.pair or self._server).conninfo

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as a superuser on the server that accepts writes."""
        return self.database.rows(statement)

    def supervise(self) -> None:
        """Restart the primary whenever it ends."""
        self._supervisor = DatabaseSupervisor(self.database)
        self._supervisor.start()

    def stop_supervision(self) -> None:
        """Restart the primary no more."""
        if self._supervisor is not None:
            self._supervisor.abandon()

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the service's processes by role."""
        found: dict[str, list[psutil.Process]] = {
            "worker": self.worker.processes() if self.worker else []
        }
        for number, supervisor in zip(WORKERS, self.servers, strict=True):
            processes = supervisor.processes()
            if number > 1:
                found["supervisor"], found[f"server of {number}"] = processes[:1], processes[1:]
            else:
                found["server alone"] = processes
        return found

    def start_database(self) -> None:
        """Start the database and create its schema and the service's login."""
        if self.pair:
            self.pair.start()
            self.pair.demand(synchronous=self.kind is DatabaseKind.SYNCHRONOUS)
        else:
            self._server.initialise()
            self._server.start()
        migrate(self.conninfo)
        with psycopg.connect(self.conninfo) as connection:
            connection.execute(f"CREATE ROLE {LOGIN} LOGIN")
        grant(self.conninfo, LOGIN)

    def prepare(self) -> None:
        """Start the database and load tenants and keys."""
        self.start_database()
        self.keys = support.load(self.conninfo)
        self.owners = self.create_tenants(OWNERS)
        for number in range(support.TENANTS):
            self.provider.customer(f"cus_{number}")
        self.supervise()

    def create_tenants(self, names: Sequence[str]) -> dict[str, str]:
        """Create tenants; return an OWNER key of each."""
        with psycopg.connect(self.conninfo) as connection:
            for name in names:
                connection.execute(
                    "INSERT INTO tenants (id, name, owner_id, owner_email) "
                    "VALUES (%(id)s, %(id)s, %(id)s, 'owner@example.com')",
                    {"id": name},
                )
        return dict(zip(names, support.create_owner_keys(self.conninfo, names), strict=True))

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the service's processes."""
        variables = {"DATABASE_URL": as_url(make_conninfo(self.conninfo, user=LOGIN)), **variables}
        self.clock.write_text(CORRECT_TIME)
        for number, port in zip(WORKERS, self.ports, strict=True):
            own = {"WORKERS": str(number), "PORT": str(port)}
            if number == 1 and self.kind is DatabaseKind.CLOCK:
                own |= {
                    "LD_PRELOAD": str(CLOCK_LIBRARIES[-1]),
                    "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                    "FAKETIME_CACHE_DURATION": "1",
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                }
            command = [self.python, "-m", "tenantry", "serve", "--no-jobs", "--no-migrate"]
            log = self.folder / f"serve-{number}.log"
            self.servers.append(ProcessSupervisor(command, {**variables, **own}, log))
        command = [self.python, "-m", "tenantry", "worker"]
        self.worker = ProcessSupervisor(command, variables, self.folder / "worker.log")
        for supervisor in (*self.servers, self.worker):
            supervisor.start()

    def readiness_urls(self) -> list[str]:
        """Return the readiness endpoint of every set of servers."""
        return [f"http://{LOOPBACK}:{port}/readyz" for port in self.ports]

    def until_ready(self) -> None:
        """Wait until all servers are ready. Raises `TimeoutError`."""
        deadline = time.monotonic() + _TIMEOUT
        for url in self.readiness_urls():
            while not _is_ready(url):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not ready: {url}")
                time.sleep(_POLL)

    def stop(self) -> None:
        """Stop everything."""
        for supervisor in (*self.servers, *([self.worker] if self.worker else [])):
            supervisor.stop()
        self.stop_supervision()
        (self.pair or self._server).stop()


@contextlib.asynccontextmanager
async def running_deployment(
    kind: DatabaseKind, options: Sequence[str] = (), keep_logs: Path | None = None
) -> AsyncIterator[Deployment]:
    """Run a deployment; ``options`` are settings of PostgreSQL. Copy the logs to a folder at the
    end.
    """
    with server_folder() as folder:
        site = Deployment(kind, folder, options)
        async with contextlib.AsyncExitStack() as stack:
            if kind is DatabaseKind.FULL:
                stack.enter_context(_mounted(site.data, _DATA_SIZE))
                stack.enter_context(_mounted(site.wal, _WAL_SIZE))
            stack.callback(copy_logs, site, keep_logs)
            await stack.enter_async_context(started(site))
            yield site


@contextlib.asynccontextmanager
async def started(site: Deployment, **variables: str) -> AsyncIterator[None]:
    """Start everything and wait until it is ready."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(site.mail))
        await stack.enter_async_context(serving(site.provider))
        issuer = await stack.enter_async_context(running_issuer(host=site.outside))
        await site.link.restore()
        stack.push_async_callback(site.link.cut)
        stack.push_async_callback(asyncio.to_thread, site.stop)
        await asyncio.to_thread(site.prepare)
        settings = {
            "API_KEY_PEPPER": support.PEPPER,
            "SESSION_SECRET": support.PEPPER,
            "PROVIDER_WEBHOOK_SECRET": support.SECRET,
            "OPERATOR_TOKEN": OPERATOR,
            "SMTP_URL": f"smtp://{site.outside}:{site.mail.port}",
            "MAIL_FROM": "billing@example.com",
            "PROVIDER_SECRET_KEY": SECRET_KEY,
            "PROVIDER_API_BASE": f"http://{site.outside}:{site.link.port}",
            "OIDC_ISSUER": issuer.url,
            "OIDC_AUDIENCE": AUDIENCE,
            **variables,
        }
        await asyncio.to_thread(site.start, settings)
        await asyncio.to_thread(site.until_ready)
        yield


def copy_logs(site: Deployment, logs: Path | None) -> None:
    """Copy the logs of all processes to a folder, if there is one."""
    if logs is None:
        return
    for log in site.folder.rglob("*log"):
        if log.is_file():
            name = f"{site.kind.name.lower()}-{'-'.join(log.relative_to(site.folder).parts)}"
            (logs / name).write_bytes(log.read_bytes())


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(LOOPBACK, int(url.rpartition(":")[2]))


def _is_ready(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=6).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _mounted(place: Path, size: str) -> Iterator[None]:
    """Mount a file system of a fixed size in memory."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Use all free space of a file system; return the file to delete."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        out.writelines(itertools.repeat(bytes(4096)))
    return filler
