"""Revoke keys at some hosts, and try them at others, which may use a replaced primary."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from bench.torture.client import NO_ANSWER, OK, LoadClient
from bench.torture.clients import INDEFINITE, KEYS, LIST, NO_CONTENT, UNAVAILABLE
from bench.torture.load import Load
from tests.system.patroni.patroni_deployment import PORT, SINGLES, PatroniDeployment

_CLIENTS: Final = 4
_PAUSE: Final = 0.25
_REVOCATION_PAUSE: Final = 0.3
_LIVE_SHARE: Final = 0.2
_RECENT: Final = 40
_REJECTED: Final = 401
_SUSPENDED: Final = 403


class RevocationMonitor:
    """Revokes keys that all servers know, and tries them at every host with a single process."""

    def __init__(self, site: PatroniDeployment, load: Load, chance: random.Random) -> None:
        self.revoked: list[tuple[float, int]] = []
        """When each request with a revoked key was answered, on the monotonic clock, and the
        status.
        """
        self.live: Counter[int] = Counter()
        """How often live keys were answered with each status."""
        self._site = site
        self._load = load
        self._chance = chance

    async def run(self) -> None:
        """Revoke and try keys until cancelled."""
        stock = iter(self._site.stock.items())
        async with asyncio.TaskGroup() as group:
            for machine in SINGLES:
                group.create_task(self._revoke(machine, stock))
                for _ in range(_CLIENTS):
                    group.create_task(self._try_keys(machine))

    def _client(self, machine: str) -> LoadClient:
        return LoadClient([PORT], self._chance, host=self._site.network.address(machine))

    async def _revoke(self, machine: str, stock: Iterator[tuple[str, str]]) -> None:
        header = f"Authorization: Bearer {self._site.stock_owner}"
        with contextlib.closing(self._client(machine)) as client:
            for key_id, secret in stock:
                status = INDEFINITE[0]
                while status in INDEFINITE:
                    await asyncio.sleep(_REVOCATION_PAUSE)
                    status = (await client.send("DELETE", f"{KEYS}/{key_id}", header)).status
                if status == NO_CONTENT:
                    self._load.revoked.append(secret)

    async def _try_keys(self, machine: str) -> None:
        with contextlib.closing(self._client(machine)) as client:
            while True:
                await asyncio.sleep(self._chance.expovariate(1 / _PAUSE))
                revoked = self._load.revoked[-_RECENT:]
                if not revoked or self._chance.random() < _LIVE_SHARE:
                    self.live[await self._list(client, self._chance.choice(self._site.keys))] += 1
                else:
                    status = await self._list(client, self._chance.choice(revoked))
                    self.revoked.append((time.monotonic(), status))

    async def _list(self, client: LoadClient, secret: str) -> int:
        return (await client.send("GET", LIST, f"Authorization: Bearer {secret}")).status

    def violations(self) -> Iterator[str]:
        """Return the statuses that no key may have got, and those that are missing."""
        revoked = Counter(status for _, status in self.revoked)
        if not revoked[_REJECTED] or not self.live[OK]:
            yield "no revoked key was rejected, or no live one accepted, directly at a host"
        for what, found, allowed in (
            ("a revoked key", revoked, (_REJECTED, UNAVAILABLE, NO_ANSWER)),
            ("a live key", self.live, (OK, _SUSPENDED, UNAVAILABLE, NO_ANSWER)),
        ):
            for status, count in found.items():
                if status not in allowed:
                    yield f"a host answered {what} with {status}, {count} times"
