"""Note when each server was a primary, and how long two were at the same time."""

import asyncio
import itertools
import time
from collections import defaultdict
from typing import Final

import psycopg

from tests.system.patroni.patroni_cluster import DATABASES
from tests.system.patroni.patroni_deployment import PatroniDeployment

_INTERVAL: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
"""Two answers of a primary with less than this between them: it was one in between."""
_IS_PRIMARY: Final = "SELECT NOT pg_is_in_recovery()"

Interval = tuple[float, float]


class PrimaryMonitor:
    """Asks each server through its socket, whatever the network does."""

    def __init__(self, site: PatroniDeployment) -> None:
        self._site = site
        self._seen: defaultdict[str, list[Interval]] = defaultdict(list)

    async def run(self) -> None:
        """Monitor until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in DATABASES:
                group.create_task(self._ask_forever(name))

    async def _ask_forever(self, name: str) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._site.cluster.socket_conninfo(name, "postgres"), autocommit=True
                ) as connection:
                    while True:
                        async with asyncio.timeout(_LONGEST_PAUSE):
                            [(is_primary,)] = await (
                                await connection.execute(_IS_PRIMARY)
                            ).fetchall()
                        if is_primary:
                            self._note(name, time.monotonic())
                        await asyncio.sleep(_INTERVAL)
            except (psycopg.Error, TimeoutError):
                await asyncio.sleep(_INTERVAL)

    def _note(self, name: str, now: float) -> None:
        intervals = self._seen[name]
        if intervals and now - intervals[-1][1] < _LONGEST_PAUSE:
            intervals[-1] = (intervals[-1][0], now)
        else:
            intervals.append((now, now))

    def two_primaries(self, began: float, ended: float) -> float:
        """Return the longest time with two primaries between two moments, in seconds."""
        overlaps = (
            min(one[1], other[1], ended) - max(one[0], other[0], began)
            for name, another in itertools.combinations(DATABASES, 2)
            for one in self._seen[name]
            for other in self._seen[another]
        )
        return max([0.0, *overlaps])
