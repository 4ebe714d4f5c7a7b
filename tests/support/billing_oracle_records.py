"""The tenant's record that its events lead to, in the billing oracle."""

from collections import Counter
from dataclasses import dataclass, replace

from tests.support.billing_oracle_events import subscription_id_of
from tests.support.billing_oracle_folds import (
    GIVEN_BY_OPERATOR,
    RANKS,
    AccessState,
    Folded,
    apply_event,
    end_subscription,
)
from tests.support.billing_oracle_placement import Placement
from tests.support.provider_world import History, HistoryTenant


@dataclass(frozen=True)
class ExpectedAccess:
    """What a tenant has now. `ended` is when access ended without another event, if it did."""

    state: AccessState
    plan: str
    until: int | None
    ended: int | None = None


@dataclass(frozen=True)
class ExpectedTenant:
    """The record that a tenant must have. Times are seconds since the Unix epoch."""

    plan: str
    subscription_status: str
    current_period_end: int | None
    cancel_at_period_end: bool
    cancel_at: int | None
    ends_at: int | None
    seats: int | None
    access: ExpectedAccess


def subscriptions_of(history: History, placement: Placement, tenant: str) -> dict[str, Folded]:
    """Fold each subscription of a tenant by itself."""
    folded: dict[str, Folded] = {}
    for position in sorted(placement.tenant_of):
        event = history.events[position]
        id_ = subscription_id_of(event)
        if placement.tenant_of[position] == tenant and id_ is not None:
            folded[id_] = apply_event(folded.get(id_, Folded(id=id_)), event, "each")
    for id_, when in placement.moved_away.get(tenant, {}).items():
        # nothing has ended where no event of it is the tenant's, or payments alone
        if id_ in folded and folded[id_].status != "none":
            folded[id_] = replace(end_subscription(folded[id_], when), is_moved=True)
    return folded


def all_events_of(history: History, placement: Placement, tenant: HistoryTenant) -> Folded:
    """Fold all events of a tenant into one state."""
    state = Folded(plan=tenant.plan, has_plan_item=tenant.plan != "free")
    for position in sorted(placement.tenant_of):
        if placement.tenant_of[position] == tenant.id:
            state = apply_event(state, history.events[position], "any")
    return state


def _given_by_operator(tenant: HistoryTenant) -> Folded:
    """The operator's plan counts like a subscription with full access and no end, older than every
    other one.
    """
    return Folded(
        status=GIVEN_BY_OPERATOR,
        plan=tenant.plan,
        access_plan=tenant.plan,
        has_plan_item=True,
        created=-1,
    )


def _choice(state: Folded) -> tuple[bool, int, bool, int, int, str]:
    """Return by what subscriptions are chosen, the greatest first.

    A plan item that gives access before all others, full before grace, a plan item, rank, newest
    `created`, id.
    """
    strength = {"full": 3, "grace": 2, "none": 1}[state.access]
    if state.is_over:
        strength = 0
    gives_plan = state.has_plan_item and state.access != "none"
    return gives_plan, strength, state.has_plan_item, RANKS[state.plan], state.created, state.id


def _given_at(states: list[Folded], moment: int) -> tuple[AccessState, str, Counter[str]]:
    """Return the access, the plan and the add-ons at a moment: of the first state whose access has
    not ended.
    """
    giving = [
        state
        for state in states
        if state.access != "none" and (state.access_ends is None or moment < state.access_ends)
    ]
    addons: Counter[str] = Counter()
    for state in giving:
        for name, quantity in state.addons:
            addons[name] += quantity
    return (giving[0].access, giving[0].access_plan, addons) if giving else ("none", "free", addons)


def _access_at(states: list[Folded], now: int) -> ExpectedAccess:
    """Return the access now, and when it ends without another event."""
    state, plan, addons = _given_at(states, now)
    later = sorted(
        one.access_ends for one in states if one.access_ends is not None and one.access_ends > now
    )
    until = next(
        (moment for moment in later if _given_at(states, moment) != (state, plan, addons)), None
    )
    ends = [one.access_ends or 0 for one in states if one.access != "none"]
    return ExpectedAccess(state, plan, until, max(ends, default=None) if state == "none" else None)


def record_of(
    history: History, placement: Placement, tenant: HistoryTenant, now: int
) -> ExpectedTenant:
    """Return the record that a tenant must have now."""
    if history.mode == "any":
        states = [all_events_of(history, placement, tenant)]
    else:
        folded = subscriptions_of(history, placement, tenant.id).values()
        states = [state for state in folded if state.status != "none"]
    whole = states[:1]  # `any`: the record is of the last events, whatever gives the access
    if tenant.plan != "free":
        states.append(_given_by_operator(tenant))
    states.sort(key=_choice, reverse=True)
    chosen = whole[0] if history.mode == "any" else next(iter(states), Folded())
    return ExpectedTenant(
        plan=chosen.plan,
        subscription_status="none" if chosen.status == GIVEN_BY_OPERATOR else chosen.status,
        current_period_end=chosen.period_end,
        cancel_at_period_end=chosen.cancel_at_period_end,
        cancel_at=chosen.cancel_at,
        ends_at=chosen.ends_at,
        seats=chosen.seats,
        access=_access_at(states, now),
    )
