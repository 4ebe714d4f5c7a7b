"""Events that the provider lists and that never came in: finding them, and taking them in."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Container, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import msgspec

from tenantry.billing import reconcile_store as store
from tenantry.billing.ingest import DUPLICATE, FAILED, HandlingFailedError, WebhookService
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.billing.batch_application import gives_way
from tenantry.domain.billing.events import HANDLED_TYPES, BillingEvent
from tenantry.domain.billing.ledger import Arrival
from tenantry.domain.billing.state import BillingPolicy
from tenantry.integrations.stripe.api import ProviderApi
from tenantry.integrations.stripe.decode import NotAnEventError, decode_event

_BATCH: Final = 100

logger = logging.getLogger(__name__)

Listed = tuple[BillingEvent, bytes]
"""An event that the provider lists, and its bytes."""


class MissedEvent(msgspec.Struct, frozen=True):
    """An event of the provider's that never came in. ``created`` is in seconds since the Unix epoch.

    ``outcome`` is what became of it once it was taken in, ``failed`` where it could not be handled, None in a dry run.
    """

    id: str
    type: str
    created: int
    tenant_id: str | None
    outcome: str | None = None


class Part(NamedTuple):
    """A part of the provider's list that is done: how many events it has, those missed, and its oldest event."""

    listed: int
    missed: list[MissedEvent]
    oldest: BillingEvent


class MissedEvents:
    """Reads the provider's list of events, and hands what the ledger lacks to the one path that all events take.

    Raises `ProviderUnavailableError`, `ProviderRefusedError` and `DatabaseUnavailableError`.
    """

    def __init__(
        self, database: Database, provider: ProviderApi, webhooks: WebhookService, clock: Clock, policy: BillingPolicy
    ) -> None:
        self._database = database
        self._provider = provider
        self._webhooks = webhooks
        self._clock = clock
        self._policy = policy

    async def since(
        self, second: int, *, until: int | None = None, only: Container[str | None] | None = None, dry_run: bool
    ) -> AsyncGenerator[Part, None]:
        """What is missed since a second (Unix time), of these tenants ``only``, taken in unless it is a ``dry_run``.

        With ``until``, what was created up to that second. The newest second comes first, so that a payment is in the
        ledger before its older failures; events of one second come as they came about.
        """
        async with aclosing(self._newest_first(max(second, 0), until)) as batches:
            async for events in batches:
                missed = await self._fetch(events, only, dry_run=dry_run)
                yield Part(len(events), missed, min((event for event, _ in events), key=lambda event: event.created))

    async def _newest_first(self, since: int, until: int | None) -> AsyncGenerator[list[Listed], None]:
        """The events that the provider lists, in batches of whole seconds."""
        batch, second = list[Listed](), list[Listed]()
        async with aclosing(self._provider.events_since(since, HANDLED_TYPES, until)) as bodies:
            async for body in bodies:
                event = self._decoded(body)
                if event is None:
                    continue
                if second and second[0][0].created != event.created:
                    batch += reversed(second)
                    second = []
                    if len(batch) >= _BATCH:
                        yield batch
                        batch = []
                second.append((event, body))
        batch += reversed(second)
        if batch:
            yield batch

    def _decoded(self, body: bytes) -> BillingEvent | None:
        try:
            return decode_event(
                body,
                arrived=int(self._clock().timestamp()),
                make_up_id=lambda: new_id("evt_unnamed"),
                reference_links=self._policy.checkout_reference_links,
            )
        except NotAnEventError as error:
            logger.warning("the provider lists something that is no event: %s", error)
            return None

    async def _fetch(
        self, events: Sequence[Listed], only: Container[str | None] | None, *, dry_run: bool
    ) -> list[MissedEvent]:
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            known = await store.known_events(connection, [event.id for event, _ in events])
            tenant_of = await store.tenants_of_customers(
                connection, {event.customer_id for event, _ in events if event.customer_id}
            )
        missed, arrivals, now = list[MissedEvent](), list[Arrival](), self._clock()
        for event, body in events:
            left_out = gives_way(event, self._policy)
            # what a connected account says is not about the tenant that it names, unless the account is listed
            tenant_id = None if left_out else event.org_id or tenant_of.get(event.customer_id or "")
            is_missed = event.id not in known or (known[event.id] and not left_out)
            if is_missed and (only is None or tenant_id in only):
                missed.append(MissedEvent(event.id, event.type, event.created, tenant_id))
                arrivals.append(Arrival(event, now, body, belated=True))
        if dry_run:
            return missed
        # handed over at once, so that those of a second, of which each may tell of the others, are one batch
        outcomes = await asyncio.gather(*(self._receive(arrival) for arrival in arrivals))
        return [msgspec.structs.replace(one, outcome=outcome) for one, outcome in zip(missed, outcomes, strict=True)]

    async def _receive(self, arrival: Arrival) -> str:
        try:
            receipt = await self._webhooks.receive(arrival)
        except HandlingFailedError:
            return FAILED
        return receipt.outcome.value if receipt.outcome else DUPLICATE
