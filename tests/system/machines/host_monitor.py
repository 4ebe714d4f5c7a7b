"""Monitor each host, second by second, and check that it rejects revoked keys."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from bench.torture.client import NO_ANSWER, LoadClient
from bench.torture.clients import LIST, UNAVAILABLE
from bench.torture.revocation import RevocationRun
from bench.torture.run import Injection
from tests.system.machines.multi_host import HOSTS, PORT, MultiHostDeployment

_INTERVAL: Final = 1.0
_KEY_INTERVAL: Final = 0.25
_TIMEOUT: Final = 45.0
"""Longer than a host is paused, so that it answers afterwards."""
_MAX_WAITING: Final = 40
"""Requests with revoked keys that wait for one host."""
_READY: Final = "200"
_REJECTED: Final = 401


class HostStatus(NamedTuple):
    """The status of each host's readiness endpoint at one moment of the monotonic clock."""

    at: float
    hosts: tuple[str, ...]


class HostMonitor:
    """Polls all hosts once a second, and tries revoked keys directly at each host."""

    def __init__(
        self, site: MultiHostDeployment, run: RevocationRun, chance: random.Random
    ) -> None:
        self._history: list[HostStatus] = []
        self._revoked: Counter[tuple[str, int]] = Counter()
        """How often each host answered a revoked key with each status."""
        self._site = site
        self._run = run
        self._chance = chance

    async def run(self) -> None:
        """Monitor until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll())
            for host in HOSTS:
                group.create_task(self._try_revoked_keys(host))

    async def _poll(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._poll_once(time.monotonic()))
                await asyncio.sleep(_INTERVAL)

    async def _poll_once(self, at: float) -> None:
        asked = [asyncio.to_thread(self._site.readiness, host) for host in HOSTS]
        hosts = await asyncio.gather(*asked)
        self._history.append(HostStatus(at, tuple(hosts)))

    async def _try_revoked_keys(self, host: str) -> None:
        waiting: set[asyncio.Task[None]] = set()
        try:
            while True:
                if (revoked := self._run.load.revoked) and len(waiting) < _MAX_WAITING:
                    secret = self._chance.choice((revoked[-1], self._chance.choice(revoked)))
                    task = asyncio.create_task(self._try_revoked_key(host, secret))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                await asyncio.sleep(_KEY_INTERVAL)
        finally:
            for task in waiting:
                task.cancel()

    async def _try_revoked_key(self, host: str, secret: str) -> None:
        client = LoadClient([PORT], self._chance, _TIMEOUT, host=self._site.network.address(host))
        try:
            answer = await client.send("GET", LIST, f"Authorization: Bearer {secret}")
            self._revoked[host, answer.status] += 1
        finally:
            client.close()

    def violations(self) -> Iterator[str]:
        """Return the statuses that no host may have given, and those that are missing."""
        for host in HOSTS:
            if not self._revoked[host, _REJECTED]:
                yield f"host {host} never rejected a revoked key"
        for result in self._run.injections:
            if not self._was_unready(result):
                yield f"{result.disturbance.name}: no poll found host a not ready and host b ready"
        for (host, status), count in sorted(self._revoked.items()):
            if status not in (NO_ANSWER, _REJECTED, UNAVAILABLE):
                yield f"host {host} answered a revoked key with {status}, {count} times"

    def _was_unready(self, result: Injection) -> bool:
        """Return whether a poll during a disturbance found host a not ready and host b ready."""
        during = (each for each in self._history if result.began <= each.at <= result.ended)
        return any(a != _READY and b == _READY for _, (a, b) in during)
