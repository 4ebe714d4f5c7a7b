"""The order of the events of one second, whatever the order in which they arrived."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from tenantry.domain.billing.events import SNAPSHOT, SUBSCRIPTION_TYPES, TRACKED, BillingEvent, Fact
from tenantry.domain.billing.state import BillingPolicy, BillingState, apply, plan_of

_LONGEST_CHAIN: Final = 6
"""How many events of one second are tried in every order."""

_MOST_COMPARED: Final = 64
_ENDS_OF_A_TIE: Final = 2
_MOST_CHAINS: Final = 24
_TELLING: Final = SUBSCRIPTION_TYPES | {SNAPSHOT}
_PLAN: Final = "plan"
Facts = Mapping[str, Fact]


def in_order(events: Sequence[BillingEvent], before: BillingState, policy: BillingPolicy) -> list[BillingEvent]:
    """Sort events of one second by what ``previous`` proves, else by arrival; ``before`` is the state at its start.

    Each event replaced what the one before it had set. An order of a subscription's events in which that holds
    throughout is the right one (of several, the first by arrival); without one, each two events are compared. More than
    64 events are in the order of arrival.
    """
    waiting = sorted(events, key=attrgetter("arrival"))
    if proves_nothing(waiting):
        return waiting
    precedence = _precedence(_subscriptions(waiting, before, policy, most_chains=1), waiting)
    ordered: list[BillingEvent] = []
    while waiting:
        left = {event.id for event in waiting}
        first = next(
            (event for event in waiting if left.isdisjoint(precedence[event.id])),
            waiting[0],  # a circle of proofs proves nothing: arrival decides
        )
        waiting.remove(first)
        ordered.append(first)
    return ordered


def proves_nothing(events: Sequence[BillingEvent]) -> bool:
    """Whether these events of one second are in the order of their arrival, without a look at what they say."""
    return len(events) == 1 or len(events) > _MOST_COMPARED or all(_may_follow_anything(event) for event in events)


def is_decided(events: Sequence[BillingEvent], before: BillingState, policy: BillingPolicy) -> bool:
    """Whether these events of one second lead to one state in every order that nothing disproves.

    Events that say the same count once. More than six others count as undecided, and so do those whose proofs leave
    very many orders.
    """
    events = list({_effect(event): event for event in events}.values())
    if len(events) == 1:
        return True
    if len(events) > _LONGEST_CHAIN:
        return False
    subscriptions = _subscriptions(sorted(events, key=attrgetter("arrival")), before, policy, most_chains=_MOST_CHAINS)
    if any(len(each.chains) == _MOST_CHAINS for each in subscriptions):
        return False
    precedence = _precedence([subscription for subscription in subscriptions if not subscription.chains], events)
    ends: set[BillingState] = set()
    ways = [_Way(before, (), frozenset(event.id for event in events))]
    known = set(ways)
    while ways and len(ends) < _ENDS_OF_A_TIE:
        way = ways.pop()
        if not way.left:
            ends.add(way.state)
        for event in events:
            if event.id not in way.left or not way.left.isdisjoint(precedence[event.id]):
                continue
            done = (*way.done, event.id) if any(event.id in each.chained for each in subscriptions) else way.done
            if all(each.allows(done) for each in subscriptions):
                further = _Way(apply(way.state, event, policy).state, done, way.left - {event.id})
                if further not in known:
                    known.add(further)
                    ways.append(further)
    return len(ends) < _ENDS_OF_A_TIE


def _effect(event: BillingEvent) -> tuple[object, ...]:
    """All that `apply` and the proofs of order see of an event."""
    if event.type not in _TELLING:
        return (event.type,)
    previous = None if event.previous is None else tuple(sorted(event.previous.items()))
    own = event.arrival if event.type == SNAPSHOT else None  # its place depends on when it was asked for
    facts = tuple(getattr(event, fact) for fact in TRACKED)
    return event.type, event.subscription_id, event.subscription_created, facts, previous, own


class _Way(NamedTuple):
    """The state that some of a second's events lead to, those of them whose order counts, and the ones left."""

    state: BillingState
    done: tuple[str, ...]
    left: frozenset[str]


class _Subscription(NamedTuple):
    """The events of one subscription, and the orders in which each replaced what the one before it had set."""

    events: tuple[BillingEvent, ...]
    chains: list[list[str]]

    @property
    def chained(self) -> frozenset[str]:
        return frozenset(self.chains[0] if self.chains else ())

    def allows(self, done: Sequence[str]) -> bool:
        own = [event_id for event_id in done if event_id in self.chained]
        return not self.chains or any(chain[: len(own)] == own for chain in self.chains)


def _subscriptions(
    events: Sequence[BillingEvent], before: BillingState, policy: BillingPolicy, *, most_chains: int
) -> list[_Subscription]:
    changes = [event for event in events if event.type in _TELLING]
    changes.sort(key=lambda event: (event.subscription_id or "", event.arrival))
    found = []
    for subscription_id, group in groupby(changes, key=attrgetter("subscription_id")):
        together = tuple(group)
        known = _facts_of_state(before) if subscription_id and subscription_id == before.subscription_id else {}
        chains: list[list[str]] = []
        told = tuple(event for event in together if event.type != SNAPSHOT)
        if len(told) <= _LONGEST_CHAIN and not all(_may_follow_anything(event) for event in together):
            # an answer that found things otherwise than the events say has no place in a chain of theirs
            for members, start in ((together, known), (told, known), (together, {}), (told, {})):
                chains = chains or list(islice(_chains(members, start, policy), most_chains))
        found.append(_Subscription(together, [chain for chain in chains if chain]))
    return found


def _precedence(subscriptions: Sequence[_Subscription], second: Sequence[BillingEvent]) -> dict[str, set[str]]:
    """The ids of the events that each event must follow: the one before it in the first chain, else by twos.

    An answer follows all that had come in before the question: its arrival number was taken then.
    """
    precedence: dict[str, set[str]] = {event.id: set() for event in second}
    for events, chains in subscriptions:
        if chains:
            precedence |= {later: {earlier} for earlier, later in pairwise(chains[0])}
        for event in events:
            if not chains or event.id not in chains[0]:
                precedence[event.id] = {other.id for other in events if _is_proven_after(event, other)}
    for answer in second:
        if answer.type == SNAPSHOT:
            earlier = [event for event in second if event.arrival < answer.arrival]
            precedence[answer.id] |= {event.id for event in earlier}
            for event in earlier:
                precedence[event.id].discard(answer.id)
    return precedence


def _chains(events: tuple[BillingEvent, ...], known: Facts, policy: BillingPolicy) -> Iterator[list[str]]:
    """The orders of events in which each replaced what the one before it had set; the first by arrival first."""
    if not events:
        yield []
    for event in events:
        if event.type == SNAPSHOT and event is not events[0]:
            continue  # those with smaller arrival numbers had come in before the question
        if _may_follow_anything(event) or _follows(event, known, policy):
            others = tuple(other for other in events if other is not event)
            for rest in _chains(others, _facts_of_event(event), policy):
                yield [event.id, *rest]


def _may_follow_anything(event: BillingEvent) -> bool:
    """An event that does not say what it replaced; an answer of the provider replaced nothing, it found things so."""
    return event.previous is None and event.type != SNAPSHOT


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
