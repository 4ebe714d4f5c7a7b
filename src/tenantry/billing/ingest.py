"""Ingesting provider events: many requests, one transaction."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple

from tenantry.billing.batch_store import EntryTakenError
from tenantry.billing.locked_ledger import LedgerTransaction, lock_events, log_payments
from tenantry.common.clock import Clock
from tenantry.db.batcher import GATHER_SECONDS, Batcher
from tenantry.db.database import Lane, succeeds_again
from tenantry.db.outbox import Outbox
from tenantry.db.standby_waits import CommittedChange
from tenantry.domain.billing.batch import BatchChanges
from tenantry.domain.billing.ledger import LedgerEntry, ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import DatabaseUnavailableError

FAILED: Final = "failed"
"""Shown as the outcome of an event whose handling failed."""
DUPLICATE: Final = "duplicate"
"""Shown as the outcome of an event that the ledger already has."""
_Answer = LedgerEntry | None | asyncio.Task[LedgerEntry | None]
"""The entry of an event, None for a duplicate; or a task that returns it once standbys have
replayed what the event changed.
"""

logger = logging.getLogger(__name__)


class HandlingFailedError(Exception):
    """Handling of the event failed and was rolled back; the provider should send it again."""


class _Attempt(NamedTuple):
    """Events to apply in one transaction, and which attempt at that it is."""

    events: Sequence[ReceivedEvent]
    number: int = 1

    def again(self, error: Exception) -> "list[_Attempt]":
        """Return what to try next, in order: after a conflict with another transaction the same
        again, otherwise halves. Empty if the error is that of a single event.
        """
        if succeeds_again(error, self.number, EntryTakenError):
            return [_Attempt(self.events, self.number + 1)]
        if len(self.events) == 1:
            return []
        middle = len(self.events) // 2
        return [_Attempt(self.events[:middle]), _Attempt(self.events[middle:])]


def shown_outcome(result: LedgerEntry | BaseException | None) -> str:
    """Return the outcome of an event in a report. Raises an error other than
    `HandlingFailedError`.
    """
    if isinstance(result, HandlingFailedError):
        return FAILED
    if isinstance(result, BaseException):
        raise result
    return result.outcome.value if result else DUPLICATE


class WebhookService:
    """Applies verified events in batches: locked, deduplicated, folded and committed together."""

    def __init__(
        self, lanes: Sequence[Lane], policy: BillingPolicy, outbox: Outbox | None, clock: Clock
    ) -> None:
        """Run as many batches at a time as there are ``lanes``."""
        self._lanes = asyncio.LifoQueue[Lane]()
        for lane in lanes:
            self._lanes.put_nowait(lane)
        self._policy = policy
        self._outbox = outbox
        self._clock = clock
        self._standby_waits = lanes[0].standby_waits
        self._batcher: Batcher[ReceivedEvent, LedgerEntry | None] = Batcher(
            self._apply,
            max_concurrent=len(lanes),
            gather_seconds=GATHER_SECONDS,
            start_timeout=lanes[0].timeouts.batch_start,
            deadline=lanes[0].timeouts.batch,
            metrics=lanes[0].metrics,
        )

    def receive(self, received: ReceivedEvent) -> Awaitable[LedgerEntry | None]:
        """Apply one event; return its entry after the commit, or None for a duplicate.

        Raises `HandlingFailedError` or `DatabaseUnavailableError`; then the event was rolled back.
        """
        return self._batcher.submit(received)

    async def close(self) -> None:
        await self._batcher.close()

    async def apply(self, batch: Sequence[ReceivedEvent]) -> list[LedgerEntry | Exception | None]:
        """Apply a batch, and return when checks see its changes. Only a faulty event fails."""
        answers = await self._apply(batch)
        return [await each if isinstance(each, asyncio.Task) else each for each in answers]

    async def _apply(self, batch: Sequence[ReceivedEvent]) -> list[_Answer | Exception]:
        """Apply a batch; try again what fails, so that only a faulty event fails."""
        answers, waiting = list[_Answer | Exception](), [_Attempt(batch)]
        while waiting:
            attempt = waiting.pop()
            try:
                answers += await self._transact(attempt.events)
            except DatabaseUnavailableError as error:
                answers += [error] * len(attempt.events)
            except Exception as error:
                following = attempt.again(error)
                if not following:
                    logger.exception("event %s could not be handled", attempt.events[0].event.id)
                    answers.append(HandlingFailedError(str(error)))
                waiting += reversed(following)
        return answers

    async def _transact(self, batch: Sequence[ReceivedEvent]) -> list[_Answer]:
        now = self._clock()
        lane = await self._lanes.get()
        try:
            async with lane.use() as connection:
                transaction = LedgerTransaction(connection, self._policy, now, self._outbox)
                async with lock_events(transaction, batch) as ledger:
                    changes = ledger.changes
                    has_duplicates = len(changes.entries) < len(batch)
                    committed = await ledger.commit(has_duplicates=has_duplicates)
        finally:
            self._lanes.put_nowait(lane)
        log_payments((*changes.entries, *changes.unparked))
        entries = {_key(entry.received): entry for entry in changes.entries}
        # a later event of the batch may have let a parked one be applied
        entries |= {
            key: entry for entry in changes.unparked if (key := _key(entry.received)) in entries
        }
        results = [entries.pop(_key(received), None) for received in batch]
        if committed is None or not committed.is_awaited:
            return [*results]
        return self._answer_later(results, changes, committed)

    def _answer_later(
        self,
        results: Sequence[LedgerEntry | None],
        changes: BatchChanges,
        committed: CommittedChange,
    ) -> list[_Answer]:
        """Let the events of tenants whose checks change wait for standbys; all of them if such a
        tenant has no event in the batch. Duplicates wait too: the first delivery may still do so.
        """
        replayed = asyncio.create_task(self._standby_waits.wait(committed))
        changed = changes.read_by_checks
        concerns_all = not changed <= {entry.tenant_id for entry in results if entry is not None}
        return [
            asyncio.create_task(_after(replayed, entry))
            if entry is None or concerns_all or entry.tenant_id in changed
            else entry
            for entry in results
        ]


async def _after(replayed: asyncio.Task[bool], entry: LedgerEntry | None) -> LedgerEntry | None:
    await asyncio.wait([replayed])
    return entry


def _key(received: ReceivedEvent) -> tuple[str, bool]:
    """Tell apart a valid and an invalid event of one id in one batch."""
    return received.event.id, received.event.problem is None
