"""Random histories of tenants with several subscriptions, in which the payloads prove the order of
events.
"""

import random
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent
from tests.support.ledger import CUSTOMER
from tests.support.subscription_histories import CATALOGS, HOUR, PERIOD, Script
from tests.support.subscription_oracle import Rules


class _Second:
    """What has happened to one subscription in the present second."""

    def __init__(self) -> None:
        self.updates = 0
        self.invoices: list[tuple[str, str]] = []
        self.is_closed = False
        """Whether nothing more but the end may happen in it, because its place would not be
        proven.
        """
        self.keeps_details = False
        self.is_answered = False
        """Whether the provider answered in it: an answer follows what had arrived, the end
        included.
        """


class RandomScript(Script):
    """Writes a random history in which every two events of one subscription and second have a proof
    of their order.

    Where no proof exists both orders lead to the same state.
    """

    _STATUSES: Final = (
        "trialing",
        "active",
        "active",
        "past_due",
        "past_due",
        "unpaid",
        "paused",
        "incomplete",
    )
    _PRICES: Final = (
        "price_free",
        "price_pro",
        "price_pro_yearly",
        "price_business",
        "price_projects",
        "price_members",
    )

    def __init__(self, rng: random.Random, *, types: Collection[str], subscriptions: int) -> None:
        """``types`` are those that the provider's endpoint has enabled."""
        super().__init__()
        self._rng = rng
        self._types = types
        self._names = [f"sub_{name}" for name in rng.sample("abcdefg", subscriptions)]
        self._over: set[str] = set()
        self._open: dict[str, list[str]] = {}
        self._failed: dict[str, list[str]] = {name: [] for name in self._names}
        self._seconds: dict[str, _Second] = {}
        self._seen: set[str] = set()

    def write(self, length: int) -> None:
        """Write about so many events."""
        while len(self.events) < length:
            if (
                pause := self._rng.choice((0, 0, 0, 1, 10, 10, HOUR, PERIOD))
            ) and self.now < 900_000:
                self.later(pause)
                self._seconds = {}
            self._goes_on(self._rng.choice(self._names))

    def _goes_on(self, name: str) -> None:
        chance = self._rng.random()
        if chance < 0.05:
            self._bill(self._rng.choice(sorted(ev.INVOICE_TYPES)), "in_0", None)
        elif chance < 0.35:
            self._invoices(name)
        elif name not in self.facts:
            self._starts(name)
        elif name in self._over:
            pass
        elif chance < 0.43:
            self._stops(name)
        elif chance < 0.5:
            self._answers(name)
        else:
            self._moves(name)

    def _second(self, name: str) -> _Second:
        return self._seconds.setdefault(name, _Second())

    def _starts(self, name: str) -> None:
        second = self._second(name)
        if second.is_closed or second.invoices:
            return
        told = ev.SUBSCRIPTION_CREATED in self._types and self._rng.random() < 0.5
        self.begins(
            name,
            told=told,
            items=self._some_items(),
            period_end=self._some_end(),
            **self._some_details(),
        )
        if told:
            self._seen.add(name)
        else:
            self._moves(name)

    def _moves(self, name: str) -> None:
        second = self._second(name)
        if second.is_closed:
            return
        if (
            ev.SUBSCRIPTION_PAUSED in self._types
            and self._is_untouched(second)
            and self._rng.random() < 0.15
        ):
            status, event_type = self._rng.choice(
                (("paused", ev.SUBSCRIPTION_PAUSED), ("active", ev.SUBSCRIPTION_RESUMED))
            )
            self.changes(name, event_type, status=status, **self._some_details())
            self._seen.add(name)
            second.is_closed = True
            return
        facts = self._some_changes(name, keeps_details=second.keeps_details)
        if second.invoices and not _is_settled(
            second.invoices[0][0], facts.get("status", self.facts[name]["status"])
        ):
            return
        self.changes(name, **facts)
        second.updates += 1
        second.keeps_details = True
        second.is_closed = bool(second.invoices) or name not in self._seen
        self._seen.add(name)
        if self.facts[name]["status"] == "incomplete_expired":
            self._over.add(name)
            second.is_closed = True

    def _stops(self, name: str) -> None:
        if name in self._seen and not self._second(name).is_answered:
            self.ends(name, ended_at=self._rng.choice((None, self.now, self.now - 5)))
            self._over.add(name)

    def _answers(self, name: str) -> None:
        second = self._second(name)
        if self._is_untouched(second) and name in self._seen:
            status = self._rng.choice((*self._STATUSES, "canceled"))
            self.observed(name, status=status, **self._some_details())
            second.is_closed = second.is_answered = True
            if status == "canceled":
                self._over.add(name)

    def _is_untouched(self, second: _Second) -> bool:
        return not (second.is_closed or second.updates or second.invoices or second.keeps_details)

    def _invoices(self, name: str) -> None:
        second, rng = self._second(name), self._rng
        is_over = name in self._over
        if second.is_closed and not is_over:
            return
        failed = self._failed[name]
        fails_now = [invoice for kind, invoice in second.invoices if kind == ev.PAYMENT_FAILED]
        if (
            fails_now
            and not is_over
            and len(second.invoices) == 1
            and not second.updates
            and rng.random() < 0.3
        ):
            failed = fails_now  # the one that fails and is given up in one second
        elif not (is_over or self._is_untouched(second)):
            failed = []
        if failed and rng.random() < 0.3:
            self._gives_up(rng.choice(failed), name)
            second.is_closed = True
            return
        opened = self._open.setdefault(name, [])
        if not opened or rng.random() < 0.2:
            opened.append(f"in_{name}_{len(self.events)}")
        invoice = rng.choice([number for _, number in second.invoices] or opened)
        event_type = rng.choice(
            (ev.PAYMENT_FAILED, ev.PAYMENT_FAILED, ev.PAYMENT_SUCCEEDED, ev.INVOICE_PAID)
        )
        status = self.facts[name]["status"] if name in self.facts else ""
        if not is_over and not self._may_bill(second, event_type, invoice, status):
            return
        if event_type == ev.PAYMENT_FAILED:
            self.fails(invoice, name)
            self._failed[name].append(invoice)
        else:
            self.pays(invoice, name, event_type)
            opened[:] = [number for number in opened if number != invoice]
        second.is_closed = second.is_closed or bool(second.updates or second.invoices)
        second.invoices.append((event_type, invoice))

    def _gives_up(self, invoice: str, name: str) -> None:
        self.gives_up(
            invoice, name, self._rng.choice((ev.INVOICE_VOIDED, ev.INVOICE_UNCOLLECTIBLE))
        )
        opened = self._open.get(name, [])
        opened[:] = [number for number in opened if number != invoice]

    def _may_bill(self, second: _Second, event_type: str, invoice: str, status: str) -> bool:
        if second.invoices:
            is_paid_now = (
                second.invoices == [(ev.PAYMENT_FAILED, invoice)] and event_type in ev.PAYMENT_TYPES
            )
            return is_paid_now and not second.updates
        return not second.updates or _is_settled(event_type, status)

    def _some_changes(self, name: str, *, keeps_details: bool) -> dict[str, Any]:
        facts, rng = self.facts[name], self._rng
        changes: dict[str, Any] = {}
        if rng.random() < 0.6:
            changes["status"] = rng.choice(self._STATUSES)
            if facts["status"] == "incomplete" and rng.random() < 0.3:
                changes["status"] = "incomplete_expired"
        if rng.random() < 0.3:
            changes["period_end"] = self._some_end()
        if rng.random() < 0.3:
            changes["cancels"] = not facts["cancels"]
        if rng.random() < 0.3:
            changes["items"] = self._some_items()
        return changes if keeps_details else changes | self._some_details()

    def _some_items(self) -> tuple[tuple[str, int], ...]:
        chance, rng = self._rng.random(), self._rng
        if chance < 0.5:
            return ((rng.choice(self._PRICES[:4]), 1),)
        if chance < 0.6:
            return ((rng.choice(self._PRICES[4:]), rng.randint(1, 3)),)
        if chance < 0.65:
            return ()
        prices = rng.sample((*self._PRICES, "price_unknown"), rng.randint(1, 4))
        return tuple((price, rng.randint(0, 5)) for price in prices)

    def _some_end(self) -> int | None:
        return self._rng.choice((None, *[self.now + PERIOD * number for number in (1, 1, 2, 3)]))

    def _some_details(self) -> dict[str, Any]:
        details: dict[str, Any] = {}
        if self._rng.random() < 0.2:
            details["cancel_at"] = self._rng.choice((None, self.now + HOUR, self.now + PERIOD))
        if self._rng.random() < 0.2:
            details["pause"] = self._rng.choice((None, "void", "void", "keep_as_draft"))
        return details


def _is_settled(event_type: str, status: str) -> bool:
    """Whether an invoice event of the second of an update to this status leads to one state before
    and after it.
    """
    if event_type == ev.PAYMENT_FAILED:
        return status in {"past_due", "incomplete_expired"}
    return status not in {"past_due", "unpaid"}


class RandomHistory(NamedTuple):
    """A random history, with how the service is set up and the customers that are linked from the
    start.
    """

    events: Sequence[BillingEvent]
    rules: Rules
    customers: Sequence[str]


def random_history(seed: int) -> RandomHistory:
    """A history of one to four subscriptions. Without a link an event of a subscription links the
    customer.
    """
    rng = random.Random(seed)  # noqa: S311  # a sample that can be repeated
    types = rng.choice((ev.REQUIRED_TYPES, ev.KNOWN_TYPES))
    script = RandomScript(rng, types=types, subscriptions=rng.choice((1, 2, 2, 3, 3, 4)))
    script.write(rng.randint(2, 14))
    while not (
        sent := tuple(event for event in script.events if event.type in types | {ev.SNAPSHOT})
    ):
        script.write(len(script.events) + 1)
    rules = Rules(rng.choice(list(CATALOGS.values())))
    links = ev.SUBSCRIPTION_TYPES & {event.type for event in sent}
    customers = () if links and rng.random() < 0.4 else (CUSTOMER,)
    events = _without_some_names(sent, rng) if rng.random() < 0.4 else sent
    return RandomHistory(events, rules, customers)


def _without_some_names(
    events: Sequence[BillingEvent], rng: random.Random
) -> Sequence[BillingEvent]:
    """Remove the tenant from the metadata of some subscription events, never of the first one that
    links a customer.
    """
    linking = next((event for event in events if event.type in ev.WHOLE_SUBSCRIPTION_TYPES), None)
    if linking is None:
        return events
    return [
        msgspec.structs.replace(event, org_id=None)
        if event.type in ev.SUBSCRIPTION_TYPES and event is not linking and rng.random() < 0.7
        else event
        for event in events
    ]
