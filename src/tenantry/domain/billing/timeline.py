"""A tenant's events after a checkpoint, folded: the same fold for arrival, replay and explanation.

A checkpoint is a state that all events before some moment have led to. The newer the checkpoint, the
fewer events must be read from the ledger to place a new one:

- newer than the newest event so far: the stored state, and no events;
- in the same second as the newest: the state before that second, and the events of that second;
- older: the state that the tenant began with, and all its events.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum

import msgspec

from tenantry.domain.billing.events import PAYMENT_FAILED, PAYMENT_SUCCEEDED, BillingEvent, Outcome
from tenantry.domain.billing.order import in_order
from tenantry.domain.billing.state import BillingPolicy, BillingState, apply


class Reach(IntEnum):
    """How far back a timeline must begin to place an event."""

    TIP = 0
    TIP_SECOND = 1
    BEGINNING = 2


def reach(created: int, tip_created: int | None) -> Reach:
    """How far back to begin for an event of this second, given the second of the newest one so far."""
    if tip_created is None or created > tip_created:
        return Reach.TIP
    return Reach.TIP_SECOND if created == tip_created else Reach.BEGINNING


class Timeline(msgspec.Struct, frozen=True):
    """A checkpoint, the known events after it in order, and the state that they lead to."""

    checkpoint: BillingState
    events: tuple[BillingEvent, ...]
    state: BillingState


class Placement(msgspec.Struct, frozen=True):
    """What became of an event: the timeline with it, and the tenant's state before and after."""

    timeline: Timeline
    outcome: Outcome
    reason: str
    before: BillingState
    after: BillingState
    notify: bool
    """Whether the owner is to be told of a failed payment."""


def fold(checkpoint: BillingState, events: Iterable[BillingEvent], policy: BillingPolicy) -> BillingState:
    """The state that ``events``, already in order, lead to."""
    state = checkpoint
    for event in events:
        state = apply(state, event, policy).state
    return state


def begin(checkpoint: BillingState, events: Sequence[BillingEvent], policy: BillingPolicy) -> Timeline:
    """The timeline of these events, in any order."""
    ordered = in_order(events)
    return Timeline(checkpoint, tuple(ordered), fold(checkpoint, ordered, policy))


def place(timeline: Timeline, event: BillingEvent, policy: BillingPolicy) -> Placement:
    """Put ``event`` where it belongs among the timeline's events, and fold."""
    before = timeline.state
    known = timeline.events
    if not known or event.created > known[-1].created:
        step = apply(before, event, policy)
        extended = Timeline(timeline.checkpoint, (*known, event), step.state)
        outcome = Outcome.NO_CHANGE if step.state == before else Outcome.APPLIED
        return Placement(extended, outcome, step.reason, before, step.state, event.type == PAYMENT_FAILED)
    return _insert(timeline, event, policy)


def _insert(timeline: Timeline, event: BillingEvent, policy: BillingPolicy) -> Placement:
    ordered = in_order((*timeline.events, event))
    position = ordered.index(event)
    step = apply(fold(timeline.checkpoint, ordered[:position], policy), event, policy)
    after = fold(step.state, ordered[position + 1 :], policy)
    before = timeline.state
    newer = ordered[position + 1 :]
    notify = event.type == PAYMENT_FAILED and not is_paid(event, newer)
    extended = Timeline(timeline.checkpoint, tuple(ordered), after)
    if not newer:
        outcome = Outcome.NO_CHANGE if after == before else Outcome.APPLIED
        return Placement(extended, outcome, step.reason, before, after, notify)
    if after == before:
        reason = f"{step.reason} It arrived late: newer events have decided the state."
        return Placement(extended, Outcome.LATE, reason, before, after, notify)
    reason = f"{step.reason} It arrived late and took its place before newer events."
    return Placement(extended, Outcome.APPLIED, reason, before, after, notify)


def is_paid(failure: BillingEvent, newer: Iterable[BillingEvent]) -> bool:
    """Whether one of the ``newer`` events is a success of the invoice that failed."""
    return failure.invoice_id is not None and any(
        event.type == PAYMENT_SUCCEEDED and event.invoice_id == failure.invoice_id for event in newer
    )


def tip(timeline: Timeline, policy: BillingPolicy) -> tuple[int, BillingState]:
    """The second of the newest event, and the state before that second: the next checkpoint.

    The timeline must have an event.
    """
    newest = timeline.events[-1].created
    earlier = [event for event in timeline.events if event.created < newest]
    return newest, fold(timeline.checkpoint, earlier, policy)
