"""Snapshots: a tenant's subscriptions as fetched from the provider, as events of the ledger."""

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from tenantry.domain.billing.events import NO_DETAILS, SNAPSHOT, BillingEvent, SubscriptionDetails
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.state import CANCELED, BillingPolicy, BillingState
from tenantry.domain.plans import OVER

_INCOMPLETE: Final = "incomplete"
_EXPIRED: Final = "incomplete_expired"
_WITHOUT_ACCESS: Final = OVER | {_INCOMPLETE}
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

    ``as_of`` is at or before the second, by the provider's clock, in which the request was sent: later changes have a
    ``created`` that is the same or greater.
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
) -> list[BillingEvent]:
    """Return the snapshots of a tenant from all subscriptions of its customers.

    ``arrival`` is the number that was taken when the request was sent; the following ones are free. A subscription
    whose metadata names another tenant does not count, nor one without a tenant of an ``unlinked`` customer, which is
    not linked to this tenant. A subscription that has moved to another tenant has ended for this one.

    With `SubscriptionRule.EACH` there is one for each subscription. One that was never paid or has ended counts only
    once an event has named it: it raises no plan. With ``ANY`` there is at most one, the first of these:

    - the living one that the tenant's state is from;
    - the newest living one (one that waits for its first payment counts only once an event has named it);
    - the ended one that the tenant's state is from; if the state is from none, the newest ended one. One that ended
      without its first payment counts only if the state has that status: it never gave access to its plan.
    """
    every = list(subscriptions)
    own = [
        each
        for each in every
        if each.org_id == account.tenant_id or (each.org_id is None and each.customer_id not in unlinked)
    ]
    if policy.is_each:
        counted = [each for each in own if each.id in account.folds or each.status not in _WITHOUT_ACCESS]
        known = account.folds.keys() - account.moved_at.keys()
        counted += [_moved(each) for each in every if each not in own and each.id in known]
    else:
        chosen = _choose(own, account.state)
        if chosen is None and (moved := _by_id(every, account.state.subscription_id)):
            chosen = _moved(moved)
        counted = [] if chosen is None else [chosen]
    return [
        BillingEvent(
            id=new_id(),
            type=SNAPSHOT,
            created=as_of,
            arrival=arrival + number,
            org_id=account.tenant_id,
            # an unlinked customer may be another tenant's, and this event concerns only its own
            customer_id=None if each.customer_id in unlinked else each.customer_id,
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


def _moved(subscription: ProviderSubscription) -> ProviderSubscription:
    details = msgspec.structs.replace(subscription.details, has_moved=True)
    return msgspec.structs.replace(subscription, status=CANCELED, details=details)


def _choose(subscriptions: Sequence[ProviderSubscription], state: BillingState) -> ProviderSubscription | None:
    current = state.subscription_id
    living = [
        each for each in subscriptions if each.status not in OVER and (each.status != _INCOMPLETE or each.id == current)
    ]
    if living:
        return _by_id(living, current) or max(living, key=_age)
    ended = [each for each in subscriptions if each.status in OVER]
    if current is not None:
        return _by_id(ended, current)  # the end of another subscription does not matter
    same_status = [each for each in ended if each.status == state.provider_status]
    return max(same_status or [each for each in ended if each.status != _EXPIRED], key=_age, default=None)


def _by_id(subscriptions: Iterable[ProviderSubscription], subscription_id: str | None) -> ProviderSubscription | None:
    return next((each for each in subscriptions if each.id == subscription_id), None)
