"""Count requests in this process, and write the counts to the database once a minute."""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import uuid4

import psycopg

from tenantry.auth import usage_store as store
from tenantry.auth.usage_store import CountedRequests
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.telemetry import SILENT, Telemetry
from tenantry.domain.usage import RequestOutcome, UsageInterval, UsageSubject

INTERVAL: Final = 60.0
"""Seconds between writes: a process that is killed loses at most the counts of this time."""
_MOST_AT_ONCE: Final = 1000

logger = logging.getLogger(__name__)


class _Batch(NamedTuple):
    """Counts of one hour that are written in one transaction."""

    number: int
    hour: datetime
    counts: Sequence[CountedRequests]
    complete_until: datetime
    """Every request before this moment is in this batch or an earlier one."""


class UsageCounter:
    """Counts requests by tenant, API key and outcome. `run` writes the counts, `close` the last.

    Not for use by several threads. It needs no bound: while the database is away, no credential
    can be checked, and so nothing is counted.
    """

    def __init__(self, database: Database, clock: Clock, telemetry: Telemetry = SILENT) -> None:
        self._database = database
        self._clock = clock
        self._telemetry = telemetry
        self._writer = uuid4().hex
        # a Counter takes 70 ns longer for each request
        self._counts = defaultdict[tuple[UsageSubject, RequestOutcome], int](int)
        self._hour = UsageInterval.HOUR.begin(clock())
        self._complete_until = clock()
        self._last_batch = 0
        self._unwritten = deque[_Batch]()
        self._writing = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """The number of counted requests that are not written yet."""
        counts = [count.number for batch in self._unwritten for count in batch.counts]
        return sum(self._counts.values()) + sum(counts)

    def count(self, subject: UsageSubject, outcome: RequestOutcome) -> None:
        """Count a request, in the hour that has begun by the last `write`."""
        self._counts[subject, outcome] += 1

    async def run(self) -> None:
        """Write every `INTERVAL` seconds, and at the end of each hour, until canceled."""
        while True:
            await self.write()
            now = self._clock()
            left = UsageInterval.HOUR.begin(now) + UsageInterval.HOUR.length - now
            await asyncio.sleep(min(INTERVAL, left.total_seconds()))

    async def write(self) -> None:
        """Write the counts. Keep them for the next time while the database does not accept them."""
        async with self._writing:
            self._collect()
            try:
                while self._unwritten:
                    await self._write_batch(self._unwritten[0])
                    self._telemetry.usage_written(
                        sum([count.number for count in self._unwritten[0].counts])
                    )
                    self._unwritten.popleft()
            except (DatabaseUnavailableError, psycopg.Error) as error:
                reason = type(error.__cause__ or error).__name__
                logger.info("the usage of %d requests is written later: %s", self.waiting, reason)

    async def close(self) -> None:
        """Write the last counts."""
        await self.write()
        if self._unwritten:
            logger.warning("the usage of %d requests is lost", self.waiting)
            return
        try:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                await store.forget_writer(connection, self._writer)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            logger.info("a row of usage_writers stays for a day: %s", error.__cause__ or error)

    def _collect(self) -> None:
        """Make batches of the counts so far, and begin new ones in the present hour."""
        rows = [
            CountedRequests(org_id, key_id, outcome, number)
            for ((org_id, key_id), outcome), number in self._counts.items()
        ]
        if rows or not self._unwritten:
            parts = [rows[at : at + _MOST_AT_ONCE] for at in range(0, len(rows), _MOST_AT_ONCE)]
            *full, last = parts or [[]]
            for part in full:
                self._add_batch(part)
            self._complete_until = self._clock()
            self._add_batch(last)
        self._counts.clear()
        self._hour = UsageInterval.HOUR.begin(self._clock())

    def _add_batch(self, counts: Sequence[CountedRequests]) -> None:
        self._last_batch += 1
        batch = _Batch(self._last_batch, self._hour, counts, self._complete_until)
        self._unwritten.append(batch)

    async def _write_batch(self, batch: _Batch) -> None:
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            is_new = await store.claim_batch(
                connection, self._writer, batch.number, batch.complete_until
            )
            if is_new and batch.counts:
                await store.add(connection, batch.hour, batch.counts)
