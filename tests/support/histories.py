"""Histories of subscribers as the provider's raw events in both API shapes, and their final state.

The truth of each history is written down here, not computed: it is what the provider's dashboard
would show.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from tenantry.domain.billing.events import PAYMENT_FAILED, PAYMENT_SUCCEEDED, BillingEvent
from tenantry.domain.billing.state import BillingState
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.integrations.stripe.decode import decode_event
from tests.support import events
from tests.support.events import MONTH, NOW, Shape

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 24 * HOUR
_READ_FACTS: Final = frozenset({"status", "price", "period_end", "cancel"})

Json = dict[str, Any]


class Record(NamedTuple):
    """The billing part of a tenant record."""

    plan: str
    status: str
    period_end: int | None
    cancel_at_period_end: bool

    @classmethod
    def of(cls, state: BillingState | BillingRecord) -> "Record":
        """What a tenant record shows of a state."""
        return cls(
            state.plan,
            state.subscription_status,
            state.current_period_end,
            state.cancel_at_period_end,
        )


class Story:
    """Writes down what the provider sends about one subscriber; time passes only by `later`.

    Every second event has its related objects expanded, as endpoints may be set up to send them.
    """

    def __init__(
        self, shape: Shape, *, org: str = "acme", customer: str = "cus_acme", start: int = NOW
    ) -> None:
        self._shape = shape
        self._org = org
        self._customer = customer
        self._subscriptions = 0
        self.facts: Json = {}
        """The subscription, by the names of `tests.support.events.subscription`."""
        self._more: Json = {}
        self.start = start
        self.now = start
        self.events: list[Json] = []

    def later(self, seconds: int = 1) -> None:
        """Let time pass."""
        self.now += seconds

    @property
    def period_end(self) -> int:
        """The end of the subscription's period."""
        return int(self.facts["period_end"])

    def begins(
        self, status: str = "incomplete", *, period: int = MONTH, plot_history: bool = False
    ) -> None:
        """The customer takes a new subscription to plan pro."""
        self._subscriptions += 1
        self.facts = {
            "status": status,
            "price": "price_pro",
            "period_end": self.now + period,
            "cancel": False,
            "org": self._org,
            "subscription_id": f"sub_{self._org}_{self._subscriptions}",
            "subscription_created": self.now,
        }
        self._more = {"default_payment_method": None, "latest_invoice": None}
        if plot_history:
            self._tell("customer.subscription.created", self._subscription())

    def changes(self, **values: Any) -> None:
        """The subscription changes: facts that tenantry reads, and any other attribute of the
        object.
        """
        before = self._subscription()
        self.facts |= {name: value for name, value in values.items() if name in _READ_FACTS}
        self._more |= {name: value for name, value in values.items() if name not in _READ_FACTS}
        previous = _replaced(before, self._subscription())
        self._tell(
            "customer.subscription.updated", self._subscription(expanded=self._expands), previous
        )

    def ends(self) -> None:
        """The subscription ends."""
        self.facts["status"] = "canceled"
        self._more["ended_at"] = self.now
        self._tell("customer.subscription.deleted", self._subscription(expanded=self._expands))

    def fails(self, invoice: str) -> None:
        """A payment of an invoice fails."""
        self._tell(PAYMENT_FAILED, self._invoice(invoice, paid=False))

    def pays(self, invoice: str) -> None:
        """An invoice is paid."""
        self._tell(PAYMENT_SUCCEEDED, self._invoice(invoice, paid=True))

    def checks_out(self) -> None:
        """The checkout session in which the customer subscribed is over."""
        session = events.checkout_session(
            org=self._org, customer=self._customer, expanded=self._expands
        )
        self._tell(
            "checkout.session.completed", session | {"subscription": self.facts["subscription_id"]}
        )

    def elsewhere(self, event_type: str) -> None:
        """Something that tenantry does not handle, about the subscription."""
        self._tell(event_type, self._subscription(expanded=self._expands))

    @property
    def _expands(self) -> bool:
        return len(self.events) % 2 == 1

    def _subscription(self, *, expanded: bool = False) -> Json:
        thing = events.subscription(
            **self.facts, customer=self._customer, shape=self._shape, expanded=expanded
        )
        return thing | self._more

    def _invoice(self, invoice: str, *, paid: bool) -> Json:
        return events.invoice(
            customer=self._customer,
            invoice_id=f"in_{self._org}_{invoice}",
            paid=paid,
            shape=self._shape,
            subscription_id=self.facts["subscription_id"],
            expanded=self._expands,
        )

    def _tell(self, event_type: str, thing: Json, previous: Json | None = None) -> None:
        event_id = f"evt_{self._org}_{len(self.events)}"
        self.events.append(
            events.event(
                event_type,
                thing,
                event_id=event_id,
                created=self.now,
                previous=previous,
                shape=self._shape,
            )
        )


def _replaced(before: Json, after: Json) -> Json:
    """The provider's `previous_attributes`: the old values of what changed; objects in part, lists
    whole.
    """
    previous = {}
    for name, value in before.items():
        now = after[name]
        if value != now:
            both_objects = isinstance(value, dict) and isinstance(now, dict)
            previous[name] = _replaced(value, now) if both_objects else value
    return previous


def subscribe(story: Story) -> Record:
    """Three events of one second: the payment, the status, and a payment method that nothing else
    depends on.
    """
    story.begins(plot_history=True)
    story.later(2)
    story.changes(default_payment_method="pm_first")
    story.changes(status="active", latest_invoice="in_first")
    story.pays("first")
    story.later()
    story.checks_out()
    return Record("pro", "active", story.start + MONTH, cancel_at_period_end=False)


def trial_that_converts(story: Story) -> Record:
    story.begins("trialing", period=14 * DAY, plot_history=True)
    story.later(5)
    story.changes(default_payment_method="pm_first")
    story.later(11 * DAY)
    story.elsewhere("customer.subscription.trial_will_end")
    story.later(3 * DAY)
    story.changes(status="active", period_end=story.period_end + MONTH, latest_invoice="in_first")
    story.later(HOUR)
    story.pays("first")
    return Record("pro", "active", story.start + 14 * DAY + MONTH, cancel_at_period_end=False)


def upgrade_and_downgrade(story: Story) -> Record:
    story.begins()
    story.changes(status="active")
    story.later(10 * DAY)
    story.changes(price="price_business")
    story.changes(latest_invoice="in_upgrade")
    story.pays("upgrade")
    story.later(10 * DAY)
    story.changes(price="price_pro")
    story.later(MONTH - 20 * DAY)
    story.changes(period_end=story.period_end + MONTH, latest_invoice="in_renewal")
    story.later(HOUR)
    story.pays("renewal")
    return Record("pro", "active", story.start + 2 * MONTH, cancel_at_period_end=False)


def failed_renewal_and_recovery(story: Story) -> Record:
    """The status changes in the very second of the payment that changed it."""
    _renews_and_fails(story)
    story.later(3 * DAY)
    story.fails("renewal")
    story.later(2 * DAY)
    story.pays("renewal")
    story.changes(status="active")
    return Record("pro", "active", story.start + 2 * MONTH, cancel_at_period_end=False)


def cancel_at_period_end(story: Story) -> Record:
    """The customer turns the renewal off, on and off again within one second, and later it is
    over.
    """
    story.begins()
    story.changes(status="active")
    story.later()
    story.pays("first")
    story.later(10 * DAY)
    story.changes(cancel=True, canceled_at=story.now)
    story.changes(cancel=False, canceled_at=None)
    story.changes(cancel=True, canceled_at=story.now)
    story.later(MONTH - 10 * DAY)
    story.ends()
    return Record("free", "canceled", None, cancel_at_period_end=True)


def immediate_cancel(story: Story) -> Record:
    """In the second of the end there are two more changes, after which the subscription was still
    alive.
    """
    story.begins()
    story.changes(status="active")
    story.later(5 * DAY)
    story.changes(price="price_business")
    story.later(DAY)
    story.changes(
        cancel=True,
        cancellation_details={"comment": None, "feedback": None, "reason": "cancellation"},
    )
    story.changes(latest_invoice="in_final")
    story.ends()
    story.later()
    story.pays("final")
    return Record("free", "canceled", None, cancel_at_period_end=True)


def resubscribe(story: Story) -> Record:
    story.begins()
    story.changes(status="active")
    story.later(20 * DAY)
    story.changes(cancel=True)
    story.ends()
    story.later(3 * DAY)
    story.begins()
    story.later(4)
    story.changes(default_payment_method="pm_second")
    story.changes(status="active", latest_invoice="in_second")
    story.pays("second")
    story.later(DAY)
    story.changes(price="price_business")
    return Record("business", "active", story.start + 23 * DAY + MONTH, cancel_at_period_end=False)


def checkout_last(story: Story) -> Record:
    """The first card is refused; the session's event arrives last."""
    story.begins(plot_history=True)
    story.later()
    story.fails("first")
    story.later(MINUTE)
    story.changes(default_payment_method="pm_first")
    story.pays("first")
    story.changes(status="active")
    story.later(2)
    story.checks_out()
    return Record("pro", "active", story.start + MONTH, cancel_at_period_end=False)


def unpaid_before_checkout(story: Story) -> Record:
    """The first renewal fails, and only then the session's event arrives."""
    _renews_and_fails(story)
    story.later(DAY)
    story.checks_out()
    return Record("pro", "past_due", story.start + 2 * MONTH, cancel_at_period_end=False)


def upgrade_and_renewal_in_one_second(story: Story) -> Record:
    """Three changes in the second of the renewal: a cancellation withdrawn, the period, the
    plan.
    """
    story.begins()
    story.changes(status="active")
    story.later(20 * DAY)
    story.changes(cancel=True)
    story.later(MONTH - 20 * DAY)
    story.changes(cancel=False)
    story.changes(period_end=story.period_end + MONTH, latest_invoice="in_renewal")
    story.changes(price="price_business")
    story.pays("renewal")
    return Record("business", "active", story.start + 2 * MONTH, cancel_at_period_end=False)


def plans_tried_in_one_second(story: Story) -> Record:
    """Plans and periods that come back to what they were within one second."""
    story.begins("trialing", period=14 * DAY)
    story.changes(status="active", period_end=story.start + MONTH)
    story.later(DAY)
    story.changes(price="price_business")
    story.changes(price="price_pro", period_end=story.start + MONTH + DAY)
    story.changes(price="price_business")
    story.changes(price="price_pro", cancel=True)
    story.later(DAY)
    story.elsewhere("customer.subscription.pending_update_applied")
    return Record("pro", "active", story.start + MONTH + DAY, cancel_at_period_end=True)


def dunning_that_ends(story: Story) -> Record:
    _renews_and_fails(story)
    story.later(3 * DAY)
    story.fails("renewal")
    story.later(4 * DAY)
    story.fails("renewal")
    story.later()
    story.ends()
    return Record("free", "canceled", None, cancel_at_period_end=False)


def unpaid_and_paid_after_all(story: Story) -> Record:
    _renews_and_fails(story)
    story.later(20 * DAY)
    story.changes(status="unpaid")
    story.later(2 * DAY)
    story.pays("renewal")
    story.changes(status="active")
    return Record("pro", "active", story.start + 2 * MONTH, cancel_at_period_end=False)


def _renews_and_fails(story: Story) -> None:
    story.begins()
    story.changes(status="active")
    story.later(MONTH)
    story.changes(period_end=story.period_end + MONTH, latest_invoice="in_renewal")
    story.later(HOUR)
    story.fails("renewal")
    story.changes(status="past_due")


class Links(Enum):
    """Which of the provider's customers belong to the tenant when the story begins."""

    GIVEN = "given"
    NONE = "none"
    FORMER = "former"
    """Another one, so that only a checkout links the new one."""


class Plot(NamedTuple):
    """A story to be told."""

    tell: Callable[[Story], Record]
    links: Links = Links.GIVEN

    @property
    def name(self) -> str:
        """What to call it."""
        name = self.tell.__name__
        return name if self.links is Links.GIVEN else f"{name}-{self.links.value}_linked"


PLOTS: Final = (
    Plot(subscribe),
    Plot(trial_that_converts),
    Plot(upgrade_and_downgrade),
    Plot(failed_renewal_and_recovery),
    Plot(cancel_at_period_end),
    Plot(immediate_cancel),
    Plot(resubscribe),
    Plot(checkout_last),
    Plot(checkout_last, Links.NONE),
    Plot(checkout_last, Links.FORMER),
    Plot(unpaid_before_checkout, Links.FORMER),
    Plot(upgrade_and_renewal_in_one_second),
    Plot(plans_tried_in_one_second),
    Plot(dunning_that_ends),
    Plot(unpaid_and_paid_after_all),
)


class History(NamedTuple):
    """A story told: its events in the order in which they happened, and what is true in the end."""

    events: tuple[Json, ...]
    truth: Record
    customer: str
    customers: tuple[str, ...]
    """The provider's customers that belong to the tenant from the start."""

    @property
    def facts(self) -> tuple[BillingEvent, ...]:
        """The events as tenantry reads them."""
        return tuple(map(decoded, self.events))

    @property
    def failures(self) -> dict[str, frozenset[str]]:
        """The ids of its failed payments, each with those of the later successes of the same
        invoice.
        """
        invoices = [
            (event["type"], event["id"], event["data"]["object"]["id"]) for event in self.events
        ]
        return {
            failure_id: frozenset(
                event_id
                for event_type, event_id, paid in invoices[place:]
                if event_type == PAYMENT_SUCCEEDED and paid == invoice
            )
            for place, (failure_type, failure_id, invoice) in enumerate(invoices)
            if failure_type == PAYMENT_FAILED
        }


def plot_history(plot: Plot, shape: Shape, *, org: str = "acme", start: int = NOW) -> History:
    """A plot in an API shape. Its events' ids depend on ``org`` and their place in the story
    alone.
    """
    customer = f"cus_{org}"
    story = Story(shape, org=org, customer=customer, start=start)
    truth = plot.tell(story)
    customers = {Links.GIVEN: (customer,), Links.NONE: (), Links.FORMER: (f"{customer}_former",)}[
        plot.links
    ]
    return History(tuple(story.events), truth, customer, customers)


def decoded(event: Json) -> BillingEvent:
    """The event as tenantry reads it."""
    return decode_event(events.body(event), arrived=NOW, make_up_id=lambda: "evt_unnamed")
