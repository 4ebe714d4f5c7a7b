"""Two refunds of one amount, of which one fails: in each order of arrival the published changes add
up to the refund that remains.
"""

import itertools
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
import pytest

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, Reversal
from tenantry.domain.billing.reversals import ReversalBook, changes_of
from tests.support.cases import cases

AMOUNT: Final = 1000
Change = tuple[str | None, str, int]
"""The id, status and amount of a refund in the feed."""


def refund(name: str, status: str, at: int) -> BillingEvent:
    kind = ev.REFUND_FAILED if status == "failed" else "refund.created"
    return _event(kind, at, Reversal(name, status, AMOUNT))


def charge(total: int, at: int, *, says_before: bool) -> BillingEvent:
    reversal = Reversal(None, "succeeded", AMOUNT)
    if not says_before:
        reversal = Reversal(None, "succeeded", None, total=total)
    return _event(ev.CHARGE_REFUNDED, at, reversal)


def _event(kind: str, at: int, reversal: Reversal) -> BillingEvent:
    return BillingEvent(
        id=f"{kind} {reversal.id} {at}", type=kind, created=at, payments=("ch",), reversal=reversal
    )


class Ledger:
    """The events of one charge as a tenant's ledger has them, and the changes that it published.
    If refunds ``wait``, they are parked until an event of the charge names the customer.
    """

    def __init__(self, *, waits: bool) -> None:
        self.changes = list[Change]()
        self._waits = waits
        self._arrived = 0
        self._stored = list[BillingEvent]()
        self._parked = list[BillingEvent]()

    def receive(self, event: BillingEvent) -> None:
        event = msgspec.structs.replace(event, arrival=self._arrived)
        self._arrived += 1
        if self._waits and event.type != ev.CHARGE_REFUNDED:
            self._parked.append(event)
            return
        self._waits = False
        parked = sorted(self._parked, key=attrgetter("created", "arrival"))
        self._parked.clear()
        self._apply([event, *parked])

    def _apply(self, events: Sequence[BillingEvent]) -> None:
        book = ReversalBook({"acme": sorted(self._stored, key=attrgetter("arrival"))})
        for event in events:
            effect = book.take("acme", event)
            self._stored.append(effect.event)
            shown: list[Any] = [change.data for change in changes_of("acme", effect)]
            self.changes += [(each.id, each.status, each.amount) for each in shown]


def remaining(changes: Sequence[Change]) -> int:
    """What is refunded after these changes, as their reader counts it: a failed refund takes back
    the change of its id, else its amount of what has no id.
    """
    named, unnamed = dict[str, int](), 0
    for name, status, amount in changes:
        if name is None:
            unnamed += amount
        elif status in ("pending", "succeeded"):
            named[name] = amount if status == "succeeded" else 0
        elif name in named:
            del named[name]
        else:
            unnamed -= min(unnamed, amount)
    return unnamed + sum(named.values())


def is_right(changes: Sequence[Change]) -> bool:
    """Whether each state is published once, and one refund remains."""
    refunded = sum(amount for _, status, amount in changes if status == "succeeded")
    named = [change for change in changes if change[0]]
    is_once = len(set(named)) == len(named) and refunded <= 2 * AMOUNT
    return is_once and remaining(changes) == AMOUNT


def wrong_orders(
    events: Sequence[BillingEvent], *, waits: bool
) -> Iterator[tuple[list[str], list[Change]]]:
    for order in itertools.permutations(events):
        ledger = Ledger(waits=waits)
        for event in order:
            ledger.receive(event)
        if not is_right(ledger.changes):
            yield [event.id for event in order], ledger.changes


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("says_before", [True, False])
@cases(
    ("failed", "second_at", "failed_at", "second_total"),
    [
        ("re", 9, 99, 2 * AMOUNT),
        ("rf", 9, 99, 2 * AMOUNT),
        ("re", 99, 9, AMOUNT),
    ],
)
def test_each_order_leaves_the_refund_that_did_not_fail(
    failed: str, second_at: int, failed_at: int, second_total: int, says_before: bool, waits: bool
) -> None:
    events = [
        charge(AMOUNT, 0, says_before=says_before),
        refund("re", "succeeded", 0),
        charge(second_total, second_at, says_before=says_before),
        refund("rf", "succeeded", second_at),
        refund(failed, "failed", failed_at),
    ]
    assert list(wrong_orders(events, waits=waits)) == []


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("says_before", [True, False])
def test_each_order_leaves_the_refund_that_was_pending_and_succeeded(
    says_before: bool, waits: bool
) -> None:
    events = [
        charge(AMOUNT, 0, says_before=says_before),
        refund("re", "pending", 0),
        charge(2 * AMOUNT, 9, says_before=says_before),
        refund("rf", "pending", 9),
        refund("rf", "succeeded", 50),
        refund("re", "failed", 99),
    ]
    assert list(wrong_orders(events, waits=waits)) == []
