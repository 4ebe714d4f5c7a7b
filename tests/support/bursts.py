"""Histories with bursts: many events of one second, of several subscriptions and their invoices."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, permutations
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import (
    BillingEvent,
    Fact,
    PreviousFact,
    SubscriptionDetails,
    SubscriptionItem,
)
from tenantry.domain.billing.state import BillingPolicy, BillingState
from tenantry.domain.billing.tenant_record import SPEC_FIELDS
from tests.support import figures
from tests.support.facts import ANY, deleted, failed, succeeded, updated
from tests.support.ledger import folded, ledger_of

spec_fields: Final = attrgetter(*SPEC_FIELDS)
"""Return the four fields of a state or record that the specification names."""
STATUSES: Final = ("trialing", "active", "past_due", "unpaid")
PRICES: Final = ("price_free", "price_pro", "price_business")


class _Invoice:
    def __init__(self, invoice_id: str) -> None:
        self.id = invoice_id
        self.attempts = 0
        self.is_paid = False


class _Subscription:
    def __init__(self, name: str, created: int) -> None:
        self.facts: dict[str, PreviousFact] = {
            "subscription_id": name,
            "subscription_created": created,
            "status": "incomplete",
            "price_id": "price_pro",
            "current_period_end": 5000,
            "cancel_at_period_end": False,
            "items": (),
            "cancel_at": None,
            "pause": None,
        }
        self.has_ended = False
        self.invoice = _Invoice(f"in_{name}")


class Author:
    """Writes what truly happened to one tenant, event by event; ``events`` are in that order.

    ``proves`` lets every change say what it replaced, and leaves out invoices and a subscription
    after another's end.
    """

    def __init__(self, rng: random.Random, *, proves: bool = False) -> None:
        self.rng = rng
        self._proves = proves
        self._subscriptions: list[_Subscription] = []
        self.now = 1000
        self.events: list[BillingEvent] = []

    def begin(self, subscriptions: int) -> None:
        """Let subscriptions begin, each in a separate second."""
        for _ in range(subscriptions):
            self.now += 10
            self._begins()

    def burst(self, length: int) -> None:
        """Let so many things happen in the next second."""
        self.now += 10
        for _ in range(length):
            self._goes_on()

    def apart(self) -> tuple[list[BillingEvent], list[BillingEvent]]:
        """The events before the newest second, and those of it."""
        before = [event for event in self.events if event.created < self.now]
        return before, self.events[len(before) :]

    def _begins(self) -> None:
        subscription = _Subscription(f"sub_{len(self._subscriptions)}", self.now)
        self._subscriptions.append(subscription)
        self._changes(subscription, {"status": "active"}, tells=True)

    def _goes_on(self) -> None:
        living = [
            subscription for subscription in self._subscriptions if not subscription.has_ended
        ]
        if not living:
            if not self._proves:
                self._begins()
            return
        subscription, chance = self.rng.choice(living), self.rng.random()
        tells = self._proves or self.rng.random() < 0.7
        if chance < 0.55:
            self._changes(subscription, self._another(subscription), tells=tells)
        elif chance < 0.65:
            self._changes(subscription, {}, tells=tells)
        elif chance < 0.75:
            self._ends(subscription)
        elif not self._proves:
            self._bills(subscription)

    def _another(self, subscription: _Subscription) -> dict[str, PreviousFact]:
        facts = subscription.facts
        choices: dict[str, Sequence[Fact]] = {
            "status": STATUSES,
            "price_id": PRICES,
            "cancel_at_period_end": [not facts["cancel_at_period_end"]],
            "quantity": (1, 2, 3),
            "cancel_at": (None, 7000, 8000),
            "pause": (None, "void", "keep_as_draft"),
        }
        named = self.rng.sample(sorted(choices), self.rng.choice((1, 1, 1, 2)))
        changes: dict[str, PreviousFact] = {fact: self.rng.choice(choices[fact]) for fact in named}
        quantity = changes.pop("quantity", None)
        if quantity is not None or "price_id" in changes:
            price = changes.get("price_id", facts["price_id"])
            changes["items"] = _items(
                price, self.rng.choice((1, 1, 2)) if quantity is None else quantity
            )
        return {fact: value for fact, value in changes.items() if value != facts[fact]}

    def _changes(
        self, subscription: _Subscription, changes: dict[str, PreviousFact], *, tells: bool
    ) -> None:
        previous = {fact: subscription.facts[fact] for fact in changes} if tells else None
        subscription.facts |= changes
        self._add(updated(self.now, self._next_id(), previous=previous, **_given(subscription)))

    def _ends(self, subscription: _Subscription) -> None:
        subscription.has_ended = True
        given = {**_given(subscription), "status": "canceled"}
        given["details"] = msgspec.structs.replace(given["details"], ended_at=self.now)
        self._add(deleted(self.now, self._next_id(), **given))

    def _bills(self, subscription: _Subscription) -> None:
        invoice = subscription.invoice
        if invoice.is_paid:
            invoice = subscription.invoice = _Invoice(f"{invoice.id}_next")
        invoice.attempts += 1
        invoice.is_paid = self.rng.random() < 0.5
        names = {"invoice_id": invoice.id, "subscription_id": subscription.facts["subscription_id"]}
        attempt = {
            "attempt_count": invoice.attempts,
            "status": "paid" if invoice.is_paid else "open",
        }
        make = succeeded if invoice.is_paid else failed
        self._add(make(self.now, self._next_id(), **names, **attempt))

    def _add(self, event: BillingEvent) -> None:
        self.events.append(event)

    def _next_id(self) -> str:
        return f"evt_{len(self.events):02}"


def _items(price: PreviousFact, quantity: PreviousFact) -> tuple[SubscriptionItem, ...]:
    return (
        ()
        if quantity == 1
        else (msgspec.convert({"price_id": price, "quantity": quantity}, SubscriptionItem),)
    )


def _given(subscription: _Subscription) -> dict[str, Any]:
    facts: dict[str, Any] = dict(subscription.facts)
    details = SubscriptionDetails(
        **{fact: facts.pop(fact) for fact in ev.DETAILED_FACTS if fact in facts}
    )
    return facts | {"details": details}


Order = Sequence[BillingEvent]


def every_order_of_a_burst(seed: int, most: int) -> tuple[Order, Iterator[Order]]:
    """What truly happened, with a burst of two to ``most`` events at the end, and every order of
    that burst.
    """
    author = _first_events(random.Random(seed))  # noqa: S311  # a sample that can be repeated
    author.burst(author.rng.randint(2, most))
    before, burst = author.apart()
    return author.events, ((*before, *order) for order in permutations(burst))


def random_orders_of_a_long_burst(seed: int, orders: int) -> tuple[Order, Iterator[Order]]:
    """The same with seven to twelve events: the true order and so many random ones."""
    author = _first_events(random.Random(seed))  # noqa: S311  # a sample that can be repeated
    author.burst(author.rng.randint(7, 12))
    before, burst = author.apart()
    sampled = ((*before, *author.rng.sample(burst, len(burst))) for _ in range(orders))
    return author.events, chain([author.events], sampled)


def random_orders_of_a_proven_burst(seed: int, orders: int) -> tuple[Order, Iterator[Order]]:
    """Up to twelve changes of one subscription whose payloads prove their order: in the true order
    and random ones.
    """
    author = Author(random.Random(seed), proves=True)  # noqa: S311  # a sample that can be repeated
    author.begin(1)
    author.burst(12)
    before, burst = author.apart()
    sampled = ((*before, *author.rng.sample(burst, len(burst))) for _ in range(orders))
    return author.events, chain([author.events], sampled)


def random_orders_of_a_history(seed: int, orders: int) -> tuple[Order, Iterator[Order]]:
    """What happened in up to three bursts: the true order and so many random ones, in which events
    are late.
    """
    author = _first_events(random.Random(seed))  # noqa: S311  # a sample that can be repeated
    for _ in range(author.rng.randint(1, 3)):
        author.burst(author.rng.choice((1, 1, 2, 3, 4, 5, 6, 8)))
    sampled = (author.rng.sample(author.events, len(author.events)) for _ in range(orders))
    return author.events, chain([author.events], sampled)


def _first_events(rng: random.Random) -> Author:
    author = Author(rng)
    author.begin(rng.randint(1, 3))
    return author


class Ends(NamedTuple):
    """How many orders were delivered, and where they ended; ``silent`` ones ended wrong without an
    anomaly.
    """

    orders: int = 0
    flagged: int = 0
    wrong: int = 0
    silent: int = 0
    wrong_in_order: int = 0


def deliver(truth: Order, orders: Iterable[Order], policy: BillingPolicy) -> Ends:
    """Deliver each order, the events one by one; the first one is the true order."""
    right = _shown(folded(truth, policy))
    ends = Ends()
    for number, order in enumerate(orders):
        ledger = ledger_of(policy, order)
        is_wrong, is_flagged = _shown(ledger.account.state) != right, bool(ledger.ambiguous)
        ends = added(
            ends,
            Ends(1, is_flagged, is_wrong, is_wrong and not is_flagged, is_wrong and number == 0),
        )
    return ends


def _shown(state: BillingState) -> tuple[Any, ...]:
    return *spec_fields(state), state.seats, state.details


def added(some: Ends, more: Ends) -> Ends:
    """Both together."""
    return Ends(*(one + other for one, other in zip(some, more, strict=True)))


def check(
    what: str,
    histories: Iterable[tuple[Order, Iterator[Order]]],
    record_property: figures.RecordProperty,
) -> Ends:
    """Deliver all of these, and assert that no order ends wrong silently, and no true order ends
    wrong at all.
    """
    ends = Ends()
    for truth, orders in histories:
        ends = added(ends, deliver(truth, orders, ANY))
    wrong = {"silently": ends.silent, "in order": ends.wrong_in_order}
    ran = {
        "orders": ends.orders,
        "flagged": ends.flagged,
        "flagged and wrong": ends.wrong - ends.silent,
    }
    figures.record(record_property, what, ran, wrong)
    assert wrong == {"silently": 0, "in order": 0}
    return ends
