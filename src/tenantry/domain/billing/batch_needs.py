"""What must be locked and read before a batch of events is applied."""

from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter
from typing import Final

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.customer_links import goes_by_customer, tenant_of, wanted_links
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import (
    FIRST,
    BatchContext,
    BillingAccount,
    FoldId,
    InvoiceOfTenant,
    NameLock,
    ReplayNeed,
)
from tenantry.domain.billing.state import BillingPolicy, BillingState, fold_key, known_of
from tenantry.domain.billing.subscription_history import NAMING_TYPES
from tenantry.domain.billing.subscription_rank import MOST_SUBSCRIPTIONS

_SUPERSEDED_TYPES: Final = ev.WHOLE_SUBSCRIPTION_TYPES | ev.PAYMENT_TYPES
"""Types whose outcome does not depend on any event after a later full-state event."""
_EVERYTHING: Final = ReplayNeed(FIRST, late=True)


def needed_locks(
    events: Collection[BillingEvent], context: BatchContext, policy: BillingPolicy
) -> set[NameLock]:
    """Return the locks of missing names in these events, and of the customers and subscriptions
    that they may add.
    """
    claimed = {f"customer {each}" for each in wanted_links(events, context)}
    # with ANY too: an invoice without a customer may wait for a subscription
    claimed |= {f"subscription {each}" for each in new_subscriptions(events, context, policy)}
    missing = {missing_name(event) for event in events if not _account_of(event, context)}
    if policy.is_each:
        missing |= {f"subscription {each}" for each in _unknown_to_invoices(events, context)}
    return {*_locks(claimed, claimed=True), *_locks(missing, claimed=False)}


def _locks(names: Iterable[str], *, claimed: bool) -> Iterator[NameLock]:
    return (NameLock(name, claimed) for name in names)


def _unknown_to_invoices(events: Iterable[BillingEvent], context: BatchContext) -> set[str]:
    """Return the subscriptions of invoices that have no tenant yet."""
    named = {event.subscription_id for event in events if event.type in ev.INVOICE_TYPES}
    return {each for each in named if each} - context.known.tenant_of_subscription.keys()


def missing_name(event: BillingEvent) -> str:
    """Return what must become known before an event has a tenant."""
    if not goes_by_customer(event):
        return f"tenant {event.org_id}"
    if event.customer_id:
        return f"customer {event.customer_id}"
    return f"subscription {event.subscription_id}"


def new_subscriptions(
    events: Iterable[BillingEvent], context: BatchContext, policy: BillingPolicy
) -> dict[str, str]:
    """Return the subscriptions of which these are the first events, each with its tenant.

    With `SubscriptionRule.EACH` no tenant has them yet, and the newest event names the tenant. With
    ``ANY`` the tenant's one state does not know them.
    """
    placed = [(event, _account_of(event, context)) for event in _naming(events, context, policy)]
    return {
        event.subscription_id or "": account.tenant_id
        for event, account in placed
        if account and (policy.is_each or not known_of(account.state, event.subscription_id))
    }


def _naming(
    events: Iterable[BillingEvent], context: BatchContext, policy: BillingPolicy
) -> list[BillingEvent]:
    """Return the events that say whose their subscription is; with `SubscriptionRule.EACH` those of
    subscriptions without a tenant, the newest last.
    """
    naming = [event for event in events if event.type in NAMING_TYPES and event.subscription_id]
    if not policy.is_each:
        return naming
    known = context.known.tenant_of_subscription
    unknown = [event for event in naming if event.subscription_id not in known]
    return sorted(unknown, key=attrgetter("created"))


def _account_of(event: BillingEvent, context: BatchContext) -> BillingAccount | None:
    return context.accounts.get(tenant_of(event, context.known) or "")


def replay_needs(
    context: BatchContext, events: Iterable[tuple[str | None, BillingEvent]], policy: BillingPolicy
) -> dict[FoldId, ReplayNeed]:
    """Return how far back the history of each fold is needed to place these events, each given with
    its tenant.

    Folds that need no history are left out.
    """
    needed: dict[FoldId, ReplayNeed] = {}
    with_newer = set[FoldId]()
    for tenant_id, event in events:
        account = context.accounts.get(tenant_id or "")
        if account is None:
            continue
        fold_id = account.tenant_id, fold_key(event, policy) if account.is_whole else None
        need = _need_of(event, account, fold_id[1])
        if need is None:
            with_newer.add(fold_id)
        else:
            needed[fold_id] = need.merge(needed.get(fold_id, need))
    for fold_id in with_newer & needed.keys():  # a newer event needs the whole history
        needed[fold_id] = needed[fold_id]._replace(until=None)
    return needed


def _need_of(event: BillingEvent, account: BillingAccount, key: str | None) -> ReplayNeed | None:
    """Return the history that an event needs; None if it has no fold or is newer than that."""
    if not account.is_whole:
        return _EVERYTHING
    if key is None:
        return None
    fold = account.folds.get(key)
    if fold is not None and fold.tip_created is not None:
        return _need_in_fold(event, fold.state, fold.tip_created)
    # among so many it may have been left out before
    return _EVERYTHING if len(account.folds) >= MOST_SUBSCRIPTIONS else None


def _need_in_fold(event: BillingEvent, state: BillingState, newest: int) -> ReplayNeed | None:
    if event.created < newest:
        return _need_of_late(event, state)
    # a snapshot may replace an older one
    if event.created == newest or event.type == ev.SNAPSHOT:
        return ReplayNeed(newest, late=False)
    return None


def _need_of_late(event: BillingEvent, state: BillingState) -> ReplayNeed:
    """Return the history that a late event of a fold that ends in ``state`` needs.

    A later full-state event of the fold's one subscription can make it insignificant.
    """
    if state.others:
        return _EVERYTHING
    is_of_fold = (
        event.subscription_id is not None and event.subscription_id == state.subscription_id
    )
    until = event.created if is_of_fold and event.type in _SUPERSEDED_TYPES else None
    return ReplayNeed(event.created, late=True, until=until)


def invoices_without_fold(
    events: Iterable[tuple[str | None, BillingEvent]], policy: BillingPolicy
) -> set[InvoiceOfTenant]:
    """Return the invoices of failed payments that belong to no fold, whose history has no payment
    of theirs.
    """
    failures = [
        (tenant_id, event)
        for tenant_id, event in events
        if event.type == ev.PAYMENT_FAILED and fold_key(event, policy) is None
    ]
    return {
        (tenant_id, event.invoice_id)
        for tenant_id, event in failures
        if tenant_id and event.invoice_id
    }
