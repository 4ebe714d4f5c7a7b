"""Taking in provider events: many requests, one transaction."""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec
import psycopg

from tenantry.db.batcher import Batcher
from tenantry.db.database import Connection, Lane
from tenantry.domain.billing.events import INVOICE_TYPES, BillingEvent, Outcome
from tenantry.domain.billing.ledger import Arrival, Standing
from tenantry.domain.billing.settlement import Gaps, Settlement, gaps, tenant_of, useless, wants_link
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.kit.clock import Clock
from tenantry.services import ledger
from tenantry.store import billing

_TRIES: Final = 4
_RETRYABLE: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, ledger.LostClaimError)

logger = logging.getLogger(__name__)


class HandlingFailedError(Exception):
    """The event could not be handled and nothing of it was kept; the provider should send it again."""


class WebhookService:
    """Applies verified events in batches: locked, deduplicated, folded and committed together."""

    def __init__(self, lane: Lane, policy: BillingPolicy, queue_mail: ledger.MailQueue, clock: Clock) -> None:
        self._lane = lane
        self._policy = policy
        self._queue_mail = queue_mail
        self._clock = clock
        self._batcher: Batcher[Arrival, Outcome | None] = Batcher(self.apply)

    async def receive(self, arrival: Arrival) -> Outcome | None:
        """Apply one event; returns after the commit. None means that the event had been handled before.

        Raises `HandlingFailedError` or `DatabaseUnavailableError`; then nothing of it was kept.
        """
        return await self._batcher.submit(arrival)

    async def close(self) -> None:
        """Wait for the batches under way."""
        await self._batcher.close()

    async def apply(self, arrivals: Sequence[Arrival]) -> list[Outcome | Exception | None]:
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

    async def _apply_together(self, arrivals: Sequence[Arrival]) -> list[Outcome | None]:
        for _ in range(_TRIES - 1):
            try:
                return await self._transact(arrivals)
            except _RETRYABLE as error:
                logger.info("batch of %d events is tried again: %s", len(arrivals), error)
        return await self._transact(arrivals)

    async def _transact(self, arrivals: Sequence[Arrival]) -> list[Outcome | None]:
        unique = {arrival.event.id: arrival for arrival in reversed(arrivals)}
        async with self._lane.use() as connection:
            standing = await self._read(connection, [arrival.event for arrival in unique.values()])
            fresh = [arrival for arrival in arrivals if unique[arrival.event.id] is arrival]
            fresh = [arrival for arrival in fresh if arrival.event.id not in standing.seen]
            settlement = await self._settle(connection, standing, fresh)
            await ledger.write(connection, settlement, self._queue_mail, self._clock())
            await connection.commit()
        for entry in (*settlement.entries, *settlement.healed):
            ledger.log_payment(entry)
        outcomes = {entry.arrival.event.id: entry.outcome for entry in settlement.entries}
        # one that was parked may have been healed by a later one
        outcomes |= {
            entry.arrival.event.id: entry.outcome for entry in settlement.healed if entry.arrival.event.id in outcomes
        }
        return [outcomes.pop(arrival.event.id, None) for arrival in arrivals]

    async def _read(self, connection: Connection, events: Sequence[BillingEvent]) -> Standing:
        """Lock and read what the batch needs; what is missing is held, so that nobody adds it meanwhile."""
        usable = [event for event in events if not useless(event)]
        tenants = {event.org_id for event in usable if event.org_id}
        customers = {event.customer_id for event in usable if event.customer_id}
        ids = [event.id for event in events]
        held = Gaps()
        while True:
            standing = await billing.read_standing(connection, tenants, customers, ids)
            wanted = held.union(gaps((event for event in usable if event.id not in standing.seen), standing))
            if wanted == held:
                return standing
            held = wanted
            # names are locked before tenants: begin again (nothing is written; a rollback would unprepare statements)
            await connection.commit()
            await billing.lock_names(
                connection,
                claimed_customers=held.links,
                missing_tenants=held.tenants,
                missing_customers=held.customers,
            )

    async def _settle(self, connection: Connection, standing: Standing, arrivals: Sequence[Arrival]) -> Settlement:
        numbered = [
            msgspec.structs.replace(
                arrival, event=msgspec.structs.replace(arrival.event, arrival=standing.first_arrival + number)
            )
            for number, arrival in enumerate(arrivals)
        ]
        usable = [arrival.event for arrival in numbered if not useless(arrival.event)]
        links = {(event.customer_id, event.org_id) for event in usable if wants_link(event, standing)}
        customers = [customer_id for customer_id, _ in links if customer_id]
        waiting = await billing.read_parked(connection, (), customers) if customers else []
        placed = [(tenant_of(event, standing.tenant_of_customer), event) for event in usable]
        # an invoice event may have waited for its customer's link, or follow that link in this very batch
        invoices = [arrival.event for arrival in waiting]
        invoices += [event for event in usable if event.type in INVOICE_TYPES]
        placed += [
            (org_id, event) for customer_id, org_id in links for event in invoices if event.customer_id == customer_id
        ]
        settlement = await ledger.prepare(connection, standing, self._policy, self._clock(), placed, waiting)
        for arrival in numbered:
            settlement.receive(arrival)
        return settlement
