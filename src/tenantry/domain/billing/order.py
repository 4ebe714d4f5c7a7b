"""The order of the events of one second, whatever the order in which they arrived."""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Final

from tenantry.domain.billing.events import SUBSCRIPTION_TYPES, TRACKED, BillingEvent, Fact
from tenantry.domain.billing.state import BillingPolicy, BillingState, plan_of

_LONGEST_CHAIN: Final = 6
"""How many events of one subscription and second are tried in every order."""

_PLAN: Final = "plan"
Facts = Mapping[str, Fact]


def in_order(events: Sequence[BillingEvent], before: BillingState, policy: BillingPolicy) -> list[BillingEvent]:
    """Sort events of one second by what ``previous`` proves, else by arrival; ``before`` is the state at its start.

    Each event replaced what the one before it had set. An order of a subscription's events in which that holds
    throughout is the right one (of several, the first by arrival); without one, each two events are compared.
    """
    waiting = sorted(events, key=attrgetter("arrival"))
    if len(waiting) == 1 or not any(event.previous for event in waiting):
        return waiting
    precedence = _proven(waiting, before, policy)
    ordered: list[BillingEvent] = []
    while waiting:
        left = {event.id for event in waiting}
        first = next(
            (event for event in waiting if left.isdisjoint(precedence.get(event.id, ()))),
            waiting[0],  # a circle of proofs proves nothing: arrival decides
        )
        waiting.remove(first)
        ordered.append(first)
    return ordered


def _proven(events: Sequence[BillingEvent], before: BillingState, policy: BillingPolicy) -> dict[str, set[str]]:
    """The ids of the events that each event must follow."""
    changes = [event for event in events if event.type in SUBSCRIPTION_TYPES]
    changes.sort(key=lambda event: (event.subscription_id or "", event.arrival))
    precedence: dict[str, set[str]] = {}
    for subscription_id, group in groupby(changes, key=attrgetter("subscription_id")):
        together = tuple(group)
        known = _facts_of_state(before) if subscription_id and subscription_id == before.subscription_id else {}
        chain = _chain(together, known, policy) or _chain(together, {}, policy)
        if chain:
            precedence |= {later.id: {earlier.id} for earlier, later in pairwise(chain)}
        else:
            precedence |= {
                event.id: {other.id for other in together if _is_proven_after(event, other)} for event in together
            }
    return precedence


def _chain(events: tuple[BillingEvent, ...], known: Facts, policy: BillingPolicy) -> list[BillingEvent] | None:
    """The events in an order in which each replaced what the one before it had set; the first such by arrival."""
    if not events:
        return []
    if len(events) > _LONGEST_CHAIN:
        return None
    for event in events:
        if not event.previous or _follows(event, known, policy):
            others = tuple(other for other in events if other is not event)
            rest = _chain(others, _facts_of_event(event), policy)
            if rest is not None:
                return [event, *rest]
    return None


def _follows(event: BillingEvent, known: Facts, policy: BillingPolicy) -> bool:
    """Whether what is known is what ``event`` says was before it: what it replaced, and what it left as it was."""
    for fact in TRACKED:
        value = (event.previous or {}).get(fact, getattr(event, fact))
        if known.get(fact, value) != value:
            return False
        if fact == "price_id" and _PLAN in known and known[_PLAN] != plan_of(_as_text(value), policy.catalog)[0]:
            return False
    return True


def _is_proven_after(event: BillingEvent, other: BillingEvent) -> bool:
    """Whether ``event`` replaced just what ``other`` set, and not also the other way round."""
    return event is not other and _replaced(event, other) and not _replaced(other, event)


def _replaced(event: BillingEvent, other: BillingEvent) -> bool:
    return bool(event.previous) and all(getattr(other, fact) == value for fact, value in (event.previous or {}).items())


def _as_text(value: Fact) -> str | None:
    return value if isinstance(value, str) else None


def _facts_of_event(event: BillingEvent) -> Facts:
    return {fact: getattr(event, fact) for fact in TRACKED}


def _facts_of_state(state: BillingState) -> Facts:
    return {
        "status": state.provider_status,
        "current_period_end": state.current_period_end,
        "cancel_at_period_end": state.cancel_at_period_end,
        _PLAN: state.plan,
    }
