"""The account of the simulated provider, and its invoices."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from tenantry_devkit.simulator.clock import Agenda, SimulatedClock
from tenantry_devkit.simulator.objects import (
    BillingObject,
    Card,
    CheckoutSession,
    Customer,
    Event,
    Ids,
    Invoice,
    Line,
    PortalSession,
    Price,
    Subscription,
    WebhookEndpoint,
)

T = TypeVar("T", Price, Customer, Subscription, Invoice, CheckoutSession)


class Account:
    """Everything there is, by id, in the order in which it was made; ``url`` is where the hosted pages are."""

    def __init__(self, *, clock: SimulatedClock, ids: Ids, api_version: str, url: str) -> None:
        self.clock = clock
        self.ids = ids
        self.api_version = api_version
        self.url = url
        self.agenda = Agenda()
        self.prices: dict[str, Price] = {}
        self.customers: dict[str, Customer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.invoices: dict[str, Invoice] = {}
        self.checkout_sessions: dict[str, CheckoutSession] = {}
        self.portal_sessions: dict[str, PortalSession] = {}
        self.endpoints: dict[str, WebhookEndpoint] = {}
        self.events: dict[str, Event] = {}
        self.on_event: Callable[[Event], None] | None = None
        """Called with every event as it happens."""
        self._request: tuple[str | None, str | None] = None, None

    @property
    def now(self) -> int:
        """The simulated moment."""
        return self.clock.now()

    @contextmanager
    def request(self, request_id: str, idempotency_key: str | None) -> Iterator[None]:
        """Within the block, events name this request as their cause."""
        self._request = request_id, idempotency_key
        try:
            yield
        finally:
            self._request = None, None

    def add(self, thing: BillingObject, *event_types: str) -> None:
        """Keep a new object and tell of it."""
        self._keep(thing)
        for event_type in event_types:
            self.emit(event_type, thing)

    def change(self, before: T, *event_types: str, **fields: object) -> T:
        """Put an object with other ``fields`` in the place of ``before``; tells of it if anything is different."""
        after = replace(before, **fields)
        if after != before:
            self._keep(after)
            for event_type in event_types:
                self.emit(event_type, after, before)
        return after

    def emit(self, event_type: str, thing: BillingObject, before: BillingObject | None = None) -> Event:
        """An event about ``thing``; only updates say what was ``before``."""
        request_id, idempotency_key = self._request
        event = Event(
            id=self.ids.new("evt"),
            type=event_type,
            created=self.now,
            object=thing,
            before=before if event_type.endswith(".updated") else None,
            request_id=request_id,
            idempotency_key=idempotency_key,
            pending_webhooks=sum(endpoint.wants(event_type) for endpoint in self.endpoints.values()),
            number=len(self.events) + 1,
        )
        self.events[event.id] = event
        if self.on_event is not None:
            self.on_event(event)
        return event

    def _keep(self, thing: BillingObject) -> None:
        match thing:
            case Price():
                self.prices[thing.id] = thing
            case Customer():
                self.customers[thing.id] = thing
            case Subscription():
                self.subscriptions[thing.id] = thing
            case Invoice():
                self.invoices[thing.id] = thing
            case CheckoutSession():
                self.checkout_sessions[thing.id] = thing


class Invoicing:
    """Makes invoices and charges cards; what that means for the subscription is not its business."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.numbers: Counter[str] = Counter()
        """How many invoices each customer has had."""

    def draft(self, subscription: Subscription, reason: str) -> Invoice:
        """A draft for the subscription's present period, which costs nothing in a trial; nobody is told yet."""
        account = self._account
        customer = account.customers[subscription.customer]
        is_trial = subscription.status == "trialing"
        lines = tuple(
            Line(
                id=account.ids.new("il"),
                item=item,
                amount=0 if is_trial else item.price.unit_amount * item.quantity,
                period_start=subscription.period_start,
                period_end=subscription.period_end,
            )
            for item in subscription.items
        )
        invoice = Invoice(
            id=account.ids.new("in"),
            created=account.now,
            customer=customer.id,
            customer_email=customer.email,
            customer_name=customer.name,
            subscription=subscription.id,
            subscription_metadata=subscription.metadata,
            status="draft",
            billing_reason=reason,
            currency=subscription.items[0].price.currency,
            amount_due=sum(line.amount for line in lines),
            lines=lines,
            period_start=subscription.period_start,
            period_end=subscription.period_end,
        )
        account.add(invoice)
        return invoice

    def finalize(self, invoice: Invoice) -> Invoice:
        """Open a draft for payment."""
        account = self._account
        self.numbers[invoice.customer] += 1
        prefix = account.customers[invoice.customer].invoice_prefix
        return account.change(
            invoice,
            "invoice.finalized",
            status="open",
            number=f"{prefix}-{self.numbers[invoice.customer]:04}",
            hosted_invoice_url=f"{account.url}/i/{invoice.id}",
            finalized_at=account.now,
        )

    def can_pay(self, invoice: Invoice) -> bool:
        """Whether a charge would succeed."""
        return not invoice.amount_due or self._account.customers[invoice.customer].card is Card.WORKS

    def paid(self, invoice: Invoice) -> Invoice:
        """The money came in."""
        return self._account.change(
            invoice,
            "invoice.paid",
            "invoice.payment_succeeded",
            status="paid",
            amount_paid=invoice.amount_due,
            attempt_count=invoice.attempt_count + bool(invoice.amount_due),
            auto_advance=False,
            next_payment_attempt=None,
            paid_at=self._account.now,
        )

    def failed(self, invoice: Invoice, next_attempt: int | None) -> Invoice:
        """A charge was declined; the next one is at ``next_attempt``."""
        return self._account.change(
            invoice,
            "invoice.payment_failed",
            attempt_count=invoice.attempt_count + 1,
            auto_advance=next_attempt is not None,
            next_payment_attempt=next_attempt,
        )

    def void(self, invoice: Invoice) -> Invoice:
        """Nobody is to pay it any more."""
        return self._account.change(
            invoice,
            "invoice.voided",
            status="void",
            auto_advance=False,
            next_payment_attempt=None,
            voided_at=self._account.now,
        )
