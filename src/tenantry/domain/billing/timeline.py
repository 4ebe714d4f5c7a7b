"""A tenant's events after a checkpoint, folded: the same fold for arrival, replay and explanation.

A checkpoint is a state that all events before some moment have led to. The newer the checkpoint, the
fewer events must be read from the ledger to place a new one:

- newer than the newest event so far: the stored state, and no events;
- in the same second as the newest: the state before that second, and the events of that second;
- older: the events since the newest before it that is alone in its second and says everything, or, without such a
  one, the state that the tenant began with and all its events.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec

from tenantry.domain.billing.events import PAYMENT_FAILED, PAYMENT_SUCCEEDED, BillingEvent, Outcome
from tenantry.domain.billing.order import in_order, is_by_arrival, is_decided
from tenantry.domain.billing.state import BillingPolicy, BillingState, Step, apply


class ReplayDepth(IntEnum):
    """How far back a timeline must begin to place an event."""

    TIP = 0
    TIP_SECOND = 1
    BEGINNING = 2


def reach(created: int, tip_created: int | None) -> ReplayDepth:
    """How far back to begin for an event of this second, given the second of the newest one so far."""
    if tip_created is None or created > tip_created:
        return ReplayDepth.TIP
    return ReplayDepth.TIP_SECOND if created == tip_created else ReplayDepth.BEGINNING


_created = attrgetter("created")
_MOST_NAMED: Final = 3
_BY_ARRIVAL: Final = "the order of arrival counts."


class Timeline(msgspec.Struct, frozen=True):
    """A checkpoint, the known events after it in order, and the state after each of them."""

    checkpoint: BillingState
    events: tuple[BillingEvent, ...] = ()
    states: tuple[BillingState, ...] = ()

    @property
    def state(self) -> BillingState:
        """The state that the events lead to."""
        return self.before(len(self.events))

    def before(self, position: int) -> BillingState:
        """The state before the event at a position."""
        return self.states[position - 1] if position else self.checkpoint

    def second(self, created: int) -> tuple[BillingEvent, ...]:
        """The events of one second."""
        start = bisect_left(self.events, created, key=_created)
        return self.events[start : bisect_right(self.events, created, lo=start, key=_created)]

    def before_second(self, created: int) -> BillingState:
        """The state before the events of a second."""
        return self.before(bisect_left(self.events, created, key=_created))

    def after(self, event: BillingEvent) -> tuple[BillingEvent, ...]:
        """The events that come after one of the timeline's own."""
        return self.events[self.events.index(event) + 1 :]


class Placement(msgspec.Struct, frozen=True):
    """What became of an event: the timeline with it, and the tenant's state before and after."""

    timeline: Timeline
    outcome: Outcome
    reason: str
    before: BillingState
    after: BillingState
    notify: bool
    """Whether the owner is to be told of a failed payment."""
    is_ambiguous: bool = False
    """Whether the order of arrival decided, in the event's own second or in a later one that was folded again."""


def begin(checkpoint: BillingState, events: Iterable[BillingEvent], policy: BillingPolicy) -> Timeline:
    """The timeline of these events, in any order."""
    state = checkpoint
    ordered: list[BillingEvent] = []
    states: list[BillingState] = []
    for _, second in groupby(sorted(events, key=_created), key=_created):
        for event in in_order(tuple(second), state, policy):
            state = apply(state, event, policy).state
            ordered.append(event)
            states.append(state)
    return Timeline(checkpoint, tuple(ordered), tuple(states))


def place(timeline: Timeline, event: BillingEvent, policy: BillingPolicy) -> Placement:
    """Put ``event`` where it belongs among the timeline's events, and fold."""
    before = timeline.state
    extended, step, resorted = _insert(timeline, event, policy)
    after, reason = extended.state, step.reason
    is_unchanged = msgspec.structs.replace(after, others=before.others) == before
    is_newest = event.created > _newest(timeline)
    newer = () if is_newest else extended.after(event)
    if newer:
        decided = "newer events have decided the state" if is_unchanged else "it took its place before newer events"
        reason = f"{reason} It arrived late: {decided}."
    rivals = () if is_newest else _rivals(extended, event, policy)
    if rivals:
        reason = f"{reason} Nothing proves the order of this and {_named(rivals)}, of the same second: {_BY_ARRIVAL}"
    if ambiguous := _ambiguous(extended, resorted, policy):
        reason = f"{reason} Nothing proves the order of {_named(ambiguous)}, of a later second, after it: {_BY_ARRIVAL}"
    unchanged = Outcome.LATE if newer else Outcome.NO_CHANGE
    return Placement(
        extended,
        unchanged if is_unchanged else Outcome.APPLIED,
        reason,
        before,
        after,
        notify=event.type == PAYMENT_FAILED and not is_paid(event, newer),
        is_ambiguous=bool(rivals or ambiguous),
    )


def _rivals(timeline: Timeline, event: BillingEvent, policy: BillingPolicy) -> tuple[str, ...]:
    second = timeline.second(event.created)
    if len(second) == 1 or is_decided(second, timeline.before_second(event.created), policy):
        return ()
    return tuple(other.id for other in second if other is not event)


def _ambiguous(timeline: Timeline, seconds: Iterable[int], policy: BillingPolicy) -> tuple[str, ...]:
    """The events of the first of these seconds in which the order of arrival decides."""
    for created in seconds:
        second = timeline.second(created)
        if not is_decided(second, timeline.before_second(created), policy):
            return tuple(event.id for event in second)
    return ()


def _named(events: Sequence[str]) -> str:
    more = len(events) - _MOST_NAMED
    return ", ".join(events[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _newest(timeline: Timeline) -> int:
    return timeline.events[-1].created if timeline.events else -1


def _insert(timeline: Timeline, event: BillingEvent, policy: BillingPolicy) -> tuple[Timeline, Step, list[int]]:
    """Put in an event and fold again from its second on, up to where the state is what it was.

    With the step of the event come the later seconds that were sorted and folded again.
    """
    if event.created > _newest(timeline) or _is_last(timeline, event):
        step = apply(timeline.state, event, policy)
        return Timeline(timeline.checkpoint, (*timeline.events, event), (*timeline.states, step.state)), step, []
    start = bisect_left(timeline.events, event.created, key=_created)
    end = bisect_right(timeline.events, event.created, lo=start, key=_created)
    second = (*timeline.events[start:end], event)
    state = timeline.before(start)
    events, states = list(timeline.events[:start]), list(timeline.states[:start])
    own, resorted = Step(state, ""), list[int]()
    while True:
        for member in in_order(second, state, policy):
            step = apply(state, member, policy)
            own = step if member is event else own
            state = step.state
            events.append(member)
            states.append(state)
        if end == len(timeline.events) or state == timeline.before(end):
            break
        start, end = end, bisect_right(timeline.events, timeline.events[end].created, lo=end, key=_created)
        second = timeline.events[start:end]
        resorted.append(second[0].created)
    rest = timeline.events[end:], timeline.states[end:]
    return Timeline(timeline.checkpoint, (*events, *rest[0]), (*states, *rest[1])), own, resorted


def _is_last(timeline: Timeline, event: BillingEvent) -> bool:
    """Whether an event of the newest second comes after all others without changing their order.

    So that very many events of one second cost little each.
    """
    if event.created != _newest(timeline) or event.arrival < timeline.events[-1].arrival:
        return False
    second = timeline.second(event.created)
    return is_by_arrival(second) and is_by_arrival((*second, event))


def is_paid(failure: BillingEvent, newer: Iterable[BillingEvent]) -> bool:
    """Whether one of the ``newer`` events is a success of the invoice that failed."""
    return failure.invoice_id is not None and any(
        event.type == PAYMENT_SUCCEEDED and event.invoice_id == failure.invoice_id for event in newer
    )


def tip(timeline: Timeline) -> tuple[int, BillingState]:
    """The second of the newest event, and the state before that second: the next checkpoint.

    The timeline must have an event.
    """
    newest = timeline.events[-1].created
    return newest, timeline.before_second(newest)
