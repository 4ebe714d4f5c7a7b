"""The simulated provider as one object: for tests to act on, and an ASGI application for everything else."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

import httpx2

from tenantry.common.clock import Clock, system_clock
from tenantry_devkit.simulator.account import Account
from tenantry_devkit.simulator.api_requests import found
from tenantry_devkit.simulator.clock import SimulatedClock
from tenantry_devkit.simulator.delivery import Courier, Delivery, Misbehaviour
from tenantry_devkit.simulator.engine import AccountState, Engine, moved_to, restore, state_of
from tenantry_devkit.simulator.http import Receive, Scope, Send
from tenantry_devkit.simulator.objects import (
    Card,
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
from tenantry_devkit.simulator.server import Application, serving
from tenantry_devkit.simulator.shapes import NEW_VERSION
from tenantry_devkit.simulator.subscriptions import DAY, FirstPayment, ItemChange, Rules

SECRET_KEY: Final = "sk_test_simulator"  # noqa: S105  # it opens nothing but simulators
PRICES: Final = MappingProxyType({"price_free": 0, "price_pro": 2900, "price_business": 9900})
"""The prices of an account that is given none: those of the plans that tenantry comes with."""
_URL: Final = "http://127.0.0.1:4242"
_ONE_SECOND: Final = 1.0


class Simulator:
    """The payment provider, with one account, in memory. For tests and development, on loopback only.

    It is an ASGI application (the API under ``/v1``, hosted pages, control), and its methods do the same without
    HTTP. A method that changes something returns at once; the events are sent to the webhook endpoints by `deliver`,
    by `advance`, and after each HTTP request (with ``auto_deliver=False`` by `deliver` alone).

    Time stands still until `advance` moves it; with ``running`` it also goes on by itself. Whatever looks random
    comes from ``seed``: the same calls give the same ids, events and deliveries, given the same ``start``, which is
    the present otherwise. Objects that are returned are as they were then; `subscriptions`, `invoices` and so on have
    the present ones. Methods raise `ApiError` where the provider's API would refuse.

    ``prices`` are amounts by price id, monthly, in euro cents. ``api_version`` decides the shape of ``GET /v1/events``
    and of endpoints without a version of their own. ``wall_clock`` is for signatures, which receivers compare with
    real time. ``client`` sends the events, instead of a client of its own; ``url`` is where it will be served.
    """

    def __init__(
        self,
        *,
        secret_key: str = SECRET_KEY,
        endpoints: Sequence[WebhookEndpoint] = (),
        prices: Mapping[str, int] = PRICES,
        seed: int = 0,
        start: datetime | None = None,
        api_version: str = NEW_VERSION,
        rules: Rules | None = None,
        auto_deliver: bool = True,
        concurrency: int = 1,
        running: bool = False,
        wall_clock: Clock = system_clock,
        client: httpx2.AsyncClient | None = None,
        url: str = _URL,
    ) -> None:
        moment = int((start or wall_clock()).timestamp())
        clock = SimulatedClock(moment, running=wall_clock if running else None)
        account = Account(clock=clock, ids=Ids(seed), api_version=api_version, url=url)
        courier = Courier(account, wall_clock=wall_clock, seed=seed, concurrency=concurrency, client=client)
        engine = Engine(
            account, courier, rules=rules or Rules(), secret_key=secret_key, auto_deliver=auto_deliver
        )  # fmt: skip
        for price_id, amount in prices.items():
            engine.add_price(amount, price_id=price_id)
        for endpoint in endpoints:
            engine.add_endpoint(endpoint)
        self._account = account
        self._courier = courier
        self._engine = engine
        self._application = Application(engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)

    def serving(self, port: int = 0) -> AbstractAsyncContextManager["Simulator"]:
        """Within the block it answers on 127.0.0.1, at ``port`` or a free one; `url` says where."""
        return serving(self, port)

    # What there is

    @property
    def url(self) -> str:
        """Where it is served, without a slash at the end: what hosted pages' addresses begin with."""
        return self._account.url

    @url.setter
    def url(self, url: str) -> None:
        self._account.url = url

    @property
    def secret_key(self) -> str:
        """The API key that it accepts."""
        return self._engine.secret_key

    @property
    def now(self) -> datetime:
        """The simulated moment."""
        return datetime.fromtimestamp(self._account.now, UTC)

    @property
    def prices(self) -> Mapping[str, Price]:
        """All prices by id, oldest first."""
        return self._account.prices

    @property
    def customers(self) -> Mapping[str, Customer]:
        """All customers by id, oldest first."""
        return self._account.customers

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """All subscriptions by id, oldest first, ended ones too."""
        return self._account.subscriptions

    @property
    def invoices(self) -> Mapping[str, Invoice]:
        """All invoices by id, oldest first."""
        return self._account.invoices

    @property
    def checkout_sessions(self) -> Mapping[str, CheckoutSession]:
        """All checkout sessions by id, oldest first."""
        return self._account.checkout_sessions

    @property
    def endpoints(self) -> Mapping[str, WebhookEndpoint]:
        """All webhook endpoints by id, oldest first."""
        return self._account.endpoints

    def events(self, *types: str) -> list[Event]:
        """The events of these types, or all, oldest first."""
        return [event for event in self._account.events.values() if not types or event.type in types]

    def deliveries(self, event: Event | str | None = None) -> list[Delivery]:
        """Every delivery, or an event's, in the order in which they came up: to which endpoint, with what answers."""
        wanted = None if event is None else _id(event)
        return [delivery for delivery in self._courier.log if wanted in {None, delivery.event}]

    def state(self) -> AccountState:
        """The whole account, for `restore`; without misbehaviour, idempotency keys and the seed."""
        return state_of(self._engine)

    def restore(self, state: AccountState) -> None:
        """Fill this simulator, which must be empty, with the account of another one; `url` and time stay its own.

        What was due before the present moment happens at the next `advance`.
        """
        restore(self._engine, moved_to(state, self.url))

    # Time and delivery

    async def advance(
        self,
        by: timedelta = timedelta(0),
        /,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Let time pass: trials end, periods are renewed, payments and deliveries are tried again, each when due."""
        await self._engine.advance(by + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))

    async def run(self) -> None:
        """With ``running``: do whatever becomes due as time goes by, until cancelled."""
        while True:
            await self._engine.catch_up()
            await asyncio.sleep(_ONE_SECOND)

    async def deliver(self) -> int:
        """Attempt every delivery that is due now, one after the other; returns the number of requests."""
        return await self._engine.deliver()

    async def resend(self, event: Event | str, endpoint: WebhookEndpoint | str | None = None) -> list[Delivery]:
        """Deliver an event once more, to one endpoint or all that want it; misbehaviour does not touch it."""
        return await self._engine.resend(_id(event), None if endpoint is None else _id(endpoint))

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
        """From now on, deliver badly what is not yet on its way; the arguments are those of `Misbehaviour`.

        Of several rules that concern a delivery, the newest counts.
        """
        rule = Misbehaviour(
            drop=drop,
            duplicates=duplicates,
            reorder=reorder,
            delay=delay,
            endpoint=None if endpoint is None else _id(endpoint),
            types=types,
            events=events,
            only=only,
        )
        self._courier.rules.append(rule)

    def behave(self) -> None:
        """Forget every `misbehave`; what was lost or held back by then stays so."""
        self._courier.rules.clear()

    def add_endpoint(
        self, url: str, secret: str, *, enabled_events: Collection[str] = ("*",), api_version: str | None = None
    ) -> WebhookEndpoint:
        """Send events there too, from now on; without ``api_version`` in the account's shape."""
        endpoint = WebhookEndpoint(
            url=url, secret=secret, enabled_events=tuple(enabled_events), api_version=api_version
        )  # fmt: skip
        return self._engine.add_endpoint(endpoint)

    def set_endpoint(
        self, endpoint_id: str, url: str, secret: str, *, enabled_events: Collection[str] = ("*",)
    ) -> WebhookEndpoint:
        """Make the endpoint with this id, or give the present one this address, secret and types."""
        endpoint = WebhookEndpoint(url=url, secret=secret, enabled_events=tuple(enabled_events))
        return self._engine.add_endpoint(endpoint, endpoint_id)

    # What the account's owner and its customers do

    def price(
        self,
        price_id: str | None = None,
        amount: int = 2900,
        *,
        currency: str = "eur",
        interval: str = "month",
        interval_count: int = 1,
    ) -> Price:
        """A new price, ``amount`` of the currency's smallest unit every so many day, week, month or year."""
        return self._engine.add_price(
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
        """A new customer."""
        return self._engine.customers.create(
            customer_id=customer_id, email=email, name=name, metadata=metadata, card=card
        )

    def card_declines(self, customer: Customer | str) -> None:
        """From now on, the customer's payments fail."""
        self._engine.customers.use_card(_id(customer), Card.DECLINES)

    def card_works(self, customer: Customer | str) -> None:
        """From now on, the customer's payments succeed; what is owed is tried again when it is due, or by `pay`."""
        self._engine.customers.use_card(_id(customer), Card.WORKS)

    def delete_customer(self, customer: Customer | str) -> None:
        """Delete a customer, whose subscriptions end at once."""
        self._engine.customers.delete(_id(customer))

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
        """Subscribe a customer as a checkout does: ``created`` is incomplete or trialing, then comes ``updated``.

        With ``FirstPayment.ALLOW_INCOMPLETE`` it is as the API does by default: ``created`` alone, active already.
        """
        customer_id = self._engine.customers.living(_id(customer), param="customer").id
        return self._engine.subscriptions.create(
            customer_id,
            [(self._price(price), quantity)],
            metadata=metadata or {},
            trial_end=self._account.now + trial_days * DAY if trial_days else None,
            cancel_at_period_end=cancel_at_period_end,
            first_payment=first_payment,
        )

    def change_plan(self, subscription: Subscription | str, price: Price | str) -> Subscription:
        """Put another price in the place of the first one."""
        present = self._engine.subscriptions.living(_id(subscription))
        change = ItemChange(present.items[0].id, self._price(price))
        return self._engine.subscriptions.update(present.id, items=[change])

    def set_metadata(self, subscription: Subscription | str, metadata: Mapping[str, str]) -> Subscription:
        """Set these metadata values; an empty one takes its key away."""
        return self._engine.subscriptions.update(_id(subscription), metadata=metadata)

    def end_trial(self, subscription: Subscription | str) -> Subscription:
        """End the trial and begin the first paid period now."""
        return self._engine.subscriptions.update(_id(subscription), end_trial=True)

    def cancel(self, subscription: Subscription | str, *, at_period_end: bool = False) -> Subscription:
        """Cancel now, or when the period ends."""
        if at_period_end:
            return self._engine.subscriptions.update(_id(subscription), cancel_at_period_end=True)
        return self._engine.subscriptions.cancel(_id(subscription))

    def resume(self, subscription: Subscription | str) -> Subscription:
        """Take back a cancellation at the period's end."""
        return self._engine.subscriptions.update(_id(subscription), cancel_at_period_end=False)

    def pay(self, invoice: Invoice | str) -> Invoice:
        """Charge the customer for an open invoice now; raises `ApiError` where the card declines."""
        return self._engine.subscriptions.pay(found(self._account.invoices, "invoice", _id(invoice)).id)

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
        """Begin a checkout; the subscription gets the session's metadata unless it is given its own."""
        known = None if customer is None else self._engine.customers.living(_id(customer), param="customer").id
        return self._engine.checkouts.create(
            [(self._price(price), 1)],
            mode=mode,
            customer=known,
            customer_email=customer_email,
            client_reference_id=client_reference_id,
            metadata=metadata or {},
            subscription_metadata=metadata or {} if subscription_metadata is None else subscription_metadata,
            trial_days=trial_days,
            success_url=success_url,
            cancel_url=cancel_url,
        )

    def complete(self, session: CheckoutSession | str) -> CheckoutSession:
        """Let the buyer pay: customer, subscription and all events come to be, ``checkout.session.completed`` last."""
        return self._engine.checkouts.complete(self._session(session))

    def expire(self, session: CheckoutSession | str) -> CheckoutSession:
        """End an open checkout."""
        return self._engine.checkouts.expire(self._session(session))

    def portal(self, customer: Customer | str, return_url: str | None = None) -> PortalSession:
        """Open the portal for a customer."""
        return self._engine.open_portal(_id(customer), return_url)

    def _price(self, price: Price | str) -> Price:
        return found(self._account.prices, "price", _id(price), param="price")

    def _session(self, session: CheckoutSession | str) -> str:
        return found(self._account.checkout_sessions, "checkout.session", _id(session)).id


def _id(thing: Customer | Subscription | Invoice | Price | CheckoutSession | Event | WebhookEndpoint | str) -> str:
    return thing if isinstance(thing, str) else thing.id
