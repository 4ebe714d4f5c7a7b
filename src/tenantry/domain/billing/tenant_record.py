"""The tenant's billing fields and access, from the states of its folds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from tenantry.common.clock import EPOCH_MAX
from tenantry.domain.access import (
    NO_SUBSCRIPTION,
    AccessPhase,
    Addons,
    access_of_status,
    phase_at,
    phase_of_status,
    sentence,
)
from tenantry.domain.billing.events import Fact
from tenantry.domain.billing.state import ACTIVE, CANCELED, BillingPolicy, BillingState
from tenantry.domain.plans import FREE, OVER, AccessState, Catalog

MOST_SUBSCRIPTIONS: Final = 50
"""How many subscriptions of a tenant are kept with `SubscriptionRule.EACH`."""
_LEVELS: Final[Mapping[AccessState | None, int]] = {"full": 3, "grace": 2, "none": 1, None: 0}
SPEC_FIELDS: Final = ("plan", "subscription_status", "current_period_end", "cancel_at_period_end")
"""The fields of the tenant record that SPEC 2.2 names."""


class BillingRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of the tenant record that events write. Times are seconds since the Unix epoch.

    ``access`` is empty where plan and status say everything.
    """

    plan: str = FREE
    subscription_status: str = NO_SUBSCRIPTION
    current_period_end: int | None = None
    cancel_at_period_end: bool = False
    cancel_at: int | None = None
    ends_at: int | None = None
    seats: int | None = None
    access: tuple[AccessPhase, ...] = ()


spec_fields: Final = attrgetter(*SPEC_FIELDS)
"""Return the four fields of a state or record that SPEC 2.2 names."""


def differences(
    before: BillingRecord | BillingState, after: BillingRecord | BillingState
) -> dict[str, tuple[Fact, Fact]]:
    """Return the fields of SPEC 2.2 in which two states differ, with the value in each."""
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in SPEC_FIELDS)
    return {name: (one, other) for name, one, other in pairs if one != other}


def record_of(states: Sequence[BillingState], policy: BillingPolicy) -> BillingRecord:
    """Return the billing fields of a tenant with these states of folds.

    With `SubscriptionRule.ANY` there is one. Of several subscriptions the first in `rank` counts.
    """
    chosen = max(states, key=lambda state: rank(state, policy)) if len(states) > 1 else states[0]
    status, seats, cancel_at = chosen.subscription_status, chosen.seats, chosen.details.cancel_at
    ends_at = cancel_at
    if status in OVER:
        ends_at, seats = chosen.details.ended_at or cancel_at, None
    if ends_at is None and chosen.cancel_at_period_end:
        ends_at = chosen.current_period_end
    access: tuple[AccessPhase, ...] = ()
    # unless something ends by time, plan and status say everything: the common case
    if policy.catalog.addons or any(state.past_due_since or state.paid_until for state in states):
        access = _access(states, chosen, policy)
    return BillingRecord(
        chosen.plan, status, chosen.current_period_end, chosen.cancel_at_period_end, cancel_at, ends_at, seats, access
    )


def access_phase(record: BillingRecord, now: float, catalog: Catalog) -> AccessPhase:
    """Return the access of a tenant at ``now``, in seconds since the Unix epoch."""
    if not record.access:
        return phase_of_status(record.plan, record.subscription_status, catalog)
    return phase_at(record.access, now)


def access_end(record: BillingRecord) -> int | None:
    """Return the second at which a tenant's access ends without another event; None if it does not."""
    if len(record.access) > 1 and record.access[-1].state == "none":
        return record.access[-2].until  # all phases but the last one give access
    return None


class Rank(NamedTuple):
    """The place of a subscription among those of its tenant; the greatest counts."""

    level: int
    has_plan: bool
    plan_rank: int
    created: int
    id: str


def rank(state: BillingState, policy: BillingPolicy, level: int | None = None) -> Rank:
    """Return a subscription's rank, by its access whatever the time, or by ``level``."""
    if level is None:
        level = _LEVELS[access_of_status(state.subscription_status, policy.catalog)]
    has_plan = state.seats is not None
    plan_rank = policy.catalog.rank(state.plan) if has_plan else -1
    return Rank(level, has_plan, plan_rank, state.subscription_created or 0, state.subscription_id or "")


_GIVES: Final = ("has ended", "gives no access", "gives access for a grace period", "gives full access")
"""What a subscription of each level does, in words."""


def choice(states: Collection[BillingState], policy: BillingPolicy) -> list[tuple[BillingState, str]]:
    """Return a tenant's subscriptions in the order of `rank`, each with the reason why it counts or does not."""
    ordered = sorted(states, key=lambda state: rank(state, policy), reverse=True)
    first, *others = ordered
    why = f"Counts: {_advantage(first, others[0], policy)}." if others else "Counts: it is the only one."
    return [(first, why), *((other, f"Does not count: {_advantage(first, other, policy)}.") for other in others)]


def _advantage(state: BillingState, other: BillingState, policy: BillingPolicy) -> str:
    """Say in what a subscription comes before another one."""
    mine, theirs = rank(state, policy), rank(other, policy)
    if mine.level != theirs.level:
        return f"{mine.id} {_GIVES[mine.level]}, {theirs.id} {_GIVES[theirs.level]}"
    if mine.has_plan != theirs.has_plan:
        return f"{mine.id} has an item of a plan, {theirs.id} has none"
    if mine.plan_rank != theirs.plan_rank:
        return f"both {_verb(mine.level)}, and plan {state.plan} ranks above {other.plan}"
    if mine.created != theirs.created:
        return f"both {_verb(mine.level)}, and {mine.id} is newer than {theirs.id}"
    return f"both {_verb(mine.level)} and were created in the same second, so the greater id decides"


def _verb(level: int) -> str:
    return _GIVES[level].replace("gives", "give").replace("has", "have")


def moved_away(state: BillingState, moved_at: int) -> BillingState:
    """Return the state of a subscription whose metadata names another tenant since ``moved_at``: it has ended."""
    details = msgspec.structs.replace(state.details, ended_at=moved_at)
    return msgspec.structs.replace(
        state,
        plan=FREE,
        subscription_status=CANCELED,
        current_period_end=None,
        seats=None,
        past_due_since=None,
        unpaid_invoices=(),
        details=details,
    )


def _access(states: Sequence[BillingState], chosen: BillingState, policy: BillingPolicy) -> tuple[AccessPhase, ...]:
    """Return the phases of a tenant's access; empty if the chosen state's plan and status say the same."""
    periods = [(state, _periods(state, policy)) for state in states]
    ends = sorted({end for _, phases in periods for end, _, _ in phases if end is not None})
    phases: list[AccessPhase] = []
    for end in (*ends, None):
        here = [(state, _period_at(each, end)) for state, each in periods]
        best, period = max(here, key=lambda pair: rank(pair[0], policy, _LEVELS[pair[1].state]))
        addons = _addons((state for state, each in here if _LEVELS[each.state] > _LEVELS["none"]), policy)
        if period.state in ("full", "grace"):
            phase = AccessPhase(period.state, best.plan, period.reason, end, addons)
        else:
            phase = AccessPhase("none", FREE, period.reason, end)
        if phases and msgspec.structs.replace(phases[-1], until=end, reason=phase.reason) == phase:
            phases.pop()
        phases.append(phase)
    if phases == [phase_of_status(chosen.plan, chosen.subscription_status, policy.catalog)]:
        return ()
    return tuple(phases)


class _Period(NamedTuple):
    """What a subscription gives until a second; None without an end."""

    end: int | None
    state: AccessState | None
    reason: str


def _periods(state: BillingState, policy: BillingPolicy) -> list[_Period]:
    status, catalog = state.subscription_status, policy.catalog
    if status == NO_SUBSCRIPTION:
        whole = phase_of_status(state.plan, status, catalog)
        return [_Period(None, whole.state, whole.reason)]
    access = access_of_status(status, catalog)
    if status == ACTIVE and state.paid_until is not None and ACTIVE not in catalog.access:
        return [
            _Period(min(state.paid_until, EPOCH_MAX), access, "Payments are paused; access ends with the paid period."),
            _Period(None, "none", "Payments are paused, and the paid period has ended."),
        ]
    if access == "grace" and state.past_due_since is not None:
        return [
            _Period(min(state.past_due_since + policy.past_due_grace, EPOCH_MAX), access, sentence(status)),
            _Period(None, "none", f"{sentence(status)} The grace period has ended."),
        ]
    return [_Period(None, access, sentence(status))]


def _period_at(periods: Iterable[_Period], end: int | None) -> _Period:
    """Return the period in the time before ``end``; None is after all ends."""
    return next(each for each in periods if each.end is None or (end is not None and end <= each.end))


def _addons(states: Iterable[BillingState], policy: BillingPolicy) -> Addons:
    """Return the add-ons of these subscriptions together, by id."""
    if not policy.catalog.addons:
        return ()
    quantities: dict[str, int] = {}
    for state in states:
        for item in state.details.items:
            addon = item.price_id and policy.catalog.addon_of_price(item.price_id)
            if addon and item.quantity:
                quantities[addon] = quantities.get(addon, 0) + item.quantity
    return tuple(sorted(quantities.items()))
