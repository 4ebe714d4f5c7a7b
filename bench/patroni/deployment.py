"""The service on one machine, with two processes and a worker, on a database that Patroni manages."""

import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from bench.faults.deployment import LOGIN, DatabaseKind, Deployment, copy_logs, started
from bench.faults.supervisor import ProcessSupervisor
from bench.machines.network import Network
from bench.patroni.cluster import DATABASES, ETCDS, OWNER, PatroniCluster, Programs, with_login
from bench.patroni.watchdog import Watchdog
from tenantry.db.migrate import grant, migrate
from tests.support.database_server import server_folder

OUTSIDE: Final = "outside"
"""The clients, the mail server, the provider and the identity provider."""
HOST: Final = "host"
"""The service and HAProxy."""
MACHINES: Final = (OUTSIDE, HOST, *DATABASES, *ETCDS)
PORT: Final = 3001
PROCESSES: Final = 2


class Way(StrEnum):
    """How the service connects to the primary."""

    PROXY = "HAProxy"
    HOSTS = "several hosts"
    WATCHDOG = "several hosts, watchdog"


class PatroniDeployment(Deployment):
    """All processes of a run."""

    def __init__(self, way: Way, folder: Path, network: Network, programs: Programs) -> None:
        super().__init__(DatabaseKind.ALONE, folder, (), outside=network.address(OUTSIDE))
        self.way = way
        self.network = network
        self.host = network.address(HOST)
        self.ports = [PORT]
        self.cluster = PatroniCluster(folder, network, programs)
        self.watchdogs: dict[str, Watchdog] = {}
        self._supervisors: list[ProcessSupervisor] = []

    @property
    def worker_log(self) -> Path:
        """What the worker writes to its standard error."""
        return self.folder / "worker.log"

    @property
    def conninfo(self) -> str:
        """The newest primary's socket, which no network fault affects."""
        return self.cluster.socket_conninfo(self.cluster.newest_primary())

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as a superuser on the newest primary."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def supervise(self) -> None:
        """Do nothing: Patroni restarts PostgreSQL."""

    def start_database(self) -> None:
        """Start all machines with a database, and create the schema as the owner of the tables."""
        self.cluster.start({name: watchdog.device for name, watchdog in self.watchdogs.items()})
        owner = with_login(self.cluster.through_hosts(), OWNER, self.cluster.password("TENANTRY_OWNER"))
        migrate(owner)
        grant(owner, LOGIN)

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the service."""
        cluster = self.cluster
        if self.way is Way.PROXY:
            cluster.start_proxy(HOST)
            address = cluster.through_proxy()
        else:
            address = cluster.through_hosts()
        variables = {
            "DATABASE_URL": with_login(address, LOGIN, cluster.password("TENANTRY_SERVICE")),
            "HOST": self.host, "PORT": str(PORT), "WORKERS": str(PROCESSES), **variables,
        }  # fmt: skip
        for name, command in (("serve", ("serve", "--no-jobs", "--no-migrate")), ("worker", ("worker",))):
            program = [*self.network.within(HOST), sys.executable, "-m", "tenantry", *command]
            self._supervisors.append(ProcessSupervisor(program, variables, self.folder / f"{name}.log"))
        for supervisor in self._supervisors:
            supervisor.start()

    def readiness_urls(self) -> list[str]:
        """Return the service's readiness endpoint."""
        return [f"http://{self.host}:{PORT}/readyz"]

    def power_off(self, machine: str) -> int:
        """Kill a machine like a power cut: no other machine gets a packet. Return the number of its processes."""
        self.network.isolate(machine)
        return self.cluster.signal(machine, signal.SIGKILL)

    def make_whole(self) -> None:
        """Undo every fault, and wait until all machines work again."""
        self.network.heal()
        for name in (*DATABASES, *ETCDS):
            self.cluster.signal(name, signal.SIGCONT)
        self.cluster.start_missing()
        self.cluster.until_whole()

    def stop(self) -> None:
        """Stop everything."""
        self.network.heal()
        for supervisor in self._supervisors:
            supervisor.stop()
        self.cluster.stop()


@contextlib.asynccontextmanager
async def running(
    way: Way, network: Network, programs: Programs, keep_logs: Path | None
) -> AsyncIterator[PatroniDeployment]:
    """Run a deployment on these machines; copy the logs to a folder at the end."""
    with server_folder() as folder:
        site = PatroniDeployment(way, folder, network, programs)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(copy_logs, site, keep_logs)
            if way is Way.WATCHDOG:
                for name in DATABASES:
                    site.watchdogs[name] = Watchdog(folder / f"{name}.watchdog", partial(site.power_off, name))
                    stack.enter_context(site.watchdogs[name])
            await stack.enter_async_context(started(site, SMTP_ALLOW_PLAINTEXT="true", OIDC_ALLOW_HTTP="true"))
            yield site
