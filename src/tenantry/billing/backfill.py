"""Backfill: ingest the events that the provider lists and the ledger lacks."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Container, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from tenantry.billing import ledger_store as store
from tenantry.billing.ingest import DUPLICATE, WebhookService, shown_outcome
from tenantry.billing.ledger_run import LedgerRun
from tenantry.common.clock import Clock, from_epoch
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.billing.anomalies import is_replaceable
from tenantry.domain.billing.events import REQUIRED_TYPES, BillingEvent
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import DomainError
from tenantry.integrations.stripe.client import MOST_EVENT_TYPES, ProviderApi
from tenantry.integrations.stripe.decode import NotAnEventError, decode_event

_BATCH: Final = 100

logger = logging.getLogger(__name__)

ListedEvent = tuple[BillingEvent, bytes]
"""An event of the provider's list, and its bytes."""


class MissedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event that never arrived; ``outcome`` is None in a dry run."""

    id: str
    type: str
    created: datetime
    tenant_id: str | None
    outcome: str | None = None


class BackfillPart(NamedTuple):
    """A finished part of the provider's list: its number of events, those missed, and its oldest
    event.
    """

    listed: int
    missed: list[MissedEvent]
    oldest: BillingEvent


Observer = Callable[[BackfillPart], bool | None]
"""Is called for each part. If it returns True, the run stops there."""


class BackfillResult(msgspec.Struct, frozen=True):
    """How many events the provider listed, how many of them were missed, and their outcomes.

    ``stopped`` is the error that stopped the run, if any; ``interrupted`` means that its caller
    stopped it. ``reached`` is the oldest event that was tried: a run can continue from its second,
    unless events before it failed.
    """

    listed: int
    missed: int
    outcomes: dict[str, int]
    stopped: DomainError | None = None
    reached: BillingEvent | None = None
    interrupted: bool = False


@dataclass(frozen=True)
class Backfill:
    """Reads the provider's list of events, and passes missed events to the service that ingests
    webhooks.
    """

    database: Database
    provider: ProviderApi
    webhooks: WebhookService
    clock: Clock
    policy: BillingPolicy

    async def run(
        self,
        since: int,
        *,
        until: int | None = None,
        types: Collection[str] = REQUIRED_TYPES,
        dry_run: bool = False,
        observer: Observer = lambda _: None,
    ) -> BackfillResult:
        """Ingest the missed events of these ``types`` that were created from ``since`` to ``until``
        (Unix seconds).

        The provider lists events for 30 days. The newest come first, so that a failed payment that
        has been paid since is not mailed; other old failures are mailed like parked ones. An error
        stops the run and is part of the result.
        """
        listed, outcomes = 0, Counter[str | None]()

        def observe(part: BackfillPart) -> bool | None:
            nonlocal listed
            listed += part.listed
            outcomes.update(event.outcome for event in part.missed)
            return observer(part)

        run = self.parts(since, until=until, types=types, dry_run=dry_run)
        await run.finish(observe)
        return BackfillResult(
            listed,
            outcomes.total(),
            {outcome: number for outcome, number in outcomes.items() if outcome},
            run.stopped,
            _oldest(run.reached) if run.reached else None,
            run.interrupted,
        )

    async def resend(self, event_id: str) -> MissedEvent | None:
        """Fetch one event from the provider and ingest it, whatever its type; None if the provider
        has no such event.

        The outcome is `ingest.DUPLICATE` if the ledger has the event. Raises
        `ProviderUnavailableError`, `ProviderRefusedError` and `DatabaseUnavailableError`.
        """
        body = await self.provider.event(event_id)
        listed = self._decode(body) if body else None
        if listed is None:
            return None
        missed = (await self._ingest_missed(None, [listed], dry_run=False)).missed
        return missed[0] if missed else _reported(listed[0], None, DUPLICATE)

    def parts(
        self,
        since: int,
        *,
        until: int | None = None,
        types: Collection[str] = REQUIRED_TYPES,
        only: Container[str | None] | None = None,
        dry_run: bool,
    ) -> LedgerRun[list[ListedEvent], BackfillPart]:
        """Return the run that finds the missed events since a second, of the tenants ``only``, and
        ingests them unless it is a ``dry_run``.

        By default those of the types that every webhook endpoint must send: another one may never
        have been due.

        The newest second comes first, so that a payment is in the ledger before its older failures;
        events of one second come in the order in which they were created. The run raises
        `ProviderUnavailableError`, `ProviderRefusedError` and `DatabaseUnavailableError`.
        """
        source = self._newest_first(max(since, 0), until, types)
        return LedgerRun(source, partial(self._ingest_missed, only), dry_run)

    async def _newest_first(
        self,
        since: int,
        until: int | None,
        types: Collection[str],
    ) -> AsyncGenerator[list[ListedEvent], None]:
        """Yield the listed events in batches of whole seconds."""
        batch = list[ListedEvent]()
        wanted = types if len(types) <= MOST_EVENT_TYPES else None  # then it lists all
        async with aclosing(self.provider.events_since(since, wanted, until)) as bodies:
            async for body in bodies:
                listed = self._decode(body)
                if listed is None or listed[0].type not in types:
                    continue
                if len(batch) >= _BATCH and batch[-1][0].created != listed[0].created:
                    yield _in_order(batch)
                    batch = []
                batch.append(listed)
        if batch:
            yield _in_order(batch)

    def _decode(self, body: bytes) -> ListedEvent | None:
        try:
            event = decode_event(
                body,
                arrived=int(self.clock().timestamp()),
                make_up_id=lambda: new_id("evt_unnamed"),
                reference_links=self.policy.checkout_reference_links,
            )
        except NotAnEventError as error:
            logger.warning("the provider's list has a malformed event: %s", error)
            return None
        return event, body

    async def _ingest_missed(
        self,
        only: Container[str | None] | None,
        events: Sequence[ListedEvent],
        /,
        *,
        dry_run: bool,
    ) -> BackfillPart:
        """Return the events that the ledger lacks, of the tenants ``only``; ingest them unless it
        is a ``dry_run``.
        """
        found = await self._find_missed(events, only)
        missed = [each for each, _ in found]
        if not dry_run:
            # passed on together, so that events of one second, which may prove each other's order,
            # are one batch
            receiving = [self.webhooks.receive(received) for _, received in found]
            results = await asyncio.gather(*receiving, return_exceptions=True)
            missed = [
                msgspec.structs.replace(one, outcome=shown_outcome(result))
                for one, result in zip(missed, results, strict=True)
            ]
        return BackfillPart(len(events), missed, _oldest(events))

    async def _find_missed(
        self, events: Sequence[ListedEvent], only: Container[str | None] | None
    ) -> list[tuple[MissedEvent, ReceivedEvent]]:
        """Return the events that the ledger lacks, each as it is reported and as it is ingested."""
        listed = [event for event, _ in events]
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            known = await store.known_events(connection, [event.id for event in listed])
            tenant_of = await store.tenants_of_customers(connection, listed)
        found, now = list[tuple[MissedEvent, ReceivedEvent]](), self.clock()
        for event, body in events:
            tenant_id = self._tenant_of(event, tenant_of)
            if not self._is_missed(event, known) or (only is not None and tenant_id not in only):
                continue
            received = ReceivedEvent(event, now, body, fetched=True)
            found.append((_reported(event, tenant_id), received))
        return found

    def _tenant_of(self, event: BillingEvent, tenant_of_customer: Mapping[str, str]) -> str | None:
        """Return the tenant of an event. One of a connected account does not concern the tenant
        that it names, unless the account is listed.
        """
        if is_replaceable(event, self.policy):
            return None
        return event.org_id or tenant_of_customer.get(event.customer_id or "")

    def _is_missed(self, event: BillingEvent, known: Mapping[str, bool]) -> bool:
        """Whether the ledger lacks an event, or has only an entry that this one replaces."""
        if event.id not in known:
            return True
        return known[event.id] and not is_replaceable(event, self.policy)


def _reported(
    event: BillingEvent, tenant_id: str | None, outcome: str | None = None
) -> MissedEvent:
    return MissedEvent(event.id, event.type, from_epoch(event.created), tenant_id, outcome)


def _oldest(listed: Sequence[ListedEvent]) -> BillingEvent:
    return min((event for event, _ in listed), key=attrgetter("created"))


def _in_order(listed: Sequence[ListedEvent]) -> list[ListedEvent]:
    """Put the newest second first, and the events of one second in the order of their creation."""
    oldest_first = list(reversed(listed))
    return sorted(oldest_first, key=lambda each: -each[0].created)
