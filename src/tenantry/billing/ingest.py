"""Ingesting provider events: many requests, one transaction."""

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
from tenantry.domain.billing.ledger import LedgerEntry, ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import DatabaseUnavailableError

FAILED: Final = "failed"
"""Shown as the outcome of an event whose handling failed."""
DUPLICATE: Final = "duplicate"
"""Shown as the outcome of an event that the ledger already has."""
_TRIES: Final = 4
_RETRYABLE: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, EntryTakenError)

logger = logging.getLogger(__name__)


class HandlingFailedError(Exception):
    """Handling of the event failed and was rolled back; the provider should send it again."""


class Receipt(msgspec.Struct, frozen=True):
    """The result of an event; ``outcome`` is None for a duplicate."""

    outcome: Outcome | None
    anomalies: tuple[Anomaly, ...] = ()
    tenant_id: str | None = None


_DUPLICATE: Final = Receipt(None)


class WebhookService:
    """Applies verified events in batches: locked, deduplicated, folded and committed together."""

    def __init__(self, lanes: Sequence[Lane], policy: BillingPolicy, outbox: ledger.Outbox, clock: Clock) -> None:
        """Run as many batches at a time as there are ``lanes``."""
        self._lanes = asyncio.LifoQueue[Lane]()
        for lane in lanes:
            self._lanes.put_nowait(lane)
        self._policy = policy
        self._outbox = outbox
        self._clock = clock
        self._batcher: Batcher[ReceivedEvent, Receipt] = Batcher(
            self.apply,
            max_concurrent=len(lanes),
            start_timeout=lanes[0].timeouts.batch_start,
            deadline=lanes[0].timeouts.batch,
            metrics=lanes[0].metrics,
        )

    def receive(self, received: ReceivedEvent) -> Awaitable[Receipt]:
        """Apply one event; the result is available after the commit.

        Raises `HandlingFailedError` or `DatabaseUnavailableError`; then the event was rolled back.
        """
        return self._batcher.submit(received)

    async def close(self) -> None:
        await self._batcher.close()

    async def apply(self, batch: Sequence[ReceivedEvent]) -> list[Receipt | Exception]:
        """Apply a batch. If it fails, halve it, so that only the faulty event fails."""
        try:
            return list(await self._apply_together(batch))
        except DatabaseUnavailableError as error:
            return [error for _ in batch]
        except Exception as error:
            if len(batch) == 1:
                logger.exception("event %s could not be handled", batch[0].event.id)
                return [HandlingFailedError(str(error))]
            middle = len(batch) // 2
            return [*await self.apply(batch[:middle]), *await self.apply(batch[middle:])]

    async def _apply_together(self, batch: Sequence[ReceivedEvent]) -> list[Receipt]:
        for _ in range(_TRIES - 1):
            try:
                return await self._transact(batch)
            except _RETRYABLE as error:
                logger.info("batch of %d events is retried: %s", len(batch), error)
        return await self._transact(batch)

    async def _transact(self, batch: Sequence[ReceivedEvent]) -> list[Receipt]:
        now = self._clock()
        lane = await self._lanes.get()
        try:
            async with lane.use() as connection:
                application = await ledger.apply_batch(connection, batch, self._policy, now)
                await ledger.write(connection, application, self._outbox, now, commit=True)
        finally:
            self._lanes.put_nowait(lane)
        ledger.log_payments((*application.entries, *application.unparked))
        receipts = {_key(entry.received): _receipt(entry) for entry in application.entries}
        # a later event of the batch may have let a parked one be applied
        receipts |= {
            key: _receipt(entry) for entry in application.unparked if (key := _key(entry.received)) in receipts
        }
        return [receipts.pop(_key(received), _DUPLICATE) for received in batch]


def _key(received: ReceivedEvent) -> tuple[str, bool]:
    """Tell apart a valid and an invalid event of one id in one batch."""
    return received.event.id, received.event.problem is None


def _receipt(entry: LedgerEntry) -> Receipt:
    return Receipt(entry.outcome, entry.anomalies, entry.tenant_id)
