"""Taking in provider events: many requests, one transaction."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Final

import msgspec
import psycopg

from tenantry.billing import ledger
from tenantry.billing.ledger_store import EntryTakenError
from tenantry.common.clock import Clock
from tenantry.db.batcher import Batcher
from tenantry.db.database import Lane
from tenantry.domain.billing.events import Anomaly, Outcome
from tenantry.domain.billing.ledger import Arrival, Entry
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import DatabaseUnavailableError

FAILED: Final = "failed"
"""The outcome of an event that could not be handled."""
DUPLICATE: Final = "duplicate"
"""The outcome of an event that the ledger has already."""
_TRIES: Final = 4
_RETRYABLE: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, EntryTakenError)

logger = logging.getLogger(__name__)


class HandlingFailedError(Exception):
    """The event could not be handled and nothing of it was kept; the provider should send it again."""


class Receipt(msgspec.Struct, frozen=True):
    """What became of an event; the outcome is None where it had been handled before."""

    outcome: Outcome | None
    anomalies: tuple[Anomaly, ...] = ()
    tenant_id: str | None = None


_DUPLICATE: Final = Receipt(None)


class WebhookService:
    """Applies verified events in batches: locked, deduplicated, folded and committed together."""

    def __init__(self, lanes: Sequence[Lane], policy: BillingPolicy, outbox: ledger.Outbox, clock: Clock) -> None:
        """As many batches are under way at a time as there are ``lanes``."""
        self._lanes = asyncio.LifoQueue[Lane]()
        for lane in lanes:
            self._lanes.put_nowait(lane)
        self._policy = policy
        self._outbox = outbox
        self._clock = clock
        self._batcher: Batcher[Arrival, Receipt] = Batcher(
            self.apply,
            max_concurrent=len(lanes),
            start_timeout=lanes[0].timeouts.batch_start,
            deadline=lanes[0].timeouts.batch,
            metrics=lanes[0].metrics,
        )

    def receive(self, arrival: Arrival) -> Awaitable[Receipt]:
        """Apply one event; to be awaited until after the commit.

        Raises `HandlingFailedError` or `DatabaseUnavailableError`; then nothing of it was kept.
        """
        return self._batcher.submit(arrival)

    async def close(self) -> None:
        """Wait for the batches under way."""
        await self._batcher.close()

    async def apply(self, arrivals: Sequence[Arrival]) -> list[Receipt | Exception]:
        """Apply a batch. An event that cannot be handled fails alone: the batch is halved until it is found."""
        try:
            return list(await self._apply_together(arrivals))
        except DatabaseUnavailableError as error:
            return [error for _ in arrivals]
        except Exception as error:
            if len(arrivals) == 1:
                logger.exception("event %s could not be handled", arrivals[0].event.id)
                return [HandlingFailedError(str(error))]
            middle = len(arrivals) // 2
            return [*await self.apply(arrivals[:middle]), *await self.apply(arrivals[middle:])]

    async def _apply_together(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        for _ in range(_TRIES - 1):
            try:
                return await self._transact(arrivals)
            except _RETRYABLE as error:
                logger.info("batch of %d events is tried again: %s", len(arrivals), error)
        return await self._transact(arrivals)

    async def _transact(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        now = self._clock()
        lane = await self._lanes.get()
        try:
            async with lane.use() as connection:
                settlement = await ledger.settle(connection, arrivals, self._policy, now)
                await ledger.write(connection, settlement, self._outbox, now, commit=True)
        finally:
            self._lanes.put_nowait(lane)
        for entry in (*settlement.entries, *settlement.unparked):
            ledger.log_payment(entry)
        receipts = {_key(entry.arrival): _receipt(entry) for entry in settlement.entries}
        # one that was parked may have been healed by a later one
        receipts |= {
            _key(entry.arrival): _receipt(entry) for entry in settlement.unparked if _key(entry.arrival) in receipts
        }
        return [receipts.pop(_key(arrival), _DUPLICATE) for arrival in arrivals]


def _key(arrival: Arrival) -> tuple[str, bool]:
    """Which delivery of an event a receipt is for: a valid one and an invalid one may share an id and a batch."""
    return arrival.event.id, arrival.event.problem is None


def _receipt(entry: Entry) -> Receipt:
    return Receipt(entry.outcome, entry.anomalies, entry.tenant_id)
