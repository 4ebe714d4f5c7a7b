"""Count requests in this process, and write the counts to the database once a minute; the first
ones after an idle minute at once, for whoever looks for their first request.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import uuid4

from tenantry.auth import usage_store as store
from tenantry.auth.usage_store import CountedRequests
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.telemetry import SILENT, Telemetry
from tenantry.domain.usage import RequestOutcome, UsageInterval, UsageSubject

INTERVAL: Final = timedelta(seconds=60)
"""Between writes: a process that is killed loses at most the counts of this time."""
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
    """Counts requests by tenant, API key and outcome. A loop calls `write_if_due`, and at its end
    `close`.

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
        self._next_write = clock()
        self._is_idle = True
        """Whether the last write had no counts."""
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

    def pause(self) -> float:
        """Return the seconds until the next `write_if_due`, so short that a first request is seen:
        counting one tells nobody.
        """
        left = (self._next_write - self._clock()).total_seconds()
        return max(0.0, min(self._database.timeouts.usage, left))

    async def write_if_due(self) -> None:
        """Write the counts if a minute has passed, the hour has ended, or these are the first ones
        after an idle minute. Raises as `write`.
        """
        left = self._next_write - self._clock()
        is_late = not timedelta(0) < left <= INTERVAL  # a clock may also be set back
        if is_late or (self._is_idle and self._counts):
            await self.write()

    async def write(self) -> None:
        """Write the counts. What the database does not accept is kept for the next time.

        Raises `DatabaseUnavailableError` and `psycopg.Error`.
        """
        async with self._writing:
            self._collect()
            while self._unwritten:
                await self._write_batch(self._unwritten[0])
                self._telemetry.usage_written(
                    sum([count.number for count in self._unwritten[0].counts])
                )
                self._unwritten.popleft()

    async def close(self) -> None:
        """Write the last counts. Raises as `write`."""
        try:
            await self.write()
        finally:
            if self._unwritten:
                logger.warning("the usage of %d requests is lost", self.waiting)
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            await store.forget_writer(connection, self._writer)

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
        self._is_idle = not rows
        self._counts.clear()
        self._begin_hour()

    def _begin_hour(self) -> None:
        """Count in the present hour, whose counts are written at its end at the latest."""
        now = self._clock()
        self._hour = UsageInterval.HOUR.begin(now)
        self._next_write = min(now + INTERVAL, self._hour + UsageInterval.HOUR.length)

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
