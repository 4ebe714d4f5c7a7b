"""Keeping tenants at the provider's truth: asking it, comparing, repairing, and fetching what never came."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import msgspec

from tenantry.db.database import Connection, Database
from tenantry.domain.billing.events import HANDLED_TYPES, Anomaly, BillingEvent, Fact
from tenantry.domain.billing.ledger import Arrival
from tenantry.domain.billing.snapshot import Answer, snapshot
from tenantry.domain.billing.state import BillingPolicy, differences
from tenantry.domain.errors import DatabaseUnavailableError, DomainError, NotFoundError
from tenantry.gateways.provider.api import ProviderApi
from tenantry.gateways.provider.decode import NotAnEventError, decode_event
from tenantry.kit.clock import Clock
from tenantry.kit.ids import new_id
from tenantry.services import ledger
from tenantry.services.webhooks import HandlingFailedError, WebhookService
from tenantry.store import billing
from tenantry.store import reconcile as store
from tenantry.store.reconcile import LinkedTenant

EVENTS_KEPT: Final = timedelta(days=30)
"""How long the provider lists an event (its documentation of the events list)."""

_AT_ONCE: Final = 4
_PAGE: Final = 200
_BATCH: Final = 100

logger = logging.getLogger(__name__)


class AskAgainError(Exception):
    """The provider's answer is not newer than the second that it was to settle."""


class MissedEvent(msgspec.Struct, frozen=True):
    """An event of the provider's that never came in. ``created`` is in seconds since the Unix epoch."""

    id: str
    type: str
    created: int
    tenant_id: str | None


class Comparison(msgspec.Struct, frozen=True):
    """A tenant beside the provider's truth.

    ``drift`` has each field of the tenant record that differs: ours, then the provider's. ``trouble`` says why the
    tenant could not be compared.
    """

    tenant_id: str
    drift: dict[str, tuple[Fact, Fact]] = {}
    repaired: bool = False
    as_of: int | None = None
    missed: tuple[MissedEvent, ...] = ()
    trouble: str | None = None


class Reconciliation(msgspec.Struct, frozen=True):
    """How many tenants were compared; those that had drifted, and those that could not be compared, by id."""

    compared: int
    drifted: tuple[Comparison, ...]
    troubled: tuple[Comparison, ...]


class Backfill(msgspec.Struct, frozen=True):
    """How many events the provider listed, those that had never come in, and what became of these (by outcome)."""

    listed: int
    missed: tuple[MissedEvent, ...]
    outcomes: dict[str, int]


Item = TypeVar("Item")
Progress = Callable[[int], None]
"""Told how many tenants or events are done so far."""


def _quietly(_: int) -> None:
    pass


class Reconciler:
    """Asks the provider and folds its answers. What it answers enters the ledger, so a rebuild keeps it.

    Methods raise `ProviderUnavailableError`, `ProviderRefusedError` and `DatabaseUnavailableError`.
    """

    def __init__(
        self,
        database: Database,
        provider: ProviderApi,
        webhooks: WebhookService,
        policy: BillingPolicy,
        outbox: ledger.Outbox,
        clock: Clock,
    ) -> None:
        self._database = database
        self._provider = provider
        self._webhooks = webhooks
        self._policy = policy
        self._outbox = outbox
        self._clock = clock

    async def ask(self, tenant_id: str, settles: int | None) -> None:
        """Fold what the provider says of a tenant now.

        Raises `AskAgainError` where its answer is of the second ``settles`` or an older one, and so settles nothing.
        """
        async with self._database.transaction() as connection:
            customers = await billing.customers_of(connection, tenant_id)
        answer = await self._answer(customers)
        if answer is None:
            return
        await self._enter(tenant_id, answer, dry_run=False, is_check=False)
        if settles is not None and answer.as_of <= settles:
            raise AskAgainError

    async def run(
        self, tenants: Sequence[str] | None = None, *, dry_run: bool = False, progress: Progress = _quietly
    ) -> Reconciliation:
        """Compare every linked tenant, or those named, with the provider; repair those that differ.

        With ``dry_run`` nothing is written. Raises `NotFoundError` for a named tenant that does not exist or has no
        customer.
        """
        return await self._compare_all(self._linked(tenants), dry_run=dry_run, progress=progress)

    async def run_due(self, older_than: timedelta, most: int) -> Reconciliation:
        """Compare and repair up to ``most`` tenants whose last comparison is longer ago than that."""
        async with self._database.transaction() as connection:
            due = await store.due_tenants(connection, self._clock() - older_than, most)
        return await self._compare_all(_each(due), dry_run=False, progress=_quietly)

    async def backfill(self, since: int, *, dry_run: bool = False, progress: Progress = _quietly) -> Backfill:
        """Take in the events that the provider lists since a second (Unix time) and that never came in.

        The provider lists events for 30 days. The newest are taken first, so that a failed payment that has been
        paid since is not mailed; otherwise an old failure mails as a parked one does.
        """
        listed, missed, outcomes = 0, list[MissedEvent](), dict[str, int]()
        async for events in self._listed_events(since):
            listed += len(events)
            unknown = await self._unknown(events)
            missed += [_named(event, event.org_id) for event, _ in unknown]
            if not dry_run:
                for outcome in await self._take_in(unknown):
                    outcomes[outcome] = outcomes.get(outcome, 0) + 1
            progress(listed)
        return Backfill(listed, tuple(missed), outcomes)

    async def _linked(self, only: Sequence[str] | None) -> AsyncIterator[LinkedTenant]:
        after, wanted = "", set(only or ())
        while True:
            async with self._database.transaction() as connection:
                page = await store.linked_tenants(connection, after, only, _PAGE)
            for tenant in page:
                wanted.discard(tenant.id)
                yield tenant
            if len(page) < _PAGE:
                break
            after = page[-1].id
        if wanted:
            raise NotFoundError(f"tenant with a customer of the provider: {', '.join(sorted(wanted))}")

    async def _compare_all(
        self, tenants: AsyncIterator[LinkedTenant], *, dry_run: bool, progress: Progress
    ) -> Reconciliation:
        compared, found = 0, list[Comparison]()
        async for several in _in_groups(tenants, _AT_ONCE):
            answers = await asyncio.gather(
                *(self._compare(tenant, dry_run=dry_run) for tenant in several), return_exceptions=True
            )
            comparisons = [_troubled(tenant, answer) for tenant, answer in zip(several, answers, strict=True)]
            refused = [answer for answer in answers if isinstance(answer, DomainError)]
            if len(refused) == len(several):
                raise refused[0]  # it is not about a tenant
            compared += sum(comparison.trouble is None for comparison in comparisons)
            found += [comparison for comparison in comparisons if comparison.drift or comparison.trouble]
            progress(compared)
        drifted = await self._with_missed([each for each in found if each.drift], dry_run=dry_run)
        return Reconciliation(compared, tuple(drifted), tuple(each for each in found if each.trouble))

    async def _compare(self, tenant: LinkedTenant, *, dry_run: bool) -> Comparison:
        answer = await self._answer(tenant.customers)
        if answer is None:
            names = ", ".join(tenant.customers)
            return Comparison(tenant.id, trouble=f"the provider does not know its customer: {names}")
        drift = await self._enter(tenant.id, answer, dry_run=dry_run, is_check=True)
        if drift and not dry_run:
            logger.warning(
                "tenant %s had drifted from the provider and is repaired: %s", tenant.id, ", ".join(sorted(drift))
            )
        return Comparison(tenant.id, drift, repaired=bool(drift) and not dry_run, as_of=answer.as_of)

    async def _answer(self, customers: Sequence[str]) -> Answer | None:
        """What the provider says of a tenant's customers together; None if it knows none of them."""
        answers = [answer for each in customers if (answer := await self._provider.subscriptions_of(each)) is not None]
        if not answers:
            return None
        subscriptions = tuple(subscription for answer in answers for subscription in answer.subscriptions)
        return Answer(min(answer.as_of for answer in answers), subscriptions)

    async def _enter(
        self, tenant_id: str, answer: Answer, *, dry_run: bool, is_check: bool
    ) -> dict[str, tuple[Fact, Fact]]:
        """Fold the answer into the tenant; what that changes (or would change) of its record."""
        now = self._clock()
        async with self._database.transaction() as connection:
            account = await billing.lock_account(connection, tenant_id)
            if account is None:
                return {}
            changed: dict[str, tuple[Fact, Fact]] = {}
            event = snapshot(
                answer.subscriptions, account, self._policy, event_id=new_id("snapshot"), as_of=answer.as_of
            )
            if event is not None:
                settlement = await ledger.settle(connection, [Arrival(event, now)], self._policy, now)
                [entry] = settlement.entries
                changed = differences(entry.before or account.state, entry.after or account.state)
                if changed and is_check:
                    drifted = (*entry.anomalies, Anomaly.DRIFT)
                    settlement.entries[:] = [msgspec.structs.replace(entry, anomalies=drifted)]
                await ledger.write(connection, settlement, self._outbox, now)
            if dry_run:
                await connection.rollback()
            elif is_check:
                await store.mark_compared(connection, tenant_id, now)
        return changed

    async def _with_missed(self, drifted: Sequence[Comparison], *, dry_run: bool) -> list[Comparison]:
        """The drifted tenants with the events that never came in, which take their place in the ledger."""
        if not drifted:
            return []
        tenants = {comparison.tenant_id for comparison in drifted}
        since = min(each.as_of or 0 for each in drifted) - int(EVENTS_KEPT.total_seconds())
        missed: dict[str, list[MissedEvent]] = {tenant_id: [] for tenant_id in tenants}
        async with self._database.transaction() as connection:
            tenant_of_customer = await self._customers(connection, tenants)
        async for events in self._listed_events(since):
            concerned = [
                (event, body)
                for event, body in events
                if (event.org_id or tenant_of_customer.get(event.customer_id or "")) in tenants
            ]
            unknown = await self._unknown(concerned)
            for event, _ in unknown:
                tenant_id = event.org_id or tenant_of_customer[event.customer_id or ""]
                missed[tenant_id].append(_named(event, tenant_id))
            if not dry_run:
                await self._take_in(unknown)
        return [msgspec.structs.replace(each, missed=tuple(missed[each.tenant_id])) for each in drifted]

    async def _customers(self, connection: Connection, tenants: Iterable[str]) -> dict[str, str]:
        return {
            customer: tenant_id
            for tenant_id in tenants
            for customer in await billing.customers_of(connection, tenant_id)
        }

    async def _listed_events(self, since: int) -> AsyncIterator[list[tuple[BillingEvent, bytes]]]:
        """The events that the provider lists, the newest first, in batches, each with its bytes."""
        async for bodies in _in_groups(self._provider.events_since(max(since, 0), HANDLED_TYPES), _BATCH):
            yield [(event, body) for body in bodies if (event := self._decoded(body)) is not None]

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

    async def _unknown(self, events: Sequence[tuple[BillingEvent, bytes]]) -> list[tuple[BillingEvent, bytes]]:
        async with self._database.transaction() as connection:
            unknown = await store.unknown_events(connection, [event.id for event, _ in events])
        return [(event, body) for event, body in events if event.id in unknown]

    async def _take_in(self, events: Sequence[tuple[BillingEvent, bytes]]) -> list[str]:
        """Hand events to the one path that all events take; what became of each."""
        now = self._clock()
        arrivals = [Arrival(event, now, body, belated=True) for event, body in events]
        return await asyncio.gather(*(self._receive(arrival) for arrival in arrivals))

    async def _receive(self, arrival: Arrival) -> str:
        try:
            receipt = await self._webhooks.receive(arrival)
        except HandlingFailedError:
            return "failed"
        return receipt.outcome.value if receipt.outcome else "duplicate"


def _troubled(tenant: LinkedTenant, answer: Comparison | BaseException) -> Comparison:
    """The comparison, or why there is none; what is not a domain error is nobody's to explain away."""
    if isinstance(answer, Comparison):
        return answer
    if isinstance(answer, DomainError) and not isinstance(answer, DatabaseUnavailableError):
        return Comparison(tenant.id, trouble=answer.detail)
    raise answer


def _named(event: BillingEvent, tenant_id: str | None) -> MissedEvent:
    return MissedEvent(event.id, event.type, event.created, tenant_id)


async def _each(items: Iterable[Item]) -> AsyncIterator[Item]:
    for item in items:
        yield item


async def _in_groups(items: AsyncIterator[Item], size: int) -> AsyncIterator[list[Item]]:
    group: list[Item] = []
    async for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
