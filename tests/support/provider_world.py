"""A simulated payment provider: what happens to its subscriptions and invoices, and the events that
report it.

Written from the provider's documentation of its subscriptions, invoices and events, without the
service. A `History` has the events in the order in which they happened. The order in which they
arrive, and which of them get lost, is decided apart from that.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

Event = dict[str, Any]

HOUR = 3600
DAY = 24 * HOUR
MONTH = 30 * DAY

# Until 2025-03-31 a subscription has its period itself, and an invoice its `subscription`.
VERSIONS = ("2019-05-16", "2022-11-15", "2024-06-20", "2025-03-31.basil", "2025-09-30.clover")
FIRST_WITH_ITEM_PERIODS = "2025-03-31"

PLAN_PRICES = ("price_pro", "price_pro_yearly", "price_business")
ADDON_PRICE = "price_projects"
UNKNOWN_PRICE = "price_support"

# The five that the endpoint must send; the others can be turned on.
REQUIRED_TYPES = (
    "customer.subscription.updated",
    "customer.subscription.deleted",
    "invoice.payment_succeeded",
    "invoice.payment_failed",
    "checkout.session.completed",
)


@dataclass(frozen=True)
class Item:
    """An item of a subscription. A metered price has no quantity."""

    id: str
    price: str
    quantity: int | None

    def payload(self) -> dict[str, Any]:
        """Return the object without its period."""
        price = {"id": self.price, "object": "price"}
        quantity = {} if self.quantity is None else {"quantity": self.quantity}
        return {"id": self.id, "object": "subscription_item", "price": price, **quantity}


@dataclass(frozen=True)
class ProviderSubscription:
    """A subscription as the provider keeps it. Times are seconds since the Unix epoch."""

    id: str
    customer: str
    created: int
    metadata: dict[str, str]
    status: str
    items: tuple[Item, ...]
    period_start: int
    period_end: int
    trial_end: int | None = None
    cancel_at: int | None = None
    cancel_at_period_end: bool = False
    canceled_at: int | None = None
    ended_at: int | None = None
    pause: dict[str, Any] | None = None
    latest_invoice: str | None = None

    @property
    def is_over(self) -> bool:
        return self.status in {"canceled", "incomplete_expired"}

    def payload(self, version: str) -> dict[str, Any]:
        """Return the object as an endpoint of this API version gets it."""
        period = {"current_period_start": self.period_start, "current_period_end": self.period_end}
        of_items = period if version >= FIRST_WITH_ITEM_PERIODS else {}
        items = [item.payload() | of_items for item in self.items]
        payload: dict[str, Any] = {
            "id": self.id,
            "object": "subscription",
            "customer": self.customer,
            "created": self.created,
            "metadata": dict(self.metadata),
            "status": self.status,
            "items": {"object": "list", "data": items},
            "trial_end": self.trial_end,
            "cancel_at": self.cancel_at,
            "cancel_at_period_end": self.cancel_at_period_end,
            "canceled_at": self.canceled_at,
            "ended_at": self.ended_at,
            "pause_collection": self.pause,
            "latest_invoice": self.latest_invoice,
        }
        return payload if of_items else payload | period


@dataclass(frozen=True)
class ProviderInvoice:
    """An invoice as the provider keeps it."""

    id: str
    customer: str | None
    subscription: str | None
    created: int
    status: str = "open"
    attempt_count: int = 0

    def payload(self, version: str) -> dict[str, Any]:
        """Return the object as an endpoint of this API version gets it."""
        payload: dict[str, Any] = {
            "id": self.id,
            "object": "invoice",
            "customer": self.customer,
            "created": self.created,
            "status": self.status,
            "attempted": self.attempt_count > 0,
            "attempt_count": self.attempt_count,
            "hosted_invoice_url": f"https://invoice.example.com/i/{self.id}",
        }
        if version < FIRST_WITH_ITEM_PERIODS:
            return payload | {"subscription": self.subscription}
        if self.subscription is None:
            return payload | {"parent": None}
        details = {"subscription": self.subscription, "metadata": {}}
        return payload | {
            "parent": {"type": "subscription_details", "subscription_details": details}
        }


def previous_attributes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what changed, as it was before: of a nested object the members that changed, of a list
    all of it.
    """
    changed: dict[str, Any] = {}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            changed[name] = previous_attributes(old, new)
        else:
            changed[name] = deepcopy(old)
    return changed


@dataclass(frozen=True)
class HistoryTenant:
    """A tenant as the operator made it."""

    id: str
    plan: str = "free"
    customer: str | None = None


@dataclass(frozen=True)
class History:
    """What happened, and what of it arrived.

    `events` are in the order in which they happened; `arrivals` are positions in it, in the order
    of arrival. A position that is missing is a lost event, one that is repeated a duplicate
    delivery.
    """

    tenants: tuple[HistoryTenant, ...]
    events: tuple[Event, ...]
    arrivals: tuple[int, ...]
    mode: str

    def arriving(self, arrivals: Iterable[int]) -> "History":
        """Return the same history with other arrivals."""
        return replace(self, arrivals=tuple(arrivals))


@dataclass
class ProviderWorld:
    """The provider's objects and its clock. Each method is something that happens, and reports it
    by events.
    """

    now: int
    version: str
    prefix: str
    subscriptions: dict[str, ProviderSubscription] = field(default_factory=dict)
    invoices: dict[str, ProviderInvoice] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    # What is reported.

    def report(
        self, type_: str, payload: dict[str, Any], previous: dict[str, Any] | None = None
    ) -> Event:
        """Add an event of this second."""
        data: dict[str, Any] = {"object": payload}
        if previous is not None:
            data["previous_attributes"] = previous
        event = {
            "id": f"evt_{self.prefix}_{len(self.events)}",
            "object": "event",
            "api_version": self.version,
            "created": self.now,
            "type": type_,
            "livemode": False,
            "data": data,
        }
        self.events.append(event)
        return event

    def subscribe(
        self, customer: str, org: str | None, items: tuple[Item, ...], status: str, **fields: Any
    ) -> str:
        """Create a subscription."""
        id_ = f"sub_{self.prefix}_{len(self.subscriptions)}"
        subscription = ProviderSubscription(
            id=id_,
            customer=customer,
            created=self.now,
            metadata={} if org is None else {"orgId": org},
            status=status,
            items=items,
            period_start=self.now,
            period_end=fields.pop("period_end", self.now + MONTH),
            **fields,
        )
        self.subscriptions[id_] = subscription
        self.report("customer.subscription.created", subscription.payload(self.version))
        return id_

    def update(self, id_: str, also: str | None = None, **fields: Any) -> None:
        """Change a subscription. `also` is the type of a further event that reports the same
        change.
        """
        before = self.subscriptions[id_]
        after = replace(before, **fields)
        if after == before:
            return
        self.subscriptions[id_] = after
        payload = after.payload(self.version)
        if also is not None:
            self.report(also, payload)
        previous = previous_attributes(before.payload(self.version), payload)
        self.report("customer.subscription.updated", payload, previous)

    def delete(self, id_: str) -> None:
        """Cancel a subscription now."""
        before = self.subscriptions[id_]
        after = replace(
            before, status="canceled", ended_at=self.now, canceled_at=before.canceled_at or self.now
        )
        self.subscriptions[id_] = after
        self.report("customer.subscription.deleted", after.payload(self.version))

    def move(self, id_: str, org: str) -> None:
        """Name another tenant in a subscription's metadata."""
        self.update(id_, metadata=self.subscriptions[id_].metadata | {"orgId": org})

    def bill(self, subscription: str | None, customer: str | None) -> str:
        """Create an invoice, of a subscription or of a customer alone."""
        id_ = f"in_{self.prefix}_{len(self.invoices)}"
        self.invoices[id_] = ProviderInvoice(id_, customer, subscription, self.now)
        return id_

    def fail(self, invoice: str) -> None:
        """An attempt to pay an invoice fails."""
        self._change_invoice(
            invoice,
            "invoice.payment_failed",
            attempt_count=self.invoices[invoice].attempt_count + 1,
        )

    def pay(self, invoice: str, *, outside: bool = False) -> None:
        """An invoice is paid; outside of the provider by marking it as paid."""
        attempts = self.invoices[invoice].attempt_count + (0 if outside else 1)
        if not outside:
            self._change_invoice(
                invoice, "invoice.payment_succeeded", status="paid", attempt_count=attempts
            )
        self._change_invoice(invoice, "invoice.paid", status="paid", attempt_count=attempts)

    def close(self, invoice: str, status: str) -> None:
        """An invoice is voided (`void`) or written off (`uncollectible`)."""
        type_ = "invoice.voided" if status == "void" else "invoice.marked_uncollectible"
        self._change_invoice(invoice, type_, status=status)

    def complete_checkout(self, customer: str, org: str | None, subscription: str) -> None:
        """A checkout session is completed."""
        session = {
            "id": f"cs_{self.prefix}_{len(self.events)}",
            "object": "checkout.session",
            "mode": "subscription",
            "customer": customer,
            "subscription": subscription,
            "metadata": {} if org is None else {"orgId": org},
            "client_reference_id": None,
            "payment_status": "paid",
            "status": "complete",
        }
        self.report("checkout.session.completed", session)

    def _change_invoice(self, id_: str, type_: str, **fields: Any) -> None:
        self.invoices[id_] = replace(self.invoices[id_], **fields)
        self.report(type_, self.invoices[id_].payload(self.version))


@dataclass
class WorldDriver:
    """Chooses at random what happens next in a `ProviderWorld`, among what the provider documents
    as possible.
    """

    world: ProviderWorld
    random: Random
    orgs: tuple[str, ...]
    moves: bool = False
    plain_pauses: bool = True
    item_count: int = 0

    def begin(self, customer: str, org: str | None, *, checkout: bool) -> str:
        """Start a subscription: paid at once, as a trial, or waiting for its first payment."""
        random, world = self.random, self.world
        kind = random.choices(("paid", "trial", "waiting"), (6, 2, 2))[0]
        items = self._some_items()
        if kind == "trial":
            end = world.now + random.choice((3 * DAY, 7 * DAY, 14 * DAY))
            id_ = world.subscribe(customer, org, items, "trialing", trial_end=end, period_end=end)
        elif kind == "paid":
            id_ = world.subscribe(customer, org, items, random.choice(("active", "incomplete")))
            world.pay(world.bill(id_, customer))
            world.update(id_, status="active")
        else:
            id_ = world.subscribe(customer, org, items, "incomplete")
        if checkout and kind != "waiting":
            world.complete_checkout(customer, org, id_)
        return id_

    def step(self, id_: str) -> None:
        """Let one thing happen to a subscription."""
        subscription = self.world.subscriptions[id_]
        if subscription.is_over:
            return
        by_status = {
            "incomplete": (self._first_payment_fails, self._first_payment, self._expire),
            "trialing": (
                self._trial_ends,
                self._announce_trial_end,
                self._change_items,
                self._extend_trial,
                self._schedule_end,
                self._delete,
            ),
            "active": (
                self._renew,
                self._renewal_fails,
                self._renewal_fails,
                self._change_items,
                self._change_items,
                self._schedule_end,
                self._pause_payments,
                self._delete,
            ),
            "past_due": (
                self._retry_fails,
                self._recover,
                self._recover,
                self._close_invoice,
                self._give_up,
                self._change_items,
                self._delete,
            ),
            "unpaid": (self._recover, self._recover, self._delete, self._change_items),
            "paused": (self._resume, self._resume, self._delete),
        }
        choices = by_status[subscription.status]
        if self.moves and len(self.orgs) > 1:
            choices += (self._move,) * 3
        self.random.choice(choices)(id_)

    # What happens in each status.

    def _first_payment_fails(self, id_: str) -> None:
        self.world.fail(self._open_invoice(id_))

    def _first_payment(self, id_: str) -> None:
        self.world.pay(self._open_invoice(id_))
        self.world.update(id_, status="active")

    def _expire(self, id_: str) -> None:
        self.world.update(id_, status="incomplete_expired", ended_at=self.world.now)

    def _trial_ends(self, id_: str) -> None:
        outcome = self.random.choice(("paid", "failed", "paused"))
        if outcome == "paid":
            self.world.pay(self.world.bill(id_, self._customer(id_)))
            self.world.update(id_, status="active", **self._next_period())
        elif outcome == "failed":
            self.world.fail(self.world.bill(id_, self._customer(id_)))
            self.world.update(id_, status="past_due", **self._next_period())
        else:
            self.world.update(id_, also="customer.subscription.paused", status="paused")

    def _announce_trial_end(self, id_: str) -> None:
        payload = self.world.subscriptions[id_].payload(self.world.version)
        self.world.report("customer.subscription.trial_will_end", payload)

    def _extend_trial(self, id_: str) -> None:
        end = self.world.subscriptions[id_].trial_end or self.world.now
        later = end + self.random.choice((DAY, 7 * DAY))
        self.world.update(id_, trial_end=later, period_end=later)

    def _renew(self, id_: str) -> None:
        self.world.update(id_, **self._next_period())
        self.world.pay(self.world.bill(id_, self._customer(id_)))

    def _renewal_fails(self, id_: str) -> None:
        if self.random.random() < 0.7:
            self.world.update(id_, **self._next_period())
            # the provider finalizes and charges an invoice about an hour after the period began
            self.world.now += self.random.choices((HOUR, 0), (12, 1))[0]
        self.world.fail(self.world.bill(id_, self._customer(id_)))
        if self.random.random() < 0.8:
            self.world.update(id_, status="past_due")

    def _retry_fails(self, id_: str) -> None:
        self.world.fail(self._open_invoice(id_))

    def _recover(self, id_: str) -> None:
        invoice = self._open_invoice(id_)
        outside = self.random.random() < 0.2
        if self.random.random() < 0.5:
            self.world.pay(invoice, outside=outside)
            self.world.update(id_, status="active")
        else:
            self.world.update(id_, status="active")
            self.world.pay(invoice, outside=outside)

    def _close_invoice(self, id_: str) -> None:
        self.world.close(self._open_invoice(id_), self.random.choice(("void", "uncollectible")))
        if self.random.random() < 0.5:
            self.world.update(id_, status="active")

    def _give_up(self, id_: str) -> None:
        if self.random.random() < 0.7:
            self.world.update(id_, status="unpaid")
        else:
            self._delete(id_)

    def _resume(self, id_: str) -> None:
        self.world.update(
            id_, also="customer.subscription.resumed", status="active", **self._next_period()
        )

    def _delete(self, id_: str) -> None:
        self.world.delete(id_)

    def _move(self, id_: str) -> None:
        subscription = self.world.subscriptions[id_]
        others = [org for org in self.orgs if org != subscription.metadata.get("orgId")]
        self.world.move(id_, self.random.choice(others))

    def _schedule_end(self, id_: str) -> None:
        subscription = self.world.subscriptions[id_]
        if subscription.cancel_at is not None:
            self.world.update(id_, cancel_at=None, cancel_at_period_end=False, canceled_at=None)
        elif self.random.random() < 0.6:
            end = subscription.period_end
            self.world.update(
                id_, cancel_at=end, cancel_at_period_end=True, canceled_at=self.world.now
            )
        else:
            at = self.world.now + self.random.choice((DAY, 10 * DAY, 45 * DAY))
            self.world.update(id_, cancel_at=at, canceled_at=self.world.now)

    def _pause_payments(self, id_: str) -> None:
        if not self.plain_pauses:
            return
        pause = self.world.subscriptions[id_].pause
        if pause is not None and self.random.random() < 0.6:
            self.world.update(id_, pause=None)
        else:
            behaviors = ("void", "void", "keep_as_draft", "mark_uncollectible")
            self.world.update(
                id_, pause={"behavior": self.random.choice(behaviors), "resumes_at": None}
            )

    def _change_items(self, id_: str) -> None:
        random = self.random
        items = list(self.world.subscriptions[id_].items)
        at = random.randrange(len(items))
        change = random.choice(("quantity", "quantity", "price", "add", "remove", "replace"))
        if change == "quantity" and items[at].quantity is not None:
            items[at] = replace(items[at], quantity=random.choice((0, 1, 2, 3, 5, 8)))
        elif change == "price":
            items[at] = replace(items[at], price=random.choice(PLAN_PRICES))
        elif change == "add" and len(items) < 3:
            items.append(self._item(random.choice((ADDON_PRICE, UNKNOWN_PRICE, *PLAN_PRICES))))
        elif change == "remove" and len(items) > 1:
            del items[at]
        elif change == "replace":
            items[at] = self._item(random.choice(PLAN_PRICES))
        self.world.update(id_, items=tuple(items))

    # Parts.

    def _customer(self, id_: str) -> str:
        return self.world.subscriptions[id_].customer

    def _next_period(self) -> dict[str, Any]:
        start = self.world.now
        return {"period_start": start, "period_end": start + MONTH}

    def _open_invoice(self, id_: str) -> str:
        """Return a subscription's newest open invoice, a new one if there is none."""
        invoices = [
            one.id
            for one in self.world.invoices.values()
            if one.subscription == id_ and one.status == "open"
        ]
        return invoices[-1] if invoices else self.world.bill(id_, self._customer(id_))

    def _item(self, price: str) -> Item:
        self.item_count += 1
        quantity = self.random.choices((1, 2, 3, 0, None), (6, 2, 2, 1, 1))[0]
        return Item(f"si_{self.world.prefix}_{self.item_count}", price, quantity)

    def _some_items(self) -> tuple[Item, ...]:
        items = [self._item(self.random.choice(PLAN_PRICES))]
        extra = self.random.choices((None, ADDON_PRICE, UNKNOWN_PRICE), (6, 2, 1))[0]
        if extra is not None:
            items.insert(self.random.randrange(2), self._item(extra))
        if self.random.random() < 0.07:
            items = [self._item(self.random.choice((ADDON_PRICE, UNKNOWN_PRICE)))]
        return tuple(items)


def arrivals(random: Random, count: int, *, lose: bool = True) -> tuple[int, ...]:
    """Return an order of arrival: as it happened, reversed, shuffled, or some late; with losses and
    duplicates.
    """
    order = list(range(count))
    kind = random.choice(("as it happened", "reversed", "shuffled", "some late", "some late"))
    if kind == "reversed":
        order.reverse()
    elif kind == "shuffled":
        random.shuffle(order)
    elif kind == "some late":
        order.sort(
            key=lambda position: (
                position + (random.randrange(1, 12) if random.random() < 0.25 else 0)
            )
        )
    if lose and random.random() < 0.4:
        order = [position for position in order if random.random() > 0.12] or order[:1]
    if random.random() < 0.3:
        order.insert(random.randrange(len(order) + 1), random.choice(order))
    return tuple(order)


def random_history(
    seed: int, mode: str, now: int, *, moves: bool = False, prefix: str = ""
) -> History:
    """Return the history of a seed.

    `moves` lets subscriptions move between tenants, with at most six events. `prefix` makes the ids
    unique.
    """
    random = Random(f"{seed} {mode} {moves}")  # noqa: S311  # the same history for the same seed
    prefix = prefix or f"{mode}{'m' if moves else ''}{seed}"
    age = random.choice((0, 0, HOUR, DAY, 5 * DAY, 20 * DAY, 40 * DAY, 70 * DAY))
    several_tenants = moves or random.random() < 0.2
    orgs = tuple(f"org_{prefix}_{name}" for name in ("ab" if several_tenants else "a"))
    customers = tuple(f"cus_{prefix}_{name}" for name in ("ab" if several_tenants else "a"))
    base = random.choices(("free", "pro"), (9, 1))[0]
    linked = random.random() < 0.6
    tenants = tuple(
        HistoryTenant(org, base, customer if linked else None)
        for org, customer in zip(orgs, customers, strict=True)
    )
    world = ProviderWorld(now - 200 * DAY, random.choice(VERSIONS), prefix)
    driver = WorldDriver(world, random, orgs, moves=moves)
    several = random.random() < (0.3 if mode == "any" else 0.6) and not moves
    driver.plain_pauses = mode == "each" or not (several or several_tenants)
    length = random.randrange(3, 7) if moves else random.randrange(3, 22)
    while len(world.events) < length:
        living = [one.id for one in world.subscriptions.values() if not one.is_over]
        if not living or (several and len(world.subscriptions) < 4 and random.random() < 0.2):
            if len(world.subscriptions) >= 5:
                break
            which = random.randrange(len(orgs))
            named = None if random.random() < 0.08 else orgs[which]
            driver.begin(customers[which], named, checkout=random.random() < 0.5)
        elif random.random() < 0.04 and not moves:
            invoice = world.bill(None, random.choice(customers))
            (world.fail if random.random() < 0.6 else world.pay)(invoice)
        else:
            driver.step(random.choice(living))
        world.now += random.choice(
            (0, 0, 1, 2, 60, 60, HOUR, 5 * HOUR, DAY, DAY, 3 * DAY, 12 * DAY)
        )
    return _finish(History(tenants, tuple(world.events), (), mode), random, now - age, moves=moves)


def _finish(history: History, random: Random, newest: int, *, moves: bool) -> History:
    """Shift the history in time so that its newest event is at `newest`, and choose what
    arrives.
    """
    events = history.events[:6] if moves else history.events
    if random.random() < 0.25:
        events = tuple(event for event in events if event["type"] in REQUIRED_TYPES) or events
    elif random.random() < 0.06:
        events = tuple(bare(event) for event in events)
    shift = newest - events[-1]["created"]
    shifted = tuple(_shifted(event, shift) for event in events)
    return replace(history, events=shifted, arrivals=arrivals(random, len(shifted)))


# What the service's specification says that it reads (2.5), and the ids.
_BARE_FIELDS = {
    "id",
    "object",
    "metadata",
    "items",
    "status",
    "current_period_end",
    "cancel_at_period_end",
    "customer",
    "subscription",
    "hosted_invoice_url",
    "mode",
}


def bare(event: Event) -> Event:
    """Return an event whose object has only the fields of the specification, and which proves no
    order.
    """
    reported = {
        name: value for name, value in event["data"]["object"].items() if name in _BARE_FIELDS
    }
    return event | {"data": {"object": reported}}


_TIMES = {
    "created",
    "current_period_start",
    "current_period_end",
    "trial_end",
    "cancel_at",
    "canceled_at",
    "ended_at",
}


def _shifted(value: Any, seconds: int) -> Any:
    if isinstance(value, list):
        return [_shifted(one, seconds) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: one + seconds if name in _TIMES and isinstance(one, int) else _shifted(one, seconds)
        for name, one in value.items()
    }
