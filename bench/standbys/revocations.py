"""Create keys, use each at every process, revoke it, and try it at every process right after the
acknowledgement.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from bench.faults.client import CREATED, OK, ClientAnswer, LoadClient
from bench.faults.load import INDEFINITE, LIST

KEYS: Final = "/api/v1/api-keys"
REVOKED: Final = 204
_ROUNDS: Final = 3
"""How often a revoked key is tried at each process."""
_PAUSE: Final = 0.02
"""Mean of seconds between a client's keys."""
_RETRY_PAUSE: Final = 0.1
_TIMEOUT: Final = 30.0
"""Seconds for an answer: longer than any fault."""


class StaleAnswer(NamedTuple):
    """An answer to a check that contradicts an acknowledged change."""

    process: int
    """The position of the process that gave it."""
    seconds: float
    """How long after the acknowledgement the check was sent."""


class Tally:
    """What the clients have found so far."""

    def __init__(self) -> None:
        self.revocations: list[float] = []
        """How long each acknowledged revocation took, in seconds."""
        self.checks: Counter[int] = Counter()
        """How often revoked keys were answered with each status."""
        self.stale: list[StaleAnswer] = []
        """Revoked keys that were accepted."""
        self.new_checks: Counter[int] = Counter()
        """How often new keys were answered with each status."""
        self.missing: list[StaleAnswer] = []
        """New keys that were rejected."""


class RevocationClients:
    """Clients that each work on one key after the other, for a tenant of their own."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        owners: dict[str, str],
        chance: random.Random,
    ) -> None:
        """``owners`` are OWNER keys by tenant, one for each client."""
        self.tally = Tally()
        self._addresses = addresses
        self._owners = owners
        self._chance = chance
        self._is_over = False

    def end(self) -> None:
        """Begin with no other key."""
        self._is_over = True

    async def run(self) -> None:
        """Run all clients until `end`."""
        await asyncio.gather(*(self._work(*owner) for owner in self._owners.items()))

    async def _work(self, tenant: str, owner: str) -> None:
        async with self._connections() as clients:
            while not self._is_over:
                made = await create_key(self._chance.choice(clients), tenant, owner)
                if made.status != CREATED:
                    await asyncio.sleep(_RETRY_PAUSE)
                    continue
                key = json.loads(made.body)
                await self._check_new(clients, key["secret"])
                await self._revoke(clients, owner, key["id"])
                await self._check_revoked(clients, key["secret"])
                await asyncio.sleep(self._chance.expovariate(1 / _PAUSE))

    @contextlib.asynccontextmanager
    async def _connections(self) -> AsyncIterator[list[LoadClient]]:
        clients = [
            LoadClient([port], self._chance, _TIMEOUT, host=host) for host, port in self._addresses
        ]
        try:
            yield clients
        finally:
            for client in clients:
                client.close()

    async def _revoke(self, clients: Sequence[LoadClient], owner: str, key_id: str) -> None:
        """Revoke a key at any process, again and again until the answer is definite."""
        began = time.monotonic()
        answer = await revoke_key(self._chance.choice(clients), owner, key_id)
        while answer.status in INDEFINITE:
            await asyncio.sleep(_RETRY_PAUSE)
            answer = await revoke_key(self._chance.choice(clients), owner, key_id)
        if answer.status != REVOKED:
            raise RuntimeError(f"a revocation is answered with {answer}")
        self.tally.revocations.append(time.monotonic() - began)

    async def _check_new(self, clients: Sequence[LoadClient], secret: str) -> None:
        statuses = await _check(clients, secret)
        self.tally.new_checks.update(statuses)
        rejected = (401, 403)
        self.tally.missing += _among(statuses, rejected, 0.0)

    async def _check_revoked(self, clients: Sequence[LoadClient], secret: str) -> None:
        acknowledged = time.monotonic()
        for _ in range(_ROUNDS):
            sent = time.monotonic()
            statuses = await _check(clients, secret)
            self.tally.checks.update(statuses)
            self.tally.stale += _among(statuses, (OK,), sent - acknowledged)


async def create_key(client: LoadClient, tenant: str, owner: str) -> ClientAnswer:
    """Create a key of a tenant that may list projects."""
    wanted = {"orgId": tenant, "name": "standbys", "scopes": ["projects:read"]}
    body = json.dumps(wanted).encode()
    return await client.send("POST", KEYS, f"Authorization: Bearer {owner}", body)


async def revoke_key(client: LoadClient, owner: str, key_id: str) -> ClientAnswer:
    """Revoke a key."""
    return await client.send("DELETE", f"{KEYS}/{key_id}", f"Authorization: Bearer {owner}")


async def _check(clients: Sequence[LoadClient], secret: str) -> list[int]:
    """Use a key at every process at the same time; return the statuses."""
    header = f"Authorization: Bearer {secret}"
    answers = await asyncio.gather(*(client.send("GET", LIST, header) for client in clients))
    return [answer.status for answer in answers]


def _among(statuses: Sequence[int], wrong: tuple[int, ...], seconds: float) -> list[StaleAnswer]:
    return [
        StaleAnswer(number, seconds) for number, status in enumerate(statuses) if status in wrong
    ]
