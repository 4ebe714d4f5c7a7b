"""The simulated provider: Python methods for tests, and an ASGI application."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from email.utils import formatdate
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator.api import Api
from tenantry_devkit.simulator.billing import DAY, FirstPayment, ItemChange
from tenantry_devkit.simulator.delivery import Delivery, DeliveryRule
from tenantry_devkit.simulator.engine import SimulationEngine, id_of
from tenantry_devkit.simulator.objects import (
    Card,
    CheckoutSession,
    Customer,
    Event,
    Invoice,
    PortalSession,
    Price,
    Subscription,
    WebhookEndpoint,
)
from tenantry_devkit.simulator.pages import Control, HostedPages, SimulatorPages
from tenantry_devkit.simulator.requests import (
    BodyTooLargeError,
    ClientDisconnectedError,
    HttpRequest,
    HttpResponse,
    found,
    read_request,
    send_response,
)

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_OWN_SITES: Final = ("none", "same-origin")


class _Application:
    """Answers every request, and then attempts the deliveries that it causes."""

    def __init__(self, engine: SimulationEngine) -> None:
        self._engine = engine
        self._pages = SimulatorPages()
        self._api = Api(engine)
        self._hosted = HostedPages(engine, self._pages)
        self._control = Control(engine, self._pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the simulator does not support {scope['type']}")
        try:
            response = await self._respond(await read_request(scope, receive))
        except BodyTooLargeError:
            response = HttpResponse(413, b"The body is too large.", "text/plain")
        except ClientDisconnectedError:
            return
        response.headers["Date"] = formatdate(self._engine.account.now, usegmt=True)
        await send_response(send, response)
        await self._engine.catch_up()

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith("/v1/"):
            return self._api.respond(request)
        if not self._is_same_site(request):
            return self._pages.message("Refused", "The request did not come from a page of this server.", 403)
        if request.path == "/simulator.css":
            return self._pages.style_sheet()
        response = self._hosted.respond(request) or await self._control.respond(request)
        return response or self._pages.message("Not found", "There is nothing here.", 404)

    def _is_same_site(self, request: HttpRequest) -> bool:
        """Reject forms of other web sites, and host names that they resolve to loopback (DNS rebinding)."""
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        is_known = host in {*_LOOPBACK, urlsplit(self._engine.url).hostname}
        return is_known and (request.method == "GET" or request.headers.get("sec-fetch-site", "none") in _OWN_SITES)


class Simulator(SimulationEngine):
    """The payment provider, with one account, in memory. For tests and development, on loopback only.

    It is an ASGI application (the API under ``/v1``, hosted pages, control), and its methods do the same without
    HTTP. Methods return at once; `deliver`, `advance`, and each HTTP request afterwards send the events to the webhook
    endpoints (with ``auto_deliver=False`` only `deliver` does).

    Time stands still until `advance` moves it, or follows real time with ``running``. Ids, events and faults depend on
    ``seed`` and ``start`` (by default now). Returned objects do not change; `subscriptions`, `invoices` and so on have
    the current ones. Methods raise `ApiError` where the provider's API would reject a request.

    ``prices`` are amounts by price id, monthly, in euro cents. ``api_version`` is the shape of ``GET /v1/events`` and
    of endpoints without their own. ``wall_clock`` is for signatures, which receivers compare with real time.
    ``client`` sends the events, instead of an own client; ``url`` is the address where it will be served.
    """

    @cached_property
    def _application(self) -> _Application:
        return _Application(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)

    def serving(self, port: int = 0) -> AbstractAsyncContextManager["Simulator"]:
        """Serve it on 127.0.0.1 within the block, at ``port`` or a free one; `url` is the address."""
        return serving(self, port)

    def events(self, *types: str) -> list[Event]:
        """Return the events of these types, or all, oldest first."""
        return [event for event in self.account.events.values() if not types or event.type in types]

    def deliveries(self, event: Event | str | None = None) -> list[Delivery]:
        """Return every delivery, or an event's, in order, with their outcomes."""
        wanted = None if event is None else id_of(event)
        return [delivery for delivery in self.courier.log if wanted in {None, delivery.event}]

    def misbehave(
        self,
        *,
        drop: float = 0.0,
        duplicates: int = 0,
        reorder: bool = False,
        delay: timedelta | tuple[timedelta, timedelta] = timedelta(0),
        endpoint: WebhookEndpoint | str | None = None,
        types: Collection[str] = (),
        events: Collection[str] = (),
        only: Callable[[Event], bool] | None = None,
    ) -> None:
        """Add a `DeliveryRule` for events not yet being sent; of several matching rules, the newest counts."""
        rule = DeliveryRule(
            drop=drop,
            duplicates=duplicates,
            reorder=reorder,
            delay=delay,
            endpoint=None if endpoint is None else id_of(endpoint),
            types=types,
            events=events,
            only=only,
        )
        self.courier.rules.append(rule)

    def behave(self) -> None:
        """Remove every rule; lost and delayed deliveries stay so."""
        self.courier.rules.clear()

    def add_endpoint(
        self, url: str, secret: str, *, enabled_events: Collection[str] = ("*",), api_version: str | None = None
    ) -> WebhookEndpoint:
        """Send future events there too, by default in the account's shape."""
        types = tuple(enabled_events)
        return self.store_endpoint(
            WebhookEndpoint(url=url, secret=secret, enabled_events=types, api_version=api_version)
        )

    def price(
        self,
        price_id: str | None = None,
        amount: int = 2900,
        *,
        currency: str = "eur",
        interval: str = "month",
        interval_count: int = 1,
    ) -> Price:
        """Create a price, ``amount`` of the currency's smallest unit per so many days, weeks, months or years."""
        return self.billing.add_price(
            amount, price_id=price_id, currency=currency, interval=interval, interval_count=interval_count
        )

    def customer(
        self,
        customer_id: str | None = None,
        *,
        email: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        card: Card = Card.WORKS,
    ) -> Customer:
        return self.storefront.create_customer(
            customer_id=customer_id, email=email, name=name, metadata=metadata, card=card
        )  # fmt: skip

    def card_declines(self, customer: Customer | str) -> None:
        """Let the customer's future payments fail."""
        self.storefront.set_card(id_of(customer), Card.DECLINES)

    def card_works(self, customer: Customer | str) -> None:
        """Let the customer's future payments succeed; open invoices are retried when due, or by `pay`."""
        self.storefront.set_card(id_of(customer), Card.WORKS)

    def delete_customer(self, customer: Customer | str) -> None:
        """Delete a customer and end the subscriptions at once."""
        self.storefront.delete_customer(id_of(customer))

    def subscribe(
        self,
        customer: Customer | str,
        price: Price | str,
        *,
        metadata: Mapping[str, str] | None = None,
        trial_days: int = 0,
        quantity: int = 1,
        cancel_at_period_end: bool = False,
        first_payment: FirstPayment = FirstPayment.CHECKOUT,
    ) -> Subscription:
        """Subscribe a customer like a checkout: ``created`` is incomplete or trialing, then comes ``updated``.

        With ``FirstPayment.ALLOW_INCOMPLETE`` it is like a plain API call: only ``created``, already active.
        """
        return self.billing.subscribe(
            self.storefront.customer(id_of(customer), param="customer").id,
            [(self._price(price), quantity)],
            metadata=metadata or {},
            trial_end=self.account.now + trial_days * DAY if trial_days else None,
            cancel_at_period_end=cancel_at_period_end,
            first_payment=first_payment,
        )

    def change_plan(self, subscription: Subscription | str, price: Price | str) -> Subscription:
        """Replace the first item's price."""
        current = self.billing.active_subscription(id_of(subscription))
        change = ItemChange(current.items[0].id, self._price(price))
        return self.billing.update_subscription(current.id, items=[change])

    def set_metadata(self, subscription: Subscription | str, metadata: Mapping[str, str]) -> Subscription:
        """Set these metadata values; an empty one removes its key."""
        return self.billing.update_subscription(id_of(subscription), metadata=metadata)

    def end_trial(self, subscription: Subscription | str) -> Subscription:
        """End the trial and begin the first paid period now."""
        return self.billing.update_subscription(id_of(subscription), end_trial=True)

    def cancel(self, subscription: Subscription | str, *, at_period_end: bool = False) -> Subscription:
        """Cancel now, or at the end of the period."""
        if at_period_end:
            return self.billing.update_subscription(id_of(subscription), cancel_at_period_end=True)
        return self.billing.cancel_subscription(id_of(subscription))

    def resume(self, subscription: Subscription | str) -> Subscription:
        """Revoke a cancellation at the end of the period."""
        return self.billing.update_subscription(id_of(subscription), cancel_at_period_end=False)

    def pay(self, invoice: Invoice | str) -> Invoice:
        """Charge the customer for an open invoice now; raises `ApiError` if the card declines."""
        return self.billing.pay(id_of(invoice))

    def checkout(
        self,
        price: Price | str,
        *,
        metadata: Mapping[str, str] | None = None,
        subscription_metadata: Mapping[str, str] | None = None,
        customer: Customer | str | None = None,
        customer_email: str | None = None,
        client_reference_id: str | None = None,
        trial_days: int = 0,
        mode: str = "subscription",
        success_url: str | None = None,
        cancel_url: str | None = None,
    ) -> CheckoutSession:
        """Begin a checkout; the subscription gets the session's metadata, or its own."""
        known = None if customer is None else self.storefront.customer(id_of(customer), param="customer").id
        metadata = dict(metadata or {})
        return self.storefront.create_checkout(
            [(self._price(price), 1)],
            mode=mode,
            customer=known,
            customer_email=customer_email,
            client_reference_id=client_reference_id,
            metadata=metadata,
            subscription_metadata=metadata if subscription_metadata is None else dict(subscription_metadata),
            trial_days=trial_days,
            success_url=success_url,
            cancel_url=cancel_url,
        )

    def complete(self, session: CheckoutSession | str) -> CheckoutSession:
        """Pay: creates customer, subscription and all events, ``checkout.session.completed`` last."""
        return self.storefront.complete_checkout(id_of(session))

    def expire(self, session: CheckoutSession | str) -> CheckoutSession:
        """End an open checkout."""
        return self.storefront.expire_checkout(id_of(session))

    def portal(self, customer: Customer | str, return_url: str | None = None) -> PortalSession:
        """Open the portal for a customer."""
        return self.storefront.open_portal(id_of(customer), return_url)

    def _price(self, price: Price | str) -> Price:
        return found(self.account.prices, "price", id_of(price), param="price")
