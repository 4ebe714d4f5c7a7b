"""The set-up: a balancer, two hosts of the service, a primary, a standby, and the world outside with all who use it."""

import contextlib
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import support
from bench.faults.keeper import Keeper
from bench.faults.site import OPERATOR, Database, Site, copy_logs, started
from bench.machines.namespaces import ip
from bench.machines.network import NETWORK, Network
from tests.support.database_server import Machine, server_folder
from tests.support.link import Link
from tests.support.postgres import as_url
from tests.support.proxies import balancing
from tests.support.smtp import MailServer

OUTSIDE: Final = "outside"
"""The callers, the mail server, the provider and the identity provider."""
BALANCER: Final = "balancer"
HOSTS: Final = ("a", "b")
"""Where the service runs, a worker on each."""
DATABASES: Final = ("p", "s")
"""The primary, and the standby."""
MACHINES: Final = (OUTSIDE, BALANCER, *HOSTS, *DATABASES)
PORT: Final = 3001
DOOR: Final = 8080
_PATIENCE: Final = 60.0
_LOOK: Final = 0.1
_TIMEOUT: Final = 6.0
_REPLICATION: Final = ("wal_receiver_timeout=5s", "wal_sender_timeout=5s")


class MachineSite(Site):
    """What runs where."""

    def __init__(self, kind: Database, folder: Path, options: Sequence[str], network: Network) -> None:
        machines = [Machine(network.address(name), network.within(name)) for name in DATABASES]
        super().__init__(kind, folder, (*options, *_REPLICATION), machines)
        self.network = network
        self.host = network.address(BALANCER)
        self.ports = [DOOR]
        self.workers = len(HOSTS)
        self.mail = MailServer(host=network.address(OUTSIDE))
        self.link = Link(self.link.connect, network.address(OUTSIDE))
        self._keepers: dict[str, list[Keeper]] = {}
        self._variables: Mapping[str, str] = {}

    @property
    def conninfo(self) -> str:
        """The way to the primary that no cable is part of."""
        return self.database.conninfo

    def keep(self) -> None:
        """Nobody starts a database but whoever manages the failover."""

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the service on both hosts."""
        assert self.pair is not None
        self._variables = {
            "DATABASE_URL": as_url(self.pair.conninfo), "API_KEY_PEPPER": support.PEPPER,
            "SESSION_SECRET": support.PEPPER, "PROVIDER_WEBHOOK_SECRET": support.SECRET, "OPERATOR_TOKEN": OPERATOR,
            "PORT": str(PORT), "WORKERS": "1", "DRAIN_SECONDS": "1", **variables,
        }  # fmt: skip
        for host in HOSTS:
            self.switch_on(host)

    def url(self, host: str, path: str) -> str:
        """Where a host answers itself, past the balancer."""
        return f"http://{self.network.address(host)}:{PORT}{path}"

    def until_ready(self) -> None:
        """Wait until both hosts are ready. Raises `TimeoutError`."""
        deadline = time.monotonic() + _PATIENCE
        for host in HOSTS:
            while self.readiness(host) != "200":
                if time.monotonic() > deadline:
                    raise TimeoutError(f"host {host} does not become ready")
                time.sleep(_LOOK)

    def readiness(self, host: str) -> str:
        """What ``/readyz`` of a host answers; ``-`` where that is nothing."""
        try:
            with urllib.request.urlopen(self.url(host, "/readyz"), timeout=_TIMEOUT) as answer:
                return str(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return str(error.code)
        except OSError:
            return "-"

    # What happens to a host

    def switch_on(self, host: str) -> None:
        """Start the service and a worker."""
        variables = {**self._variables, "HOST": self.network.address(host)}
        programs = {"serve": ("serve", "--no-jobs", "--no-migrate"), "worker": ("worker",)}
        self._keepers[host] = [
            Keeper(
                [*self.network.within(host), sys.executable, "-m", "tenantry", *command],
                variables, self.folder / f"{host}-{name}.log",
            )
            for name, command in programs.items()
        ]  # fmt: skip
        for keeper in self._keepers[host]:
            keeper.start()

    def switch_off(self, host: str) -> int:
        """What a power cut does to its processes; returns how many there were."""
        for keeper in self._keepers[host]:
            keeper.leave()
        return self._signal(host, signal.SIGKILL)

    def pause(self, host: str) -> None:
        """Stop all its processes where they are."""
        self._signal(host, signal.SIGSTOP)

    def resume(self, host: str) -> None:
        """Let them go on."""
        self._signal(host, signal.SIGCONT)

    def _signal(self, host: str, number: int) -> int:
        pids = ip("netns", "pids", self.network.within(host)[-1]).split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)
        return len(pids)

    def stop(self) -> None:
        """End everything."""
        self.network.heal()
        for host, keepers in self._keepers.items():
            self.resume(host)
            for keeper in keepers:
                keeper.stop()
        assert self.pair is not None
        self.pair.stop()


@contextlib.asynccontextmanager
async def running_machines(
    kind: Database, network: Network, balancer: str, options: Sequence[str], keep_logs: Path | None
) -> AsyncIterator[MachineSite]:
    """The set-up, running. The logs are copied to a folder at the end."""
    with server_folder() as folder:
        site = MachineSite(kind, folder, options, network)
        outside = network.address(OUTSIDE)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(copy_logs, site, keep_logs)
            own = {"SMTP_ALLOW_PLAINTEXT": "true", "OIDC_ALLOW_HTTP": "true", "TRUSTED_PROXIES": site.host}
            await stack.enter_async_context(started(site, outside, **own))
            services = [f"{network.address(host)}:{PORT}" for host in HOSTS]
            within, subnet = network.within(BALANCER), f"{NETWORK}.0/24"
            await stack.enter_async_context(
                balancing(balancer, folder, f"{site.host}:{DOOR}", *services, own=subnet, within=within)
            )
            yield site
