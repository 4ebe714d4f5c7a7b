"""What the provider itself says of a tenant's subscriptions, as an entry of the ledger."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tenantry.domain.billing.events import SNAPSHOT, BillingEvent
from tenantry.domain.billing.ledger import Account
from tenantry.domain.billing.state import (
    CANCELED,
    ENDED,
    BillingPolicy,
    BillingState,
    SubscriptionRule,
)

_UNPAID: Final = "incomplete"


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as the provider's API gives it. Times are seconds since the Unix epoch."""

    id: str
    customer_id: str
    created: int
    status: str
    org_id: str | None = None
    price_id: str | None = None
    current_period_end: int | None = None
    cancel_at_period_end: bool = False


class Answer(msgspec.Struct, frozen=True):
    """All subscriptions of a customer, ended ones included, as they were at ``as_of``.

    ``as_of`` is a second of the provider's clock that was not over when the question was asked, or an earlier one:
    whatever the provider did later has a ``created`` that is the same or greater.
    """

    as_of: int
    subscriptions: tuple[Subscription, ...]


def snapshot(
    subscriptions: Iterable[Subscription], account: Account, policy: BillingPolicy, *, event_id: str, as_of: int
) -> BillingEvent | None:
    """The ledger entry for what the provider says of all the subscriptions of a tenant's customers.

    None where there is nothing to say: no subscription there, and none that events have told of here. A subscription
    whose metadata names another tenant does not count. Of several, the one that the tenant's state came from counts
    while it lives, else the newest living one, else the one that ended last; with `SubscriptionRule.NEWEST` always the
    newest living one. One that waits for its first payment lives only once events have told of it.
    """
    own = [each for each in subscriptions if each.org_id in (None, account.tenant_id)]
    chosen = _choose(own, account.state, policy)
    if chosen is None and account.state.provider_status is None:
        return None
    if chosen is None:
        return BillingEvent(
            id=event_id, type=SNAPSHOT, created=as_of, org_id=account.tenant_id, customer_id=account.customer_id,
            subscription_id=account.state.subscription_id, status=CANCELED,
        )  # fmt: skip
    return BillingEvent(
        id=event_id,
        type=SNAPSHOT,
        created=as_of,
        org_id=account.tenant_id,
        customer_id=chosen.customer_id,
        subscription_id=chosen.id,
        subscription_created=chosen.created,
        status=chosen.status,
        price_id=chosen.price_id,
        current_period_end=chosen.current_period_end,
        cancel_at_period_end=chosen.cancel_at_period_end,
    )


def _choose(subscriptions: Sequence[Subscription], state: BillingState, policy: BillingPolicy) -> Subscription | None:
    told = state.subscription_id
    living = [
        each for each in subscriptions if each.status not in ENDED and (each.status != _UNPAID or each.id == told)
    ]
    if living:
        if policy.subscriptions is SubscriptionRule.ANY and (same := _by_id(living, told)):
            return same
        return max(living, key=_age)
    ended = [each for each in subscriptions if each.status in ENDED]
    alike = [each for each in ended if each.status == state.provider_status]
    return max(alike or ended, key=_age, default=None)


def _by_id(subscriptions: Iterable[Subscription], subscription_id: str | None) -> Subscription | None:
    return next((each for each in subscriptions if each.id == subscription_id), None)


def _age(subscription: Subscription) -> tuple[int, str]:
    return subscription.created, subscription.id
