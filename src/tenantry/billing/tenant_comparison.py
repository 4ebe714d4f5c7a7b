"""Comparing one tenant with the provider: fetch its subscriptions, fold them as snapshots, and
return what that changed.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Literal, NamedTuple

import msgspec

from tenantry.billing import reconcile_store as store
from tenantry.billing.backfill import MissedEvent
from tenantry.billing.batch_store import lock_account
from tenantry.billing.locked_ledger import LedgerTransaction
from tenantry.billing.locked_tenants import LockedTenant, lock_for_snapshots
from tenantry.billing.reconcile_store import LedgerPosition, LinkedTenant
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database, retry_on_conflict
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.batch import BatchChanges
from tenantry.domain.billing.events import Anomaly, BillingEvent, Fact
from tenantry.domain.billing.ledger import BillingAccount, LedgerEntry, NameLock, ReceivedEvent
from tenantry.domain.billing.snapshot import (
    CustomerSubscriptions,
    ProviderSubscription,
    drift_between,
    is_of,
    is_unended,
    snapshots,
    unconfirmed,
)
from tenantry.domain.billing.state import BillingPolicy, fold_key, plan_item
from tenantry.domain.plans import OVER
from tenantry.integrations.stripe.client import ProviderApi

Purpose = Literal["snapshot", "repair", "dry run"]
"""What a fetched snapshot is for: only the ledger, or a comparison that finds drift."""

_TRIES: Final = 3
_CUSTOMERS_CHANGED: Final = "its customers changed while the provider was asked"


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
    ``others`` the tenants that the repair changes besides. ``unknown_prices`` are those of its
    unended subscriptions that the plan catalog does not have.
    """

    tenant_id: str
    drift: dict[str, tuple[Fact, Fact]] = {}
    repaired: bool = False
    missed: tuple[MissedEvent, ...] = ()
    trouble: str | None = None
    linked: tuple[str, ...] = ()
    moved: tuple[MovedSubscription, ...] = ()
    others: tuple["Comparison", ...] = ()
    unknown_prices: tuple[str, ...] = ()

    @property
    def has_drifted(self) -> bool:
        return self.trouble is None and bool(self.drift or self.linked)


class _Answer(NamedTuple):
    """What the provider answered about the customers of a tenant.

    ``fetched`` is None if it knows none of them; ``unknown`` are those that it does not know.
    ``of_gone`` are subscriptions of customers that it does not have any more: it was asked for each
    by its id, and need not know it.
    """

    fetched: CustomerSubscriptions | None
    unknown: Sequence[str]
    of_gone: Collection[str]

    @property
    def subscriptions(self) -> Sequence[ProviderSubscription]:
        return self.fetched.subscriptions if self.fetched else ()


class _Question(NamedTuple):
    """A tenant, and what we knew of it before the provider was asked."""

    tenant: LinkedTenant
    before: BillingAccount
    position: LedgerPosition


class _Attempt(NamedTuple):
    """The result of an attempt to compare; ``again`` is the tenant with which to try once more."""

    comparison: Comparison
    again: LinkedTenant | None = None


@dataclass(frozen=True, eq=False)
class TenantComparer:
    """Compares tenants one by one. Snapshots enter the ledger, so that a rebuild keeps them.

    Methods raise `ProviderUnavailableError`, `ProviderRefusedError` and `DatabaseUnavailableError`.
    """

    database: Database
    provider: ProviderApi
    policy: BillingPolicy
    outbox: Outbox
    clock: Clock

    async def compare(self, tenant: LinkedTenant, purpose: Purpose) -> Comparison:
        """Fetch the subscriptions of all customers of a tenant and fold them."""
        return await retry_on_conflict(partial(self._compare, tenant, purpose))

    async def _compare(self, tenant: LinkedTenant, purpose: Purpose) -> Comparison:
        """Compare a tenant; try again if the answer may be older than a change meanwhile."""
        attempt = await self._attempt(tenant, purpose)
        for _ in range(_TRIES - 1):
            if attempt.again is None:
                break
            attempt = await self._attempt(attempt.again, purpose)
        return attempt.comparison

    async def _attempt(self, tenant: LinkedTenant, purpose: Purpose) -> _Attempt:
        """Compare a tenant once.

        To be repeated if the tenant's customers changed meanwhile, or if the snapshot cannot be
        applied and an event changed the tenant's state meanwhile.
        """
        question = await self._ask(tenant)
        if question is None:
            return _Attempt(Comparison(tenant.id))  # it has ended
        answer = await self._fetch(tenant, question.before)
        names = _names_to_claim(tenant, answer)
        async with (
            self._transaction() as transaction,
            lock_for_snapshots(transaction, tenant.id, names, tenant.unlinked) as ledger,
        ):
            account = ledger.account
            present = await store.tenant_by_id(transaction.connection, tenant.id)
            if account is None or present is None:
                return _Attempt(Comparison(tenant.id))  # it has ended meanwhile
            present = present.with_listed(tenant.unlinked, tenant.checkouts)
            if present.all_customers != tenant.all_customers:
                return _Attempt(Comparison(tenant.id, trouble=_CUSTOMERS_CHANGED), again=present)
            question = question._replace(tenant=present)
            comparison = await self._fold(ledger, account, question, answer, purpose)
        is_outdated = account.states() != question.before.states()
        again = present if comparison.trouble is not None and is_outdated else None
        return _Attempt(comparison, again)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[LedgerTransaction]:
        async with self.database.change(ACROSS_TENANTS) as connection:
            yield LedgerTransaction(connection, self.policy, self.clock(), self.outbox)

    async def _ask(self, tenant: LinkedTenant) -> _Question | None:
        """Note what we know of a tenant before the request; None if it has ended."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            before = await lock_account(connection, tenant.id, self.policy)
            position = await store.read_position(connection, tenant.id)
        return None if before is None else _Question(tenant, before, position)

    async def _fetch(self, tenant: LinkedTenant, before: BillingAccount) -> _Answer:
        """Fetch the subscriptions of a tenant's customers, and unended ones of customers that the
        provider does not have any more.
        """
        found, unknown = await self._subscriptions_of(tenant.all_customers)
        living = {each.id for fetched in found for each in fetched.subscriptions}
        unended = unconfirmed(before, living, self.policy)
        of_gone = [each for each in unended if each in tenant.of_gone]
        found += await self._known_of(of_gone)
        return _Answer(_as_one(found), unknown, of_gone)

    async def _subscriptions_of(
        self, customer_ids: Iterable[str]
    ) -> tuple[list[CustomerSubscriptions], list[str]]:
        """Fetch the subscriptions of each customer; return also the customers that the provider
        does not know.
        """
        found, unknown = list[CustomerSubscriptions](), list[str]()
        for customer_id in customer_ids:
            fetched = await self.provider.subscriptions_of(customer_id)
            if fetched is None:
                unknown.append(customer_id)
            else:
                found.append(fetched)
        return found, unknown

    async def _known_of(self, subscription_ids: Iterable[str]) -> list[CustomerSubscriptions]:
        """Fetch subscriptions by their ids; return those that the provider knows."""
        fetched = [await self.provider.subscription(each) for each in subscription_ids]
        return [each for each in fetched if each]

    async def _fold(
        self,
        ledger: LockedTenant,
        account: BillingAccount,
        question: _Question,
        answer: _Answer,
        purpose: Purpose,
    ) -> Comparison:
        """Fold snapshots into the locked account; return what that changes (or would change) in the
        tenant.

        A comparison with trouble has folded nothing: the provider does not know a customer, or a
        living subscription that the tenant's state is from.
        """
        tenant, fetched = question.tenant, answer.fetched
        if fetched is None and not tenant.all_customers:
            await self._conclude(ledger, purpose)
            return Comparison(tenant.id)
        if fetched is None or (answer.unknown and self._missing(account, answer)):
            customers = ", ".join(answer.unknown)
            trouble = (
                f"the provider does not know its customer in this account and mode: {customers}"
            )
            return Comparison(tenant.id, trouble=trouble)
        events = self._snapshots(account, question, fetched, purpose)
        if missing := self._unexplained(account, answer, events):
            trouble = f"the provider does not know its subscription {', '.join(missing)}"
            return Comparison(tenant.id, trouble=trouble)
        comparison = Comparison(tenant.id)
        if events:
            comparison = await self._apply(
                ledger, account, (*tenant.checkouts, *events), fetched.subscriptions, purpose
            )
        await self._conclude(ledger, purpose)
        return comparison

    async def _apply(
        self,
        ledger: LockedTenant,
        account: BillingAccount,
        events: Sequence[BillingEvent],
        subscriptions: Sequence[ProviderSubscription],
        purpose: Purpose,
    ) -> Comparison:
        """Write what the snapshots change, with the anomaly where it is drift; return the
        comparison.
        """
        now = ledger.transaction.now
        changes = await ledger.apply([ReceivedEvent(event, now) for event in events])
        after = changes.accounts[account.tenant_id]
        drift, drifted = drift_between(account, after, self.policy)
        is_repair = purpose != "dry run"
        linked = tuple(link.customer_id for link in changes.links)
        comparison = Comparison(
            account.tenant_id,
            drift,
            repaired=bool(drift or linked) and is_repair,
            linked=linked,
            unknown_prices=self._unknown_prices(events),
        )
        if drift:
            moved = await self._moved(ledger.transaction.connection, account, subscriptions)
            others = self._others_changed(changes, account.tenant_id, is_repair=is_repair)
            comparison = msgspec.structs.replace(
                comparison, moved=tuple(moved), others=tuple(others)
            )
        if purpose != "snapshot":
            changes = self._with_drift(changes, drifted)
        await ledger.write(changes)
        return comparison

    def _unknown_prices(self, events: Iterable[BillingEvent]) -> tuple[str, ...]:
        """Return the prices of unended subscriptions that the plan catalog does not have."""
        unended = [event for event in events if event.status not in OVER]
        of_each = (plan_item(event, self.policy).unknown for event in unended)
        return tuple(sorted(set(chain.from_iterable(of_each))))

    async def _conclude(self, ledger: LockedTenant, purpose: Purpose) -> None:
        """Roll back a dry run; record that a repair has compared the tenant."""
        connection, now = ledger.transaction.connection, ledger.transaction.now
        if purpose == "dry run":
            await connection.rollback()
        elif purpose == "repair":
            await store.mark_compared(connection, [ledger.tenant_id], now)

    def _snapshots(
        self,
        account: BillingAccount,
        question: _Question,
        fetched: CustomerSubscriptions,
        purpose: Purpose,
    ) -> list[BillingEvent]:
        """Return the snapshots that the provider's answer makes for a tenant."""
        tenant, position = question.tenant, question.position
        with_checkout = {event.customer_id for event in tenant.checkouts}
        return snapshots(
            fetched.subscriptions,
            account,
            self.policy,
            new_id=partial(new_id, "snapshot"),
            # events that had arrived before the request happened before the snapshot, whatever the
            # clocks say
            as_of=max(fetched.as_of, position.newest or 0),
            arrival=position.arrival,
            unlinked=sorted({*tenant.unlinked} - with_checkout),
            links=purpose != "snapshot" and account.customer_id is None,
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
        moved, own = list[MovedSubscription](), dict[str, str]()
        for each in subscriptions:
            if each.org_id == account.tenant_id:
                own[each.id] = each.customer_id
            elif each.org_id is not None and is_of(account, each.id, self.policy):
                moved.append(MovedSubscription(each.org_id, each.customer_id))
        if not self.policy.is_each:
            former = await store.other_holders(connection, account.tenant_id, own)
            moved += [MovedSubscription(tenant_id, own[name]) for tenant_id, name in former]
        return moved

    def _others_changed(
        self,
        changes: BatchChanges,
        tenant_id: str,
        *,
        is_repair: bool,
    ) -> list[Comparison]:
        """Return the comparisons of other tenants that lose a subscription by these events."""
        others = list[Comparison]()
        for after, before in changes.changed_accounts:
            drift, _ = drift_between(before, after, self.policy)
            if drift and after.tenant_id != tenant_id:
                others.append(Comparison(after.tenant_id, drift, repaired=is_repair))
        return others

    def _missing(self, account: BillingAccount, answer: _Answer) -> list[str]:
        """Return the subscriptions that give the tenant its state and that the provider did not
        return, though it has their customers.
        """
        found = {each.id for each in answer.subscriptions}
        return unconfirmed(account, found.union(answer.of_gone), self.policy)

    def _unexplained(
        self,
        account: BillingAccount,
        answer: _Answer,
        events: Sequence[BillingEvent],
    ) -> list[str]:
        """Return the living subscriptions that the tenant's state is from and no snapshot is of."""
        if self.policy.is_each:
            return self._missing(account, answer)
        is_answered = events or account.state.subscription_id in answer.of_gone
        if is_answered or not is_unended(account.state):
            return []
        return [account.state.subscription_id or "(without id)"]

    def _with_drift(self, changes: BatchChanges, drifted: Collection[str]) -> BatchChanges:
        """Return the changes with the anomaly in the entries of the folds that have drifted."""

        def marked(entry: LedgerEntry) -> LedgerEntry:
            if fold_key(entry.received.event, self.policy) not in drifted:
                return entry
            found = (*entry.anomalies, Anomaly.DRIFT)
            return msgspec.structs.replace(entry, anomalies=found)

        entries = [marked(entry) for entry in changes.entries]
        return msgspec.structs.replace(changes, entries=entries)


def _as_one(fetched: Sequence[CustomerSubscriptions]) -> CustomerSubscriptions | None:
    """Return the subscriptions of all answers, as of the first; None without an answer."""
    if not fetched:
        return None
    subscriptions = tuple(each for answer in fetched for each in answer.subscriptions)
    return CustomerSubscriptions(min(each.as_of for each in fetched), subscriptions)


def _names_to_claim(tenant: LinkedTenant, answer: _Answer) -> list[NameLock]:
    """Return the locks of the customers that snapshots may link, and of the subscriptions that they
    may add.
    """
    names = [f"customer {each}" for each in tenant.unlinked]
    names += [f"subscription {each.id}" for each in answer.subscriptions]
    return [NameLock(name, claimed=True) for name in names]
