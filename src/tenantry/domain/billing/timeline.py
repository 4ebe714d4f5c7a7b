"""The fold of events, one second at a time, for arrival, replay and explanation.

Its unit is a tenant, or one subscription with `SubscriptionRule.EACH`.

A checkpoint is the state after all events before some second. The newer the checkpoint, the fewer
events the service reads from the ledger to place a new one (`ledger.ReplayNeed`):

- newer than the newest event so far: the stored state, and no events;
- in the same second as the newest: the state before that second, and the events of that second;
- older: the events since the newest full-state event before it that is alone in its second, or,
  without such an event, the state that the fold began with and all its events; most often only up
  to the next such event, because nothing changes from there on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from tenantry.common.encoding import shortened
from tenantry.domain.billing.events import PAYMENT_FAILED, BillingEvent, Outcome, is_settled
from tenantry.domain.billing.order import in_order, is_by_arrival, is_decided
from tenantry.domain.billing.state import BillingPolicy, BillingState, Transition, apply, reported

Steps = list[tuple[BillingEvent, Transition]]
"""Events in the order of the fold, each with the state after it."""


class Folded(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a fold: the state, the newest event's second, and the state before that second.

    ``moved_at`` is the second since which the subscription names another tenant; the fold counts as
    ended then.
    """

    state: BillingState
    tip_created: int | None = None
    tip_state: BillingState | None = None
    moved_at: int | None = None


class Fold:
    """Folds events that are added one by one, sorted by ``created``; holds the events of one second
    at a time.
    """

    def __init__(self, beginning: BillingState, policy: BillingPolicy) -> None:
        self.events = 0
        """The number of events of the seconds that are complete."""
        self._policy = policy
        self._folded = Folded(beginning)
        self._second: list[BillingEvent] = []

    def add(self, event: BillingEvent) -> Steps:
        """Add the next event; return the steps of the second before, once it is complete.

        Raises `ValueError` for an event that is older than the one before it.
        """
        newest = self._second[0].created if self._second else event.created
        if event.created < newest:
            raise ValueError(f"event {event.id} is older than the one before it")
        steps = self._close_second() if event.created > newest else []
        self._second.append(event)
        return steps

    def end(self) -> tuple[Folded, Steps]:
        """Return the result of all events, and the steps of the last second."""
        steps = self._close_second()
        return self._folded, steps

    def _close_second(self) -> Steps:
        if not self._second:
            return []
        before, created = self._folded.state, self._second[0].created
        steps = fold_second(self._second, before, self._policy)
        self._folded = Folded(steps[-1][1].state, created, before)
        self.events += len(steps)
        self._second = []
        return steps


def fold_second(
    events: Sequence[BillingEvent],
    before: BillingState,
    policy: BillingPolicy,
) -> Steps:
    """Order the events of one second and apply them to the state before it."""
    steps: Steps = []
    for event in in_order(events, before, policy):
        step = apply(before, event, policy)
        steps.append((event, step))
        before = step.state
    return steps


_created = attrgetter("created")
MOST_NAMED: Final = 3
BY_ARRIVAL: Final = "the order of arrival counts."


class Timeline(msgspec.Struct, frozen=True):
    """A checkpoint, the known events after it in order, and the state after each of them.

    If newer events are left out, ``rest`` is the result of the whole fold, which no event to place
    changes.
    """

    checkpoint: BillingState
    events: tuple[BillingEvent, ...] = ()
    states: tuple[BillingState, ...] = ()
    rest: Folded | None = None

    @property
    def state(self) -> BillingState:
        return self.before(len(self.events)) if self.rest is None else self.rest.state

    @property
    def newest(self) -> int:
        """The second of the newest event; -1 without events."""
        if self.rest is not None and self.rest.tip_created is not None:
            return self.rest.tip_created
        return self.events[-1].created if self.events else -1

    def folded(self) -> Folded:
        """Return the result of the fold as it is stored. The timeline must have an event."""
        if self.rest is not None:
            return self.rest
        return Folded(self.state, self.newest, self.before_second(self.newest))

    def before(self, position: int) -> BillingState:
        return self.states[position - 1] if position else self.checkpoint

    def span(self, created: int) -> tuple[int, int]:
        """Return the position of the first event of a second, and that after its last."""
        start = bisect_left(self.events, created, key=_created)
        return start, bisect_right(self.events, created, lo=start, key=_created)

    def second(self, created: int) -> tuple[BillingEvent, ...]:
        return self.events[slice(*self.span(created))]

    def before_second(self, created: int) -> BillingState:
        return self.before(bisect_left(self.events, created, key=_created))

    def after(self, event: BillingEvent) -> tuple[BillingEvent, ...]:
        return self.events[self.events.index(event) + 1 :]


class Placement(msgspec.Struct, frozen=True):
    """The outcome of an event: the timeline with it, and the tenant's state before and after.

    ``notify`` says whether to notify the owner of a failed payment. ``is_ambiguous`` says whether
    the order of arrival decided, in the event's second or in a later one that was folded again.
    """

    timeline: Timeline
    outcome: Outcome
    reason: str
    before: BillingState
    after: BillingState
    notify: bool
    is_ambiguous: bool = False


def begin(
    checkpoint: BillingState,
    events: Sequence[BillingEvent],
    policy: BillingPolicy,
    rest: Folded | None = None,
) -> Timeline:
    """Return the timeline of these events, given in any order.

    ``rest`` is the stored result if newer events may be missing.
    """
    if not events:
        return Timeline(checkpoint)  # the common case: the new event is the newest one
    fold, steps = Fold(checkpoint, policy), Steps()
    for event in sorted(events, key=_created):
        steps += fold.add(event)
    folded, last = fold.end()
    steps += last
    if rest is not None and folded.tip_created == rest.tip_created:
        rest = None
    return Timeline(
        checkpoint,
        tuple(event for event, _ in steps),
        tuple(step.state for _, step in steps),
        rest,
    )


def place(
    timeline: Timeline,
    event: BillingEvent,
    policy: BillingPolicy,
) -> Placement:
    """Insert ``event`` at its place among the timeline's events, and fold."""
    before = timeline.state
    extended, step, resorted = _insert(timeline, event, policy)
    after = extended.state
    is_unchanged = reported(after) == reported(before)
    placement = Placement(
        extended,
        Outcome.NO_CHANGE if is_unchanged else Outcome.APPLIED,
        step.reason,
        before,
        after,
        notify=event.type == PAYMENT_FAILED,
    )
    if event.created > timeline.newest:
        return placement
    return _among_others(placement, event, resorted, policy)


def _among_others(
    placement: Placement, event: BillingEvent, resorted: Sequence[int], policy: BillingPolicy
) -> Placement:
    """Return the placement of an event that is not the newest: late, or in the newest second."""
    timeline, is_unchanged = placement.timeline, placement.outcome is Outcome.NO_CHANGE
    newer = timeline.after(event)
    second = _ambiguous(timeline, event.created, policy)
    rivals = [other for other in second if other != event.id]
    later = next(filter(None, (_ambiguous(timeline, each, policy) for each in resorted)), ())
    remarks = _remarks(newer, rivals, later, is_unchanged=is_unchanged)
    return msgspec.structs.replace(
        placement,
        outcome=Outcome.LATE if newer and is_unchanged else placement.outcome,
        reason=" ".join((placement.reason, *remarks)),
        notify=placement.notify and not is_settled(event, newer),
        is_ambiguous=bool(rivals or later),
    )


def _remarks(
    newer: Sequence[BillingEvent],
    rivals: Sequence[str],
    later: Sequence[str],
    *,
    is_unchanged: bool,
) -> Iterator[str]:
    """Say that an event arrived late, and which events of its second and of a later one only
    arrival orders.
    """
    if newer:
        yield f"It arrived late: {_LATE_EFFECTS[is_unchanged]}."
    if rivals:
        yield f"Nothing proves the order of this and {shortened(rivals, MOST_NAMED)}, of the same second: {BY_ARRIVAL}"
    if later:
        yield f"Nothing proves the order of {shortened(later, MOST_NAMED)}, of a later second, after it: {BY_ARRIVAL}"


_LATE_EFFECTS: Final = {
    True: "newer events have decided the state",
    False: "it took its place before newer events",
}


def _ambiguous(
    timeline: Timeline,
    created: int,
    policy: BillingPolicy,
) -> tuple[str, ...]:
    """Return the ids of the events of a second if only their arrival orders them."""
    second = timeline.second(created)
    if is_decided(second, timeline.before_second(created), policy):
        return ()
    return tuple(event.id for event in second)


def _insert(
    timeline: Timeline,
    event: BillingEvent,
    policy: BillingPolicy,
) -> tuple[Timeline, Transition, Sequence[int]]:
    """Insert an event and fold; return its transition too, and the later seconds that were sorted
    again.
    """
    if event.created > timeline.newest or _is_last(timeline, event):
        step = apply(timeline.state, event, policy)
        events, states = (*timeline.events, event), (*timeline.states, step.state)
        return Timeline(timeline.checkpoint, events, states), step, ()
    start, end = timeline.span(event.created)
    steps = fold_second((*timeline.events[start:end], event), timeline.before(start), policy)
    resorted = list[int]()
    # until a second begins with the same state as before
    while end < len(timeline.events) and (state := steps[-1][1].state) != timeline.before(end):
        first, end = timeline.span(timeline.events[end].created)
        second = timeline.events[first:end]
        resorted.append(second[0].created)
        steps += fold_second(second, state, policy)
    own = next(step for folded, step in steps if folded is event)
    return _spliced(timeline, start, end, steps), own, resorted


def _spliced(timeline: Timeline, start: int, end: int, steps: Steps) -> Timeline:
    """Return the timeline with these steps in the place of its events from ``start`` to ``end``."""
    events = (*timeline.events[:start], *(event for event, _ in steps), *timeline.events[end:])
    states = (*timeline.states[:start], *(step.state for _, step in steps), *timeline.states[end:])
    return msgspec.structs.replace(timeline, events=events, states=states)


def _is_last(timeline: Timeline, event: BillingEvent) -> bool:
    """Whether an event of the newest second comes after all others without changing their order.

    This keeps the cost of each event low in a second with very many.
    """
    if event.created != timeline.newest or event.arrival < timeline.events[-1].arrival:
        return False
    second = timeline.second(event.created)
    return is_by_arrival(second) and is_by_arrival((*second, event))
