"""Checks on standbys: each process rejects a key as soon as its revocation is acknowledged,
whatever the standby that it asks.

Clients create keys, use each at every process, revoke it, and try it at every process right after
the acknowledgement.
"""

import asyncio
import contextlib
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from bench.ours import PLANS_WITHOUT_LIMITS
from bench.torture import disturbances as caused
from bench.torture.client import CREATED, OK, LoadClient
from bench.torture.clients import (
    INDEFINITE,
    KEYS,
    LIST,
    NO_CONTENT,
    RETRY_PAUSE,
    ApiRequest,
    Clients,
)
from bench.torture.deployment import DatabaseKind, Deployment
from bench.torture.disturbances import Disturbance
from bench.torture.load import REVOKED, Load
from bench.torture.report import Report
from bench.torture.run import Run, Subject

STANDBY: Final = "standby"
"""The source of the answer to a check, in the service's metrics."""
_REVOKERS: Final = ("revoker0", "revoker1", "revoker2", "revoker3")
"""Tenants whose keys are revoked, each by a client."""
_LOAD_PAUSE: Final = 0.5
"""Mean of seconds between two requests of a client of the usual load."""
_KEY_PAUSE: Final = 0.02
"""The same between the keys of a client."""
_ROUNDS: Final = 3
"""How often a revoked key is tried at each process."""
_PATIENCE: Final = 30.0
"""Seconds for an answer: longer than any disturbance."""
_REJECTED: Final = (401, 403)
_SHOWN: Final = 5
_METRIC: Final = re.compile(
    rb'^tenantry_checks_total\{[^}]*\bsource="(\w+)"[^}]*\} ([0-9.e+]+)$', re.MULTILINE
)
_HEAD: Final = (
    "disturbance",
    "times",
    "revocations",
    "checks afterwards",
    "stale",
    "not served",
    "by standbys",
    "p50",
    "p99",
    "longest",
)


class Tally:
    """What the clients have found during a disturbance."""

    def __init__(self) -> None:
        self.revocations: list[float] = []
        """How long each acknowledged revocation took, in seconds."""
        self.checks: Counter[int] = Counter()
        """How often revoked keys were answered with each status."""
        self.new_checks: Counter[int] = Counter()
        """How often new keys were answered with each status."""
        self.stale: list[str] = []
        """Answers that contradict an acknowledged change."""
        self.sources: Counter[str] = Counter()
        """How many checks were answered from each source."""

    @property
    def standby_share(self) -> float:
        """The share of checks that standbys answered; 0 without any check."""
        return self.sources[STANDBY] / max(self.sources.total(), 1)

    def row(self, name: str, times: int) -> Iterator[str]:
        """Return the cells of the table."""
        unserved = self.checks.total() - self.checks[401] - self.checks[OK]
        ordered = sorted(self.revocations) or [0.0]
        longest = (statistics.median(ordered), ordered[int(0.99 * len(ordered))], ordered[-1])
        yield from (name, f"{times}", f"{len(self.revocations):,}", f"{self.checks.total():,}")
        yield from (f"{len(self.stale)}", f"{unserved:,}", f"{self.standby_share:.1%}")
        yield from (f"{1000 * seconds:.0f} ms" for seconds in longest)


class RevocationClients(Clients):
    """Clients that each work on one key after the other, each for its own tenant."""

    def __init__(
        self, site: Deployment, owners: dict[str, str], chance: random.Random, tally: Tally
    ) -> None:
        """``owners`` are OWNER keys by tenant, one for each client; ``tally`` is what is found from
        now on.
        """
        super().__init__(site, chance, _KEY_PAUSE)
        self.tally = tally
        self._owners = owners

    def _work(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self._revoke_keys(*owner) for owner in self._owners.items())

    async def _revoke_keys(self, tenant: str, owner: str) -> None:
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(
                    contextlib.closing(LoadClient([port], self._chance, _PATIENCE, host=host))
                )
                for host, port in self._site.addresses
            ]
            await self.repeat(partial(self._revoke_key, clients, tenant, owner))

    async def _revoke_key(
        self, clients: Sequence[LoadClient], tenant: str, owner: str, _: LoadClient, __: int
    ) -> None:
        wanted = {"orgId": tenant, "name": "standbys", "scopes": ["projects:read"]}
        client = self._chance.choice(clients)
        status, key = await self.request(
            client, ApiRequest("make key", "POST", KEYS, owner, wanted)
        )
        if status != CREATED:
            return
        statuses = await self._check(clients, key["secret"])
        self.tally.new_checks.update(statuses)
        self._find("a new key is rejected", statuses, _REJECTED, 0.0)
        await self._revoke(clients, owner, key["id"])
        acknowledged = time.monotonic()
        for _round in range(_ROUNDS):
            sent = time.monotonic()
            statuses = await self._check(clients, key["secret"])
            self.tally.checks.update(statuses)
            self._find("a revoked key is accepted", statuses, (OK,), sent - acknowledged)

    async def _revoke(self, clients: Sequence[LoadClient], owner: str, key_id: str) -> None:
        """Revoke a key at any process, again and again until the answer is definite."""
        began = time.monotonic()
        while True:
            client, path = self._chance.choice(clients), f"{KEYS}/{key_id}"
            status, _ = await self.request(client, ApiRequest("revoke key", "DELETE", path, owner))
            if status not in INDEFINITE:
                break
            await asyncio.sleep(RETRY_PAUSE)
        if status != NO_CONTENT:
            raise RuntimeError(f"a revocation is answered with {status}")
        self.tally.revocations.append(time.monotonic() - began)

    async def _check(self, clients: Sequence[LoadClient], secret: str) -> list[int]:
        """Use a key at every process at the same time; return the statuses."""
        answers = (
            self.request(client, ApiRequest("check", "GET", LIST, secret)) for client in clients
        )
        return [answer.status for answer in await asyncio.gather(*answers)]

    def _find(
        self, what: str, statuses: Sequence[int], wrong: Sequence[int], seconds: float
    ) -> None:
        self.tally.stale += [
            f"{what} by process {number} after {seconds:.3f} s"
            for number, status in enumerate(statuses)
            if status in wrong
        ]


async def read_sources(addresses: Sequence[tuple[str, int]]) -> Counter[str]:
    """Return how many checks the processes answered from each source, as their metrics say."""
    counts: Counter[str] = Counter()
    for host, port in addresses:
        client = LoadClient([port], random.Random(port), host=host)  # noqa: S311  # one port
        with contextlib.closing(client):
            answer = await client.send("GET", "/metrics", "Accept: text/plain")
        for source, count in _METRIC.findall(answer.body):
            counts[source.decode()] += int(float(count))
    return counts


class StandbyRun(Run):
    """Revokes keys beside the usual load."""

    def __init__(self, site: Deployment, chance: random.Random) -> None:
        super().__init__(site, chance)
        first = Tally()
        self.tallies = {"before the first": first}
        """By the name of the disturbance."""
        self._load = Load(site, random.Random(chance.random()), _LOAD_PAUSE)  # noqa: S311
        revokers = site.create_tenants(_REVOKERS)
        own = random.Random(chance.random())  # noqa: S311  # no secret
        self._clients = RevocationClients(site, revokers, own, first)
        self.loads = [self._load, self._clients]

    async def until_recovered(self) -> None:
        """Wait until all servers are ready and every standby follows the primary."""
        await asyncio.to_thread(self.site.replicated.until_whole)
        await super().until_recovered()

    async def inject(self, disturbance: Disturbance) -> None:
        """Cause a disturbance, and count what is found meanwhile."""
        tally = self._clients.tally = self.tallies.setdefault(disturbance.name, Tally())
        before = await read_sources(self.site.addresses)
        await super().inject(disturbance)
        tally.sources += await read_sources(self.site.addresses) - before

    async def report(self) -> Report:
        """Return every answer from a state before an acknowledged change as a violation."""
        rows = [
            list(self.tallies[name].row(name, len(own)))
            for name, own in self.by_disturbance().items()
        ]
        later = sum(each.kind == REVOKED and each.status == OK for each in self._load.requests)
        violations = [*self.nothing_killed(), *(text for _, text in self._load.contradictions)]
        if later:
            violations.append(f"{later} times the usual load found a revoked key accepted")
        for name, tally in self.tallies.items():
            violations += [f"{name}: {text}" for text in tally.stale[:_SHOWN]]
        other = f"{len(self._load.requests):,} other requests"
        total = f"{self.site.kind}: {len(self.injections)} disturbances; {other}"
        return Report(_HEAD, rows, [total], violations)


SUBJECT: Final = Subject(
    StandbyRun,
    {DatabaseKind.STANDBYS: caused.OF_STANDBYS},
    {
        "a standby's answer counts whatever it has replayed": (
            DatabaseKind.STANDBYS,
            caused.BEHIND,
        ),
        "a change does not wait until standbys have replayed it": (
            DatabaseKind.STANDBYS,
            caused.BEHIND,
        ),
    },
    PLANS_WITHOUT_LIMITS,
)
"""The mistakes leave out the check of the position, and the wait."""
