"""A tenant's whole history, folded as it is read: for replay, rebuilding and explanation."""

from collections.abc import Iterable

import msgspec

from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import Account
from tenantry.domain.billing.order import in_order
from tenantry.domain.billing.state import BillingPolicy, BillingState, apply


class Refolded(msgspec.Struct, frozen=True):
    """What so many events lead to: the state, the second of the newest one, and the state before that second."""

    state: BillingState
    tip_created: int | None = None
    tip_state: BillingState | None = None
    events: int = 0


class Refold:
    """Folds events that are given one by one, sorted by ``created``; it holds those of one second at a time."""

    def __init__(self, beginning: BillingState, policy: BillingPolicy) -> None:
        self._policy = policy
        self._folded = Refolded(beginning)
        self._second: list[BillingEvent] = []

    def take(self, event: BillingEvent) -> list[BillingEvent]:
        """Take the next event; returns the events of the second before, in their order, when that is over.

        Raises `ValueError` for an event that is older than the one before it.
        """
        newest = self._second[0].created if self._second else event.created
        if event.created < newest:
            raise ValueError(f"event {event.id} is older than the one before it")
        over = self._fold_second() if event.created > newest else []
        self._second.append(event)
        return over

    def end(self) -> tuple[Refolded, list[BillingEvent]]:
        """What the events have led to, and the events of the last second in their order."""
        last = self._fold_second()
        return self._folded, last

    def _fold_second(self) -> list[BillingEvent]:
        if not self._second:
            return []
        before = self._folded.state
        ordered = in_order(self._second, before, self._policy)
        state = before
        for event in ordered:
            state = apply(state, event, self._policy).state
        self._folded = Refolded(state, ordered[0].created, before, self._folded.events + len(ordered))
        self._second = []
        return ordered


def refold(beginning: BillingState, events: Iterable[BillingEvent], policy: BillingPolicy) -> Refolded:
    """What events, sorted by ``created``, lead to."""
    fold = Refold(beginning, policy)
    for event in events:
        fold.take(event)
    return fold.end()[0]


def corrected(account: Account, refolded: Refolded) -> Account:
    """The account as its events have it."""
    return msgspec.structs.replace(
        account, state=refolded.state, tip_created=refolded.tip_created, tip_state=refolded.tip_state, is_whole=True
    )
