"""The simulated account: its objects and events."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from tenantry_devkit.simulator.clock import Agenda, SimulatedClock
from tenantry_devkit.simulator.objects import (
    BillingObject,
    CheckoutSession,
    Customer,
    Event,
    Ids,
    Invoice,
    PortalSession,
    Price,
    Subscription,
    WebhookEndpoint,
)

T = TypeVar("T", Price, Customer, Subscription, Invoice, CheckoutSession)
TABLES: Final = (
    "prices", "customers", "subscriptions", "invoices", "checkout_sessions", "portal_sessions", "endpoints", "events",
)  # fmt: skip


class Account:
    """All objects by id, oldest first. ``url`` is the address of hosted pages."""

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
        self.on_event: Callable[[Event], None] = lambda _: None
        self._tables: dict[type, dict[str, Any]] = {
            Price: self.prices,
            Customer: self.customers,
            Subscription: self.subscriptions,
            Invoice: self.invoices,
            CheckoutSession: self.checkout_sessions,
        }
        self._request: tuple[str | None, str | None] = None, None

    @property
    def now(self) -> int:
        return self.clock.now()

    @contextmanager
    def request(self, request_id: str, idempotency_key: str | None) -> Iterator[None]:
        """Attribute events to this request within the block."""
        self._request = request_id, idempotency_key
        try:
            yield
        finally:
            self._request = None, None

    def add(self, thing: T, *event_types: str) -> T:
        """Add an object and emit events about it."""
        self._tables[type(thing)][thing.id] = thing
        for event_type in event_types:
            self.emit(event_type, thing)
        return thing

    def change(self, before: T, *event_types: str, **fields: object) -> T:
        """Replace fields of an object, and emit events if that changes anything."""
        after = replace(before, **fields)
        if after != before:
            self._tables[type(after)][after.id] = after
            for event_type in event_types:
                self.emit(event_type, after, before)
        return after

    def emit(self, event_type: str, thing: BillingObject, before: BillingObject | None = None) -> None:
        """Add an event; only updates include ``before``."""
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
        self.on_event(event)
