"""The deployment under test: a primary, its standbys, and service processes that check keys there.

Each database is on a machine of its own, and so is each group of service processes; the machines
are network namespaces. Needs root.
"""

import contextlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from bench.faults.deployment import LOGIN, DatabaseKind, Deployment, copy_logs, started
from bench.faults.supervisor import ProcessSupervisor
from bench.ours import PLANS_WITHOUT_LIMITS
from bench.standbys.replicated_database import ReplicatedDatabase
from tenantry.db.migrate import grant, migrate
from tests.support.database_server import DatabaseServer, Machine
from tests.support.postgres import as_url
from tests.system.machines.network import Network

OUTSIDE: Final = "outside"
"""The clients, the mail server, the provider and the identity provider."""
DATABASES: Final = ("db-1", "db-2", "db-3")
"""The first begins as the primary."""
PYTHON: Final = sys.executable
_FIRST_PORT: Final = 3001
_OPTIONS: Final = (
    "shared_buffers=64MB",
    "max_connections=200",
    "wal_sender_timeout=3s",
    "wal_receiver_timeout=3s",
    "wal_retrieve_retry_interval=200ms",
    "wal_keep_size=256MB",
)


class ServiceProcess(NamedTuple):
    """Where a process of the service runs, and the standbys that it checks keys at, the nearest
    first; none for the primary alone.
    """

    machine: str
    checks: Sequence[str] = ()


class StandbyDeployment(Deployment):
    """All processes of a run."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        processes: Sequence[ServiceProcess],
        databases: Sequence[str] = DATABASES,
        python: str = PYTHON,
    ) -> None:
        """``python`` is the interpreter whose tenantry is run."""
        super().__init__(
            DatabaseKind.ALONE, folder, (), outside=network.address(OUTSIDE), python=python
        )
        machines = {
            name: Machine(network.address(name), network.within(name)) for name in databases
        }
        self.network = network
        self.replicated = ReplicatedDatabase(folder, machines, _OPTIONS)
        self.service_processes = processes
        self.ports = [_FIRST_PORT + number for number, _ in enumerate(processes)]
        self.host = network.address(processes[0].machine)

    @property
    def database(self) -> DatabaseServer:
        """The server that accepts writes."""
        return self.replicated.primary

    @property
    def conninfo(self) -> str:
        """The primary's socket, which no network fault affects."""
        return self.replicated.primary.conninfo

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The address and port of each process of the service."""
        hosts = [self.network.address(process.machine) for process in self.service_processes]
        return list(zip(hosts, self.ports, strict=True))

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as a superuser on the primary."""
        return self.replicated.primary.rows(statement)

    def supervise(self) -> None:
        """Do nothing: faults start servers again themselves."""

    def start_database(self) -> None:
        """Start all databases, and create the schema and the service's login."""
        self.replicated.start()
        migrate(self.conninfo)
        with psycopg.connect(self.conninfo) as connection:
            connection.execute(f"CREATE ROLE {LOGIN} LOGIN")
            connection.execute(f"GRANT pg_read_all_stats TO {LOGIN}")
        grant(self.conninfo, LOGIN)

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the service's processes."""
        catalog = self.folder / "plans.toml"
        catalog.write_text(PLANS_WITHOUT_LIMITS)
        variables = {
            "DATABASE_URL": as_url(make_conninfo(self.replicated.conninfo, user=LOGIN)),
            "TENANTRY_PLANS": str(catalog),
            "WORKERS": "1",
            "DRAIN_SECONDS": "0",
            **variables,
        }
        for process, (host, port) in zip(self.service_processes, self.addresses, strict=True):
            own = {**variables, "HOST": host, "PORT": str(port), **self._checks(process)}
            command = [
                *self.network.within(process.machine),
                self.python,
                *("-m", "tenantry", "serve", "--no-jobs", "--no-migrate"),
            ]
            log = self.folder / f"serve-{port}.log"
            self.servers.append(ProcessSupervisor(command, own, log))
        for supervisor in self.servers:
            supervisor.start()

    def _checks(self, process: ServiceProcess) -> dict[str, str]:
        if not process.checks:
            return {}
        hosts = self.replicated.hosts(process.checks)
        return {"DATABASE_CHECKS_URL": as_url(make_conninfo(hosts, user=LOGIN))}

    def readiness_urls(self) -> list[str]:
        """Return the readiness endpoint of every process."""
        return [f"http://{host}:{port}/readyz" for host, port in self.addresses]

    def running_processes(self) -> list[psutil.Process]:
        """Return the service's processes, in the order of their ports."""
        return [process for supervisor in self.servers for process in supervisor.processes()]

    def stop(self) -> None:
        """Stop everything."""
        self.network.heal()
        for supervisor in self.servers:
            supervisor.stop()
        self.replicated.stop()


@contextlib.asynccontextmanager
async def running_standbys(site: StandbyDeployment, logs: Path | None) -> AsyncIterator[None]:
    """Run a deployment; copy the logs to a folder at the end."""
    with contextlib.ExitStack() as stack:
        stack.callback(copy_logs, site, logs)
        async with started(site, SMTP_ALLOW_PLAINTEXT="true", OIDC_ALLOW_HTTP="true"):
            yield
