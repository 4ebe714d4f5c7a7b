"""What the subscriptions and grants of a tenant give it together, until which second, and why: the
one place that decides access.

`tenant_record.record_of` keeps the result in the tenant record. Whatever shows or enforces access
reads it there (`domain.access.current_phase`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.access import AccessPhase, Addons, phase_of_status
from tenantry.domain.billing.state import BillingPolicy, BillingState
from tenantry.domain.billing.subscription_access import (
    Period,
    billing_period,
    has_plan_item,
    is_plain,
    period_at,
    periods,
    plan_in_use,
)
from tenantry.domain.billing.subscription_rank import rank, with_grants
from tenantry.domain.billing_months import BillingMonths
from tenantry.domain.entitlements import BillingPhase
from tenantry.domain.grants import GrantTerms, combined_features, combined_limits
from tenantry.domain.plans import FREE

_GIVING: Final = ("full", "grace")


def access_phases(
    states: Sequence[BillingState],
    grants: Sequence[BillingState],
    chosen: BillingState,
    policy: BillingPolicy,
) -> tuple[AccessPhase, ...]:
    """Return the phases of a tenant's access; empty if the plan and status of the ``chosen`` state
    say the same.
    """
    if not grants and not policy.catalog.addons and all(map(is_plain, states)):
        return ()  # the common case
    phases = _phases(with_grants(states, grants), policy)
    is_said_already = phases == [
        phase_of_status(chosen.plan, chosen.subscription_status, policy.catalog)
    ]
    return () if is_said_already else tuple(phases)


def billing_phases(
    states: Sequence[BillingState], grants: Sequence[BillingState], policy: BillingPolicy
) -> tuple[BillingPhase, ...]:
    """Return the billing periods and months that a tenant's quotas follow: at each time those of
    the plan item of the subscription that gives the access.

    One that gives none has no part in it, nor has a grant. Empty if quotas always follow the
    calendar month.
    """
    if not policy.catalog.has_billing_periods and not policy.catalog.has_billing_months:
        return ()
    phases: list[BillingPhase] = []
    for moment in _moments(with_grants(states, grants), policy):
        phase = _billing_phase(moment, policy)
        if phases and msgspec.structs.replace(phases[-1], until=moment.end) == phase:
            phases.pop()
        phases.append(phase)
    return tuple(phases) if any(phase.period or phase.months for phase in phases) else ()


_Given = tuple[BillingState, Period]
"""What a subscription or a grant gives at a time."""


class _Moment(NamedTuple):
    """What each state of a tenant gives until ``end``, since the end before that."""

    end: int | None
    second: float
    given: Sequence[_Given]


def _billing_phase(moment: _Moment, policy: BillingPolicy) -> BillingPhase:
    state, given = _giver(moment.given, policy)
    if given.state not in _GIVING or not has_plan_item(state, policy):
        return BillingPhase(until=moment.end)
    period = billing_period(state, policy) if policy.catalog.has_billing_periods else None
    anchor = state.details.anchor
    months = None if anchor is None else BillingMonths(anchor, state.running_month)
    return BillingPhase(period, moment.end, months)


def _moments(states: Sequence[BillingState], policy: BillingPolicy) -> Iterator[_Moment]:
    """Yield the times between the ends of what a tenant's states give, in order."""
    periods_of = [(state, periods(state, policy)) for state in states]
    for end in (*_ends(periods_of, _terms(states)), None):
        second = math.inf if end is None else end - 1
        yield _Moment(
            end, second, [(state, period_at(of_state, second)) for state, of_state in periods_of]
        )


def _terms(states: Sequence[BillingState]) -> list[GrantTerms]:
    return [state.grant.terms for state in states if state.grant is not None]


def _phases(states: Sequence[BillingState], policy: BillingPolicy) -> list[AccessPhase]:
    """Return a tenant's access by the ends of what each of its states gives; equal phases are
    one.
    """
    if len(states) == 1 and states[0].grant is None:  # halves the time for a trial: 18 us to 8
        [state] = states
        return [_phase([(state, period)], period.end, policy) for period in periods(state, policy)]
    terms = _terms(states)
    phases: list[AccessPhase] = []
    for moment in _moments(states, policy):
        phase = _with_granted(_phase(moment.given, moment.end, policy), terms, moment.second)
        if phases and _is_same_access(phases[-1], phase):
            phases.pop()
        phases.append(phase)
    return phases


def _ends(
    periods_of: Sequence[tuple[BillingState, Sequence[Period]]], terms: Sequence[GrantTerms]
) -> list[int]:
    """Return the seconds at which something ends that subscriptions or grants give, in order."""
    every_period = chain.from_iterable(of_state for _, of_state in periods_of)
    ends = {period.end for period in every_period}
    ends.update(each.until for each in terms)
    return sorted(end for end in ends if end is not None)


def _with_granted(phase: AccessPhase, terms: Sequence[GrantTerms], second: float) -> AccessPhase:
    """Return a phase with the features and limits of the grants that count at a second."""
    counted = [each for each in terms if each.counts_at(second)]
    features, limits = combined_features(counted), combined_limits(counted)
    if not features and not limits:
        return phase
    return msgspec.structs.replace(phase, features=features, limits=limits)


def _is_same_access(phase: AccessPhase, later: AccessPhase) -> bool:
    return msgspec.structs.replace(phase, until=later.until, reason=later.reason) == later


def _giver(given: Sequence[_Given], policy: BillingPolicy) -> _Given:
    """Return the state that gives a tenant's access, with what it gives."""
    if len(given) == 1:
        return given[0]
    return max(given, key=lambda pair: rank(pair[0], policy, pair[1].state))


def _phase(given: Sequence[_Given], end: int | None, policy: BillingPolicy) -> AccessPhase:
    """Return a tenant's access until ``end``, from what each of its states gives then."""
    best, period = _giver(given, policy)
    if period.state not in _GIVING:
        return AccessPhase("none", FREE, period.reason, end)
    plan = plan_in_use(best, policy) or FREE
    addons = _addons((state for state, each in given if each.state in _GIVING), policy)
    return AccessPhase(period.state, plan, period.reason, end, addons)


def _addons(states: Iterable[BillingState], policy: BillingPolicy) -> Addons:
    """Return the add-ons of these subscriptions together, by id."""
    if not policy.catalog.addons:
        return ()
    items = chain.from_iterable(state.details.items for state in states)
    quantities = Counter[str]()
    for item in items:
        if item.quantity and (addon := policy.catalog.addon_of_price(item.price_id)):
            quantities[addon] += item.quantity
    return tuple(sorted(quantities.items()))
