"""The service on one machine, with two processes and a worker, on a database that Patroni
manages.
"""

import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from bench import support
from bench.torture.deployment import LOGIN, DatabaseKind, Deployment, copy_logs, started
from bench.torture.supervisor import ProcessSupervisor
from tenantry.db.migrate import grant, migrate
from tests.support.database_server import server_folder
from tests.system.machines.network import Network
from tests.system.patroni.patroni_cluster import (
    DATABASES,
    ETCDS,
    OWNER,
    PatroniCluster,
    Programs,
    with_login,
)
from tests.system.patroni.watchdog import Watchdog

OUTSIDE: Final = "outside"
"""The clients, the mail server, the provider and the identity provider."""
HOST: Final = "host"
"""The service with two processes, a worker, and HAProxy."""
SINGLES: Final = ("single-1", "single-2", "single-3")
"""Each with one process of the service, and HAProxy. If ``DATABASE_URL`` names several hosts, each
begins with another: then some find the new primary, and others stay with the old one while it
accepts connections.
"""
MACHINES: Final = (OUTSIDE, HOST, *SINGLES, *DATABASES, *ETCDS)
PORT: Final = 3001
_PROCESSES: Final = {HOST: 2, **dict.fromkeys(SINGLES, 1)}
_STOCK: Final = "stock"
_STOCK_SIZE: Final = 6000
_WORKER: Final = "worker"
_TENANTRY: Final = (sys.executable, "-m", "tenantry")


class Way(StrEnum):
    """How the service connects to the primary."""

    PROXY = "HAProxy"
    STANDBYS = "HAProxy, checks on standbys"
    HOSTS = "several hosts"
    WATCHDOG = "several hosts, watchdog"


class PatroniDeployment(Deployment):
    """All processes of a run."""

    def __init__(self, way: Way, folder: Path, network: Network, programs: Programs) -> None:
        super().__init__(DatabaseKind.ALONE, folder, outside=network.address(OUTSIDE))
        self.way = way
        self.network: Network = network
        self.host = network.address(HOST)
        self.ports = [PORT]
        self.cluster = PatroniCluster(folder, network, programs)
        self.watchdogs: dict[str, Watchdog] = {}
        self.stock: dict[str, str] = {}
        """Keys to revoke during disturbances: secrets by id. Standbys have them before."""
        self.stock_owner = ""
        """A key that may revoke them."""
        self._supervisors: dict[str, ProcessSupervisor] = {}

    @property
    def uses_proxy(self) -> bool:
        """Whether HAProxy leads each machine to the primary."""
        return self.way in (Way.PROXY, Way.STANDBYS)

    @property
    def worker_log(self) -> Path:
        """What the worker writes to its standard error."""
        return self.folder / "worker.log"

    @property
    def conninfo(self) -> str:
        """The newest primary's socket, which no network failure affects."""
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
        owner = with_login(
            self.cluster.through_hosts(), OWNER, self.cluster.password("TENANTRY_OWNER")
        )
        migrate(owner)
        grant(owner, LOGIN)
        if self.way is Way.STANDBYS:
            with psycopg.connect(self.conninfo) as connection:
                connection.execute(f"GRANT pg_read_all_stats TO {LOGIN}")

    def prepare(self) -> None:
        """Start the database and load tenants and keys."""
        super().prepare()
        [self.stock_owner] = self.create_tenants([_STOCK]).values()
        owners = {f"key_{_STOCK}_{number}": _STOCK for number in range(_STOCK_SIZE)}
        self.stock = support.create_keys(self.conninfo, owners)

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the service."""
        cluster = self.cluster
        if self.uses_proxy:
            for machine in _PROCESSES:
                cluster.start_proxy(machine)
        variables = {"PORT": str(PORT), **variables}
        for machine, processes in _PROCESSES.items():
            own = {
                **variables,
                "DATABASE_URL": self._address(machine),
                "HOST": self.network.address(machine),
                "WORKERS": str(processes),
                **self._checks(machine),
            }
            command = [
                *self.network.within(machine),
                *_TENANTRY,
                "serve",
                "--no-jobs",
                "--no-migrate",
            ]
            self._supervisors[machine] = ProcessSupervisor(
                command, own, self.folder / f"{machine}-serve.log"
            )
        own = {**variables, "DATABASE_URL": self._address(HOST)}
        command = [*self.network.within(HOST), *_TENANTRY, "worker"]
        self._supervisors[_WORKER] = ProcessSupervisor(command, own, self.worker_log)
        for supervisor in self._supervisors.values():
            supervisor.start()

    def _address(self, machine: str) -> str:
        """Return a machine's ``DATABASE_URL``."""
        through = self.cluster.through_proxy() if self.uses_proxy else self._through_hosts(machine)
        return with_login(through, LOGIN, self.cluster.password("TENANTRY_SERVICE"))

    def _checks(self, machine: str) -> dict[str, str]:
        """Return the setting for checks on standbys: each machine has another one nearby."""
        if self.way is not Way.STANDBYS:
            return {}
        password = self.cluster.password("TENANTRY_SERVICE")
        return {"DATABASE_CHECKS_URL": with_login(self._through_hosts(machine), LOGIN, password)}

    def _through_hosts(self, machine: str) -> str:
        first = SINGLES.index(machine) if machine in SINGLES else 0
        return self.cluster.through_hosts([*DATABASES[first:], *DATABASES[:first]])

    def readiness_urls(self) -> list[str]:
        """Return the readiness endpoint of each host, without a balancer."""
        return [f"http://{self.network.address(machine)}:{PORT}/readyz" for machine in _PROCESSES]

    def power_off(self, machine: str) -> int:
        """Kill a machine like a power cut: no other machine gets a packet. Return the number of its
        processes.
        """
        self.network.isolate(machine)
        return self.cluster.signal(machine, signal.SIGKILL)

    def kill_service(self, machine: str) -> None:
        """Kill the service on a machine; it is started again."""
        for process in self._supervisors[machine].processes():
            process.kill()

    def make_whole(self) -> None:
        """Undo every disturbance, and wait until all machines work again."""
        self.network.heal()
        for name in (*DATABASES, *ETCDS):
            self.cluster.signal(name, signal.SIGCONT)
        self.cluster.start_missing()
        self.cluster.until_whole()

    def stop(self) -> None:
        """Kill everything."""
        self.network.heal()
        for machine, supervisor in self._supervisors.items():
            supervisor.abandon()
            self.kill_service(machine)
        self.cluster.stop()


@contextlib.asynccontextmanager
async def running(
    way: Way, network: Network, programs: Programs, logs: Path
) -> AsyncIterator[PatroniDeployment]:
    """Run a deployment on these machines; copy the logs to a folder at the end."""
    with server_folder() as folder:
        site = PatroniDeployment(way, folder, network, programs)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(copy_logs, site, logs)
            if way is Way.WATCHDOG:
                for name in DATABASES:
                    site.watchdogs[name] = Watchdog(
                        folder / f"{name}.watchdog", partial(site.power_off, name)
                    )
                    stack.enter_context(site.watchdogs[name])
            await stack.enter_async_context(started(site))
            yield site
