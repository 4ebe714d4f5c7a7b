"""A deployment on several machines: a balancer, two hosts of the service, a primary, a standby, and
all clients.
"""

import contextlib
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from bench.torture.deployment import DatabaseKind, Deployment, copy_logs, started
from bench.torture.supervisor import ProcessSupervisor
from tests.support.database_server import Machine, server_folder
from tests.support.postgres import as_url
from tests.support.proxies import balancing
from tests.system.machines.network import NETWORK, Network, ip

OUTSIDE: Final = "outside"
"""The clients, the mail server, the provider and the identity provider."""
BALANCER: Final = "balancer"
HOSTS: Final = ("a", "b")
"""The service runs here, with a worker on each."""
DATABASES: Final = ("p", "s")
"""The primary and the standby."""
MACHINES: Final = (OUTSIDE, BALANCER, *HOSTS, *DATABASES)
PORT: Final = 3001
BALANCER_PORT: Final = 8080
_TIMEOUT: Final = 6.0
_REPLICATION: Final = ("wal_receiver_timeout=5s", "wal_sender_timeout=5s")


class MultiHostDeployment(Deployment):
    """All processes of a run, by machine."""

    def __init__(self, folder: Path, network: Network) -> None:
        machines = [Machine(network.address(name), network.within(name)) for name in DATABASES]
        super().__init__(
            DatabaseKind.SYNCHRONOUS,
            folder,
            _REPLICATION,
            pair=machines,
            outside=network.address(OUTSIDE),
        )
        self.network: Network = network
        self.host = network.address(BALANCER)
        self.ports = [BALANCER_PORT]
        self.workers = len(HOSTS)
        self._supervisors: dict[str, list[ProcessSupervisor]] = {}
        self._variables: Mapping[str, str] = {}

    def supervise(self) -> None:
        """Do nothing: no database fails."""

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the service on both hosts."""
        self._variables = {
            "DATABASE_URL": as_url(self.pair.conninfo),
            "PORT": str(PORT),
            "WORKERS": "1",
            "DRAIN_SECONDS": "1",
            **variables,
        }
        for host in HOSTS:
            self.switch_on(host)

    def readiness_urls(self) -> list[str]:
        """Return the readiness endpoint of each host, without the balancer."""
        return [f"http://{self.network.address(host)}:{PORT}/readyz" for host in HOSTS]

    def readiness(self, host: str) -> str:
        """Return the status of a host's readiness endpoint; ``-`` if there is no answer."""
        url = self.readiness_urls()[HOSTS.index(host)]
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:  # noqa: S310  # http
                return str(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return str(error.code)
        except OSError:
            return "-"

    def switch_on(self, host: str) -> None:
        """Start the service and a worker."""
        variables = {**self._variables, "HOST": self.network.address(host)}
        programs = {"serve": ("serve", "--no-jobs", "--no-migrate"), "worker": ("worker",)}
        self._supervisors[host] = [
            ProcessSupervisor(
                [*self.network.within(host), sys.executable, "-m", "tenantry", *command],
                variables,
                self.folder / f"{host}-{name}.log",
            )
            for name, command in programs.items()
        ]
        for supervisor in self._supervisors[host]:
            supervisor.start()

    def switch_off(self, host: str) -> int:
        """Kill a host's processes and do not restart them; return how many there were."""
        for supervisor in self._supervisors[host]:
            supervisor.abandon()
        return self._signal(host, signal.SIGKILL)

    def pause(self, host: str) -> None:
        """Stop all processes of a host with SIGSTOP."""
        self._signal(host, signal.SIGSTOP)

    def resume(self, host: str) -> None:
        """Continue them."""
        self._signal(host, signal.SIGCONT)

    def _signal(self, host: str, number: int) -> int:
        pids = ip("netns", "pids", self.network.namespace(host)).split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)
        return len(pids)

    def stop(self) -> None:
        """Stop everything."""
        self.network.heal()
        for host, supervisors in self._supervisors.items():
            self.resume(host)
            for supervisor in supervisors:
                supervisor.stop()
        self.pair.stop()


@contextlib.asynccontextmanager
async def running_machines(network: Network, logs: Path) -> AsyncIterator[MultiHostDeployment]:
    """Run a deployment on these machines; copy the logs to a folder at the end."""
    with server_folder() as folder:
        site = MultiHostDeployment(folder, network)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(copy_logs, site, logs)
            await stack.enter_async_context(started(site, TRUSTED_PROXIES=site.host))
            services = [f"{network.address(host)}:{PORT}" for host in HOSTS]
            within, subnet = network.within(BALANCER), f"{NETWORK}.0/24"
            await stack.enter_async_context(
                balancing(
                    "haproxy",
                    folder,
                    f"{site.host}:{BALANCER_PORT}",
                    *services,
                    own=subnet,
                    within=within,
                )
            )
            yield site
