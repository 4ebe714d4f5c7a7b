"""Short histories whose ends the documentation states, one for each rule that is easily broken."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.provider_world import (
    ADDON_PRICE,
    DAY,
    HOUR,
    VERSIONS,
    Event,
    History,
    HistoryTenant,
    Item,
    ProviderWorld,
    bare,
)

CUSTOMER: Final = "cus_example_a"
ORG: Final = "org_example_a"
OTHER: Final = "org_example_b"
PRO: Final = (Item("si_1", "price_pro", 1),)
BUSINESS: Final = (Item("si_1", "price_business", 1),)
ADDON: Final = (Item("si_1", ADDON_PRICE, 1),)


@dataclass(frozen=True)
class BillingExample:
    """A history and what the documentation states of its end: fields of `ExpectedTenant`, and kinds
    of mail.
    """

    name: str
    history: History
    ends: Mapping[str, Mapping[str, Any]]
    mails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    every_order: bool = True
    """Whether each order of arrival must end so; otherwise the history's own order alone."""

    def orders(self) -> Iterator[History]:
        if not self.every_order:
            yield self.history
            return
        for order in itertools.permutations(self.history.arrivals):
            yield self.history.arriving(order)


class _Writer:
    """Writes what happens to a subscription of the tenant `ORG`; times are hours before `now`."""

    def __init__(self, now: int, mode: str, *, plan: str = "free", linked: bool = True) -> None:
        self._now = now
        self._mode = mode
        self.world = ProviderWorld(now, VERSIONS[-1], "example")
        customer = CUSTOMER if linked else None
        self._tenants = (HistoryTenant(ORG, plan, customer), HistoryTenant(OTHER, "free", None))

    def at(self, hours: float) -> ProviderWorld:
        """Let what follows happen so many hours ago."""
        self.world.now = self._now - int(hours * HOUR)
        return self.world

    def subscribe(
        self, hours: float, status: str = "active", items: tuple[Item, ...] = PRO, **fields: Any
    ) -> str:
        return self.at(hours).subscribe(CUSTOMER, ORG, items, status, **fields)

    def bill(self, subscription: str | None) -> str:
        return self.world.bill(subscription, CUSTOMER)

    def written(
        self, arrivals: tuple[int, ...] | None = None, *, only: Callable[[Event], Event] = dict
    ) -> History:
        events = tuple(only(event) for event in self.world.events)
        return History(self._tenants, events, arrivals or tuple(range(len(events))), self._mode)


def billing_examples(now: int) -> list[BillingExample]:
    """Return all examples, as of `now` in seconds since the Unix epoch."""
    return [
        *_failed_payments(now),
        *_choices(now),
        *_recoveries(now),
        *_moves(now),
        *_bursts(now),
        *_invoices_without_subscription(now),
        *_quantities(now),
        *_announced_ends(now),
    ]


def _failed_payments(now: int) -> Iterator[BillingExample]:
    """A failed payment never gives more access than there was."""
    none = {"subscription_status": "past_due", "access": ("none", "free")}
    for mode in ("each", "any"):
        writer = _Writer(now, mode)
        subscription = writer.subscribe(30, "incomplete", BUSINESS)
        writer.at(29).fail(writer.bill(subscription))
        yield BillingExample(
            f"first payment fails ({mode})",
            writer.written(),
            {ORG: none},
            {ORG: ("payment_failed",)},
        )
        for status in ("unpaid", "paused"):
            writer = _Writer(now, mode)
            subscription = writer.subscribe(30, "active", BUSINESS)
            writer.at(29).update(subscription, status=status)
            writer.at(28).fail(writer.bill(subscription))
            yield BillingExample(
                f"payment fails after {status} ({mode})", writer.written(), {ORG: none}
            )
    for status in ("incomplete_expired", "canceled"):
        writer = _Writer(now, "any")
        subscription = writer.subscribe(30, "active", BUSINESS)
        writer.at(29).update(subscription, status=status)
        writer.at(28).fail(writer.bill(subscription))
        yield BillingExample(f"payment fails after {status} (any)", writer.written(), {ORG: none})


def _choices(now: int) -> Iterator[BillingExample]:
    """A plan in grace counts before an add-on, and what gives nothing never replaces the operator's
    plan.
    """
    writer = _Writer(now, "each")
    plan = writer.subscribe(40, "active", PRO)
    writer.subscribe(30, "active", ADDON)
    writer.at(20).fail(writer.bill(plan))
    yield BillingExample(
        "a plan in grace beside an add-on",
        writer.written(),
        {ORG: {"plan": "pro", "subscription_status": "past_due", "access": ("grace", "pro")}},
    )
    given = {ORG: {"plan": "pro", "access": ("full", "pro")}}
    for status, items in (
        ("incomplete", BUSINESS),
        ("incomplete_expired", BUSINESS),
        ("active", ADDON),
    ):
        writer = _Writer(now, "each", plan="pro")
        writer.subscribe(30, status, items)
        yield BillingExample(
            f"the operator's plan beside {status} of {items[0].price}", writer.written(), given
        )
    writer = _Writer(now, "each", plan="pro")
    writer.at(20).delete(writer.subscribe(30, "active", BUSINESS))
    yield BillingExample("the operator's plan after a subscription", writer.written(), given)


def _recoveries(now: int) -> Iterator[BillingExample]:
    for mode in ("each", "any"):
        writer = _Writer(now, mode)
        subscription = writer.subscribe(40, "active", PRO)
        invoice = writer.bill(subscription)
        writer.at(30).fail(invoice)
        writer.world.update(subscription, status="past_due")
        writer.at(20).update(subscription, status="unpaid")
        writer.at(10).pay(invoice)
        writer.at(9).update(subscription, status="active")
        mails = ("payment_failed", "access_ended", "payment_recovered")
        ends = {ORG: {"plan": "pro", "subscription_status": "active", "access": ("full", "pro")}}
        yield BillingExample(
            f"unpaid recovers ({mode})", writer.written(), ends, {ORG: mails}, every_order=False
        )


def _moves(now: int) -> Iterator[BillingExample]:
    """An invoice belongs to the tenant that its subscription named at the invoice's second,
    whenever it arrives.
    """
    away = {"plan": "free", "access": ("none", "free")}
    writer = _Writer(now, "each")
    subscription = writer.subscribe(9, "active", PRO)
    writer.at(5).move(subscription, OTHER)
    invoice = writer.bill(subscription)
    writer.at(4).fail(invoice)
    owes = {ORG: away, OTHER: {"subscription_status": "past_due", "access": ("grace", "pro")}}
    yield BillingExample("a failed payment after a move", writer.written(), owes)
    writer.at(3).pay(invoice)
    paid = {ORG: away, OTHER: {"subscription_status": "active", "access": ("full", "pro")}}
    yield BillingExample("a paid invoice after a move", writer.written(), paid)
    writer = _Writer(now, "each")
    subscription = writer.subscribe(9, "active", PRO)
    writer.at(6).fail(writer.bill(subscription))
    writer.at(5).move(subscription, OTHER)
    ends: dict[str, dict[str, Any]] = {
        ORG: {"subscription_status": "canceled", **away},
        OTHER: {"plan": "pro"},
    }
    lost = tuple(range(1, len(writer.world.events)))
    yield BillingExample(
        "a move of which only a failed payment is known", writer.written(lost), ends
    )
    for first, second in ((ORG, OTHER), (OTHER, ORG)):
        writer = _Writer(now, "each")
        subscription = writer.at(9).subscribe(CUSTOMER, first, PRO, "incomplete")
        writer.at(5).update(subscription, status="active")
        writer.world.move(subscription, second)
        yield BillingExample(
            f"a move within one second to {second}",
            writer.written(),
            {
                first: away,
                second: {"plan": "pro", "subscription_status": "active", "access": ("full", "pro")},
            },
        )


def _bursts(now: int) -> Iterator[BillingExample]:
    """`previous_attributes` order events of one second by all facts that are folded."""
    for mode in ("each", "any"):
        writer = _Writer(now, mode)
        subscription = writer.subscribe(9, "active", PRO)
        writer.at(5)
        for seats in (3, 4, 5):
            writer.world.update(subscription, items=(Item("si_1", "price_pro", seats),))
        yield BillingExample(
            f"three changes of seats ({mode})", writer.written(), {ORG: {"seats": 5}}
        )
        writer = _Writer(now, mode)
        subscription = writer.subscribe(9, "active", PRO)
        ends = [now + days * DAY for days in (10, 20, 30)]
        writer.at(5)
        for end in ends:
            writer.world.update(subscription, cancel_at=end)
        yield BillingExample(
            f"three changes of cancel_at ({mode})", writer.written(), {ORG: {"cancel_at": ends[-1]}}
        )
        writer = _Writer(now, mode)
        subscription = writer.subscribe(9, "active", PRO)
        writer.at(5).update(subscription, pause={"behavior": "void", "resumes_at": None})
        writer.world.update(subscription, pause={"behavior": "keep_as_draft", "resumes_at": None})
        yield BillingExample(
            f"two changes of a pause ({mode})", writer.written(), {ORG: {"access_until": None}}
        )
        writer = _Writer(now, mode)
        subscription = writer.subscribe(9, "active", PRO)
        writer.at(5).delete(subscription)
        writer.world.update(subscription, status="active", ended_at=None)
        ends_as_updated = {ORG: {"plan": "pro", "subscription_status": "active"}}
        yield BillingExample(
            f"updated after deleted without a proof ({mode})",
            writer.written(only=bare),
            ends_as_updated,
            every_order=False,
        )


def _invoices_without_subscription(now: int) -> Iterator[BillingExample]:
    """In `each` such an invoice changes nothing; it is mailed unless it is paid, or came before the
    link.
    """
    writer = _Writer(now, "each")
    writer.subscribe(9, "active", PRO)
    invoice = writer.bill(None)
    writer.at(5).fail(invoice)
    writer.at(4).pay(invoice)
    active = {ORG: {"plan": "pro", "subscription_status": "active"}}
    yield BillingExample(
        "an invoice without a subscription, paid before",
        writer.written((0, 2, 1, 3)),
        active,
        {ORG: ()},
        every_order=False,
    )
    writer = _Writer(now, "each", linked=False)
    writer.subscribe(9, "active", PRO)
    writer.at(5).fail(writer.bill(None))
    yield BillingExample(
        "an invoice without a subscription, before the link",
        writer.written((1, 0)),
        active,
        {ORG: ()},
        every_order=False,
    )
    writer = _Writer(now, "each")
    subscription = writer.subscribe(9, "active", PRO)
    writer.at(5).fail(writer.world.bill(subscription, None))
    yield BillingExample(
        "an invoice without a customer",
        writer.written(),
        {ORG: {"subscription_status": "past_due", "access": ("grace", "pro")}},
        {ORG: ("payment_failed",)},
        every_order=False,
    )


def _quantities(now: int) -> Iterator[BillingExample]:
    """An item of quantity 0 gives nothing."""
    empty = Item("si_1", "price_business", 0)
    for mode in ("each", "any"):
        writer = _Writer(now, mode)
        writer.subscribe(9, "active", (empty,))
        yield BillingExample(
            f"a plan of quantity 0 ({mode})", writer.written(), {ORG: {"access": ("none", "free")}}
        )
    writer = _Writer(now, "each")
    writer.subscribe(9, "active", (empty, Item("si_2", "price_pro", 2)))
    yield BillingExample(
        "a plan of quantity 0 beside another",
        writer.written(),
        {ORG: {"plan": "pro", "seats": 2, "access": ("full", "pro")}},
    )


def _announced_ends(now: int) -> Iterator[BillingExample]:
    """Access ends three days after an announced end whose event did not come."""
    for mode, days in itertools.product(("each", "any"), (2, 4)):
        access = ("none", "free") if days > 3 else ("full", "pro")
        at = now - days * DAY
        writer = _Writer(now, mode)
        subscription = writer.subscribe(24 * 20, "active", PRO)
        writer.at(24 * 19).update(subscription, cancel_at=at)
        yield BillingExample(
            f"cancel_at {days} days ago ({mode})", writer.written(), {ORG: {"access": access}}
        )
        writer = _Writer(now, mode)
        subscription = writer.subscribe(24 * 20, "active", PRO, period_end=at)
        writer.at(24 * 19).update(subscription, cancel_at_period_end=True)
        name = f"cancel_at_period_end {days} days ago ({mode})"
        yield BillingExample(name, writer.written(), {ORG: {"access": access}})
        writer = _Writer(now, mode)
        writer.subscribe(24 * 20, "trialing", PRO, trial_end=at, period_end=at)
        yield BillingExample(
            f"trial_end {days} days ago ({mode})", writer.written(), {ORG: {"access": access}}
        )
