"""What one subscription, or one grant, gives a tenant, until which second, and why."""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from tenantry.common.clock import EPOCH_MAX
from tenantry.domain.access import (
    NO_SUBSCRIPTION,
    NOTHING,
    access_of_status,
    sentence,
    status_words,
)
from tenantry.domain.billing.state import (
    ACTIVE,
    PAST_DUE,
    TRIALING,
    BillingPolicy,
    BillingState,
    item_with_period,
    plan_period,
)
from tenantry.domain.entitlements import UsagePeriod
from tenantry.domain.plans import FREE, OVER, AccessState

LEVELS: Final[Mapping[AccessState | None, int]] = {
    "full": 3,
    "grace": 2,
    "none": 1,
    None: 0,
}
"""The order of what a subscription gives; None is that of one that is over."""
LATE_END: Final = 3 * 86_400
"""Seconds for which a subscription gives access after its announced end if the event of the end
does not come.
"""


class Period(NamedTuple):
    """What a subscription gives until a second, and why; without ``end`` for good. The state None
    is over.
    """

    end: int | None
    state: AccessState | None
    reason: str


class _End(NamedTuple):
    """A second at which access ends by itself, and the reasons for the access before it and for
    none after it.
    """

    second: int
    before: str
    after: str


def plan_in_use(state: BillingState, policy: BillingPolicy) -> str | None:
    """Return the plan whose access a subscription can give; None without a plan item.

    An item of quantity 0 is no plan item. With `SubscriptionRule.ANY` the first other one decides
    here, while the record's plan stays that of the first item (SPEC 3).
    """
    if state.subscription_status == NO_SUBSCRIPTION:
        return None if state.plan == FREE else state.plan
    if not policy.is_each and state.details.has_empty_item:
        filled = [item for item in state.details.items if item.quantity]
        return policy.catalog.plan_of_price(filled[0].price_id) if filled else None
    return None if state.seats is None else state.plan


def billing_period(state: BillingState, policy: BillingPolicy) -> UsagePeriod | None:
    """Return the period of a subscription's plan item, of which start and end are known; None
    without a plan item.
    """
    start, end = plan_period(state.details, state.current_period_end, policy)
    if not has_plan_item(state, policy) or start is None or end is None or start >= end:
        return None
    return UsagePeriod(start, end)


def has_plan_item(state: BillingState, policy: BillingPolicy) -> bool:
    """Whether a subscription has an item with a plan's price and a quantity."""
    items = state.details.items
    return item_with_period(items, policy) is not None if items else state.seats is not None


def status_access(state: BillingState, policy: BillingPolicy) -> tuple[AccessState | None, str]:
    """Return what a subscription or a grant gives whatever the time, and why; None if it is over.

    A grant without a plan gives no access: its features and limits count beside any.
    """
    if state.subscription_status == NO_SUBSCRIPTION:
        if state.grant is None or state.plan == FREE:
            return (None if state.grant else NOTHING.state), NOTHING.reason
        return "full", state.grant.terms.sentence
    access = access_of_status(state.subscription_status, policy.catalog)
    reason = sentence(state.subscription_status)
    if failure_counts(state, policy):
        access, reason = _access_before_failure(state, policy), _failure_reason(state)
    if access in ("full", "grace") and has_only_empty_items(state):
        return "none", f"{reason} Its quantity is 0."
    return access, reason


def has_only_empty_items(state: BillingState) -> bool:
    """Whether a subscription has items, and all of quantity 0."""
    items = state.details.items
    return bool(items) and not any(item.quantity for item in items)


def failure_counts(state: BillingState, policy: BillingPolicy) -> bool:
    """Whether a failed payment made a subscription past due that gave less access before than it
    would give now.
    """
    if not _failed_since_report(state):
        return False
    return (
        LEVELS[_access_before_failure(state, policy)]
        < LEVELS[access_of_status(PAST_DUE, policy.catalog)]
    )


def _failed_since_report(state: BillingState) -> bool:
    """Whether a failed payment made a subscription past due, and not its own event."""
    return state.subscription_status == PAST_DUE and state.provider_status != PAST_DUE


def _access_before_failure(state: BillingState, policy: BillingPolicy) -> AccessState:
    if state.provider_status is None:
        return "none"
    return access_of_status(state.provider_status, policy.catalog) or "none"


def _failure_reason(state: BillingState) -> str:
    if state.provider_status is None:
        return "A payment failed, and no event of the subscription has arrived."
    if state.provider_status in OVER:
        return "A payment failed after the subscription had ended."
    return f"A payment failed while the subscription was {status_words(state.provider_status)}."


def periods(state: BillingState, policy: BillingPolicy) -> list[Period]:
    """Return what a subscription gives as time passes without another event; the last period has no
    end.
    """
    access, reason = status_access(state, policy)
    if access not in ("full", "grace"):
        return [Period(None, access, reason)]
    ends = [
        *_grant_end(state, reason),
        *_grace_end(
            state,
            access,
            reason,
            policy,
        ),
        *_pause_end(state, policy),
        *_announced_ends(state, reason, policy),
    ]
    if not ends:
        return [Period(None, access, reason)]
    first = min(ends, key=attrgetter("second"))
    return [
        Period(min(first.second, EPOCH_MAX), access, first.before),
        Period(None, "none", first.after),
    ]


def _grant_end(state: BillingState, reason: str) -> Iterator[_End]:
    if state.grant is None:
        return
    terms = state.grant.terms
    if terms.until is not None:
        yield _End(terms.until, reason, f"The contract {terms.name} has ended.")


def _grace_end(
    state: BillingState,
    access: AccessState,
    reason: str,
    policy: BillingPolicy,
) -> Iterator[_End]:
    if access == "grace" and state.past_due_since is not None:
        yield _End(
            state.past_due_since + policy.past_due_grace,
            reason,
            f"{reason} The grace period has ended.",
        )


def _pause_end(state: BillingState, policy: BillingPolicy) -> Iterator[_End]:
    if (
        state.paid_until is None
        or _reported_status(state) != ACTIVE
        or ACTIVE in policy.catalog.access
    ):
        return
    before = "Payments are paused; access ends with the paid period."
    yield _End(state.paid_until, before, "Payments are paused, and the paid period has ended.")


def end_of(state: BillingState, policy: BillingPolicy) -> int | None:
    """Return the second at which a subscription has ended, or ends as the provider announced; None
    for one that renews.
    """
    details = state.details
    if state.subscription_status in OVER and details.ended_at is not None:
        return details.ended_at
    return _end_with_period(state, policy) if details.cancel_at is None else details.cancel_at


def _end_with_period(state: BillingState, policy: BillingPolicy) -> int | None:
    """Return the end of the plan's period if a subscription ends with it."""
    if not state.cancel_at_period_end:
        return None
    return plan_period(state.details, state.current_period_end, policy)[1]


def _announced_ends(state: BillingState, reason: str, policy: BillingPolicy) -> Iterator[_End]:
    """Yield the ends that the provider announced, each with the time that its event may take."""
    details, with_period = state.details, _end_with_period(state, policy)
    after = f"{reason} Its announced end has passed."
    if details.cancel_at is not None:
        yield _End(details.cancel_at + LATE_END, reason, after)
    if with_period is not None:
        yield _End(with_period + LATE_END, reason, after)
    if details.trial_end is not None and _reported_status(state) == TRIALING:
        yield _End(details.trial_end + LATE_END, reason, f"{reason} Its trial has ended.")


def _reported_status(state: BillingState) -> str | None:
    """Return the status before a failed payment changed it."""
    return state.provider_status if _failed_since_report(state) else state.subscription_status


def period_at(each: Iterable[Period], second: float) -> Period:
    """Return what a subscription gives at a second."""
    return next(period for period in each if period.end is None or second < period.end)


def is_plain(state: BillingState) -> bool:
    """Whether status and plan alone say what a state gives, and for good."""
    details = state.details
    return (
        state.past_due_since is None  # so no failed payment has made it past due
        and state.paid_until is None
        and not state.cancel_at_period_end
        and details.cancel_at is None
        and details.trial_end is None
        and not details.has_empty_item
    )
