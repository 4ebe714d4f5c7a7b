"""How a tenant's subscriptions are chosen: which of them decides the record, and which the access.

The grants of the operator take part: each is as a subscription that is always paid, and older than
every other one.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.state import BillingPolicy, BillingState
from tenantry.domain.billing.subscription_access import LEVELS, plan_in_use, status_access
from tenantry.domain.plans import FREE, AccessState

NO_SUBSCRIPTIONS: Final = BillingState()
"""The state before all events: of a tenant without subscriptions, and of a grant."""
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


def with_grants(
    states: Sequence[BillingState], grants: Sequence[BillingState]
) -> list[BillingState]:
    """Add grants to the states of a tenant's subscriptions, as that of a subscription with full
    access; a tenant with neither has the state before all events.
    """
    known = [state for state in states if state.subscription_status != NO_SUBSCRIPTION]
    return [*known, *grants] or [NO_SUBSCRIPTIONS]


def record_candidates(
    states: Sequence[BillingState],
    grants: Sequence[BillingState],
    policy: BillingPolicy,
) -> Sequence[BillingState]:
    """Return the states of which the first in `status_rank` decides the record.

    The record has no clock: a grant that ends by itself is among them only where the tenant has no
    subscription, whose plan and status would be hidden after the end.
    """
    if not grants:
        return states or [NO_SUBSCRIPTIONS]  # the common case
    known = [state for state in states if state.subscription_status != NO_SUBSCRIPTION]
    if not known:
        return grants
    return [*known, *filter(is_for_good, grants)] if policy.is_each else known


def is_for_good(state: BillingState) -> bool:
    """Whether a grant gives a plan without an end."""
    return state.grant is not None and state.grant.terms.until is None and state.plan != FREE


def chosen_state(
    states: Sequence[BillingState],
    grants: Sequence[BillingState],
    policy: BillingPolicy,
) -> BillingState:
    """Return the state that decides the record."""
    candidates = record_candidates(states, grants, policy)
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda state: status_rank(state, policy))
