"""Snapshots: a tenant's subscriptions as fetched from the provider, as events of the ledger."""

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.events import (
    NO_DETAILS,
    SNAPSHOT,
    BillingEvent,
    Fact,
    SubscriptionDetails,
)
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.state import (
    CANCELED,
    INCOMPLETE,
    UNBEGUN_OR_OVER,
    BillingPolicy,
    BillingState,
    apply,
    fold_key,
)
from tenantry.domain.billing.tenant_record import differences
from tenantry.domain.billing.timeline import Folded
from tenantry.domain.plans import OVER

_EXPIRED: Final = "incomplete_expired"
_age: Final = attrgetter("created", "id")


class ProviderSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as the provider's API returns it. Times are seconds since the Unix epoch."""

    id: str
    customer_id: str
    created: int
    status: str
    org_id: str | None = None
    price_id: str | None = None
    current_period_end: int | None = None
    cancel_at_period_end: bool = False
    details: SubscriptionDetails = NO_DETAILS


class CustomerSubscriptions(msgspec.Struct, frozen=True):
    """All subscriptions of a customer, ended ones included, as they were at ``as_of``.

    ``as_of`` is at or before the second, by the provider's clock, in which the request was sent:
    later changes have a ``created`` that is the same or greater.
    """

    as_of: int
    subscriptions: tuple[ProviderSubscription, ...]


def snapshots(
    subscriptions: Iterable[ProviderSubscription],
    account: BillingAccount,
    policy: BillingPolicy,
    *,
    new_id: Callable[[], str],
    as_of: int,
    arrival: int,
    unlinked: Collection[str] = (),
    links: bool = False,
) -> list[BillingEvent]:
    """Return the snapshots of a tenant from all subscriptions of its customers.

    With ``links`` a subscription that names the tenant names an unlinked customer too, so that the
    snapshot can link it as an event of the subscription does.

    ``arrival`` is the number that was taken when the request was sent; the following ones are free.
    A subscription whose metadata names another tenant does not count, nor one without a tenant of
    an ``unlinked`` customer, which is not linked to this tenant. A subscription that has moved to
    another tenant has ended for this one.

    With `SubscriptionRule.EACH` there is one for each subscription. One that was never paid or has
    ended counts only once an event has named it: it raises no plan. With ``ANY`` there is at most
    one, the first of these:

    - the living one that the tenant's state is from;
    - the newest living one (one that waits for its first payment counts only once an event has
      named it);
    - the ended one that the tenant's state is from; if the state is from none, the newest ended
      one. One that ended without its first payment counts only if the state has that status: it
      never gave access to its plan.
    """
    every = list(subscriptions)
    counted = (_of_each if policy.is_each else _of_tenant)(every, account, unlinked)
    # an unlinked customer may be another tenant's, and this event concerns only its own
    hidden = () if links else unlinked
    return [
        BillingEvent(
            id=new_id(),
            type=SNAPSHOT,
            created=as_of,
            arrival=arrival + number,
            org_id=account.tenant_id,
            customer_id=None if each.customer_id in hidden else each.customer_id,
            subscription_id=each.id,
            subscription_created=each.created,
            status=each.status,
            price_id=each.price_id,
            current_period_end=each.current_period_end,
            cancel_at_period_end=each.cancel_at_period_end,
            details=each.details,
        )
        for number, each in enumerate(sorted(counted, key=_age))
    ]


def _own(
    subscriptions: Iterable[ProviderSubscription],
    account: BillingAccount,
    unlinked: Collection[str],
) -> list[ProviderSubscription]:
    """Return the subscriptions that name a tenant, or none and are of a customer of it."""
    return [
        each
        for each in subscriptions
        if each.org_id == account.tenant_id
        or (each.org_id is None and each.customer_id not in unlinked)
    ]


def _of_each(
    subscriptions: Sequence[ProviderSubscription],
    account: BillingAccount,
    unlinked: Collection[str],
) -> list[ProviderSubscription]:
    """Return the subscriptions that count with `SubscriptionRule.EACH`."""
    own = _own(subscriptions, account, unlinked)
    gone = [each for each in subscriptions if each not in own and each.id in account.present]
    counted = [each for each in own if each.id in account.folds or gives_access_or_may(each)]
    return [*counted, *map(_moved, gone)]


def _of_tenant(
    subscriptions: Sequence[ProviderSubscription],
    account: BillingAccount,
    unlinked: Collection[str],
) -> list[ProviderSubscription]:
    """Return the one subscription that counts with `SubscriptionRule.ANY`, if any."""
    if chosen := _choose(_own(subscriptions, account, unlinked), account.state):
        return [chosen]
    moved = _by_id(subscriptions, account.state.subscription_id)
    return [] if moved is None else [_moved(moved)]


def is_of(
    account: BillingAccount,
    subscription_id: str,
    policy: BillingPolicy,
) -> bool:
    """Whether a tenant's state is from a subscription; with `SubscriptionRule.EACH` whether it has
    it.
    """
    if policy.is_each:
        return subscription_id in account.present
    return account.state.subscription_id == subscription_id


def drift_between(
    before: BillingAccount,
    after: BillingAccount,
    policy: BillingPolicy,
) -> tuple[dict[str, tuple[Fact, Fact]], set[str]]:
    """Return the fields of the record that differ, with both values, and the keys of the folds that
    do.

    With `SubscriptionRule.EACH` also those of each subscription, as ``sub_1.plan``.
    """
    drift, drifted = differences(before.record, after.record), set[str]()
    for key, fold in after.folds.items():
        known = before.folds.get(key)
        of_fold = differences(known.state if known else BillingState(), fold.state)
        if of_fold:
            drifted.add(key)
        if policy.is_each:
            drift |= {f"{key}.{name}": values for name, values in of_fold.items()}
    return drift, drifted


def may_differ(
    subscription: ProviderSubscription,
    account: BillingAccount,
    policy: BillingPolicy,
    *,
    is_linked: bool,
) -> bool:
    """Whether a subscription of a tenant may say something else than the tenant's state.

    ``is_linked`` tells whether its customer is linked to the tenant. Looks at this subscription
    alone: where it is not the one that counts, only all of the tenant's subscriptions together
    decide.
    """
    if not account.is_whole:
        return True
    unlinked = () if is_linked else (subscription.customer_id,)
    newest = (account.tip_created or 0) + 1
    observed = snapshots(
        [subscription],
        account,
        policy,
        new_id=str,
        as_of=newest,
        arrival=0,
        unlinked=unlinked,
    )
    folds = dict(account.folds)
    for event in observed:
        key = fold_key(event, policy)
        if key is not None:
            before = folds[key].state if key in folds else account.beginning_of(key, policy)
            after = Folded(apply(before, event, policy).state, newest)
            folds[key] = account.keep_move(key, after)
    return bool(drift_between(account, account.with_folds(folds, policy), policy)[0])


def gives_access_or_may(subscription: ProviderSubscription) -> bool:
    """Whether a subscription has begun and has not ended."""
    return subscription.status not in UNBEGUN_OR_OVER


def unconfirmed(
    account: BillingAccount,
    known: Collection[str],
    policy: BillingPolicy,
) -> list[str]:
    """Return the living subscriptions that give a tenant its state and are not ``known`` at the
    provider.
    """
    if not policy.is_each:
        current = [account.state.subscription_id or ""]
    else:
        current = [key for key, fold in account.present.items() if is_unended(fold.state)]
    return [each for each in current if each and each not in known]


def is_unended(state: BillingState) -> bool:
    """Whether a state is from a subscription that has not ended."""
    return state.provider_status not in (None, *OVER)


def expected(account: BillingAccount, policy: BillingPolicy) -> list[str]:
    """Return the subscriptions that give a tenant its state, and that the provider's list has as
    the tenant's.

    With `SubscriptionRule.EACH` also those that only invoices have named, and that expired: they
    may have moved.
    """
    if policy.is_each:
        return [key for key, fold in account.present.items() if _counts(fold)]
    return unconfirmed(account, (), policy) if is_unended(account.state) else []


def _counts(fold: Folded) -> bool:
    status = fold.state.provider_status or fold.state.subscription_status
    return status not in (NO_SUBSCRIPTION, CANCELED)


def _moved(subscription: ProviderSubscription) -> ProviderSubscription:
    details = msgspec.structs.replace(subscription.details, has_moved=True)
    return msgspec.structs.replace(subscription, status=CANCELED, details=details)


def _choose(
    subscriptions: Sequence[ProviderSubscription], state: BillingState
) -> ProviderSubscription | None:
    living = [each for each in subscriptions if _is_living(each, state)]
    if living:
        return _by_id(living, state.subscription_id) or max(living, key=_age)
    ended = [each for each in subscriptions if each.status in OVER]
    if state.subscription_id is None:
        return _newest_ended(ended, state)
    return _by_id(ended, state.subscription_id)  # the end of another one does not matter


def _newest_ended(
    subscriptions: Sequence[ProviderSubscription], state: BillingState
) -> ProviderSubscription | None:
    same_status = [each for each in subscriptions if each.status == state.provider_status]
    paid = [each for each in subscriptions if each.status != _EXPIRED]
    return max(same_status or paid, key=_age, default=None)


def _is_living(subscription: ProviderSubscription, state: BillingState) -> bool:
    """Whether a subscription has not ended; one that waits for its first payment counts only if the
    state is from it.
    """
    if subscription.status == INCOMPLETE:
        return subscription.id == state.subscription_id
    return subscription.status not in OVER


def _by_id(
    subscriptions: Iterable[ProviderSubscription], subscription_id: str | None
) -> ProviderSubscription | None:
    return next((each for each in subscriptions if each.id == subscription_id), None)
