"""The order of the events of one second, whatever the order in which they arrived.

The provider's ``created`` counts seconds. Within a second, the payloads prove this much:

- An event with ``previous_attributes`` replaced the values of the event before it of the same
  subscription: of every fact that is folded, quantities and the time of a cancellation included.
  The valid orders of a subscription's events are those in which the fewest events replaced a state
  that no event had set.
- ``created`` precedes every other event of the same subscription.
- No event follows ``deleted`` of the same subscription, not even an invoice event of that
  subscription, if the object has ``ended_at``. Without it the payload does not prove that the
  subscription has ended.
- A paid, voided or uncollectible invoice does not fail afterwards; ``attempt_count`` orders two
  attempts to pay an invoice.
- A snapshot follows every event that had arrived before the service requested it.

Where this leaves several orders, the order of arrival decides, and `is_decided` reports whether
they all end in the same state.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails, as_before
from tenantry.domain.billing.state import (
    CANCELED,
    BillingPolicy,
    BillingState,
    KnownSubscription,
    apply,
    items_of,
    kept_details,
    known_of,
    plan_item,
    with_known_items,
)
from tenantry.domain.plans import OVER

MOST_COMPARED: Final = 64
"""How many events of one second are compared. Where there are more, the order of arrival
decides.
"""
_MOST_PARTIAL_ORDERS: Final = 1000
"""How many partial orders of one subscription's events, or of a second's, are tried."""
_MOST_UNLINKED: Final = 3
"""How many events may have replaced an unseen state. With more, too many events are missing to
prove an order.
"""

_ENOUGH_ENDS: Final = 2
"""With so many ends the order matters."""

_SUBSCRIPTION_STATES: Final = ev.SUBSCRIPTION_TYPES | {ev.SNAPSHOT}
_DROPPED_TYPES: Final = frozenset({ev.INVOICE_VOIDED, ev.INVOICE_UNCOLLECTIBLE})
_Counts = tuple[int, ...]


def in_order(
    events: Sequence[BillingEvent],
    before: BillingState,
    policy: BillingPolicy,
) -> list[BillingEvent]:
    """Sort the events of one second: of the valid orders, take the nearest to the order of arrival.

    ``before`` is the tenant's state at the start of the second.
    """
    waiting = sorted(events, key=attrgetter("arrival"))
    if is_by_arrival(waiting):
        return waiting
    second = _SecondOrders(_group(waiting), before, policy)
    group_of = {
        event.id: number for number, group in enumerate(second.groups) for event in group.events
    }
    position, ordered = second.start, list[BillingEvent]()
    while waiting:
        allowed = set(second.next_groups(position))
        first = next((event for event in waiting if group_of[event.id] in allowed), waiting[0])
        waiting.remove(first)
        ordered.append(first)
        position = second.after(position, group_of[first.id])
    return ordered


def is_by_arrival(events: Sequence[BillingEvent]) -> bool:
    """Whether arrival alone orders these events of one second, because no payload proves
    anything.
    """
    if len(events) == 1 or len(events) > MOST_COMPARED:
        return True
    if any(map(_may_prove_order, events)):
        return False
    return all(number == 1 for number in _invoices(events).values())


def _invoices(events: Iterable[BillingEvent]) -> Counter[str]:
    """Count the events of each invoice."""
    names = (event.invoice_id for event in events if event.type in ev.INVOICE_TYPES)
    return Counter(name for name in names if name is not None)


def precedes(event: BillingEvent, later: BillingEvent) -> bool:
    """Whether the payloads of two events, ``previous_attributes`` aside, or a snapshot prove that
    one came first.
    """
    if later.type == ev.SNAPSHOT and event.type != ev.SUBSCRIPTION_CREATED:
        return event.arrival < later.arrival
    return _precedes(event, later)


def phase(event: BillingEvent) -> int:
    """Return 0 for an event that precedes all others of its subscription in its second, 2 for one
    that ends it.
    """
    return 0 if _begins(event) else 2 if _ends(event) else 1


def replaces(event: BillingEvent, last: BillingEvent) -> bool:
    """Whether an event replaced the facts that another one of its subscription had set; the tenant
    is not looked at.
    """
    return _are_set_by(last, _facts(last), _facts(as_before(event)))


def reports_previous(event: BillingEvent) -> bool:
    """Whether the event reports the values before it; a snapshot reports that it replaced none."""
    return event.previous is not None or event.type == ev.SNAPSHOT


def is_decided(
    events: Sequence[BillingEvent],
    before: BillingState,
    policy: BillingPolicy,
) -> bool:
    """Whether all valid orders of one second's events lead to the same state.

    False as well for a second with too many events or orders to try them all.
    """
    groups = _group(sorted(events, key=attrgetter("arrival")))
    if len(groups) == 1 or events[0].grant is not None:
        return True  # the operator's changes of a grant arrive one after another
    if len(events) > MOST_COMPARED:
        return False
    second = _SecondOrders(groups, before, policy)
    return second.is_searched and len(_ends_of(second, before, policy)) == 1


def _ends_of(
    second: "_SecondOrders", before: BillingState, policy: BillingPolicy
) -> Collection[BillingState]:
    """Return the states that the valid orders end in; of several at least two, and none where the
    payloads contradict each other or there are too many orders.
    """
    ends: set[BillingState] = set()
    branches = [_Branch(before, second.start)]
    seen = set(branches)
    while branches and len(ends) < _ENOUGH_ENDS:
        if len(seen) > _MOST_PARTIAL_ORDERS:
            return ()
        branch = branches.pop()
        if branch.position.counts == second.end:
            ends.add(_compared(branch.state))
        further = set(_next_branches(branch, second, policy)) - seen
        seen |= further
        branches += further
    return ends


def _compared(state: BillingState) -> BillingState:
    """Return a state without other subscriptions and what only later events can make a difference
    of.
    """
    return msgspec.structs.replace(state, others=(), reported_at=None, unpaid_invoices=())


def _next_branches(
    branch: "_Branch", second: "_SecondOrders", policy: BillingPolicy
) -> Iterator["_Branch"]:
    for group in second.next_groups(branch.position):
        state = apply(branch.state, second.groups[group].events[0], policy).state
        yield _Branch(state, second.after(branch.position, group))


class _Position(NamedTuple):
    """A position in an order of a second: the events so far by group, and each subscription's last
    group.
    """

    counts: tuple[int, ...]
    last: tuple[int | None, ...]


class _Branch(NamedTuple):
    state: BillingState
    position: _Position


class _EventGroup(NamedTuple):
    """Equivalent events of one second, by arrival, and how many events of other groups must precede
    them.
    """

    events: tuple[BillingEvent, ...]
    follows: Mapping[int, int]

    def is_next(self, done: int, counts: Mapping[int, int]) -> bool:
        """Whether an event of the group may come after ``done`` of them, and after these ``counts``
        of others; a group without a count does not matter.
        """
        return done < len(self.events) and all(
            counts.get(other, count) >= count for other, count in self.follows.items()
        )


class _SecondOrders:
    def __init__(
        self,
        groups: Sequence[Sequence[BillingEvent]],
        before: BillingState,
        policy: BillingPolicy,
    ) -> None:
        self.groups = [
            _EventGroup(tuple(group), _predecessors(group[0], groups)) for group in groups
        ]
        self._subscriptions = [
            _SubscriptionOrders(members, self.groups, before, policy)
            for members in _by_subscription(self.groups)
        ]
        self._subscription_of = {
            number: index
            for index, each in enumerate(self._subscriptions)
            for number in each.members
        }
        self.start = _Position((0,) * len(self.groups), (None,) * len(self._subscriptions))
        self.end = tuple(len(group.events) for group in self.groups)
        self.is_searched = all(each.costs is not None for each in self._subscriptions)

    def next_groups(self, position: _Position) -> Iterator[int]:
        """Yield the groups of which an event may come next."""
        counts = dict(enumerate(position.counts))
        for number, group in enumerate(self.groups):
            if group.is_next(counts[number], counts) and self._allows(position, number):
                yield number

    def _allows(self, position: _Position, number: int) -> bool:
        index = self._subscription_of.get(number)
        if index is None:
            return True
        return self._subscriptions[index].allows(position.counts, position.last[index], number)

    def after(self, position: _Position, number: int) -> _Position:
        """Return the position after one more event of a group."""
        index = self._subscription_of.get(number)
        last = tuple(
            number if index == other else known for other, known in enumerate(position.last)
        )
        return _Position(_one_more(position.counts, number), last)


def _by_subscription(groups: Sequence[_EventGroup]) -> Iterable[list[int]]:
    """Return the numbers of the groups of each subscription's states."""
    members = defaultdict[str | None, list[int]](list)
    for number, group in enumerate(groups):
        if group.events[0].type in _SUBSCRIPTION_STATES:
            members[group.events[0].subscription_id].append(number)
    return members.values()


class _SubscriptionOrders:
    """The groups of one subscription's events, and their orders in which the fewest replaced an
    unseen state.
    """

    def __init__(
        self,
        members: Sequence[int],
        groups: Sequence[_EventGroup],
        before: BillingState,
        policy: BillingPolicy,
    ) -> None:
        self.members = members
        self._groups = groups
        changes = {number: _Change(groups[number].events[0], before, policy) for number in members}
        self._unlinked = {
            (last, number): change.is_unlinked(None if last is None else changes[last])
            for number, change in changes.items()
            for last in (None, *members)
        }
        self.costs = self._search() if self._fewest_unlinked(changes) <= _MOST_UNLINKED else None
        """The orders by the numbers of events so far, with their cost; None if they could not be
        searched.
        """

    def allows(
        self,
        counts: _Counts,
        last: int | None,
        number: int,
    ) -> bool:
        """Whether this group may come next in an order that has these counts and ends with
        ``last``.
        """
        if self.costs is None:
            return True
        here = _Progress(tuple(counts[member] for member in self.members), last)
        there = _Progress(_one_more(here.counts, self.members.index(number)), number)
        return self.costs.get(there, -1) == self.costs.get(here, 0) + self._unlinked[last, number]

    def _search(self) -> "dict[_Progress, int] | None":
        """Return the partial orders with the fewest unlinked events, with the number of those so
        far.

        None if there are too many of either. The search goes by the number of unlinked events, so
        the result does not depend on arrival.
        """
        end = tuple(len(self._groups[member].events) for member in self.members)
        costs: dict[_Progress, int] = {}
        layer = [_Progress((0,) * len(end), None)]
        for cost in range(_MOST_UNLINKED + 1):
            layer = self._add_layer(layer, cost, costs)
            if len(costs) > _MOST_PARTIAL_ORDERS:
                return None
            if any(step.counts == end for step in costs):
                break
        return self._on_complete_paths(end, costs) or None

    def _add_layer(
        self,
        layer: "list[_Progress]",
        cost: int,
        costs: "dict[_Progress, int]",
    ) -> "list[_Progress]":
        """Add the partial orders that follow from a layer without another unlinked event; return
        those that one more leads to.
        """
        costlier = list[_Progress]()
        while layer and len(costs) <= _MOST_PARTIAL_ORDERS:
            step = layer.pop()
            if step in costs:
                continue
            costs[step] = cost
            for further, is_unlinked in self._next_steps(step):
                (costlier if is_unlinked else layer).append(further)
        return costlier

    def _fewest_unlinked(self, changes: "Mapping[int, _Change]") -> int:
        """Return a lower bound: events that replaced one state need as many events, or the known
        state, that set it.
        """
        missing = Counter[_Facts]()
        for number, change in changes.items():
            count = len(self._groups[number].events)
            missing[change.facts] -= count
            if change.reports_previous:
                missing[change.replaced] += count
        return (+missing).total() - any(change.follows_known for change in changes.values())

    def _on_complete_paths(
        self, end: _Counts, costs: Mapping["_Progress", int]
    ) -> dict["_Progress", int]:
        complete: dict[_Progress, int] = {}
        for step in sorted(costs, key=lambda step: sum(step.counts), reverse=True):
            if step.counts == end or any(
                complete.get(further) == costs[step] + is_unlinked
                for further, is_unlinked in self._next_steps(step)
            ):
                complete[step] = costs[step]
        return complete

    def _next_steps(self, step: "_Progress") -> Iterator[tuple["_Progress", bool]]:
        """Yield the next partial orders, and whether the event that leads there is unlinked."""
        done = dict(zip(self.members, step.counts, strict=True))
        for index, number in enumerate(self.members):
            if self._groups[number].is_next(done[number], done):
                further = _Progress(_one_more(step.counts, index), number)
                yield further, self._unlinked[step.last, number]


class _Progress(NamedTuple):
    """A partial order of a subscription's events: how many of each group, and the group of the last
    one.
    """

    counts: _Counts
    last: int | None


def _one_more(counts: _Counts, position: int) -> _Counts:
    return (*counts[:position], counts[position] + 1, *counts[position + 1 :])


def _group(events: Sequence[BillingEvent]) -> list[list[BillingEvent]]:
    invoices = _invoices(events)
    ordered = {event.subscription_id for event in events if _begins(event) or _ends(event)} - {None}
    groups: defaultdict[object, list[BillingEvent]] = defaultdict(list)
    for event in events:
        groups[_effect(event, invoices, ordered)].append(event)
    return list(groups.values())


def _predecessors(event: BillingEvent, groups: Sequence[Sequence[BillingEvent]]) -> dict[int, int]:
    """Return how many events of which groups come before an event."""
    counts = (0 if event in group else _count_preceding(group, event) for group in groups)
    return {number: count for number, count in enumerate(counts) if count}


def _effect(
    event: BillingEvent,
    invoices: Mapping[str, int],
    ordered: Collection[str | None],
) -> tuple[object, ...]:
    """Return all facts that state and order depend on; an invoice's only where other events refer
    to them.
    """
    if event.type in _SUBSCRIPTION_STATES:
        previous = None if event.previous is None else tuple(sorted(event.previous.items()))
        requested = event.arrival if event.type == ev.SNAPSHOT else None
        identity = (
            event.org_id,
            event.subscription_id,
            event.subscription_created,
            event.customer_id,
        )
        return (
            event.type,
            *identity,
            _facts(event),
            event.price_id,
            event.details,
            previous,
            requested,
        )
    subscription_id = event.subscription_id if event.subscription_id in ordered else None
    if invoices.get(event.invoice_id or "", 0) > 1:
        return event.type, subscription_id, event.invoice_id, event.attempt_count, event.status
    return event.type, subscription_id


def _count_preceding(events: Sequence[BillingEvent], later: BillingEvent) -> int:
    """Return how many of these equivalent events come before ``later``."""
    if later.type == ev.SNAPSHOT and events[0].type != ev.SUBSCRIPTION_CREATED:
        return sum(precedes(event, later) for event in events)
    return len(events) if _precedes(events[0], later) else 0


def _precedes(event: BillingEvent, later: BillingEvent) -> bool:
    """Whether the payloads, ``previous_attributes`` aside, prove that an event came before another
    one.
    """
    if _begins_or_ends(event, later):
        return event.subscription_id is not None and event.subscription_id == later.subscription_id
    return _is_of_same_invoice(event, later) and _precedes_of_invoice(event, later)


def _is_of_same_invoice(event: BillingEvent, other: BillingEvent) -> bool:
    are_invoices = event.type in ev.INVOICE_TYPES and other.type in ev.INVOICE_TYPES
    return are_invoices and event.invoice_id is not None and event.invoice_id == other.invoice_id


def _precedes_of_invoice(event: BillingEvent, later: BillingEvent) -> bool:
    """Whether the payloads of two events of an invoice prove that one came first."""
    if _is_paid(event):
        return False
    if _is_paid(later) or (later.type in _DROPPED_TYPES and event.type == ev.PAYMENT_FAILED):
        return True
    if event.attempt_count is None or later.attempt_count is None:
        return False
    return event.attempt_count < later.attempt_count


def _begins_or_ends(event: BillingEvent, later: BillingEvent) -> bool:
    """Whether one event is the first, or the other the last, of its subscription."""
    if _begins(event):
        return not _begins(later)
    return _ends(later) and event.type not in (ev.SUBSCRIPTION_DELETED, ev.SNAPSHOT)


def _begins(event: BillingEvent) -> bool:
    return event.type == ev.SUBSCRIPTION_CREATED


def _ends(event: BillingEvent) -> bool:
    """Whether the payload proves that its subscription has ended."""
    return event.type == ev.SUBSCRIPTION_DELETED and event.details.ended_at is not None


def _is_paid(event: BillingEvent) -> bool:
    return event.type in ev.PAYMENT_TYPES and event.status in (None, ev.PAID)


def _may_prove_order(event: BillingEvent) -> bool:
    return (
        _begins(event)
        or _ends(event)
        or (event.type in _SUBSCRIPTION_STATES and reports_previous(event))
    )


_Facts = tuple[object, ...]


def _facts(event: BillingEvent) -> _Facts:
    """Return the facts of a subscription that are folded, in one form for all API versions."""
    details = msgspec.structs.replace(event.details, items=items_of(event))
    period_end = event.current_period_end
    return (
        event.status,
        period_end,
        bool(event.cancel_at_period_end),
        *_detailed(details, period_end),
    )


def _detailed(details: SubscriptionDetails, period_end: int | None) -> _Facts:
    """Return the details that events replace; an item has the period of its subscription unless it
    has its own.
    """
    items = tuple(
        (item.price_id, item.quantity, period_end if item.period_end is None else item.period_end)
        for item in details.items
    )
    times = details.cancel_at, details.trial_end, details.anchor
    return items, details.period_start, *times, details.pause


def _are_set_by(
    last: BillingEvent,
    facts: _Facts,
    replaced: _Facts,
) -> bool:
    """Whether replaced facts are those of the event before; of the end of a subscription its status
    says enough.
    """
    return replaced[0] == CANCELED if last.type == ev.SUBSCRIPTION_DELETED else replaced == facts


class _Change:
    """What an event of a subscription replaced, and what it set."""

    def __init__(
        self,
        event: BillingEvent,
        before: BillingState,
        policy: BillingPolicy,
    ) -> None:
        prior = as_before(event)
        self.event = event
        self.facts = _facts(event)
        self.replaced = _facts(prior)
        self.reports_previous = reports_previous(event)
        self.follows_known = (
            self.reports_previous and _describes(prior, before, policy) and not self._has_moved()
        )

    def is_unlinked(self, last: "_Change | None") -> bool:
        """Whether the event replaced another state than that of the ``last`` one; without one, the
        known state.
        """
        if not self.reports_previous:
            return False
        return not (self.follows_known if last is None else self._replaces(last))

    def _replaces(self, last: "_Change") -> bool:
        tenant = (self.event.previous or {}).get("org_id", last.event.org_id)
        is_of_tenant = tenant == last.event.org_id or last.event.type == ev.SUBSCRIPTION_DELETED
        return is_of_tenant and _are_set_by(last.event, last.facts, self.replaced)

    def _has_moved(self) -> bool:
        """Whether the event came from another tenant, whose events the known state is not from."""
        former = (self.event.previous or {}).get("org_id")
        return former not in (None, self.event.org_id)


def _describes(
    event: BillingEvent,
    before: BillingState,
    policy: BillingPolicy,
) -> bool:
    """Whether an event has the facts that its subscription had before this second, as far as these
    are known.
    """
    known = known_of(before, event.subscription_id)
    if known is None:
        return False
    event = with_known_items(event, before)
    if CANCELED in (known.status, event.status):
        return known.status == event.status
    chosen = plan_item(event, policy)
    reported = KnownSubscription(
        known.id,
        event.status,
        chosen.plan,
        chosen.period_end,
        bool(event.cancel_at_period_end),
    )
    if known != reported or before.subscription_id != event.subscription_id:
        return known == reported  # of a tenant's other subscriptions nothing else is known
    # after the end a state may keep no seats
    same_seats = known.status in OVER or before.seats == chosen.seats
    known_details = _detailed(before.details, before.current_period_end)
    return same_seats and known_details == _detailed(kept_details(event, policy), chosen.period_end)
