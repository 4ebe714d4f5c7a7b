"""Reconciling tenants with the provider: fetch, compare, repair, and ingest events that never
arrived.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal, NamedTuple

import msgspec

from tenantry.billing import ingest, ledger_store
from tenantry.billing import reconcile_store as store
from tenantry.billing.backfill import Backfill, MissedEvent
from tenantry.billing.ingest import WebhookService
from tenantry.billing.ledger_queries_store import read_accounts
from tenantry.billing.reconcile_store import LedgerPosition, LinkedTenant
from tenantry.billing.subscription_survey import SubscriptionSurvey, UnplacedSubscription
from tenantry.common.clock import Clock, from_epoch
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database, retry_on_conflict
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.batch_application import BatchApplication
from tenantry.domain.billing.events import KNOWN_TYPES, Anomaly, BillingEvent, Fact
from tenantry.domain.billing.ledger import BillingAccount, NameLock, ReceivedEvent
from tenantry.domain.billing.snapshot import (
    CustomerSubscriptions,
    ProviderSubscription,
    drift_between,
    is_of,
    snapshots,
    unconfirmed,
)
from tenantry.domain.billing.state import BillingPolicy, fold_key
from tenantry.domain.errors import (
    DatabaseUnavailableError,
    DomainError,
    NotFoundError,
    ProviderRefusedError,
)
from tenantry.domain.plans import OVER
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.stripe.client import ProviderApi

EVENTS_KEPT: Final = timedelta(days=30)
"""How long the provider lists an event (its documentation of the events list)."""
STALE_TENANTS: Final = "silent_tenants"
UNPLACED: Final = "unplaced_subscriptions"
"""Names of findings in the database. The second is recorded when all subscriptions have been
compared.
"""

_AT_ONCE: Final = 4
_PAGE: Final = 200
_TRIES: Final = 3
_SKEW: Final = timedelta(hours=1)
"""The most by which the provider's clock and ours may differ."""
_SKIPPED_FOR: Final = timedelta(hours=1)
_LONGEST_RUN: Final = timedelta(minutes=50)
"""How long a scheduled run compares; within the hour of its job, it then fetches the missed
events.
"""
_MOST_NAMED: Final = 20

_Purpose = Literal["snapshot", "repair", "dry run"]
"""What a fetched snapshot is for: only the ledger, or a comparison that finds drift."""

logger = logging.getLogger(__name__)


class MovedSubscription(NamedTuple):
    """The other tenant of a subscription that has moved, and the subscription's customer."""

    tenant_id: str
    customer_id: str


class Comparison(msgspec.Struct, frozen=True):
    """A tenant compared with the provider.

    ``drift`` has each field of the tenant record that differs: ours, then the provider's;
    ``linked`` are the customers that this links (or would link); ``missed`` are the events that
    never arrived, oldest first. ``trouble`` is why the tenant could not be compared. ``moved`` are
    subscriptions that this finds to have moved, whose other tenants must be compared too;
    ``others`` the tenants that the repair changes besides.
    """

    tenant_id: str
    drift: dict[str, tuple[Fact, Fact]] = {}
    repaired: bool = False
    missed: tuple[MissedEvent, ...] = ()
    trouble: str | None = None
    linked: tuple[str, ...] = ()
    moved: tuple[MovedSubscription, ...] = ()
    others: tuple["Comparison", ...] = ()

    @property
    def has_drifted(self) -> bool:
        return self.trouble is None and bool(self.drift or self.linked)


class Reconciliation(msgspec.Struct, frozen=True):
    """The number of tenants compared; those that had drifted, and those that could not be compared,
    by id.

    ``unplaced`` are living subscriptions at the provider that count for no tenant, at most 1,000 of
    ``unplaced_number``; only where all of the account were compared. ``stopped`` is the error that
    stopped the run, if any.
    """

    compared: int
    drifted: tuple[Comparison, ...]
    troubled: tuple[Comparison, ...]
    stopped: DomainError | None = None
    unplaced: tuple[UnplacedSubscription, ...] = ()
    unplaced_number: int = 0
    interrupted: bool = False


class RunObserver(msgspec.Struct, frozen=True):
    """What is called during a run.

    ``compared`` gets the number of tenants done since the last call, ``listed`` that of
    subscriptions read; ``found`` each tenant that has drifted or could not be compared, before its
    missed events are known. If ``stops`` returns True, the run ends after the tenants in flight,
    with the missed events of those that it has repaired.
    """

    compared: Callable[[int], None] = lambda _: None
    listed: Callable[[int], None] = lambda _: None
    found: Callable[[Comparison], None] = lambda _: None
    stops: Callable[[], bool] = lambda: False


NOBODY: Final = RunObserver()


@dataclass(eq=False)
class _Tally:
    """What a run has found so far.

    ``since`` is the second since which missed events may explain the drift, ``asked`` the customers
    that the provider was asked about, by tenant.
    """

    since: int
    observer: RunObserver
    asked: defaultdict[str, set[str]]
    by_tenant: dict[str, Comparison] = field(default_factory=dict)
    trouble_of: dict[str, Comparison] = field(default_factory=dict)
    unchanged: int = 0

    def add(self, comparison: Comparison, since: int) -> None:
        """Count a comparison; of several of one tenant the drift of all, and the trouble of the
        last.
        """
        tenant_id = comparison.tenant_id
        if comparison.has_drifted or comparison.trouble:
            self.observer.found(comparison)
        if comparison.trouble:
            self.trouble_of[tenant_id] = comparison
            return
        if comparison.has_drifted:
            self.since = min(self.since, since)
        self.trouble_of.pop(tenant_id, None)
        former = self.by_tenant.get(tenant_id)
        self.by_tenant[tenant_id] = comparison if former is None else _both(former, comparison)

    @property
    def drifted(self) -> list[Comparison]:
        return sorted(
            (each for each in self.by_tenant.values() if each.has_drifted),
            key=lambda each: each.tenant_id,
        )

    @property
    def troubled(self) -> list[Comparison]:
        return sorted(self.trouble_of.values(), key=lambda each: each.tenant_id)

    @property
    def compared(self) -> int:
        return self.unchanged + len(self.by_tenant)


def _both(former: Comparison, later: Comparison) -> Comparison:
    """Sum up two comparisons of a tenant: each field as it was at first, and as it is after the
    later one.
    """
    drift = dict(former.drift)
    for name, (ours, theirs) in later.drift.items():
        first, _ = former.drift.get(name, (ours, theirs))
        drift[name] = (first, theirs)
    linked = dict.fromkeys((*former.linked, *later.linked))
    return Comparison(
        later.tenant_id, drift, repaired=former.repaired or later.repaired, linked=tuple(linked)
    )


@dataclass(eq=False)
class Reconciler:
    """Fetches snapshots from the provider and folds them. They enter the ledger, so that a rebuild
    keeps them.

    ``skipped`` are tenants in trouble, until when; ``unfetched`` are repaired tenants whose missed
    events could not be fetched, since which second; ``unfinished`` is the survey that the next
    `run_due` continues. Methods raise `ProviderUnavailableError`, `ProviderRefusedError` and
    `DatabaseUnavailableError`, unless they return a partial result.
    """

    database: Database
    provider: ProviderApi
    webhooks: WebhookService
    policy: BillingPolicy
    outbox: Outbox
    clock: Clock
    skipped: dict[str, datetime] = field(default_factory=dict, init=False)
    unfetched: dict[str, int] = field(default_factory=dict, init=False)
    unfinished: SubscriptionSurvey | None = field(default=None, init=False)

    @property
    def backfill(self) -> Backfill:
        return Backfill(self.database, self.provider, self.webhooks, self.clock, self.policy)

    async def fetch_snapshot(self, tenant_id: str) -> None:
        """Fetch and fold a tenant's snapshot; do nothing for a tenant that has ended or has no
        customer.
        """
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            tenant = await store.tenant_by_id(connection, tenant_id)
        if tenant is not None and tenant.all_customers:
            await self._fetch_and_fold(tenant, "snapshot")

    async def count(self, tenants: Sequence[str] | None = None) -> int:
        """Count the tenants that `run` compares. Raises `NotFoundError` for a named tenant that
        does not exist.
        """
        if tenants is not None:
            return len(await self._named(tenants))
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await store.count_linked_tenants(connection)

    async def run(
        self,
        tenants: Sequence[str] | None = None,
        *,
        dry_run: bool = False,
        observer: RunObserver = NOBODY,
    ) -> Reconciliation:
        """Compare all tenants with the subscriptions of the provider's account, or those named, and
        repair.

        All subscriptions are listed, unless each named tenant has a living one. With ``dry_run``
        nothing is written. Raises `NotFoundError` for a named tenant that does not exist; then
        nothing is done. Another error stops the run and is part of the result.
        """
        purpose: _Purpose = "dry run" if dry_run else "repair"
        named = None if tenants is None else await self._named(tenants)
        survey = self._new_survey(named)
        tally = self._new_tally(survey, observer)
        if named is None:
            comparing = self._compare_account(survey, purpose, tally)
        else:
            comparing = self._compare_named(named, survey, purpose, tally)
        return await self._finish(comparing, survey, purpose, tally)

    async def run_due(self, older_than: timedelta, most: int) -> Reconciliation:
        """Compare, repair and log all tenants, if this was last done longer ago than
        ``older_than``.

        That ends after 50 minutes at the latest; the next call continues where it stopped.
        Otherwise compare up to ``most`` tenants that were not compared since then, such as those
        that were linked lately. A tenant that cannot be compared is skipped for an hour, so that it
        does not hold up others.
        """
        now = self.clock()
        self.skipped = {
            tenant_id: until for tenant_id, until in self.skipped.items() if until > now
        }
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            listed_at = await store.found_at(connection, UNPLACED)
            due = await store.due_tenants(connection, now - older_than, most, without=self.skipped)
        if listed_at is None or listed_at <= now - older_than:
            found = await self._continue_with_account(now)
        else:
            survey = self._new_survey(due)
            tally = self._new_tally(survey, NOBODY)
            found = await self._finish(
                self._compare_each(due, "repair", tally), survey, "repair", tally
            )
        self.skipped |= {comparison.tenant_id: now + _SKIPPED_FOR for comparison in found.troubled}
        _log(found)
        if found.stopped is not None:
            raise found.stopped
        return found

    async def _continue_with_account(self, now: datetime) -> Reconciliation:
        """Compare all tenants; if the time does not suffice or an error stops this, keep the survey
        for the next call.

        Unless the provider rejected a request: it may not know the subscription any more after
        which to continue.
        """
        survey = self.unfinished or self._new_survey(None)
        self.unfinished = None
        tally = self._new_tally(
            survey, RunObserver(stops=lambda: self.clock() >= now + _LONGEST_RUN)
        )
        comparing = self._compare_account(survey, "repair", tally)
        found = await self._finish(comparing, survey, "repair", tally)
        is_complete = found.stopped is None and not found.interrupted
        if not is_complete and not isinstance(found.stopped, ProviderRefusedError):
            self.unfinished = survey
        return found

    def _new_survey(self, tenants: Collection[LinkedTenant] | None) -> SubscriptionSurvey:
        only = None if tenants is None else {tenant.id for tenant in tenants}
        return SubscriptionSurvey(self.database, self.provider, self.policy, self.clock(), only)

    def _new_tally(self, survey: SubscriptionSurvey, observer: RunObserver) -> _Tally:
        return _Tally(int(self.clock().timestamp()), observer, survey.asked)

    async def _named(self, tenants: Sequence[str]) -> list[LinkedTenant]:
        """Return the tenants with these ids. Raises `NotFoundError` if one does not exist."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            known = await store.tenants_by_id(
                connection, {each for each in tenants if is_tenant_id(each)}
            )
        missing = sorted(set(tenants) - {tenant.id for tenant in known})
        if missing:
            raise NotFoundError(f"tenant: {', '.join(missing)}")
        return known

    async def _linked_pages(self) -> AsyncIterator[Sequence[LinkedTenant]]:
        after = ""
        while True:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                page = await store.linked_tenants(connection, after, None, _PAGE)
            if page:
                yield page
            if len(page) < _PAGE:
                return
            after = page[-1].id

    async def _compare_account(
        self, survey: SubscriptionSurvey, purpose: _Purpose, tally: _Tally
    ) -> None:
        """List all subscriptions, and ask the provider about the customers of those tenants alone
        that may differ.

        Then compare all tenants of which the list has less than their state says.
        """
        if not survey.is_read:
            await self._compare_listed(survey, purpose, tally)
        async for tenants in self._linked_pages():
            if tally.observer.stops():
                return
            await self._compare_rest(tenants, survey, purpose, tally)

    async def _compare_named(
        self,
        tenants: Sequence[LinkedTenant],
        survey: SubscriptionSurvey,
        purpose: _Purpose,
        tally: _Tally,
    ) -> None:
        """Ask the provider about each customer of these tenants.

        Then list all subscriptions for those that have no living one: another customer, without a
        link, may have it.
        """
        await self._compare_each(
            [tenant for tenant in tenants if tenant.all_customers], purpose, tally
        )
        without = await self._without_subscription(tenants)
        if not without or tally.observer.stops():
            return
        survey.only = {tenant.id for tenant in without}
        await self._compare_listed(survey, purpose, tally)
        if not tally.observer.stops():
            await self._compare_rest(without, survey, purpose, tally)

    async def _without_subscription(self, tenants: Sequence[LinkedTenant]) -> list[LinkedTenant]:
        """Return those of these tenants that have no living subscription."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            accounts = await read_accounts(
                connection, [tenant.id for tenant in tenants], self.policy
            )
        without = {account.tenant_id for account in accounts if not _has_subscription(account)}
        return [tenant for tenant in tenants if tenant.id in without]

    async def _finish(
        self,
        comparing: Awaitable[None],
        survey: SubscriptionSurvey,
        purpose: _Purpose,
        tally: _Tally,
    ) -> Reconciliation:
        """Await the comparisons of a run; then fetch the missed events of repaired tenants, also
        after an error.

        A later run would not find that these tenants had drifted. The first error is part of the
        result.
        """
        stopped: DomainError | None = None
        try:
            await comparing
        except DomainError as error:
            stopped = error
        interrupted, drifted = tally.observer.stops(), tally.drifted
        is_complete = stopped is None and not interrupted and survey.only is None
        try:
            drifted = await self._with_missed(tally, dry_run=purpose == "dry run")
            if is_complete and purpose == "repair":
                await self._record_complete(survey)
        except DomainError as error:
            stopped = stopped or error
        return Reconciliation(
            tally.compared,
            tuple(drifted),
            tuple(tally.troubled),
            stopped,
            tuple(survey.unplaced),
            survey.unplaced_number,
            interrupted,
        )

    async def _compare_listed(
        self, survey: SubscriptionSurvey, purpose: _Purpose, tally: _Tally
    ) -> None:
        """Read the list, and ask about the tenants of each page that may differ."""
        async with aclosing(self.provider.every_subscription(survey.after)) as pages:
            async for page in pages:
                doubtful = await survey.doubtful_on(page)
                tally.observer.listed(len(page))
                await self._compare_each(_undecided(doubtful, tally), purpose, tally)
                if tally.observer.stops():
                    return  # some of the doubtful ones may not be compared
                survey.after = page[-1].id if page else None
        survey.is_read = True

    async def _compare_rest(
        self,
        tenants: Sequence[LinkedTenant],
        survey: SubscriptionSurvey,
        purpose: _Purpose,
        tally: _Tally,
    ) -> None:
        """Ask about those of these tenants of which the list has less than expected; the others are
        compared by now.
        """
        rest = [tenant for tenant in tenants if tenant.id not in tally.asked]
        doubtful = await survey.doubtful_among(rest)
        await self._compare_each(doubtful, purpose, tally)
        if tally.observer.stops():
            return  # some of the doubtful ones may not be compared
        confirmed = [tenant.id for tenant in rest if tenant.id not in tally.asked]
        tally.unchanged += len(confirmed)
        tally.observer.compared(len(confirmed))
        if purpose == "repair":
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                await store.mark_compared(connection, confirmed, survey.begun_at)

    async def _record_complete(self, survey: SubscriptionSurvey) -> None:
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            await store.record_finding(
                connection, UNPLACED, survey.unplaced_number, survey.begun_at
            )

    async def _compare_each(
        self, tenants: Sequence[LinkedTenant], purpose: _Purpose, tally: _Tally
    ) -> None:
        for start in range(0, len(tenants), _AT_ONCE):
            group = tenants[start : start + _AT_ONCE]
            moved = await self._compare_group(group, purpose, tally)
            tally.observer.compared(len(group))
            while moved and not tally.observer.stops():
                others = _undecided(await self._others_of(moved), tally)
                moved = await self._compare_group(others, purpose, tally)
            if tally.observer.stops():
                return

    async def _compare_group(
        self, group: Sequence[LinkedTenant], purpose: _Purpose, tally: _Tally
    ) -> list[MovedSubscription]:
        """Compare tenants at the same time; return the subscriptions that have moved from them or
        to them.
        """
        moved = list[MovedSubscription]()
        results = await self._compare(group, purpose)
        for tenant, result in zip(group, results, strict=True):
            if isinstance(result, Comparison):
                tally.asked[tenant.id].update(tenant.all_customers)
                for comparison in (result, *result.others):
                    tally.add(comparison, self._missed_since(tenant))
                moved += result.moved
        _raise_first(results)
        return moved

    async def _others_of(self, moved: Iterable[MovedSubscription]) -> list[LinkedTenant]:
        """Return the other tenants of subscriptions that have moved, each with the customers of
        these too.
        """
        customers = defaultdict[str, set[str]](set)
        for tenant_id, customer_id in moved:
            customers[tenant_id].add(customer_id)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            found = await store.tenants_by_id(connection, customers)
        return [tenant.with_listed(customers[tenant.id], ()) for tenant in found]

    async def _compare(
        self, group: Sequence[LinkedTenant], purpose: _Purpose
    ) -> list[Comparison | BaseException]:
        """Compare tenants at the same time. Raises what the provider answers to all of them.

        Returns an error that is not about its tenant in the place of the comparison: others may
        have been repaired.
        """
        results = await asyncio.gather(
            *(self._fetch_and_fold(tenant, purpose) for tenant in group), return_exceptions=True
        )
        refusals = [
            result
            for result in results
            if isinstance(result, DomainError) and not isinstance(result, DatabaseUnavailableError)
        ]
        if len(refusals) == len(group):
            for refusal in refusals:
                if isinstance(refusal, ProviderRefusedError) and refusal.of_key:
                    raise refusal  # the check below may not need the missing permission
            # a request that is not about a tenant raises the provider's error, if any
            now = int(self.clock().timestamp())
            async with aclosing(self.provider.events_since(now, KNOWN_TYPES)) as events:
                await anext(events, None)
        return [
            Comparison(tenant.id, trouble=str(result)) if result in refusals else result
            for tenant, result in zip(group, results, strict=True)
        ]

    async def _fetch_and_fold(self, tenant: LinkedTenant, purpose: _Purpose) -> Comparison:
        """Compare a tenant; try again after a deadlock."""
        return await retry_on_conflict(partial(self._compare_one, tenant, purpose))

    async def _compare_one(self, tenant: LinkedTenant, purpose: _Purpose) -> Comparison:
        """Fetch the subscriptions of all customers of a tenant and fold them.

        Try again if the tenant's customers changed meanwhile, or if the snapshot cannot be applied
        and an event changed the tenant's state meanwhile: the snapshot may be older than the event.
        """
        comparison = Comparison(tenant.id)
        for _ in range(_TRIES):
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                before = await ledger_store.lock_account(connection, tenant.id, self.policy)
                position = await store.read_position(connection, tenant.id)
            fetched, unknown = await self._fetch(tenant)
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                names = self._names_to_claim(tenant, fetched)
                await ledger_store.lock_names(connection, names)
                account = await self._lock(connection, tenant)
                present = await store.tenant_by_id(connection, tenant.id)
                if before is None or account is None or present is None:
                    return Comparison(tenant.id)  # it has ended meanwhile
                present = present.with_listed(tenant.unlinked, tenant.checkouts)
                if present.all_customers != tenant.all_customers:
                    comparison = Comparison(
                        tenant.id, trouble="its customers changed while the provider was asked"
                    )
                else:
                    snapshot = _FetchedSnapshot(position, fetched, unknown, names)
                    comparison = await self._fold(connection, account, present, snapshot, purpose)
                    if comparison.trouble is None or account.states() == before.states():
                        return comparison
            tenant = present
        return comparison

    async def _lock(self, connection: Connection, tenant: LinkedTenant) -> BillingAccount | None:
        """Lock a tenant, together with those that have the customers that its snapshots may link.

        In the order of ids, as all transactions lock tenants. The caller has claimed the names of
        these customers.
        """
        holders = await ledger_store.tenants_of(connection, tenant.unlinked)
        accounts = await ledger_store.lock_accounts(
            connection, {tenant.id, *holders.values()}, self.policy
        )
        return accounts.get(tenant.id)

    def _names_to_claim(
        self, tenant: LinkedTenant, fetched: CustomerSubscriptions | None
    ) -> list[NameLock]:
        """Return the locks of the customers that snapshots may link, and of the subscriptions that
        they may add.
        """
        subscriptions = fetched.subscriptions if fetched else ()
        names = [f"customer {each}" for each in tenant.unlinked]
        names += [f"subscription {each.id}" for each in subscriptions]
        return [NameLock(name, claimed=True) for name in names]

    async def _fetch(self, tenant: LinkedTenant) -> tuple[CustomerSubscriptions | None, list[str]]:
        """Fetch the subscriptions of a tenant's customers, and which customers the provider does
        not know.
        """
        found, unknown = list[CustomerSubscriptions](), list[str]()
        for customer_id in tenant.all_customers:
            fetched = await self.provider.subscriptions_of(customer_id)
            if fetched is None:
                unknown.append(customer_id)
            else:
                found.append(fetched)
        if not found:
            return None, unknown
        subscriptions = tuple(subscription for each in found for subscription in each.subscriptions)
        return CustomerSubscriptions(min(each.as_of for each in found), subscriptions), unknown

    async def _fold(
        self,
        connection: Connection,
        account: BillingAccount,
        tenant: LinkedTenant,
        snapshot: "_FetchedSnapshot",
        purpose: _Purpose,
    ) -> Comparison:
        """Fold snapshots into the locked account; return what that changes (or would change) in the
        tenant.

        A comparison with trouble has folded nothing: the provider does not know a customer, or a
        living subscription that the tenant's state is from.
        """
        now, fetched = self.clock(), snapshot.fetched
        if fetched is None or (snapshot.unknown and self._missing(account, fetched)):
            customers = ", ".join(snapshot.unknown)
            return Comparison(
                tenant.id, trouble=f"the provider does not know its customer: {customers}"
            )
        with_checkout = {event.customer_id for event in tenant.checkouts}
        events = snapshots(
            fetched.subscriptions,
            account,
            self.policy,
            new_id=partial(new_id, "snapshot"),
            # events that had arrived before the request happened before the snapshot, whatever the
            # clocks say
            as_of=max(fetched.as_of, snapshot.position.newest or 0),
            arrival=snapshot.position.arrival,
            unlinked=[each for each in tenant.unlinked if each not in with_checkout],
            links=purpose != "snapshot" and account.customer_id is None,
        )
        if missing := self._unexplained(account, fetched, events):
            trouble = f"the provider does not know its subscription {', '.join(missing)}"
            return Comparison(tenant.id, trouble=trouble)
        drift: dict[str, tuple[Fact, Fact]] = {}
        linked: tuple[str, ...] = ()
        moved: list[MovedSubscription] = []
        others: list[Comparison] = []
        is_repair = purpose != "dry run"
        if events:
            received = [ReceivedEvent(event, now) for event in (*tenant.checkouts, *events)]
            application = await ingest.apply_batch(
                connection, received, self.policy, now, snapshot.names
            )
            drift, drifted = drift_between(account, application.account(tenant.id), self.policy)
            linked = tuple(link.customer_id for link in application.links)
            if drift:
                moved = await self._moved(connection, account, fetched.subscriptions)
                others = self._others_changed(application, tenant.id, is_repair=is_repair)
            if purpose != "snapshot":
                self._mark_drift(application, drifted)
            await ingest.write(connection, application, self.outbox, now)
        if purpose == "dry run":
            await connection.rollback()
        elif purpose == "repair":
            await store.mark_compared(connection, [tenant.id], now)
        return Comparison(
            tenant.id,
            drift,
            repaired=bool(drift or linked) and is_repair,
            linked=linked,
            moved=tuple(moved),
            others=tuple(others),
        )

    async def _moved(
        self,
        connection: Connection,
        account: BillingAccount,
        subscriptions: Iterable[ProviderSubscription],
    ) -> list[MovedSubscription]:
        """Return the subscriptions that have moved from a tenant to another, and those that may
        have come from one.

        With `SubscriptionRule.EACH` the latter have left their former tenant already.
        """
        gone = [
            MovedSubscription(each.org_id, each.customer_id)
            for each in subscriptions
            if each.org_id not in (None, account.tenant_id) and is_of(account, each.id, self.policy)
        ]
        if self.policy.is_each:
            return gone
        own = {
            each.id: each.customer_id for each in subscriptions if each.org_id == account.tenant_id
        }
        former = await store.holders_of_customers(connection, own)
        return gone + [
            MovedSubscription(tenant_id, own[name])
            for tenant_id, name in former
            if tenant_id != account.tenant_id
        ]

    def _others_changed(
        self, application: BatchApplication, tenant_id: str, *, is_repair: bool
    ) -> list[Comparison]:
        """Return the comparisons of other tenants that lose a subscription by these events."""
        return [
            Comparison(after.tenant_id, drift, repaired=is_repair)
            for after, before in application.changed_accounts()
            if after.tenant_id != tenant_id
            and (drift := drift_between(before, after, self.policy)[0])
        ]

    def _missing(self, account: BillingAccount, fetched: CustomerSubscriptions) -> list[str]:
        """Return the subscriptions that give the tenant its state and that the provider did not
        return.
        """
        return unconfirmed(account, {each.id for each in fetched.subscriptions}, self.policy)

    def _unexplained(
        self,
        account: BillingAccount,
        fetched: CustomerSubscriptions,
        events: Sequence[BillingEvent],
    ) -> list[str]:
        """Return the living subscriptions that the tenant's state is from and no snapshot is of."""
        if self.policy.is_each:
            return self._missing(account, fetched)
        is_living = account.state.provider_status not in (None, *OVER)
        return [account.state.subscription_id or "(without id)"] if is_living and not events else []

    def _mark_drift(self, application: BatchApplication, drifted: Collection[str]) -> None:
        """Add the anomaly to the entries of the folds that have drifted."""
        application.entries[:] = [
            msgspec.structs.replace(entry, anomalies=(*entry.anomalies, Anomaly.DRIFT))
            if fold_key(entry.received.event, self.policy) in drifted
            else entry
            for entry in application.entries
        ]

    def _missed_since(self, tenant: LinkedTenant) -> int:
        """Return the second since which missed events may explain a tenant's drift.

        That is the second of its last comparison, else that in which its subscription began.
        """
        since = self.clock() - EVENTS_KEPT
        began = tenant.compared_at or from_epoch(tenant.begun_at)
        return int((since if began is None else max(since, began - _SKEW)).timestamp())

    async def _with_missed(self, tally: _Tally, *, dry_run: bool) -> list[Comparison]:
        """Ingest the missed events of the drifted tenants, and add them to the comparisons.

        Also those of tenants of earlier runs that could not fetch them.
        """
        drifted = tally.drifted
        wanted = self.unfetched | {comparison.tenant_id: tally.since for comparison in drifted}
        if not wanted:
            return []
        if not dry_run:
            # until they are fetched: an error or the end of the job's time may prevent it
            self.unfetched = wanted
        missed: dict[str, list[MissedEvent]] = {tenant_id: [] for tenant_id in wanted}
        since = min(wanted.values())
        async with aclosing(
            self.backfill.missed_since(since, only=missed, dry_run=dry_run)
        ) as parts:
            async for part in parts:
                for event in part.missed:
                    missed[event.tenant_id or ""].append(event)
        if not dry_run:
            self.unfetched = {}
        return [
            msgspec.structs.replace(
                each, missed=tuple(sorted(missed[each.tenant_id], key=lambda event: event.created))
            )
            for each in drifted
        ]


class _FetchedSnapshot(NamedTuple):
    """What the provider answered about a tenant; ``position`` is that of the ledger before the
    request.

    ``unknown`` are the customers that the provider does not know, ``names`` those that the
    transaction has claimed.
    """

    position: LedgerPosition
    fetched: CustomerSubscriptions | None
    unknown: Sequence[str]
    names: Collection[NameLock]


def _raise_first(results: Sequence[Comparison | BaseException]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _has_subscription(account: BillingAccount) -> bool:
    """Whether a subscription of a tenant has begun and has not ended."""
    return any(
        state.provider_status not in (None, "incomplete", *OVER) for state in account.states()
    )


def _undecided(tenants: Iterable[LinkedTenant], tally: _Tally) -> list[LinkedTenant]:
    """Return the tenants that were not compared yet with all of these customers."""
    return [
        tenant
        for tenant in tenants
        if not tally.asked.get(tenant.id, set()).issuperset(tenant.all_customers)
    ]


def _log(found: Reconciliation) -> None:
    for comparison in found.drifted:
        logger.warning(
            "tenant %s had drifted from the provider and is repaired: %s",
            comparison.tenant_id,
            ", ".join(sorted((*comparison.drift, *comparison.linked))),
        )
    if found.troubled:
        named = "; ".join(
            f"{each.tenant_id}: {each.trouble}" for each in found.troubled[:_MOST_NAMED]
        )
        logger.warning(
            "tenants that could not be compared with the provider: %d (%s)",
            len(found.troubled),
            named,
        )
    if found.unplaced:
        named = "; ".join(
            f"{each.subscription_id} of customer {each.customer_id}: {each.reason}"
            for each in found.unplaced[:_MOST_NAMED]
        )
        logger.warning(
            "subscriptions at the provider that count for no tenant: %d (%s)",
            found.unplaced_number,
            named,
        )


async def count_stale_tenants(database: Database, grace: timedelta, clock: Clock) -> int:
    """Count the tenants whose period ended more than ``grace`` ago without a newer event, and log
    their ids.

    Stores the number for the metrics. A lost event or a dead endpoint makes a tenant stale.
    """
    now = clock()
    async with database.transaction(ACROSS_TENANTS) as connection:
        stale, number = await store.stale_tenants(
            connection, int((now - grace).timestamp()), _MOST_NAMED
        )
        await store.record_finding(connection, STALE_TENANTS, number, now)
    if stale:
        hours = grace // timedelta(hours=1)
        logger.warning(
            "tenants whose period ended more than %d h ago without an event since: %d (%s)",
            hours,
            number,
            ", ".join(stale),
        )
    return number
