"""The payment provider of a test, and signed events about its tenants in both API shapes."""

import asyncio
import functools
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import Context
from datetime import datetime, timedelta
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import httpx2
import msgspec
from msgspec.structs import replace

from tenantry.common.clock import EPOCH_MAX, from_epoch
from tenantry.domain.billing import events as ev
from tenantry.domain.plans import Catalog
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.stripe.signature import sign
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.simulator import (
    NEW_VERSION,
    CheckoutSession,
    Customer,
    Event,
    Invoice,
    Price,
    Simulator,
    Subscription,
)
from tenantry_devkit.simulator.delivery import event_body
from tenantry_devkit.simulator.objects import BillingObject
from tenantry_devkit.testing.errors import RefusedError
from tenantry_devkit.testing.tenants import Tenant

P = ParamSpec("P")
R = TypeVar("R")

_DELIVERY_SECONDS: Final = 20.0
_PRICE_STEP: Final = 2900


class ProviderServer:
    """Serves the simulator attached last; the simulators run in the event loop of its thread."""

    def __init__(self) -> None:
        self.url = ""
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._client: httpx2.AsyncClient | None = None
        self._attached: list[Simulator] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        simulator = next(reversed(self._attached), None) or Simulator(url=self.url)
        await simulator(scope, receive, send)

    async def run(self) -> None:
        """Provide the simulators' HTTP client until canceled."""
        async with new_http_client(_DELIVERY_SECONDS) as client:
            self._client = client
            self._loop.set_result(asyncio.get_running_loop())
            await asyncio.Event().wait()

    def attach(self, make: Callable[[httpx2.AsyncClient], Simulator]) -> Simulator:
        """Create a simulator, and serve it until another is attached or this one is detached."""

        async def attach() -> Simulator:
            assert self._client is not None  # noqa: S101
            simulator = make(self._client)
            self._attached.append(simulator)
            return simulator

        return self.call(attach())

    def detach(self, simulator: Simulator) -> None:
        """Stop serving a simulator; the one attached before is served again."""
        if simulator in self._attached:
            self._attached.remove(simulator)

    def call(self, action: Coroutine[Any, Any, R]) -> R:
        # without the caller's context, which may belong to another kind of event loop
        return Context().run(asyncio.run_coroutine_threadsafe, action, self._loop.result()).result()


def _method(method: Callable[Concatenate[Simulator, P], R]) -> "Callable[Concatenate[Provider, P], R]":
    """Forward to a method of the simulator, in its event loop."""

    @functools.wraps(method)
    def call(self: "Provider", /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def act() -> R:
            return method(self._simulator, *args, **kwargs)

        return self._server.call(act())

    return call


def _coroutine(
    method: Callable[Concatenate[Simulator, P], Coroutine[Any, Any, R]],
) -> "Callable[Concatenate[Provider, P], R]":
    """Forward to a coroutine method of the simulator, and wait for it."""

    @functools.wraps(method)
    def call(self: "Provider", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._server.call(method(self._simulator, *args, **kwargs))

    return call


class Provider:
    """The simulated payment provider of a test: `tenantry_devkit.simulator.Simulator` without ``await``.

    Its clock begins at the present and stands still until `advance` moves it.
    """

    def __init__(
        self, server: ProviderServer, catalog: Catalog, *, secret_key: str, seed: int, endpoint: str,
        endpoint_secret: str, enabled_events: frozenset[str],
    ) -> None:  # fmt: skip
        def make(client: httpx2.AsyncClient) -> Simulator:
            simulator = Simulator(secret_key=secret_key, prices={}, seed=seed, client=client, url=server.url)
            for number, plan in enumerate(catalog.plans):
                for price_id in plan.stripe_price_ids:
                    simulator.price(price_id, _PRICE_STEP * number)
            simulator.add_endpoint(endpoint, endpoint_secret, enabled_events=enabled_events)
            return simulator

        self._server = server
        self._simulator = server.attach(make)

    def detach(self) -> None:
        """Stop serving it."""
        self._server.detach(self._simulator)

    @property
    def url(self) -> str:
        return self._server.url

    advance = _coroutine(Simulator.advance)
    deliver = _coroutine(Simulator.deliver)
    resend = _coroutine(Simulator.resend)

    add_endpoint = _method(Simulator.add_endpoint)
    behave = _method(Simulator.behave)
    cancel = _method(Simulator.cancel)
    card_declines = _method(Simulator.card_declines)
    card_works = _method(Simulator.card_works)
    change_plan = _method(Simulator.change_plan)
    checkout = _method(Simulator.checkout)
    complete = _method(Simulator.complete)
    customer = _method(Simulator.customer)
    delete_customer = _method(Simulator.delete_customer)
    deliveries = _method(Simulator.deliveries)
    end_trial = _method(Simulator.end_trial)
    events = _method(Simulator.events)
    expire = _method(Simulator.expire)
    misbehave = _method(Simulator.misbehave)
    pay = _method(Simulator.pay)
    portal = _method(Simulator.portal)
    price = _method(Simulator.price)
    resume = _method(Simulator.resume)
    set_metadata = _method(Simulator.set_metadata)
    subscribe = _method(Simulator.subscribe)

    @property
    def now(self) -> datetime:
        return self._simulator.now

    @property
    def prices(self) -> Mapping[str, Price]:
        return dict(self._simulator.prices)

    @property
    def customers(self) -> Mapping[str, Customer]:
        return dict(self._simulator.customers)

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """All subscriptions by id, oldest first, including ended ones."""
        return dict(self._simulator.subscriptions)

    @property
    def invoices(self) -> Mapping[str, Invoice]:
        return dict(self._simulator.invoices)

    @property
    def checkout_sessions(self) -> Mapping[str, CheckoutSession]:
        return dict(self._simulator.checkout_sessions)


WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
_PERIOD_SECONDS: Final = int(timedelta(days=30).total_seconds())
_AMOUNT: Final = 2900


class SentEvent(NamedTuple):
    """An event that the service has accepted; ``created`` is in seconds since the Unix epoch."""

    id: str
    type: str
    created: int
    body: bytes


class Events:
    """Creates events and sends them to the service, which has handled them when a method returns.

    Each event is one second later than those before, by the simulated provider's clock, unless ``created`` is given,
    for late events. ``api_version`` decides the shape (`OLD_VERSION` or `NEW_VERSION` of `tenantry_devkit.simulator`).
    The methods named after events raise `RefusedError` unless the service answers 200.
    """

    def __init__(
        self, http: httpx2.Client, secret: str, provider: Provider, price_of: Callable[[str], str | None]
    ) -> None:
        self._http = http
        self._secret = secret
        self._provider = provider
        self._price_of = price_of

    def subscription_updated(
        self,
        tenant: Tenant,
        plan: str | None = None,
        *,
        status: str = "active",
        period_end: datetime | None = None,
        cancel_at_period_end: bool = False,
        created: datetime | int | None = None,
        api_version: str = NEW_VERSION,
    ) -> SentEvent:
        """Send ``customer.subscription.updated``, by default with the current plan and a period of 30 days."""
        moment = self._moment(created)
        subscription = replace(
            self._subscription(tenant, plan or tenant.plan, moment),
            status=status,
            period_end=int(period_end.timestamp()) if period_end else moment + _PERIOD_SECONDS,
            cancel_at_period_end=cancel_at_period_end,
        )
        return self._emit(ev.SUBSCRIPTION_UPDATED, subscription, moment, api_version, advances=created is None)

    def subscription_deleted(
        self, tenant: Tenant, *, created: datetime | int | None = None, api_version: str = NEW_VERSION
    ) -> SentEvent:
        """Send ``customer.subscription.deleted``: the tenant is on ``free`` and canceled."""
        moment = self._moment(created)
        subscription = self._subscription(tenant, tenant.plan, moment)
        ended = replace(subscription, status="canceled", canceled_at=moment, ended_at=moment)
        return self._emit(ev.SUBSCRIPTION_DELETED, ended, moment, api_version, advances=created is None)

    def payment_failed(
        self,
        tenant: Tenant,
        *,
        amount: int = _AMOUNT,
        invoice_url: str | None = "https://invoice.example/i/unpaid",
        created: datetime | int | None = None,
        api_version: str = NEW_VERSION,
    ) -> SentEvent:
        """Send ``invoice.payment_failed``: the tenant is past due, and its owner gets a mail with the invoice's URL.

        ``amount`` is in cents.
        """
        fields = {"status": "open", "hosted_invoice_url": invoice_url, "amount_paid": 0, "paid_at": None}
        return self._emit_invoice(ev.PAYMENT_FAILED, tenant, amount, created, api_version, **fields)

    def payment_succeeded(
        self,
        tenant: Tenant,
        *,
        amount: int = _AMOUNT,
        created: datetime | int | None = None,
        api_version: str = NEW_VERSION,
    ) -> SentEvent:
        """Send ``invoice.payment_succeeded``, which ends past due."""
        return self._emit_invoice(ev.PAYMENT_SUCCEEDED, tenant, amount, created, api_version)

    def checkout_completed(
        self,
        tenant: Tenant,
        plan: str = "pro",
        *,
        created: datetime | int | None = None,
        api_version: str = NEW_VERSION,
    ) -> SentEvent:
        """Send ``checkout.session.completed``: the tenant's customer is linked to it."""
        moment = self._moment(created)
        [session] = self._checkout(tenant, plan, moment).checkout_sessions.values()
        session = replace(session, subscription=self._subscription(tenant, plan, moment).id)
        return self._emit(ev.CHECKOUT_COMPLETED, session, moment, api_version, advances=created is None)

    def send(self, event: SentEvent | Mapping[str, Any] | bytes, *, signature: str | None = None) -> httpx2.Response:
        """Send an event again, or any bytes, and return the service's answer.

        The default ``signature`` is that of `sign`; an empty one omits the header.
        """
        if isinstance(event, SentEvent):
            event = event.body
        body = event if isinstance(event, bytes) else msgspec.json.encode(event)
        header = self.sign(body) if signature is None else signature
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            **({"Provider-Signature": header} if header else {}),
        }
        return self._http.post(WEBHOOK, content=body, headers=headers)

    def sign(self, body: bytes, *, at: datetime | None = None, secret: str | None = None) -> str:
        """Return the signature header of a body, by default made now with the service's secret."""
        return sign(body, secret or self._secret, int(at.timestamp() if at else time.time()))

    def _moment(self, created: datetime | int | None) -> int:
        if created is None:
            self._provider.advance(seconds=1)
            return int(self._provider.now.timestamp())
        return created if isinstance(created, int) else int(created.timestamp())

    def _emit_invoice(
        self,
        event_type: str,
        tenant: Tenant,
        amount: int,
        created: datetime | int | None,
        api_version: str,
        **fields: object,
    ) -> SentEvent:
        moment = self._moment(created)
        subscription = self._subscription(tenant, tenant.plan, moment)
        [invoice] = self._checkout(tenant, tenant.plan, moment, amount).invoices.values()
        invoice = replace(
            invoice,
            subscription=subscription.id,
            subscription_metadata=subscription.metadata,
            billing_reason="subscription_cycle",
            **fields,
        )
        return self._emit(event_type, invoice, moment, api_version, advances=created is None)

    def _emit(
        self, event_type: str, thing: BillingObject, moment: int, api_version: str, *, advances: bool
    ) -> SentEvent:
        event = Event(
            id=f"evt_{secrets.token_hex(12)}", type=event_type, created=moment, object=thing, pending_webhooks=1
        )
        sent = SentEvent(event.id, event_type, moment, event_body(event, api_version))
        response = self.send(sent)
        if not response.is_success:
            raise RefusedError(response)
        if advances:
            self._provider.advance(seconds=1)  # the provider's next event is later
        return sent

    def _subscription(self, tenant: Tenant, plan: str, moment: int) -> Subscription:
        """Return the tenant's subscription at the simulated provider, or a new one, with the plan's price."""
        [subscription] = self._checkout(tenant, plan, moment).subscriptions.values()
        known = [each for each in self._provider.subscriptions.values() if each.customer == tenant.customer]
        if not known:
            return replace(subscription, id=tenant.subscription_id)
        first = replace(known[-1].items[0], price=subscription.items[0].price)
        return replace(known[-1], items=(first, *known[-1].items[1:]))

    def _checkout(self, tenant: Tenant, plan: str, moment: int, amount: int = _AMOUNT) -> Simulator:
        """Return a separate provider on which the tenant's customer has completed a checkout at this moment."""
        price = self._price_of(plan) or "price_unknown"
        start = from_epoch(min(max(moment, 0), EPOCH_MAX))
        simulator = Simulator(
            prices={price: amount}, seed=secrets.randbits(64), start=start, url="https://invoice.example"
        )  # fmt: skip
        simulator.customer(tenant.customer, email=tenant.owner_email, name=tenant.name)
        metadata = {"orgId": tenant.id}
        simulator.complete(
            simulator.checkout(price, metadata=metadata, customer=tenant.customer, customer_email=tenant.owner_email)
        )
        return simulator
