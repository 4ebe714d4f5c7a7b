"""A tenant's billing state, and what one event does to it (SPEC 3)."""

from collections.abc import Callable
from enum import StrEnum
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, Fact
from tenantry.domain.plans import FREE, Catalog

NO_SUBSCRIPTION: Final = "none"
PAST_DUE: Final = "past_due"
CANCELED: Final = "canceled"
ACTIVE: Final = "active"
ENDED: Final = frozenset({CANCELED, "incomplete_expired"})
"""The statuses of a subscription that has ended."""
RECORD_FIELDS: Final = ("plan", "subscription_status", "current_period_end", "cancel_at_period_end")
"""The fields of a state that are the tenant record's."""


class SubscriptionRule(StrEnum):
    """Which of several subscriptions of one tenant count (the setting SUBSCRIPTIONS)."""

    ANY = "any"
    NEWEST = "newest"


class BillingPolicy(msgspec.Struct, frozen=True):
    catalog: Catalog
    subscriptions: SubscriptionRule = SubscriptionRule.ANY
    checkout_reference_links: bool = False
    parked_mail_hours: int = 72
    livemode: bool | None = None
    """The mode that events should be of; None if unknown."""
    ignores_other_mode: bool = False
    """Whether events of the other mode than ``livemode`` are ignored (PROVIDER_LIVEMODE)."""
    accounts: frozenset[str] = frozenset()
    """The connected accounts whose events count (PROVIDER_ACCOUNTS)."""


class KnownSubscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of one subscription as its newest event reports them."""

    id: str
    status: str | None = None
    plan: str = FREE
    current_period_end: int | None = None
    cancel_at_period_end: bool = False


class BillingState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant's billing state after its events so far. The first four fields are the tenant record's.

    ``provider_status`` is the status that the subscription events last gave. ``subscription_id`` and
    ``subscription_created`` name the subscription that gave it (with `SubscriptionRule.NEWEST` the newest one so
    far) until it ends. ``others`` are the tenant's other subscriptions, ended ones included, by id: the order of
    their events depends on them (`order`). Of more than `MOST_OTHERS`, ended ones are left out first.
    """

    plan: str = FREE
    subscription_status: str = NO_SUBSCRIPTION
    current_period_end: int | None = None
    cancel_at_period_end: bool = False
    provider_status: str | None = None
    subscription_id: str | None = None
    subscription_created: int | None = None
    others: tuple[KnownSubscription, ...] = ()


MOST_OTHERS: Final = 50


def known_of(state: BillingState, subscription_id: str | None) -> KnownSubscription | None:
    """Return the facts of a subscription; None if no event has reported any."""
    for known in state.others:
        if known.id == subscription_id:
            return known
    if subscription_id is None or subscription_id != state.subscription_id:
        return None
    return KnownSubscription(
        subscription_id, state.provider_status, state.plan, state.current_period_end, state.cancel_at_period_end
    )


record_of: Final = attrgetter(*RECORD_FIELDS)
"""Return the fields of a state that are the tenant record's."""


def differences(before: BillingState, after: BillingState) -> dict[str, tuple[Fact, Fact]]:
    """Return the fields of the tenant record in which two states differ, with the value in each."""
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in RECORD_FIELDS)
    return {name: (one, other) for name, one, other in pairs if one != other}


class Transition(NamedTuple):
    """The state after an event, and the reason."""

    state: BillingState
    reason: str


def apply(state: BillingState, event: BillingEvent, policy: BillingPolicy) -> Transition:
    """Apply an event to a state; types other than `FOLDED_TYPES` leave it unchanged."""
    handler = _HANDLERS.get(event.type)
    return handler(state, event, policy) if handler else Transition(state, "This type says nothing about billing.")


def _subscription_updated(state: BillingState, event: BillingEvent, policy: BillingPolicy) -> Transition:
    status = event.status or NO_SUBSCRIPTION
    plan, reason = plan_of(event.price_id, policy.catalog)
    current: tuple[str | None, int | None] = (event.subscription_id, event.subscription_created)
    if _is_outdated(event, state, policy):
        current = (state.subscription_id, state.subscription_created)
    elif status in ENDED:
        current = (None, None)
    updated = BillingState(
        plan=plan,
        subscription_status=status,
        current_period_end=event.current_period_end,
        cancel_at_period_end=bool(event.cancel_at_period_end),
        provider_status=status,
        subscription_id=current[0],
        subscription_created=current[1],
        others=_others(state, event, updated_plan=plan, current=current[0]),
    )
    return Transition(updated, f"The subscription is {status}: {reason}.")


def full_state_types(policy: BillingPolicy) -> frozenset[str]:
    """Return the event types whose result does not depend on the state before them."""
    if policy.subscriptions is SubscriptionRule.NEWEST:
        return frozenset()  # which subscription counts depends on the ones before
    return frozenset({ev.SUBSCRIPTION_UPDATED})


def plan_of(price_id: str | None, catalog: Catalog) -> tuple[str, str]:
    if price_id is None:
        return FREE, f"it has no item with a price, so the plan is {FREE}"
    plan = catalog.plan_of_price(price_id)
    if plan is None:
        return FREE, f"price {price_id} is not in the plan catalog, so the plan is {FREE}"
    return plan, f"price {price_id} means plan {plan}"


def _subscription_deleted(state: BillingState, event: BillingEvent, policy: BillingPolicy) -> Transition:
    others = _others(state, event)
    if _is_outdated(event, state, policy):
        kept = msgspec.structs.replace(state, others=others)
        return Transition(kept, f"A newer subscription, {state.subscription_id}, lives on.")
    ended = msgspec.structs.replace(
        state,
        plan=FREE,
        subscription_status=CANCELED,
        current_period_end=None,
        provider_status=CANCELED,
        subscription_id=None,
        subscription_created=None,
        others=others,
    )
    return Transition(ended, "The subscription has ended.")


def _others(
    state: BillingState, event: BillingEvent, *, updated_plan: str | None = None, current: str | None = None
) -> tuple[KnownSubscription, ...]:
    """Return the tenant's subscriptions other than the ``current`` one, after an event that sets its plan.

    Without a plan the event ends its subscription.
    """
    own = event.subscription_id
    if not state.others and own == current and state.subscription_id in (None, own):
        return ()  # the tenant's only subscription
    former = known_of(state, state.subscription_id)
    others = {known.id: known for known in state.others}
    if former is not None:
        others[former.id] = former
    if own == current:
        others.pop(own or "", None)
    elif own is not None and updated_plan is None:
        others[own] = KnownSubscription(own, CANCELED)
    elif own is not None and updated_plan is not None:
        ends = bool(event.cancel_at_period_end)
        others[own] = KnownSubscription(own, event.status, updated_plan, event.current_period_end, ends)
    return _bounded(others)


def _bounded(others: dict[str, KnownSubscription]) -> tuple[KnownSubscription, ...]:
    """Keep at most `MOST_OTHERS`, by id, and drop ended ones first."""
    for subscription_id in sorted(others, key=lambda each: (others[each].status not in ENDED, each)):
        if len(others) <= MOST_OTHERS:
            break
        del others[subscription_id]
    return tuple(sorted(others.values(), key=attrgetter("id")))


def _is_outdated(event: BillingEvent, state: BillingState, policy: BillingPolicy) -> bool:
    return (
        policy.subscriptions is SubscriptionRule.NEWEST
        and state.subscription_id not in (None, event.subscription_id)
        and (event.subscription_created or 0) < (state.subscription_created or 0)
    )


def _snapshot(state: BillingState, event: BillingEvent, policy: BillingPolicy) -> Transition:
    # The provider reports an end by `deleted`, so a canceled snapshot has the effect of that event.
    handler = _subscription_deleted if event.status == CANCELED else _subscription_updated
    step = handler(state, event, policy)
    return Transition(step.state, f"The provider was asked. {step.reason}")


def _payment_failed(state: BillingState, _event: BillingEvent, _policy: BillingPolicy) -> Transition:
    return Transition(msgspec.structs.replace(state, subscription_status=PAST_DUE), "A payment failed.")


def _payment_succeeded(state: BillingState, _event: BillingEvent, _policy: BillingPolicy) -> Transition:
    if state.subscription_status != PAST_DUE:
        return Transition(state, "The payment is logged; the tenant was not past due.")
    restored = state.provider_status if state.provider_status not in (None, PAST_DUE) else ACTIVE
    paid = msgspec.structs.replace(state, subscription_status=restored)
    return Transition(paid, "A payment cleared the past-due status.")


_Handler = Callable[[BillingState, BillingEvent, BillingPolicy], Transition]
_HANDLERS: Final[dict[str, _Handler]] = {
    ev.SUBSCRIPTION_UPDATED: _subscription_updated,
    ev.SUBSCRIPTION_DELETED: _subscription_deleted,
    ev.SNAPSHOT: _snapshot,
    ev.PAYMENT_FAILED: _payment_failed,
    ev.PAYMENT_SUCCEEDED: _payment_succeeded,
}
