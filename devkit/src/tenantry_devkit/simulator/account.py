"""The provider's account: its objects, its clock, and the events that tell of every change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from tenantry_devkit.simulator.clock import Agenda, SimulatedClock
from tenantry_devkit.simulator.ids import Ids
from tenantry_devkit.simulator.objects import (
    CheckoutSession,
    Customer,
    Event,
    Invoice,
    PortalSession,
    Price,
    Subscription,
    Thing,
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

    def add(self, thing: Thing, *event_types: str) -> None:
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

    def emit(self, event_type: str, thing: Thing, before: Thing | None = None) -> Event:
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

    def _keep(self, thing: Thing) -> None:
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
