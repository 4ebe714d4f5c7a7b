"""How a tenant's subscriptions are chosen: which of them decides the record, and which the access.

The plan that the operator gave is one of them.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.state import BillingPolicy, BillingState
from tenantry.domain.billing.subscription_access import LEVELS, plan_in_use, status_access
from tenantry.domain.plans import FREE, AccessState

MOST_SUBSCRIPTIONS: Final = 50
"""How many subscriptions of a tenant are kept with `SubscriptionRule.EACH`."""


class Rank(NamedTuple):
    """The place of a subscription among those of its tenant; the greatest counts."""

    gives_plan: bool
    level: int
    has_plan: bool
    plan_rank: int
    created: int
    id: str


def rank(
    state: BillingState,
    policy: BillingPolicy,
    access: AccessState | None,
) -> Rank:
    """Return a subscription's rank if it gives this access."""
    level, plan = LEVELS[access], plan_in_use(state, policy)
    return Rank(
        plan is not None and level > LEVELS["none"],
        level,
        plan is not None,
        -1 if plan is None else policy.catalog.rank(plan),
        state.subscription_created or 0,
        state.subscription_id or "",
    )


def status_rank(state: BillingState, policy: BillingPolicy) -> Rank:
    """Return a subscription's rank by what its status gives whatever the time."""
    return rank(state, policy, status_access(state, policy)[0])


def with_operator_plan(states: Sequence[BillingState], base_plan: str) -> list[BillingState]:
    """Add the plan that the operator gave, if any, to a tenant's states; one without states has
    only that.
    """
    if states and base_plan == FREE:
        return list(states)
    others = [state for state in states if state.subscription_status != NO_SUBSCRIPTION]
    # a plan of the operator is as a subscription with full access and no end
    return [*others, BillingState(plan=base_plan)]


def chosen_state(
    states: Sequence[BillingState],
    policy: BillingPolicy,
    base_plan: str,
) -> BillingState:
    """Return the state that decides the record."""
    candidates = with_operator_plan(states, base_plan) if policy.is_each or not states else states
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda state: status_rank(state, policy))
