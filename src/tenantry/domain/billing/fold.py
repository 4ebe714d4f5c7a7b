"""The fold: a tenant's billing state from its events, sorted by ``created``, one second at a time."""

from collections.abc import Sequence

import msgspec

from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.order import in_order
from tenantry.domain.billing.state import BillingPolicy, BillingState, Transition, apply

Steps = list[tuple[BillingEvent, Transition]]
"""Events in the order of the fold, each with the state after it."""


class Folded(msgspec.Struct, frozen=True):
    """The result of a fold: the state, the newest event's second, and the state before that second."""

    state: BillingState
    tip_created: int | None = None
    tip_state: BillingState | None = None
    events: int = 0


class Fold:
    """Folds events that are added one by one, sorted by ``created``; holds the events of one second at a time."""

    def __init__(self, beginning: BillingState, policy: BillingPolicy) -> None:
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
        self._folded = Folded(steps[-1][1].state, created, before, self._folded.events + len(steps))
        self._second = []
        return steps


def fold_second(events: Sequence[BillingEvent], before: BillingState, policy: BillingPolicy) -> Steps:
    """Order the events of one second and apply them to the state before it."""
    steps: Steps = []
    for event in in_order(events, before, policy):
        step = apply(before, event, policy)
        steps.append((event, step))
        before = step.state
    return steps
