"""Why a subscription of a tenant counts or does not, and what it gives now, in words.

Words about a choice name statuses, plans and ages, because time does not change them. Words about
access are made from the period that counts now, as the tenant record's access is.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from tenantry.common.clock import from_epoch
from tenantry.domain.access import NO_SUBSCRIPTION, status_words
from tenantry.domain.billing.state import BillingPolicy, BillingState
from tenantry.domain.billing.subscription_access import (
    LEVELS,
    failure_counts,
    has_only_empty_items,
    period_at,
    periods,
    plan_in_use,
)
from tenantry.domain.billing.subscription_rank import (
    rank,
    record_candidates,
    status_rank,
    with_grants,
)
from tenantry.domain.billing.tenant_record import access_phase, record_of
from tenantry.domain.plans import FREE

_GIVES: Final = {
    "full": "It gives full access to plan {}",
    "grace": "It gives access to plan {} for a grace period",
}


class RankedSubscription(NamedTuple):
    """A subscription of a tenant, whether it counts, why, and what it gives."""

    state: BillingState
    counts: bool
    reason: str


def choice(
    states: Sequence[BillingState],
    policy: BillingPolicy,
    now: float,
    grants: Sequence[BillingState],
) -> list[RankedSubscription]:
    """Return a tenant's subscriptions in the order of `status_rank`, each with the reason why it
    counts or does not.

    ``now`` is in seconds since the Unix epoch. Grants take part, and are not in the list.
    """
    ordered = sorted(
        record_candidates(states, grants, policy),
        key=lambda state: status_rank(state, policy),
        reverse=True,
    )
    access = access_phase(record_of(states, policy, grants), now, policy.catalog)
    # one that gives the access then does so now too
    last = math.inf if access.until is None else access.until - 1
    current = max(
        with_grants(states, grants),
        key=lambda state: rank(state, policy, period_at(periods(state, policy), last).state),
    )
    return [
        RankedSubscription(
            state,
            state is ordered[0],
            f"{_verdict(state, ordered, policy)} {_gives(state, policy, now, is_current=state is current)}",
        )
        for state in ordered
        if state.subscription_status != NO_SUBSCRIPTION
    ]


def _verdict(
    state: BillingState,
    ordered: Sequence[BillingState],
    policy: BillingPolicy,
) -> str:
    first = ordered[0]
    if len(ordered) == 1:
        return "Counts: it is the only one."
    if state is first:
        return f"Counts: {_advantage(first, ordered[1], policy)}."
    return f"Does not count: {_advantage(first, state, policy)}."


def _advantage(
    state: BillingState,
    other: BillingState,
    policy: BillingPolicy,
) -> str:
    """Say in what a subscription comes before another one."""
    mine, theirs = status_rank(state, policy), status_rank(other, policy)
    if mine.gives_plan and not theirs.has_plan and theirs.level > LEVELS["none"]:
        return f"{_plan_words(state)}, {_name(other)} has no item of a plan"
    facts = f"{_described(state, policy)}, {_described(other, policy)}"
    if mine.level != theirs.level:
        return facts
    if mine.has_plan != theirs.has_plan:
        return f"{facts}, and {_name(other)} has no item of a plan"
    if mine.plan_rank != theirs.plan_rank:
        return f"{facts}, and plan {plan_in_use(state, policy)} ranks above {plan_in_use(other, policy)}"
    return f"{facts}, and {_tie_break(state, other)}"


def _tie_break(state: BillingState, other: BillingState) -> str:
    if other.subscription_status == NO_SUBSCRIPTION:
        return "a subscription comes before a grant of a plan of the same rank"
    if state.subscription_created != other.subscription_created:
        return f"{_name(state)} is newer"
    return "the greater id decides between two of the same second"


def _plan_words(state: BillingState) -> str:
    if state.subscription_status == NO_SUBSCRIPTION:
        return f"a grant gives plan {state.plan}"
    return f"{_name(state)} has an item of a plan"


def _name(state: BillingState) -> str:
    return state.subscription_id or "the subscription without id"


def _described(state: BillingState, policy: BillingPolicy) -> str:
    if state.subscription_status == NO_SUBSCRIPTION:
        return _plan_words(state)
    text = f"{_name(state)} is {status_words(state.subscription_status)}"
    if failure_counts(state, policy):
        return f"{text} and was {status_words(state.provider_status or 'unknown')} before a payment failed"
    return f"{text} with quantity 0" if has_only_empty_items(state) else text


def _gives(
    state: BillingState,
    policy: BillingPolicy,
    now: float,
    *,
    is_current: bool,
) -> str:
    """Say what a subscription gives now; ``is_current`` if the tenant's access is from it."""
    period = period_at(periods(state, policy), now)
    if period.state is None:
        return "It has ended."
    if period.state == "none":
        return f"It gives no access. {period.reason}"
    text = _GIVES[period.state].format(plan_in_use(state, policy) or FREE)
    if (until := from_epoch(period.end)) is not None:
        text = f"{text} until {until:%Y-%m-%d %H:%M:%S} UTC"
    return f"{text}. The organization's access is from it." if is_current else f"{text}."
