"""Monitor each host, second by second, and check that it rejects revoked keys."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import psycopg

from bench.faults.client import NO_ANSWER, LoadClient
from bench.faults.load import BY_BALANCER, LIST, UNAVAILABLE, AnsweredRequest
from bench.faults.run import FaultResult, FaultRun
from bench.machines.multi_host import HOSTS, PORT, MultiHostDeployment
from bench.machines.network_faults import UNREADY

_INTERVAL: Final = 1.0
_KEY_INTERVAL: Final = 0.25
_TIMEOUT: Final = 45.0
"""Longer than a host is paused, so that it answers afterwards."""
_MAX_WAITING: Final = 40
"""Requests with revoked keys that wait for one host."""
_READY: Final = "200"
_REJECTED: Final = 401
_HEAD: Final = "   second     a    b  p        s         served   503 502/504  none other"
_ROLE: Final = "SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END"


class HostStatus(NamedTuple):
    """The status of each machine at one moment of the monotonic clock."""

    at: float
    hosts: tuple[str, ...]
    """The status of each host's readiness endpoint."""
    databases: tuple[str, ...]


class HostMonitor:
    """Polls all hosts once a second, and tries revoked keys directly at each host."""

    def __init__(self, site: MultiHostDeployment, run: FaultRun, chance: random.Random) -> None:
        self.history: list[HostStatus] = []
        self.revoked: Counter[tuple[str, int]] = Counter()
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
        assert self._site.pair is not None
        hosts = await asyncio.gather(
            *(asyncio.to_thread(self._site.readiness, host) for host in HOSTS)
        )
        databases = [
            await asyncio.to_thread(_role, server.conninfo) for server in self._site.pair.both
        ]
        self.history.append(HostStatus(at, tuple(hosts), tuple(databases)))

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
            self.revoked[host, answer.status] += 1
        finally:
            client.close()

    def violations(self) -> Iterator[str]:
        """Return the statuses that no host may have given, and those that are missing."""
        for host in HOSTS:
            if not self.revoked[host, _REJECTED]:
                yield f"host {host} never rejected a revoked key"
        for result in self._run.faults:
            if result.fault.name in UNREADY and not self._was_unready(result):
                yield f"{result.fault.name}: no poll found host a not ready and host b ready"
        for (host, status), count in sorted(self.revoked.items()):
            if status not in (NO_ANSWER, _REJECTED, UNAVAILABLE):
                yield f"host {host} answered a revoked key with {status}, {count} times"

    def _was_unready(self, result: FaultResult) -> bool:
        """Return whether a poll during a fault found host a not ready and host b ready."""
        seen = [
            status.hosts for status in self.history if result.began <= status.at <= result.ended
        ]
        return any(harmed != _READY and other == _READY for harmed, other in seen)

    def summary(self) -> str:
        """Return the statuses of revoked keys, by host."""
        return "; ".join(
            f"{host} "
            + ", ".join(
                f"{status or 'none'}: {count:,}"
                for (of, status), count in sorted(self.revoked.items())
                if of == host
            )
            for host in HOSTS
        )

    def timeline(self, result: FaultResult, requests: Sequence[AnsweredRequest]) -> Iterator[str]:
        """Return the statuses during a fault, second by second, until the recovery."""
        yield _HEAD
        for status in sorted(self.history):
            if not result.began - 2 <= status.at <= result.recovered + 1:
                continue
            counts = Counter(
                _class(request)
                for request in requests
                if status.at <= request.at < status.at + _INTERVAL
            )
            yield (
                f"{status.at - result.began:>9.0f}  {status.hosts[0]:>4} {status.hosts[1]:>4}  "
                f"{status.databases[0]:8} {status.databases[1]:8}  {counts['served']:>6} {counts['503']:>5} "
                f"{counts['by balancer']:>7} {counts['none']:>5} {counts['other']:>5}"
            )
        yield f"{'':>9}  ended after {result.ended - result.began:.0f} s"


def _class(request: AnsweredRequest) -> str:
    if request.is_success:
        return "served"
    if request.status == NO_ANSWER:
        return "none"
    return (
        "503"
        if request.status == UNAVAILABLE
        else "by balancer"
        if request.status in BY_BALANCER
        else "other"
    )


def _role(conninfo: str) -> str:
    try:
        with psycopg.connect(conninfo, connect_timeout=2) as connection:
            [(role,)] = connection.execute(_ROLE)
            return str(role)
    except psycopg.OperationalError:
        return "-"
