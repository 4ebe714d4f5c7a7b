"""One fault, injected again and again under load, while keys are revoked and tried."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from bench.faults.client import OK
from bench.faults.deployment import OPERATOR
from bench.faults.load import REVOKED, AnsweredRequest, Load
from bench.standbys.check_counts import CheckCounts, read_check_counts
from bench.standbys.deployment import (
    DATABASES,
    OUTSIDE,
    PYTHON,
    ServiceProcess,
    StandbyDeployment,
    running_standbys,
)
from bench.standbys.faults import StandbyFault
from bench.standbys.revocations import RevocationClients, Tally
from tests.support.database_server import server_folder
from tests.system.machines.network import Network

SERVICE: Final = "service"
"""The machine of all processes of the service."""
MACHINES: Final = (OUTSIDE, SERVICE, *DATABASES)
PROCESSES: Final = tuple(
    ServiceProcess(SERVICE, order)
    for order in (("db-2", "db-3", "db-1"), ("db-3", "db-2", "db-1"))
    for _ in range(2)
)
"""Two processes check keys at the one standby and two at the other. The primary comes last: it may
become a standby.
"""
_CLIENTS: Final = 4
"""Clients that revoke keys."""
_OWNERS: Final = tuple(f"revoker{number}" for number in range(_CLIENTS))
_BETWEEN_FAULTS: Final = (0.5, 2.0)
"""Bounds in seconds."""
_TIMEOUT: Final = 120.0


class StandbyResult(NamedTuple):
    """What happened during the time of one fault."""

    fault: str
    injected: int
    tally: Tally
    counts: CheckCounts
    """How many checks the standbys and the primary answered."""
    requests: list[AnsweredRequest]
    """Those of the load."""
    contradictions: list[str]
    """Answers about members that contradicted an acknowledged change."""

    @property
    def stale(self) -> int:
        """How many requests were answered from a state before an acknowledged change."""
        later = sum(each.kind == REVOKED and each.status == OK for each in self.requests)
        tally = self.tally
        return len(tally.stale) + len(tally.missing) + later + len(self.contradictions)


@contextlib.asynccontextmanager
async def running_site(
    network: Network, logs: Path | None, python: str = PYTHON
) -> AsyncIterator[StandbyDeployment]:
    """Run two standbys and four processes of the service."""
    with server_folder() as folder:
        site = StandbyDeployment(folder, network, PROCESSES, python=python)
        async with running_standbys(site, logs):
            site.owners |= site.create_tenants(_OWNERS)
            yield site


class StandbyRun:
    """A deployment under load, and the faults that are injected into it."""

    def __init__(self, site: StandbyDeployment, chance: random.Random, pause: float) -> None:
        """``pause`` is the mean of seconds between the requests of a client of the load."""
        self._site = site
        self._chance = chance
        owners = {name: secret for name, secret in site.owners.items() if name not in _OWNERS}
        self._revokers = {name: site.owners[name] for name in _OWNERS}
        self._load = Load(
            site.ports,
            site.keys,
            owners,
            OPERATOR,
            seed=chance.randrange(2**32),
            pause=pause,
            host=site.host,
        )

    @contextlib.asynccontextmanager
    async def loading(self) -> AsyncIterator[None]:
        """Load the service meanwhile."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._load.run())
            yield
            self._load.end()

    async def inject(self, fault: StandbyFault, seconds: float) -> StandbyResult:
        """Inject a fault again and again for so many seconds while keys are revoked; then wait
        until everything works again. Raises `TimeoutError`.
        """
        clients = RevocationClients(self._site.addresses, self._revokers, self._chance)
        first, first_contradiction = len(self._load.requests), len(self._load.contradictions)
        before = await read_check_counts(self._site.addresses)
        async with asyncio.timeout(seconds + _TIMEOUT), asyncio.TaskGroup() as group:
            group.create_task(clients.run())
            injected = await _inject(self._site, fault, time.monotonic() + seconds, self._chance)
            clients.end()
        after = await read_check_counts(self._site.addresses)
        contradictions = [text for _, text in self._load.contradictions[first_contradiction:]]
        return StandbyResult(
            fault.name,
            injected,
            clients.tally,
            after - before,
            self._load.requests[first:],
            contradictions,
        )


async def _inject(
    site: StandbyDeployment, fault: StandbyFault, deadline: float, chance: random.Random
) -> int:
    """Inject a fault until a moment of the monotonic clock; return how often."""
    injected = 0
    while time.monotonic() < deadline:
        await asyncio.sleep(chance.uniform(*_BETWEEN_FAULTS))
        await fault.inject(site, chance)
        injected += 1
    await asyncio.to_thread(site.replicated.until_whole)
    await asyncio.to_thread(site.until_ready)
    return injected
