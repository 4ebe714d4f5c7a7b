"""Keeping tenants at the provider's truth: asking it, comparing, repairing, and fetching what never came."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeVar

import msgspec

from tenantry.billing import ledger
from tenantry.billing import ledger_store as billing
from tenantry.billing import reconcile_store as store
from tenantry.billing.ingest import WebhookService
from tenantry.billing.missed_events import MissedEvent, MissedEvents
from tenantry.billing.reconcile_store import Asked, LinkedTenant
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.domain.billing.events import HANDLED_TYPES, Anomaly, Fact
from tenantry.domain.billing.ledger import Account, Arrival
from tenantry.domain.billing.snapshot import Answer, snapshot
from tenantry.domain.billing.state import ENDED, BillingPolicy, differences
from tenantry.domain.errors import DatabaseUnavailableError, DomainError, NotFoundError, ProviderRefusedError
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.stripe.api import ProviderApi

EVENTS_KEPT: Final = timedelta(days=30)
"""How long the provider lists an event (its documentation of the events list)."""

_AT_ONCE: Final = 4
_PAGE: Final = 200
_TRIES: Final = 3
_SKEW: Final = timedelta(hours=1)
"""By how much the provider's clock and ours may differ, where events are looked for since a moment of ours."""
_SET_ASIDE: Final = timedelta(hours=1)
_MOST_NAMED: Final = 20

logger = logging.getLogger(__name__)


class Comparison(msgspec.Struct, frozen=True):
    """A tenant beside the provider's truth.

    ``drift`` has each field of the tenant record that differs: ours, then the provider's; ``missed`` are the events
    that never came in, oldest first. ``trouble`` says why the tenant could not be compared.
    """

    tenant_id: str
    drift: dict[str, tuple[Fact, Fact]] = {}
    repaired: bool = False
    missed: tuple[MissedEvent, ...] = ()
    trouble: str | None = None


class Reconciliation(msgspec.Struct, frozen=True):
    """How many tenants were compared; those that had drifted, and those that could not be compared, by id.

    ``stopped`` is why the run did not come to its end, if it did not: the provider, its list of events, or the
    database is out of reach, or the provider refuses the API key.
    """

    compared: int
    drifted: tuple[Comparison, ...]
    troubled: tuple[Comparison, ...]
    stopped: DomainError | None = None


class Reached(msgspec.Struct, frozen=True):
    """An event of the provider's list; ``created`` is in seconds since the Unix epoch."""

    id: str
    created: int


class Backfill(msgspec.Struct, frozen=True):
    """How many events the provider listed, how many of them had never come in, and what became of these, by outcome.

    ``stopped`` is why the run did not come to its end, if it did not. ``reached`` is the oldest event that was tried: a
    run that was stopped goes on from its second, unless events before it failed.
    """

    listed: int
    missed: int
    outcomes: dict[str, int]
    stopped: DomainError | None = None
    reached: Reached | None = None


Item = TypeVar("Item")
Progress = Callable[[int], None]
"""Told how many tenants have been done since the last call."""


def _quietly(_: object) -> None:
    pass


class Reconciler:
    """Asks the provider and folds its answers. What it answers enters the ledger, so a rebuild keeps it.

    Methods raise `ProviderUnavailableError`, `ProviderRefusedError` and `DatabaseUnavailableError`, unless they return
    what was done until then.
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
        self._missed = MissedEvents(database, provider, webhooks, clock, policy)
        self._policy = policy
        self._outbox = outbox
        self._clock = clock
        self._set_aside: dict[str, datetime] = {}

    async def ask(self, tenant_id: str) -> None:
        """Fold what the provider says of a tenant now; does nothing for one that has ended or has no customer."""
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            tenant = await store.linked_tenant(connection, tenant_id)
        if tenant is not None:
            await self._ask(tenant, _Purpose())

    async def count(self, tenants: Sequence[str] | None = None) -> int:
        """How many tenants `run` compares.

        Raises `NotFoundError` for a named tenant that does not exist or has no customer.
        """
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            if tenants is None:
                return await store.count_linked_tenants(connection)
            possible = [tenant_id for tenant_id in set(tenants) if is_tenant_id(tenant_id)]
            known = await store.linked_tenants(connection, "", possible, len(possible))
        missing = sorted(set(tenants) - {tenant.id for tenant in known})
        if missing:
            raise NotFoundError(f"tenant with a customer at the payment provider: {', '.join(missing)}")
        return len(known)

    async def run(
        self, tenants: Sequence[str] | None = None, *, dry_run: bool = False, progress: Progress = _quietly
    ) -> Reconciliation:
        """Compare every linked tenant, or those named, with the provider; repair those that differ.

        With ``dry_run`` nothing is written. Raises `NotFoundError` for a named tenant that does not exist or has no
        customer; then nothing is done. Where the run is stopped, what was done until then is returned.
        """
        if tenants is not None:
            await self.count(tenants)
        return await self._compare_all(self._linked(tenants), dry_run=dry_run, progress=progress, tell=_quietly)

    async def run_due(self, older_than: timedelta, most: int) -> Reconciliation:
        """Compare and repair up to ``most`` tenants whose last comparison is longer ago than that, and log it.

        One that cannot be compared is left in peace for an hour, so that it keeps nobody waiting. Raises what stops
        the run.
        """
        now = self._clock()
        self._set_aside = {tenant_id: until for tenant_id, until in self._set_aside.items() if until > now}
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            due = await store.due_tenants(connection, now - older_than, most, without=self._set_aside)
        found = await self._compare_all(_each(due), dry_run=False, progress=_quietly, tell=_log_drift)
        self._set_aside |= {comparison.tenant_id: now + _SET_ASIDE for comparison in found.troubled}
        _log_trouble(found.troubled)
        if found.stopped is not None:
            raise found.stopped
        return found

    async def backfill(
        self,
        since: int,
        *,
        until: int | None = None,
        dry_run: bool = False,
        tell: Callable[[MissedEvent], None] = _quietly,
    ) -> Backfill:
        """Take in the events that the provider lists since a second (Unix time) and that never came in.

        With ``until``, those that were created up to that second.
        The provider lists events for 30 days. The newest are taken first, so that a failed payment that has been
        paid since is not mailed; otherwise an old failure mails as a parked one does. ``tell`` is told of each missed
        event once it is taken in. Where the run is stopped, what was done until then is returned.
        """
        listed, missed, outcomes, reached, stopped = 0, 0, dict[str, int](), None, None
        try:
            async with aclosing(self._missed.since(since, until=until, dry_run=dry_run)) as parts:
                async for part in parts:
                    listed += part.listed
                    missed += len(part.missed)
                    reached = Reached(part.oldest.id, part.oldest.created)
                    for event in part.missed:
                        if event.outcome is not None:
                            outcomes[event.outcome] = outcomes.get(event.outcome, 0) + 1
                        tell(event)
        except DomainError as error:
            stopped = error
        return Backfill(listed, missed, outcomes, stopped, reached)

    # Comparing

    async def _linked(self, only: Sequence[str] | None) -> AsyncIterator[LinkedTenant]:
        after = ""
        while True:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                page = await store.linked_tenants(connection, after, only, _PAGE)
            for tenant in page:
                yield tenant
            if len(page) < _PAGE:
                return
            after = page[-1].id

    async def _compare_all(
        self,
        tenants: AsyncIterator[LinkedTenant],
        *,
        dry_run: bool,
        progress: Progress,
        tell: Callable[[Comparison], None],
    ) -> Reconciliation:
        purpose = _Purpose(is_check=True, dry_run=dry_run)
        compared, drifted, troubled = 0, list[Comparison](), list[Comparison]()
        since, stopped = int(self._clock().timestamp()), None
        try:
            async for several in _in_groups(tenants, _AT_ONCE):
                for tenant, comparison in zip(several, await self._compare(several, purpose), strict=True):
                    compared += comparison.trouble is None
                    if comparison.trouble:
                        troubled.append(comparison)
                    elif comparison.drift:
                        drifted.append(comparison)
                        since = min(since, self._lost_since(tenant))
                        tell(comparison)
                progress(len(several))
            if drifted:
                drifted = await self._with_missed(drifted, since, dry_run=dry_run)
        except DomainError as error:
            stopped = error
        return Reconciliation(compared, tuple(drifted), tuple(troubled), stopped)

    async def _compare(self, several: Sequence[LinkedTenant], purpose: "_Purpose") -> list[Comparison]:
        """Compare tenants at the same time. Raises what has nothing to do with one of them."""
        answers = await asyncio.gather(*(self._ask(tenant, purpose) for tenant in several), return_exceptions=True)
        refusals = [
            answer
            for answer in answers
            if isinstance(answer, DomainError) and not isinstance(answer, DatabaseUnavailableError)
        ]
        if len(refusals) == len(several):
            for refusal in refusals:
                if isinstance(refusal, ProviderRefusedError) and refusal.of_key:
                    raise refusal  # the key may still be good for the question below
            await self._reach_provider()
        comparisons = []
        for tenant, answer in zip(several, answers, strict=True):
            if answer in refusals:
                comparisons.append(Comparison(tenant.id, trouble=str(answer)))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                comparisons.append(answer)
        return comparisons

    async def _reach_provider(self) -> None:
        """Return if the provider answers a question that is not about a tenant; raises what is wrong otherwise."""
        now = int(self._clock().timestamp())
        async with aclosing(self._provider.events_since(now, HANDLED_TYPES)) as events:
            async for _ in events:
                return

    async def _ask(self, tenant: LinkedTenant, purpose: "_Purpose") -> Comparison:
        """Ask about all customers of a tenant and fold the answer.

        The provider is asked again where the tenant's customers changed meanwhile, or where the answer cannot be
        applied and an event changed the tenant's state meanwhile: the answer may be older than the event.
        """
        comparison = Comparison(tenant.id)
        for _ in range(_TRIES):
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                before = await billing.lock_account(connection, tenant.id)
                asked = await store.begin_question(connection, tenant.id)
            reply = await self._reply(tenant)
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                account = await billing.lock_account(connection, tenant.id)
                present = await store.linked_tenant(connection, tenant.id)
                if before is None or account is None or present is None:
                    return Comparison(tenant.id)  # it has ended meanwhile
                if _customers(present) != _customers(tenant):
                    comparison = Comparison(tenant.id, trouble="its customers changed while the provider was asked")
                else:
                    comparison = await self._fold(connection, account, present, asked, reply, purpose)
                    if comparison.trouble is None or account.state == before.state:
                        return comparison
            tenant = present
        return comparison

    async def _reply(self, tenant: LinkedTenant) -> "_Reply":
        """What the provider says of a tenant's customers together."""
        answers, unknown = list[Answer](), list[str]()
        for customer_id in _customers(tenant):
            answer = await self._provider.subscriptions_of(customer_id)
            if answer is None:
                unknown.append(customer_id)
            else:
                answers.append(answer)
        if not answers:
            return _Reply(None, unknown)
        subscriptions = tuple(subscription for answer in answers for subscription in answer.subscriptions)
        return _Reply(Answer(min(answer.as_of for answer in answers), subscriptions), unknown)

    async def _fold(
        self,
        connection: Connection,
        account: Account,
        tenant: LinkedTenant,
        asked: Asked,
        reply: "_Reply",
        purpose: "_Purpose",
    ) -> Comparison:
        """Fold the answer into the locked account; what that changes (or would change) of the tenant record.

        A comparison with trouble has folded nothing: the provider does not know a customer, or the subscription that
        the tenant's state is from, which has not ended.
        """
        now, answer = self._clock(), reply.answer
        told = account.state.subscription_id
        if answer is None or (
            reply.unknown and told is not None and all(each.id != told for each in answer.subscriptions)
        ):
            return Comparison(tenant.id, trouble=f"{_UNKNOWN_CUSTOMER}: {', '.join(reply.unknown)}")
        event = snapshot(
            answer.subscriptions, account, self._policy, event_id=new_id("snapshot"),
            # what had come in before the question had happened before the answer, whatever the clocks say
            as_of=max(answer.as_of, asked.newest or 0), arrival=asked.arrival,
            strangers=() if tenant.stranger is None else (tenant.stranger,),
        )  # fmt: skip
        if event is None and account.state.provider_status not in (None, *ENDED):
            trouble = f"the provider does not know its subscription {told or '(without id)'}"
            return Comparison(tenant.id, trouble=trouble)
        drift: dict[str, tuple[Fact, Fact]] = {}
        if event is not None:
            settlement = await ledger.settle(connection, [Arrival(event, now)], self._policy, now)
            [entry] = settlement.entries
            drift = differences(entry.before or account.state, entry.after or account.state)
            if drift and purpose.is_check:
                anomalies = (*entry.anomalies, Anomaly.DRIFT)
                settlement.entries[:] = [msgspec.structs.replace(entry, anomalies=anomalies)]
            await ledger.write(connection, settlement, self._outbox, now)
        if purpose.dry_run:
            await connection.rollback()
        elif purpose.is_check:
            await store.mark_compared(connection, tenant.id, now)
        return Comparison(tenant.id, drift, repaired=bool(drift) and not purpose.dry_run)

    # Events that never came in

    def _lost_since(self, tenant: LinkedTenant) -> int:
        """The second since which events are looked for that explain why a tenant has drifted.

        Whatever was lost before its last comparison, that has made up for.
        """
        looked_for = self._clock() - EVENTS_KEPT
        if tenant.compared_at is not None:
            looked_for = max(looked_for, tenant.compared_at - _SKEW)
        return int(looked_for.timestamp())

    async def _with_missed(self, drifted: Sequence[Comparison], since: int, *, dry_run: bool) -> list[Comparison]:
        """The drifted tenants with the events that never came in, which take their place in the ledger."""
        missed: dict[str, list[MissedEvent]] = {comparison.tenant_id: [] for comparison in drifted}
        async with aclosing(self._missed.since(since, only=missed, dry_run=dry_run)) as parts:
            async for part in parts:
                for event in part.missed:
                    missed[event.tenant_id or ""].append(event)
        return [
            msgspec.structs.replace(each, missed=tuple(sorted(missed[each.tenant_id], key=lambda event: event.created)))
            for each in drifted
        ]


_UNKNOWN_CUSTOMER: Final = "the provider does not know its customer"


class _Purpose(NamedTuple):
    """What an answer is for: a check finds drift; otherwise it is asked for because events say too little."""

    is_check: bool = False
    dry_run: bool = False


class _Reply(NamedTuple):
    """What the provider says of several customers together, None if it knows none of them; and those unknown to it."""

    answer: Answer | None
    unknown: list[str]


def _customers(tenant: LinkedTenant) -> list[str]:
    """All the customers whose subscriptions may be the tenant's."""
    return tenant.customers if tenant.stranger is None else [*tenant.customers, tenant.stranger]


def _log_drift(comparison: Comparison) -> None:
    logger.warning(
        "tenant %s had drifted from the provider and is repaired: %s",
        comparison.tenant_id, ", ".join(sorted(comparison.drift)),
    )  # fmt: skip


def _log_trouble(troubled: Sequence[Comparison]) -> None:
    if troubled:
        named = "; ".join(f"{each.tenant_id}: {each.trouble}" for each in troubled[:_MOST_NAMED])
        logger.warning("tenants that could not be compared with the provider: %d (%s)", len(troubled), named)


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


# Tenants that should have had news: their paid period is over, and nothing has come since


SILENT_TENANTS: Final = "silent_tenants"
"""The finding's name."""


class SilenceWatch:
    """Looks for tenants whose period ended longer than ``patience`` ago without news: a lost event, a dead endpoint."""

    def __init__(self, database: Database, patience: timedelta, clock: Clock) -> None:
        self._database = database
        self._patience = patience
        self._clock = clock

    async def look(self) -> int:
        """Count them for the metrics, and name them in the log. Raises `DatabaseUnavailableError`."""
        now = self._clock()
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            silent, number = await store.silent_tenants(
                connection, int((now - self._patience).timestamp()), _MOST_NAMED
            )
            await store.record_finding(connection, SILENT_TENANTS, number, now)
        if silent:
            logger.warning(
                "tenants whose period ended more than %d h ago without news: %d (%s)",
                self._patience // timedelta(hours=1), number, ", ".join(tenant.id for tenant in silent),
            )  # fmt: skip
        return number
