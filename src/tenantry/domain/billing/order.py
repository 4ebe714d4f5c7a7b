"""The order of the events of one second, whatever the order in which they arrived.

The provider's ``created`` counts seconds. Within a second, the payloads prove this much:

- An event with ``previous_attributes`` replaced what the event of the same subscription before it had set. Of all
  orders of a subscription's events, those count in which the fewest events replaced a state that no event set.
- Nothing follows ``deleted`` of the same subscription, an invoice event of that subscription included.
- A paid invoice does not fail afterwards; two attempts to pay an invoice are ordered by ``attempt_count``.
- A snapshot follows every event that had arrived when the provider was asked.

Where this leaves several orders, the order of arrival decides, and `is_decided` says whether the others end elsewhere.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.billing.events import (
    INVOICE_TYPES,
    PAID,
    PAYMENT_SUCCEEDED,
    SNAPSHOT,
    SUBSCRIPTION_DELETED,
    SUBSCRIPTION_TYPES,
    TRACKED,
    BillingEvent,
    Fact,
)
from tenantry.domain.billing.state import BillingPolicy, BillingState, KnownSubscription, apply, known_of, plan_of

MOST_COMPARED: Final = 64
"""How many events of one second are compared. Where there are more, the order of arrival decides."""
_MOST_STEPS: Final = 1000
"""How many partial orders of one subscription's events, or of a second's, are tried."""
_MOST_UNLINKED: Final = 3
"""How many events may have replaced a state never seen. Where there are more, proof must wait for the missing ones."""

_OF_SUBSCRIPTION: Final = SUBSCRIPTION_TYPES | {SNAPSHOT}
_Counts = tuple[int, ...]


def in_order(events: Sequence[BillingEvent], before: BillingState, policy: BillingPolicy) -> list[BillingEvent]:
    """Sort the events of one second; ``before`` is the tenant's state at its start.

    Of the orders that the payloads allow, the one nearest to the order of arrival is taken.
    """
    waiting = sorted(events, key=attrgetter("arrival"))
    if is_by_arrival(waiting):
        return waiting
    second = _Second(_alike(waiting), before, policy)
    kind_of = {event.id: number for number, kind in enumerate(second.kinds) for event in kind.events}
    place, ordered = second.start, list[BillingEvent]()
    while waiting:
        allowed = set(second.next_kinds(place))
        first = next((event for event in waiting if kind_of[event.id] in allowed), waiting[0])
        waiting.remove(first)
        ordered.append(first)
        place = second.after(place, kind_of[first.id])
    return ordered


def is_by_arrival(events: Sequence[BillingEvent]) -> bool:
    """Whether these events of one second are in the order of arrival because no payload says anything about it."""
    if len(events) == 1 or len(events) > MOST_COMPARED:
        return True
    invoices = [event.invoice_id for event in events if event.type in INVOICE_TYPES and event.invoice_id is not None]
    return len(invoices) == len(set(invoices)) and not any(_says_something(event) for event in events)


def is_decided(events: Sequence[BillingEvent], before: BillingState, policy: BillingPolicy) -> bool:
    """Whether all orders of one second's events that the payloads allow lead to the same state.

    False as well for a second with too many events, or too many possible orders, to try them all.
    """
    groups = _alike(sorted(events, key=attrgetter("arrival")))
    if len(groups) == 1:
        return True
    if len(events) > MOST_COMPARED:
        return False
    second = _Second(groups, before, policy)
    if not second.is_searched:
        return False
    ends: set[BillingState] = set()
    ways = [_Way(before, second.start)]
    seen = set(ways)
    while ways:
        way = ways.pop()
        if second.is_complete(way.place):
            ends.add(msgspec.structs.replace(way.state, others=()))  # what the tenant's state is not from
        for kind in second.next_kinds(way.place):
            event = second.kinds[kind].events[0]
            further = _Way(apply(way.state, event, policy).state, second.after(way.place, kind))
            if further not in seen:
                seen.add(further)
                ways.append(further)
        if len(ends) > 1 or len(seen) > _MOST_STEPS:
            return False
    return bool(ends)  # none where the payloads contradict each other


class _Place(NamedTuple):
    """How far an order of a second has come: how many events of each kind, and each subscription's last kind."""

    counts: tuple[int, ...]
    last: tuple[int | None, ...]


class _Way(NamedTuple):
    """A tenant's state after part of an order."""

    state: BillingState
    place: _Place


class _Kind(NamedTuple):
    """Events of one second that say the same, by arrival, and how many events of other kinds must precede them."""

    events: tuple[BillingEvent, ...]
    follows: Mapping[int, int]


class _Second:
    """The events of one second, and the orders that their payloads allow."""

    def __init__(self, groups: Sequence[Sequence[BillingEvent]], before: BillingState, policy: BillingPolicy) -> None:
        self.kinds = [_Kind(tuple(group), _preceding(group[0], groups)) for group in groups]
        numbers = defaultdict(list)
        for number, kind in enumerate(self.kinds):
            if kind.events[0].type in _OF_SUBSCRIPTION:
                numbers[kind.events[0].subscription_id].append(number)
        self._subscriptions = [
            _Subscription(members, self.kinds, known_of(before, subscription_id), policy)
            for subscription_id, members in numbers.items()
        ]
        self._subscription_of = {number: index for index, members in enumerate(numbers.values()) for number in members}
        self.start = _Place((0,) * len(self.kinds), (None,) * len(self._subscriptions))
        self._end = tuple(len(kind.events) for kind in self.kinds)

    @property
    def is_searched(self) -> bool:
        """Whether every subscription's events were few enough to find their orders."""
        return all(subscription.is_searched for subscription in self._subscriptions)

    def is_complete(self, place: _Place) -> bool:
        return place.counts == self._end

    def next_kinds(self, place: _Place) -> Iterator[int]:
        """The kinds of which an event may come next."""
        for number, kind in enumerate(self.kinds):
            if place.counts[number] == self._end[number]:
                continue
            if any(place.counts[other] < count for other, count in kind.follows.items()):
                continue
            index = self._subscription_of.get(number)
            if index is None or self._subscriptions[index].allows(place.counts, place.last[index], number):
                yield number

    def after(self, place: _Place, number: int) -> _Place:
        """The place after one more event of a kind."""
        index = self._subscription_of.get(number)
        last = tuple(number if index == other else known for other, known in enumerate(place.last))
        return _Place(_one_more(place.counts, number), last)


class _Subscription:
    """The kinds of one subscription's events, and their orders in which the fewest replaced a state never seen."""

    def __init__(
        self, members: Sequence[int], kinds: Sequence[_Kind], known: KnownSubscription | None, policy: BillingPolicy
    ) -> None:
        self._members = members
        self._kinds = kinds
        events = {number: kinds[number].events[0] for number in members}
        self._unlinked = {
            (last, number): not _is_free(event)
            and not (_finds(known, event, policy) if last is None else _replaces(event, events[last]))
            for number, event in events.items()
            for last in (None, *members)
        }
        self._costs = self._search() if self._fewest_unlinked(known, policy) <= _MOST_UNLINKED else None

    @property
    def is_searched(self) -> bool:
        return self._costs is not None

    def allows(self, counts: _Counts, last: int | None, number: int) -> bool:
        """Whether this kind may come next in an order that has these counts and ends with ``last``."""
        if self._costs is None:
            return True
        here = _Step(tuple(counts[member] for member in self._members), last)
        there = _Step(_one_more(here.counts, self._members.index(number)), number)
        return self._costs.get(there, -1) == self._costs.get(here, 0) + self._unlinked[last, number]

    def _search(self) -> "dict[_Step, int] | None":
        """The steps of the orders with the fewest unlinked events, with the number of those so far.

        None if there are too many of either. All steps with equally many are found before any with more, so the result
        does not depend on arrival.
        """
        end = tuple(len(self._kinds[member].events) for member in self._members)
        costs: dict[_Step, int] = {}
        layer, cost = [_Step((0,) * len(end), None)], 0
        while layer and cost <= _MOST_UNLINKED and not any(step.counts == end for step in costs):
            dearer: list[_Step] = []
            while layer:
                step = layer.pop()
                if step in costs:
                    continue
                costs[step] = cost
                for further, is_unlinked in self._further(step):
                    (dearer if is_unlinked else layer).append(further)
                if len(costs) > _MOST_STEPS:
                    return None
            layer, cost = dearer, cost + 1
        leading = self._leading_to(end, costs)
        return leading or None

    def _fewest_unlinked(self, known: KnownSubscription | None, policy: BillingPolicy) -> int:
        """A lower bound: events that replaced one state need as many events, or ``known``, that set it."""
        events = [event for member in self._members for event in self._kinds[member].events]
        replaced = Counter(tuple(_before(event, fact) for fact in TRACKED) for event in events if not _is_free(event))
        replaced.subtract(tuple(getattr(event, fact) for fact in TRACKED) for event in events)
        missing = sum(count for count in replaced.values() if count > 0)
        return missing - any(not _is_free(event) and _finds(known, event, policy) for event in events)

    def _leading_to(self, end: _Counts, costs: Mapping["_Step", int]) -> dict["_Step", int]:
        leading: dict[_Step, int] = {}
        for step in sorted(costs, key=lambda step: sum(step.counts), reverse=True):
            if step.counts == end or any(
                leading.get(further) == costs[step] + is_unlinked for further, is_unlinked in self._further(step)
            ):
                leading[step] = costs[step]
        return leading

    def _further(self, step: "_Step") -> Iterator[tuple["_Step", bool]]:
        """The steps that may follow, and whether the event that leads there is unlinked."""
        done = dict(zip(self._members, step.counts, strict=True))
        for position, number in enumerate(self._members):
            kind = self._kinds[number]
            if done[number] < len(kind.events) and all(done.get(other, n) >= n for other, n in kind.follows.items()):
                yield _Step(_one_more(step.counts, position), number), self._unlinked[step.last, number]


class _Step(NamedTuple):
    """How many events of each of a subscription's kinds an order has had, and the kind of the last one."""

    counts: _Counts
    last: int | None


def _one_more(counts: _Counts, position: int) -> _Counts:
    return (*counts[:position], counts[position] + 1, *counts[position + 1 :])


def _alike(events: Sequence[BillingEvent]) -> list[list[BillingEvent]]:
    """The events, those that say the same together."""
    invoices = Counter(event.invoice_id for event in events if event.type in INVOICE_TYPES and event.invoice_id)
    deleted = {event.subscription_id for event in events if event.type == SUBSCRIPTION_DELETED} - {None}
    groups: defaultdict[object, list[BillingEvent]] = defaultdict(list)
    for event in events:
        groups[_effect(event, invoices, deleted)].append(event)
    return list(groups.values())


def _preceding(event: BillingEvent, groups: Sequence[Sequence[BillingEvent]]) -> dict[int, int]:
    """How many events of which groups come before an event."""
    counts = (0 if event in group else _how_many_precede(group, event) for group in groups)
    return {number: count for number, count in enumerate(counts) if count}


def _effect(event: BillingEvent, invoices: Mapping[str, int], deleted: Collection[str | None]) -> tuple[object, ...]:
    """All that the state and the order depend on; an invoice's facts count only where others refer to them."""
    if event.type in _OF_SUBSCRIPTION:
        previous = None if event.previous is None else tuple(sorted(event.previous.items()))
        asked = event.arrival if event.type == SNAPSHOT else None
        facts = tuple(getattr(event, fact) for fact in TRACKED)
        return event.type, event.subscription_id, event.subscription_created, facts, previous, asked
    subscription_id = event.subscription_id if event.subscription_id in deleted else None
    if invoices.get(event.invoice_id or "", 0) > 1:
        return event.type, subscription_id, event.invoice_id, event.attempt_count, event.status
    return event.type, subscription_id


def _how_many_precede(events: Sequence[BillingEvent], later: BillingEvent) -> int:
    """How many of these events, which say the same, come before ``later``."""
    if later.type == SNAPSHOT:
        return sum(event.arrival < later.arrival for event in events)
    return len(events) if _precedes(events[0], later) else 0


def _precedes(event: BillingEvent, later: BillingEvent) -> bool:
    """Whether the payloads, ``previous_attributes`` aside, prove that an event came before another one."""
    if later.type == SUBSCRIPTION_DELETED and event.type not in (SUBSCRIPTION_DELETED, SNAPSHOT):
        return event.subscription_id is not None and event.subscription_id == later.subscription_id
    if event.type not in INVOICE_TYPES or later.type not in INVOICE_TYPES:
        return False
    if event.invoice_id is None or event.invoice_id != later.invoice_id or _is_paid(event):
        return False
    if _is_paid(later):
        return True
    if event.attempt_count is None or later.attempt_count is None:
        return False
    return event.attempt_count < later.attempt_count


def _is_paid(event: BillingEvent) -> bool:
    return event.type == PAYMENT_SUCCEEDED and event.status in (None, PAID)


def _says_something(event: BillingEvent) -> bool:
    """Whether the event's payload can prove its place."""
    return event.type == SUBSCRIPTION_DELETED or (event.type in _OF_SUBSCRIPTION and not _is_free(event))


def _is_free(event: BillingEvent) -> bool:
    """Whether the event does not say what was before it; a snapshot replaced nothing."""
    return event.previous is None and event.type != SNAPSHOT


def _replaces(event: BillingEvent, other: BillingEvent) -> bool:
    """Whether ``event`` replaced, or left as it was, exactly what ``other`` had set."""
    if other.type == SUBSCRIPTION_DELETED:
        return event.status == other.status
    return all(_before(event, fact) == getattr(other, fact) for fact in TRACKED)


def _finds(known: KnownSubscription | None, event: BillingEvent, policy: BillingPolicy) -> bool:
    """Whether ``event`` replaced, or left as it was, what its subscription's events had set before this second."""
    if known is None:
        return False
    price_id = _before(event, "price_id")
    return (
        known.status == _before(event, "status")
        and known.current_period_end == _before(event, "current_period_end")
        and known.cancel_at_period_end == _before(event, "cancel_at_period_end")
        and known.plan == plan_of(price_id if isinstance(price_id, str) else None, policy.catalog)[0]
    )


def _before(event: BillingEvent, fact: str) -> Fact:
    value: Fact = (event.previous or {}).get(fact, getattr(event, fact))
    return value
