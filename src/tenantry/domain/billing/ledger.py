"""The contents of the ledger and of the tenants' billing accounts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.state import (
    WHOLE_TENANT,
    BillingPolicy,
    BillingState,
    is_grant_key,
)
from tenantry.domain.billing.subscription_rank import MOST_SUBSCRIPTIONS, NO_SUBSCRIPTIONS
from tenantry.domain.billing.tenant_access import billing_phases
from tenantry.domain.billing.tenant_record import BillingRecord, moved_away, record_of
from tenantry.domain.billing.timeline import Folded
from tenantry.domain.entitlements import BillingPhase
from tenantry.domain.grants import HeldGrant


class ReplayNeed(NamedTuple):
    """From which second on the history of a fold is needed to place events.

    Unless they are ``late``, it is the second of the newest event. If they are, it is that of the
    oldest event to place, and the history before it is needed too, back to a full-state event. So
    it is for a subscription's newest second. For a tenant's fold with several subscriptions no
    event is a full-state event; then the second is `FIRST`.

    With ``until``, the second of the newest event to place, the history is needed only up to a
    full-state event after it: that one gives the same state as before, and so do all later ones.
    """

    second: int
    late: bool
    until: int | None = None

    def merge(self, other: "ReplayNeed") -> "ReplayNeed":
        """Return what is needed to place the events of both."""
        second, late = min(self[:2], other[:2])
        until = None if self.until is None or other.until is None else max(self.until, other.until)
        return ReplayNeed(second, late, until)


FIRST: Final = -1
"""A second before all events."""

FoldId = tuple[str, str | None]
"""A tenant and the key of a fold (`state.fold_key`); None for all folds of the tenant."""
InvoiceOfTenant = tuple[str, str]
"""A tenant, and the id of one of its invoices."""


_grant_name: Final = attrgetter("grant.terms.name")


class TenantProfile(NamedTuple):
    """The fields of a tenant's record that no event changes."""

    name: str
    owner_email: str
    created_at: datetime
    time_zone: str | None
    suspension: str | None
    """The reason, which may be empty; None while it is not suspended."""


class BillingAccount(msgspec.Struct, frozen=True):
    """The billing state of a tenant: the results of its folds by key, those of its grants included,
    and the tenant record and the billing periods that follow from them.

    Without ``is_whole`` the stored folds have other groups, those of the other mode: there are
    none then until the next event folds the whole ledger.
    """

    tenant_id: str
    owner_id: str
    deleted: bool
    profile: TenantProfile
    customer_id: str | None
    record: BillingRecord
    folds: Mapping[str, Folded]
    is_whole: bool = True
    billing_periods: tuple[BillingPhase, ...] = ()

    def beginning_of(self, key: str, policy: BillingPolicy) -> BillingState:
        """Return the state before all events of a fold."""
        if not policy.is_each or is_grant_key(key):
            return NO_SUBSCRIPTIONS
        return BillingState(subscription_id=key or None)

    def checkpoint(self, key: str, need: ReplayNeed | None, policy: BillingPolicy) -> BillingState:
        """Return the state before the events of a timeline with the needed history."""
        fold = self.folds.get(key)
        if fold is None:
            return self.beginning_of(key, policy)
        if need is None:
            return fold.state
        before = None if need.late else fold.tip_state
        return before or self.beginning_of(key, policy)

    def states(self) -> list[BillingState]:
        """Return the states of the tenant's subscriptions; that before all events if it has
        none.
        """
        return _states(self.folds) or [NO_SUBSCRIPTIONS]

    def grants(self) -> list[BillingState]:
        """Return the states of the grants that the operator has not ended, by name."""
        return _grants(self.folds)

    @property
    def held_grants(self) -> dict[str, HeldGrant]:
        """The grants by name, ended ones included."""
        held = (fold.state.grant for fold in self.folds.values())
        return {each.terms.name: each for each in held if each is not None}

    @property
    def has_too_many_subscriptions(self) -> bool:
        """Whether it has more than are kept."""
        if len(self.folds) <= MOST_SUBSCRIPTIONS:
            return False
        return sum(not is_grant_key(key) for key in self.folds) > MOST_SUBSCRIPTIONS

    @property
    def moved_at(self) -> dict[str, int]:
        """The seconds since which subscriptions name another tenant, by the keys of their folds."""
        return {key: fold.moved_at for key, fold in self.folds.items() if fold.moved_at is not None}

    @property
    def present(self) -> dict[str, Folded]:
        """The folds of subscriptions that name this tenant, with `SubscriptionRule.EACH`."""
        return {
            key: fold
            for key, fold in self.folds.items()
            if key and fold.moved_at is None and not is_grant_key(key)
        }

    @property
    def subscriptions(self) -> set[tuple[str, str | None]]:
        """The subscriptions of the folds, each with its customer."""
        states = [fold.state for fold in self.folds.values()]
        return {
            (state.subscription_id, state.customer_id) for state in states if state.subscription_id
        }

    @property
    def has_status(self) -> bool:
        """Whether any event has given a status."""
        return bool(_states(self.folds))

    @property
    def whole_tenant(self) -> Folded:
        """The tenant's one fold, with `SubscriptionRule.ANY`."""
        return self.folds.get(WHOLE_TENANT) or Folded(NO_SUBSCRIPTIONS)

    @property
    def state(self) -> BillingState:
        """The state of the tenant's one fold, with `SubscriptionRule.ANY`."""
        return self.whole_tenant.state

    @property
    def tip_created(self) -> int | None:
        """The second of the newest event."""
        return max(
            (fold.tip_created for fold in self.folds.values() if fold.tip_created is not None),
            default=None,
        )

    def with_folds(self, folds: Mapping[str, Folded], policy: BillingPolicy) -> "BillingAccount":
        """Return the account with these folds, and what follows from them."""
        states, grants = _states(folds), _grants(folds)
        return msgspec.structs.replace(
            self,
            record=record_of(states, policy, grants),
            folds=folds,
            billing_periods=billing_phases(states, grants, policy),
        )

    def with_move(self, key: str, moved_at: int | None, policy: BillingPolicy) -> "BillingAccount":
        """Return the account with the second since which a subscription names another tenant."""
        moved = msgspec.structs.replace(self.folds[key], moved_at=moved_at)
        return self.with_folds({**self.folds, key: moved}, policy)

    def keep_move(self, key: str, folded: Folded) -> Folded:
        """Return the new result of a fold with the move that is known of its subscription."""
        known = self.folds.get(key)
        if known is None or known.moved_at is None:
            return folded
        return msgspec.structs.replace(folded, moved_at=known.moved_at)


def counted_state(fold: Folded) -> BillingState:
    """Return the state as which a fold counts: one that has moved to another tenant has ended."""
    return fold.state if fold.moved_at is None else moved_away(fold.state, fold.moved_at)


def _states(folds: Mapping[str, Folded]) -> list[BillingState]:
    """Return the states of folds that have a status: where only payments name a subscription, it
    has none yet.
    """
    return [
        counted_state(fold)
        for fold in folds.values()
        if fold.state.subscription_status != NO_SUBSCRIPTION
    ]


def _grants(folds: Mapping[str, Folded]) -> list[BillingState]:
    """Return the states of the grants that have not ended, by name."""
    held = [
        fold.state
        for fold in folds.values()
        if fold.state.grant is not None and fold.state.grant.ended_at is None
    ]
    return sorted(held, key=_grant_name) if len(held) > 1 else held


class AccountChange(NamedTuple):
    """An account, and as it was before."""

    account: BillingAccount
    before: BillingAccount

    @property
    def is_visible(self) -> bool:
        """Whether the tenant record changed."""
        account, before = self
        return account.record != before.record or account.customer_id != before.customer_id

    @property
    def is_read_by_checks(self) -> bool:
        """Whether checks of keys and tokens read what changed."""
        now, before = self.account.record, self.before.record
        return now != before and (
            now.plan != before.plan
            or now.subscription_status != before.subscription_status
            or now.access != before.access
        )

    @property
    def is_published(self) -> bool:
        """Whether applications beside the service learn of it: not of a renewal, which only moves
        the end of the current period.
        """
        account, before = self
        end = account.record.current_period_end
        renewed = msgspec.structs.replace(before.record, current_period_end=end)
        return account.record != renewed or account.customer_id != before.customer_id

    def new_subscriptions(self) -> set[tuple[str, str | None]]:
        """Return the subscriptions that the folds have and had not, each with its customer."""
        return self.account.subscriptions - self.before.subscriptions


class ReceivedEvent(msgspec.Struct, frozen=True):
    """A verified event as it came in; ``fetched`` if the service fetched it instead of receiving
    it.

    ``trace`` is the ``traceparent`` of its request (W3C Trace Context), if any.
    """

    event: BillingEvent
    received_at: datetime
    body: bytes | None = None
    fetched: bool = False
    trace: str | None = None


class LedgerEntry(msgspec.Struct, frozen=True):
    """An event in the ledger: its tenant if known, the outcome and its reason, the tenant's record,
    and anomalies.
    """

    received: ReceivedEvent
    tenant_id: str | None
    outcome: Outcome
    reason: str
    before: BillingRecord | None = None
    after: BillingRecord | None = None
    anomalies: tuple[Anomaly, ...] = ()


class CustomerLink(NamedTuple):
    """A customer of the provider, and the tenant that it belongs to."""

    customer_id: str
    tenant_id: str
    linked_by: str


class LinkedCustomer(NamedTuple):
    """A customer of a tenant. The provider has it at the second ``proved_at``, by the newest event
    that proves this (`customer_links.proves_customer`).

    ``is_gone``: it cannot be used; for good, or until an event proves it after the second
    ``missing_at``.
    """

    customer_id: str
    is_gone: bool = False
    missing_at: int | None = None
    proved_at: int = -1


class CustomerUse(NamedTuple):
    """A customer of a tenant, and the event after which it cannot be used; None if it can."""

    customer_id: str
    tenant_id: str
    gone_by: str | None


class KnownTenants(msgspec.Struct, frozen=True):
    """The tenants of customers by their links, and with `SubscriptionRule.EACH` of subscriptions by
    their events.

    ``tenant_of_current`` has tenants by the subscription that their one state is from; for invoices
    without a customer. ``tenant_of_payment`` has them by charge, payment intent and invoice; for
    refunds and disputes.
    """

    tenant_of_customer: dict[str, str]
    tenant_of_subscription: dict[str, str]
    tenant_of_current: dict[str, str] = {}
    tenant_of_payment: dict[str, str] = {}

    def of_invoice(self, event: BillingEvent) -> str | None:
        """Return the tenant of an invoice event: by the subscription that it names, else by its
        customer.

        So of two tenants with one customer each has its own invoices, and a customer without a link
        has its tenant.
        """
        name = event.subscription_id or ""
        if event.customer_id is None:
            return self.tenant_of_subscription.get(name) or self.tenant_of_current.get(name)
        return self.tenant_of_subscription.get(name) or self.tenant_of_customer.get(
            event.customer_id
        )

    def of_reversal(self, event: BillingEvent) -> str | None:
        """Return the tenant of a refund or dispute: that of its charge's or invoice's entries, else
        by its customer.
        """
        for name in (*event.payments, event.invoice_id or ""):
            if name in self.tenant_of_payment:
                return self.tenant_of_payment[name]
        return self.tenant_of_customer.get(event.customer_id or "")


class NameLock(NamedTuple):
    """The lock of a tenant's, customer's or subscription's name, such as ``tenant acme``.

    Claim a name before adding it: this waits for transactions that park events for it. Lock it
    unclaimed before parking events for it, so that no transaction adds it meanwhile.
    """

    name: str
    claimed: bool


class SnapshotRequest(NamedTuple):
    """A request to fetch a tenant's state; ``later`` if more of its events may be on their way."""

    tenant_id: str
    later: bool


def holders_of(
    subscriptions: frozenset[str], accounts: Mapping[str, BillingAccount]
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the tenants of ``accounts`` that have each of these subscriptions, and the tenant that
    the newest event of each names.
    """
    holders, named = defaultdict[str, list[str]](list), dict[str, str]()
    for tenant_id, account in accounts.items():
        for key, fold in account.folds.items():
            if key not in subscriptions:
                continue
            holders[key].append(tenant_id)
            if fold.moved_at is None and fold.state.reported_at is not None:
                named[key] = tenant_id
    return holders, named


class BatchContext(msgspec.Struct, frozen=True):
    """The state before a batch is applied; the accounts in it are locked.

    ``replaceable`` are the ids of entries that a valid event of the same id replaces;
    ``tenants_of_subscription`` the tenants that have each of the batch's subscriptions, by invoices
    alone too. ``missing`` are tenants that have one of these and are not in ``accounts``: another
    transaction has added them meanwhile. ``gone_customers`` are those of the batch that cannot be
    used; ``linked_customers`` are all customers of each tenant, the newest first, only where the
    batch has one of these or says that one is gone.
    """

    accounts: Mapping[str, BillingAccount]
    known: KnownTenants
    seen: frozenset[str]
    first_arrival: int
    replaceable: frozenset[str] = frozenset()
    tenants_of_subscription: Mapping[str, Sequence[str]] = {}
    missing: frozenset[str] = frozenset()
    gone_customers: frozenset[str] = frozenset()
    linked_customers: Mapping[str, Sequence[LinkedCustomer]] = {}
