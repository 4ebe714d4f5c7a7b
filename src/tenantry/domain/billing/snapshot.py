"""Snapshots: a tenant's subscriptions as fetched from the provider, as an event of the ledger."""

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from tenantry.domain.billing.events import SNAPSHOT, BillingEvent
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.state import CANCELED, ENDED, BillingPolicy, BillingState, SubscriptionRule

_UNPAID: Final = "incomplete"
_NEVER_PAID: Final = "incomplete_expired"
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


class CustomerSubscriptions(msgspec.Struct, frozen=True):
    """All subscriptions of a customer, ended ones included, as they were at ``as_of``.

    ``as_of`` is at or before the second, by the provider's clock, in which the request was sent: later changes have a
    ``created`` that is the same or greater.
    """

    as_of: int
    subscriptions: tuple[ProviderSubscription, ...]


def snapshot(
    subscriptions: Iterable[ProviderSubscription],
    account: BillingAccount,
    policy: BillingPolicy,
    *,
    event_id: str,
    as_of: int,
    arrival: int,
    unlinked: Collection[str] = (),
) -> BillingEvent | None:
    """Return the snapshot of a tenant from all subscriptions of its customers; None if none is the tenant's.

    ``arrival`` is the number that was taken when the request was sent. A subscription whose metadata names another
    tenant does not count, nor one without a tenant of an ``unlinked`` customer, which is not linked to this tenant.

    Of several subscriptions the first of these counts; with `SubscriptionRule.NEWEST` always the newest living one:

    - the living one that the tenant's state is from;
    - the newest living one (one that waits for its first payment counts only once an event has named it);
    - the ended one that the tenant's state is from; if the state is from none, the newest ended one. One that ended
      without its first payment counts only if the state has that status: it never gave access to its plan.

    A subscription that has moved to another tenant has ended for this one.
    """
    every = list(subscriptions)
    own = [
        each
        for each in every
        if each.org_id == account.tenant_id or (each.org_id is None and each.customer_id not in unlinked)
    ]
    chosen = _choose(own, account.state, policy)
    if chosen is None and (moved := _by_id(every, account.state.subscription_id)):
        chosen = msgspec.structs.replace(moved, status=CANCELED)
    if chosen is None:
        return None
    return BillingEvent(
        id=event_id,
        type=SNAPSHOT,
        created=as_of,
        arrival=arrival,
        org_id=account.tenant_id,
        # an unlinked customer may be another tenant's, and this event concerns only its own
        customer_id=None if chosen.customer_id in unlinked else chosen.customer_id,
        subscription_id=chosen.id,
        subscription_created=chosen.created,
        status=chosen.status,
        price_id=chosen.price_id,
        current_period_end=chosen.current_period_end,
        cancel_at_period_end=chosen.cancel_at_period_end,
    )


def _choose(
    subscriptions: Sequence[ProviderSubscription], state: BillingState, policy: BillingPolicy
) -> ProviderSubscription | None:
    current = state.subscription_id
    living = [
        each for each in subscriptions if each.status not in ENDED and (each.status != _UNPAID or each.id == current)
    ]
    if living:
        if policy.subscriptions is SubscriptionRule.ANY and (same := _by_id(living, current)):
            return same
        return max(living, key=_age)
    ended = [each for each in subscriptions if each.status in ENDED]
    if current is not None:
        return _by_id(ended, current)  # the end of another subscription does not matter
    same_status = [each for each in ended if each.status == state.provider_status]
    return max(same_status or [each for each in ended if each.status != _NEVER_PAID], key=_age, default=None)


def _by_id(subscriptions: Iterable[ProviderSubscription], subscription_id: str | None) -> ProviderSubscription | None:
    return next((each for each in subscriptions if each.id == subscription_id), None)
