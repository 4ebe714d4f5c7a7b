"""What the provider itself says of a tenant's subscriptions, as an entry of the ledger."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from tenantry.domain.billing.events import SNAPSHOT, BillingEvent
from tenantry.domain.billing.ledger import Account
from tenantry.domain.billing.state import CANCELED, ENDED, BillingPolicy, BillingState, SubscriptionRule

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
    subscriptions: Iterable[Subscription],
    account: Account,
    policy: BillingPolicy,
    *,
    event_id: str,
    as_of: int,
    arrival: int,
    strangers: Collection[str] = (),
) -> BillingEvent | None:
    """The ledger entry for what the provider says of all the subscriptions of a tenant's customers.

    None where it says nothing of a subscription of the tenant's. ``arrival`` is the number that was taken when the
    question was asked.

    A subscription whose metadata names another tenant does not count, nor one of ``strangers``, customers that are not
    linked to the tenant, whose metadata names none. Of several, the one that the tenant's state came from counts while
    it lives, else the newest living one, else that one though it has ended, else, where the state came from none, the
    newest that has; with `SubscriptionRule.NEWEST` always the newest living one. One that waits for its first payment
    lives only once events have told of it. One that has passed to another tenant has ended for this one.
    """
    every = list(subscriptions)
    own = [
        each
        for each in every
        if each.org_id == account.tenant_id or (each.org_id is None and each.customer_id not in strangers)
    ]
    chosen = _choose(own, account.state, policy)
    if chosen is None and (former := _by_id(every, account.state.subscription_id)):
        chosen = msgspec.structs.replace(former, status=CANCELED)  # another tenant has it now
    if chosen is None:
        return None
    return BillingEvent(
        id=event_id,
        type=SNAPSHOT,
        created=as_of,
        arrival=arrival,
        org_id=account.tenant_id,
        # the entry touches this tenant alone: a stranger may be another tenant's customer
        customer_id=None if chosen.customer_id in strangers else chosen.customer_id,
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
    if told is not None:
        return _by_id(ended, told)  # the end of another says nothing of it
    alike = [each for each in ended if each.status == state.provider_status]
    return max(alike or ended, key=_age, default=None)


def _by_id(subscriptions: Iterable[Subscription], subscription_id: str | None) -> Subscription | None:
    return next((each for each in subscriptions if each.id == subscription_id), None)


def _age(subscription: Subscription) -> tuple[int, str]:
    return subscription.created, subscription.id
