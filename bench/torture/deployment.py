"""The deployment under test: PostgreSQL, sets of servers, a worker, a mail server and the
provider's API.
"""

import asyncio
import contextlib
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from bench import support
from bench.torture.client import LOOPBACK
from bench.torture.supervisor import DatabaseSupervisor, ProcessSupervisor
from tenantry.db.migrate import grant, migrate
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import SECRET_KEY, Simulator
from tests.support.database_server import (
    DatabaseServer,
    Machine,
    Pair,
    ReplicatedDatabase,
    server_folder,
)
from tests.support.issuer import AUDIENCE, running_issuer
from tests.support.link import Link
from tests.support.ports import free_port
from tests.support.postgres import as_url
from tests.support.smtp import MailServer, running
from tests.system.machines.network import Network

OWNERS: Final = ("owner0", "owner1")
"""Tenants whose keys and members the load changes."""
OPERATOR: Final = "operator-of-the-torture-0123456789abcdef"
LOGIN: Final = "tenantry_service"
"""The service's login, which owns nothing."""
_OUTSIDE: Final = "outside"
SERVICE: Final = "service"
"""The machine of the service, with `DatabaseKind.STANDBYS`."""
_DATABASES: Final = ("db-1", "db-2", "db-3")
MACHINES: Final = (_OUTSIDE, SERVICE, *_DATABASES)
"""The machines of `DatabaseKind.STANDBYS`: clients, mail server and providers; the service; the
databases, of which the first begins as the primary.
"""
_OPTIONS: Final = (
    "shared_buffers=128MB",
    "max_connections=200",
    "max_wal_size=128MB",
    "min_wal_size=80MB",
)
_OPTIONS_OF_STANDBYS: Final = (
    "shared_buffers=64MB",
    "max_connections=200",
    "wal_sender_timeout=3s",
    "wal_receiver_timeout=3s",
    "wal_retrieve_retry_interval=200ms",
    "wal_keep_size=256MB",
)
_TIMEOUT: Final = 60.0
_POLL: Final = 0.1


class DatabaseKind(StrEnum):
    """The database of a deployment."""

    ALONE = "one PostgreSQL"
    SYNCHRONOUS = "a primary and a synchronous standby"
    ASYNCHRONOUS = "a primary and an asynchronous standby"
    STANDBYS = "a primary and two standbys that answer checks, each on a machine"


class ServerSet(NamedTuple):
    """Server processes with one parent."""

    processes: int = 1
    checks: Sequence[str] = ()
    """The standbys that it checks keys at, the nearest first; none for the primary alone."""


SERVER_SETS: Final = (ServerSet(2), ServerSet(1))
_AT_STANDBYS: Final = tuple(
    ServerSet(checks=order)
    for order in (("db-2", "db-3", "db-1"), ("db-3", "db-2", "db-1"))
    for _ in range(2)
)
"""Two processes check keys at the one standby and two at the other. The primary comes last: it may
become a standby.
"""


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
        options: Sequence[str] = (),
        *,
        pair: Sequence[Machine | None] = (None, None),
        outside: str = LOOPBACK,
        network: Network | None = None,
        python: str = sys.executable,
    ) -> None:
        """``options`` are settings of PostgreSQL, ``pair`` the machines of a primary and its only
        standby; mail server and provider listen at ``outside``. ``network`` has the machines of
        `DatabaseKind.STANDBYS`. ``python`` is the interpreter whose tenantry is run.
        """
        self.kind = kind
        self.folder = folder
        self.network = network
        self.outside = outside
        self.python = python
        self.host = LOOPBACK
        """The load's target, at any of the ``ports``."""
        self.server_sets: Sequence[ServerSet] = SERVER_SETS
        self.workers = 1
        self.replicated: ReplicatedDatabase
        if kind in (DatabaseKind.SYNCHRONOUS, DatabaseKind.ASYNCHRONOUS):
            self.replicated = Pair(folder, (*_OPTIONS, *options), pair)
        elif kind is DatabaseKind.STANDBYS:
            assert network is not None
            self.outside, self.host = network.address(_OUTSIDE), network.address(SERVICE)
            self.server_sets = _AT_STANDBYS
            machines = {
                name: Machine(network.address(name), network.within(name)) for name in _DATABASES
            }
            self.replicated = ReplicatedDatabase(
                folder, machines, (*_OPTIONS_OF_STANDBYS, *options), have_names=True
            )
        else:
            self.replicated = ReplicatedDatabase(folder, {"data": None}, (*_OPTIONS, *options))
        self.ports = [free_port() for _ in self.server_sets]
        self.mail = MailServer(host=self.outside)
        self.provider = FailingProvider()
        self.link = Link(lambda: _connect(self.provider.url), self.outside)
        """The connection to the provider's API."""
        self.keys: list[str] = []
        self.owners: dict[str, str] = {}
        self.supervisors: list[ProcessSupervisor] = []
        """Of the sets of servers."""
        self.worker: ProcessSupervisor | None = None
        self._supervisor: DatabaseSupervisor | None = None

    @property
    def pair(self) -> Pair:
        """The primary and its only standby."""
        assert isinstance(self.replicated, Pair)
        return self.replicated

    @property
    def database(self) -> DatabaseServer:
        """The server that accepts writes."""
        return self.replicated.primary

    @property
    def conninfo(self) -> str:
        """A superuser's connection to the server that accepts writes, which no network affects."""
        return self.database.conninfo

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The address and port of each set of servers."""
        return [(self.host, port) for port in self.ports]

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as a superuser on the server that accepts writes."""
        return self.database.rows(statement)

    def supervise(self) -> None:
        """Restart the primary whenever it ends. Of several standbys each disturbance does so."""
        if self.kind is not DatabaseKind.STANDBYS:
            self._supervisor = DatabaseSupervisor(self.database)
            self._supervisor.start()

    def stop_supervision(self) -> None:
        """Restart the primary no more."""
        if self._supervisor is not None:
            self._supervisor.abandon()

    def parents(self) -> list[psutil.Process]:
        """Return the parent of each set of several servers."""
        sets = zip(self.server_sets, self.supervisors, strict=True)
        return [
            each for servers, own in sets if servers.processes > 1 for each in own.processes()[:1]
        ]

    def server_processes(self) -> list[psutil.Process]:
        """Return the processes that serve, of all sets."""
        sets = zip(self.server_sets, self.supervisors, strict=True)
        return [
            each for servers, own in sets for each in own.processes()[int(servers.processes > 1) :]
        ]

    def start_database(self) -> None:
        """Start the database and create its schema and the service's login."""
        self.replicated.start()
        if self.kind is DatabaseKind.SYNCHRONOUS:
            self.pair.demand(synchronous=True)
        migrate(self.conninfo)
        with psycopg.connect(self.conninfo) as connection:
            connection.execute(f"CREATE ROLE {LOGIN} LOGIN")
            connection.execute(f"GRANT pg_read_all_stats TO {LOGIN}")
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
        owners = {f"key_owner_{name}": name for name in names}
        secrets = support.create_keys(self.conninfo, owners, are_owners=True)
        return {tenant: secrets[key_id] for key_id, tenant in owners.items()}

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the service's processes."""
        variables = {
            "DATABASE_URL": as_url(make_conninfo(self.replicated.conninfo, user=LOGIN)),
            "HOST": self.host,
            "DRAIN_SECONDS": "0",
            **variables,
        }
        within = [] if self.network is None else self.network.within(SERVICE)
        command = [*within, self.python, "-m", "tenantry"]
        serve = [*command, "serve", "--no-jobs", "--no-migrate"]
        for servers, port in zip(self.server_sets, self.ports, strict=True):
            own = {**variables, "PORT": str(port), **self._variables_of(servers)}
            log = self.folder / f"serve-{port}.log"
            self.supervisors.append(ProcessSupervisor(serve, own, log))
        log = self.folder / "worker.log"
        self.worker = ProcessSupervisor([*command, "worker"], variables, log)
        for supervisor in (*self.supervisors, self.worker):
            supervisor.start()

    def _variables_of(self, servers: ServerSet) -> dict[str, str]:
        variables = {"WORKERS": str(servers.processes)}
        if servers.checks:
            hosts = self.replicated.hosts(servers.checks)
            variables["DATABASE_CHECKS_URL"] = as_url(make_conninfo(hosts, user=LOGIN))
        return variables

    def readiness_urls(self) -> list[str]:
        """Return the readiness endpoint of every set of servers."""
        return [f"http://{host}:{port}/readyz" for host, port in self.addresses]

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
        if self.network is not None:
            self.network.heal()
        for supervisor in (*self.supervisors, *([self.worker] if self.worker else [])):
            supervisor.stop()
        self.stop_supervision()
        self.replicated.stop()


@contextlib.asynccontextmanager
async def running_deployment(
    kind: DatabaseKind,
    options: Sequence[str] = (),
    logs: Path | None = None,
    *,
    network: Network | None = None,
    python: str = sys.executable,
    plans: str | None = None,
) -> AsyncIterator[Deployment]:
    """Run a deployment; the arguments are those of `Deployment`. ``plans`` is a catalog, for that
    of the package. Copy the logs to a folder at the end.
    """
    with server_folder() as folder:
        site = Deployment(kind, folder, options, network=network, python=python)
        variables = {}
        if plans is not None:
            catalog = folder / "plans.toml"
            catalog.write_text(plans)
            variables["TENANTRY_PLANS"] = str(catalog)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(copy_logs, site, logs)
            await stack.enter_async_context(started(site, **variables))
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
            "SMTP_ALLOW_PLAINTEXT": "true",
            "MAIL_FROM": "billing@example.com",
            "PROVIDER_SECRET_KEY": SECRET_KEY,
            "PROVIDER_API_BASE": f"http://{site.outside}:{site.link.port}",
            "OIDC_ISSUER": issuer.url,
            "OIDC_AUDIENCE": AUDIENCE,
            "OIDC_ALLOW_HTTP": "true",
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
