"""Refunds and disputes: what is new about an event of one, by the earlier events of its charge.

The provider reports a refund by several types of events, in any order, and ``charge.refunded`` does
not say which refund it is about. Each state of a refund or dispute is new once.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from tenantry.common.clock import from_epoch
from tenantry.common.encoding import doc
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome, Reversal
from tenantry.domain.outbound_events import EventType, NewEvent
from tenantry.domain.plan_words import format_amount

SUCCEEDED: Final = "succeeded"
_WITHDRAWN: Final = frozenset({"failed", "canceled"})
"""The states of a refund whose money stays with the payee."""
_UNFINISHED: Final = frozenset({"pending", "requires_action"})
"""The states of a refund before it succeeds. A charge's event does not say them, and counts as
success.
"""
NEEDS_RESPONSE: Final = frozenset({"needs_response", "warning_needs_response"})
"""The states of a dispute that the operator must answer, or loses."""
_RANKS: Final[Mapping[str, int]] = {
    "succeeded": 1,
    "failed": 2,
    "canceled": 2,
    "warning_under_review": 1,
    "warning_closed": 2,
    "needs_response": 3,
    "under_review": 4,
    "won": 5,
    "lost": 5,
}
"""The order of states within one second; those that begin a refund or dispute have 0."""
_WORDS: Final[Mapping[str, str]] = {
    "pending": "is pending",
    "requires_action": "waits for the payer",
    "succeeded": "succeeded",
    "failed": "failed and does not count any more",
    "canceled": "was canceled and does not count any more",
    "warning_needs_response": "is an inquiry and needs a response",
    "warning_under_review": "is an inquiry under review",
    "warning_closed": "was an inquiry and is closed",
    "needs_response": "needs a response",
    "under_review": "is under review",
    "won": "is won",
    "lost": "is lost",
    "prevented": "was prevented",
}
_FUNDS: Final[Mapping[str, str]] = {
    ev.FUNDS_WITHDRAWN: " The provider withdrew the amount.",
    ev.FUNDS_REINSTATED: " The provider paid the amount back.",
}


class PaymentReversal(msgspec.Struct, frozen=True, rename="camel"):
    """A refund or dispute, as an event reports it."""

    id: Annotated[
        str | None, doc("The provider's id; null if `charge.refunded` names none.", "re_1SQk7x")
    ]
    status: Annotated[str, doc("The provider's status.", "succeeded")]
    amount: Annotated[
        int | None,
        doc("In the smallest unit; null while parked.", 1000),
    ]
    currency: Annotated[str | None, doc("In lower case.", "eur")]
    reason: Annotated[str | None, doc("The provider's reason.", "requested_by_customer")]
    failure_reason: Annotated[str | None, doc("Why a refund failed.", None)]
    charge_id: Annotated[str | None, doc("The charge.", "ch_1SQk7x")]
    payment_intent_id: Annotated[str | None, doc("The payment intent.", "pi_1SQk7x")]
    event_id: Annotated[str, doc("The entry of the ledger.", "evt_1SQk7x")]


_NOTICED: Final[Mapping[str, Anomaly]] = {
    SUCCEEDED: Anomaly.REFUNDED,
    "failed": Anomaly.REFUND_FAILED,
    **dict.fromkeys(NEEDS_RESPONSE, Anomaly.DISPUTED),
}
"""The states that the operator is told of."""


class ReversalEffect(NamedTuple):
    """What an event says of a refund or dispute; ``event`` has the amount of that.

    ``named`` is the earlier event of another refund that is new by now.
    """

    outcome: Outcome
    event: BillingEvent
    named: BillingEvent | None = None

    @property
    def reversal(self) -> Reversal:
        return self.event.reversal or _NOTHING

    @property
    def is_new(self) -> bool:
        return self.outcome is Outcome.APPLIED

    @property
    def anomalies(self) -> tuple[Anomaly, ...]:
        noticed = _NOTICED.get(self.reversal.status)
        return (noticed,) if self.is_new and noticed else ()

    @property
    def reason(self) -> str:
        reversal, event = self.reversal, self.event
        what = _name(event, reversal)
        if self.outcome is Outcome.LATE:
            return f"A newer event says more of {what[0].lower()}{what[1:]}."
        words = _WORDS.get(reversal.status, f"is {reversal.status}")
        why = reversal.failure_reason or reversal.reason
        text = f"{what} {words}{f' ({why})' if why else ''}"
        known = "" if self.is_new else ", as an earlier event said"
        return f"{text}{known}.{_FUNDS.get(event.type, '')}"


_NOTHING: Final = Reversal(None, "", None)


def _name(event: BillingEvent, reversal: Reversal) -> str:
    kind = "Refund" if event.type in ev.REFUND_TYPES else "Dispute"
    amount = format_amount(reversal.amount, event.currency)
    name = reversal.id or f"of charge {reversal.charge_id}"
    return f"{kind} {name} of {amount}" if amount else f"{kind} {name}"


class ReversalBook:
    """The events of refunds and disputes of the tenants of a batch, with those that were stored
    before.
    """

    def __init__(self, stored: Mapping[str, Sequence[BillingEvent]]) -> None:
        self._known = {tenant_id: list(events) for tenant_id, events in stored.items()}

    def take(self, tenant_id: str, event: BillingEvent) -> ReversalEffect:
        """Add an event of a tenant; return what it says that no earlier one did."""
        known = self._known.setdefault(tenant_id, [])
        earlier = [each for each in known if _are_of_one_charge(each, event)]
        earlier.sort(key=_position)
        history = _ChargeHistory()
        for each in earlier:
            history.take(each)
        effect = history.take(_placed_after(event, earlier))
        known.append(effect.event)
        return effect


def _are_of_one_charge(event: BillingEvent, other: BillingEvent) -> bool:
    is_of_kind = (event.type in ev.REFUND_TYPES) == (other.type in ev.REFUND_TYPES)
    return is_of_kind and not set(event.payments).isdisjoint(other.payments)


def _position(event: BillingEvent) -> int:
    return event.reversal.position if event.reversal else 0


def _placed_after(event: BillingEvent, earlier: Sequence[BillingEvent]) -> BillingEvent:
    position = _position(earlier[-1]) + 1 if earlier else 0
    reversal = msgspec.structs.replace(event.reversal or _NOTHING, position=position)
    return msgspec.structs.replace(event, reversal=reversal)


class _Known(msgspec.Struct):
    """A refund or dispute: the states that were new, and when the newest one began.

    ``is_matched`` if a charge's event is about it. ``is_sum`` if it may be several refunds.
    ``naming`` is the newest event that names a refund which a charge's event reported before.
    """

    amount: int
    states: set[str]
    newest: tuple[int, int]
    is_matched: bool = False
    is_sum: bool = False
    naming: BillingEvent | None = None

    @property
    def counts(self) -> bool:
        return self.states.isdisjoint(_WITHDRAWN)

    def may_be(self, amount: int) -> bool:
        """Whether this may be a refund of an amount, or have it."""
        return self.amount == amount or (self.is_sum and self.amount > amount)

    def counted_at(self, second: int) -> bool:
        """Whether the charge's sum at a time includes it. A failure of that second counts as a
        later one: a refund that the feed misses is new by the event that names it, and nothing
        withdraws one too many.
        """
        return self.counts or self.newest[0] >= second


class _ChargeHistory:
    """The refunds, or the disputes, of one charge, by its events in the order in which they were
    applied.

    Nothing says which of several refunds of one amount a charge's event is about, so it is about
    the first that an event names. But if the first event of another one says that it failed,
    readers of the feed take the change without id for that one. Then the charge's event is about
    that one, and the former is new by the event that named it.

    One case stays ambiguous: a charge's event that says only the sum of its refunds, after one of
    an equal amount failed and before the event that says so. It is no change, as the same sum twice
    is; the refund is new by the event that names it.
    """

    def __init__(self) -> None:
        self._named = dict[str, _Known]()
        self._unnamed = list[_Known]()
        """The refunds that only a charge's event has reported so far."""

    def take(self, event: BillingEvent) -> ReversalEffect:
        reversal = event.reversal or _NOTHING
        if reversal.id is None:
            return self._take_unnamed(event, reversal)
        holder = None
        if reversal.id not in self._named:
            holder = self._withdraw_unnamed(reversal)
            self._named[reversal.id] = self._before_first(event, reversal.amount or 0)
        outcome = self._take_named(event, reversal, self._named[reversal.id])
        again = self.take(holder) if holder else None
        return ReversalEffect(outcome, event, again.event if again and again.is_new else None)

    def _take_named(self, event: BillingEvent, reversal: Reversal, known: _Known) -> Outcome:
        began = _began(event, reversal)
        if known.naming and began >= _began(known.naming, known.naming.reversal or _NOTHING):
            known.naming = event
        if reversal.status in known.states:
            return Outcome.NO_CHANGE
        is_overtaken = reversal.status in _UNFINISHED and SUCCEEDED in known.states
        if began < known.newest or is_overtaken:
            return Outcome.LATE
        known.states.add(reversal.status)
        known.newest = began
        return Outcome.APPLIED

    def _withdraw_unnamed(self, first: Reversal) -> BillingEvent | None:
        """If the first event of a refund says that it failed, let the charge's event be about it
        that was taken for another one. Return the newest event of that.
        """
        amount = first.amount or 0
        if first.status not in _WITHDRAWN or any(each.may_be(amount) for each in self._unnamed):
            return None
        for name, known in self._named.items():
            if known.naming and known.amount == amount and known.counts:
                del self._named[name]
                self._unnamed.append(known)
                return known.naming
        return None

    def _before_first(self, event: BillingEvent, amount: int) -> _Known:
        """Return what is known before the first event that names a refund or dispute."""
        found = [each for each in self._unnamed if each.may_be(amount)]
        if not found:
            return _Known(amount, set(), (event.created, -1))
        known = min(found, key=lambda each: each.amount)  # of this amount alone, if there is one
        known.amount -= amount
        if not known.amount:
            self._unnamed.remove(known)
        # the charge's event may be about a later refund of the same amount
        newest = min(known.newest, (event.created, _RANKS[SUCCEEDED]))
        return _Known(amount, {SUCCEEDED}, newest, is_matched=True, naming=event)

    def _take_unnamed(self, event: BillingEvent, reversal: Reversal) -> ReversalEffect:
        amount, is_sum = reversal.amount or 0, reversal.total is not None
        if reversal.total is not None:
            known = (*self._named.values(), *self._unnamed)
            counted = sum(each.amount for each in known if each.counted_at(event.created))
            amount = max(0, reversal.total - counted)
        with_amount = msgspec.structs.replace(reversal, amount=amount)
        event = msgspec.structs.replace(event, reversal=with_amount)
        if not amount or (not is_sum and self._match(amount)):
            return ReversalEffect(Outcome.NO_CHANGE, event)
        began = event.created, _RANKS[SUCCEEDED]
        self._unnamed.append(_Known(amount, {SUCCEEDED}, began, is_matched=True, is_sum=is_sum))
        return ReversalEffect(Outcome.APPLIED, event)

    def _match(self, amount: int) -> bool:
        """Whether an event has named a refund of this amount; each such refund counts once."""
        for known in self._named.values():
            if known.amount == amount and not known.is_matched:
                known.is_matched = True
                return True
        return False


def _began(event: BillingEvent, reversal: Reversal) -> tuple[int, int]:
    return event.created, _RANKS.get(reversal.status, 0)


def shown_reversal(reversal: Reversal, currency: str | None, event_id: str) -> PaymentReversal:
    """Return a refund or dispute as the API shows it."""
    return PaymentReversal(
        reversal.id,
        reversal.status,
        reversal.amount,
        currency,
        reversal.reason,
        reversal.failure_reason,
        reversal.charge_id,
        reversal.payment_intent_id,
        event_id,
    )


def changes_of(tenant_id: str, effect: ReversalEffect) -> list[NewEvent]:
    """Return the change events of what is new."""
    found = [effect.event] if effect.is_new else []
    if effect.named:
        found.append(effect.named)
    return [_change_of(tenant_id, event) for event in found]


def _change_of(tenant_id: str, event: BillingEvent) -> NewEvent:
    shown = shown_reversal(event.reversal or _NOTHING, event.currency, event.id)
    is_refund = event.type in ev.REFUND_TYPES
    kind = EventType.REFUNDED if is_refund else EventType.DISPUTED
    return NewEvent(kind, tenant_id, from_epoch(event.created), shown)
