"""The payment provider of a test, and signed events about its tenants in both API shapes."""

import functools
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack

import httpx2
import msgspec
from msgspec.structs import replace

from tenantry.common.clock import EPOCH_MAX
from tenantry.domain.billing import events as ev
from tenantry.integrations.stripe.signature import sign
from tenantry_devkit.local.endpoint import WEBHOOK_PATH
from tenantry_devkit.local.samples import (
    AMOUNT,
    EventSubject,
    SampleObjects,
    catalog_prices,
    event_about,
    sample_objects,
)
from tenantry_devkit.simulator import (
    NEW_VERSION,
    CheckoutSession,
    Customer,
    Invoice,
    Price,
    Simulator,
    Subscription,
)
from tenantry_devkit.simulator.delivery import event_body
from tenantry_devkit.testing.errors import RefusedError
from tenantry_devkit.testing.service import RunningService
from tenantry_devkit.testing.tenants import SuiteTenant

P = ParamSpec("P")
R = TypeVar("R")

_PERIOD_SECONDS: Final = int(timedelta(days=30).total_seconds())
_SEED_BITS: Final = 64


def _coroutine(
    method: Callable[Concatenate[Simulator, P], Coroutine[Any, Any, R]],
) -> "Callable[Concatenate[Provider, P], R]":
    """Forward to a coroutine method of the simulator, in its event loop, and wait for it."""

    @functools.wraps(method)
    def call(self: "Provider", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._server.call(method(self._simulator, *args, **kwargs))

    return call


def _method(
    method: Callable[Concatenate[Simulator, P], R],
) -> "Callable[Concatenate[Provider, P], R]":
    """Forward to a method of the simulator, in its event loop."""

    @_coroutine
    @functools.wraps(method)
    async def act(simulator: Simulator, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(simulator, *args, **kwargs)

    return act


class Provider:
    """The simulated payment provider of a test: `tenantry_devkit.simulator.Simulator` without
    ``await``.

    Its clock begins at the present and stands still until `advance` moves it.
    """

    def __init__(self, service: RunningService) -> None:
        self._server = server = service.provider_server
        self._simulator = Simulator(
            secret_key=service.values["PROVIDER_SECRET_KEY"],
            prices=catalog_prices(service.settings.billing.catalog),
            seed=secrets.randbits(_SEED_BITS),
            client=server.client,
            url=server.url,
        )
        webhook_url, secret = f"{service.base_url}{WEBHOOK_PATH}", service.webhook_secret
        self._endpoint = self._simulator.add_endpoint(
            webhook_url,
            secret,
            enabled_events=ev.REQUIRED_TYPES,
        )
        server.attached.append(self._simulator)

    def detach(self) -> None:
        """Stop serving it; the one attached before is served again."""
        self._server.attached.remove(self._simulator)

    def enable(self, *types: str) -> None:
        """Send these event types too, beside the five that the service needs."""
        enabled = tuple(sorted({*self._endpoint.enabled_events, *types}))
        self._endpoint = self._store_endpoint(replace(self._endpoint, enabled_events=enabled))

    @property
    def url(self) -> str:
        return self._server.url

    _store_endpoint = _method(Simulator.store_endpoint)

    advance = _coroutine(Simulator.advance)
    deliver = _coroutine(Simulator.deliver)
    resend = _coroutine(Simulator.resend)

    add_endpoint = _method(Simulator.add_endpoint)
    apply_promotion_code = _method(Simulator.apply_promotion_code)
    async_payment_fails = _method(Simulator.async_payment_fails)
    async_payment_succeeds = _method(Simulator.async_payment_succeeds)
    behave = _method(Simulator.behave)
    cancel = _method(Simulator.cancel)
    cancel_in_portal = _method(Simulator.cancel_in_portal)
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
    mark_uncollectible = _method(Simulator.mark_uncollectible)
    misbehave = _method(Simulator.misbehave)
    pause_collection = _method(Simulator.pause_collection)
    pay = _method(Simulator.pay)
    portal = _method(Simulator.portal)
    preview = _method(Simulator.preview)
    price = _method(Simulator.price)
    resume = _method(Simulator.resume)
    resume_collection = _method(Simulator.resume_collection)
    resume_paused = _method(Simulator.resume_paused)
    set_metadata = _method(Simulator.set_metadata)
    subscribe = _method(Simulator.subscribe)
    update_subscription = _method(Simulator.update_subscription)
    void_invoice = _method(Simulator.void_invoice)

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


class SentEvent(NamedTuple):
    """An event that the service has accepted; ``created`` is in seconds since the Unix epoch."""

    id: str
    type: str
    created: int
    body: bytes


class EventOptions(TypedDict, total=False):
    """Options of events.

    Each event is one second later than those before, by the simulated provider's clock, unless
    ``created`` is given, for late events. ``api_version`` decides the shape (`OLD_VERSION` or
    `NEW_VERSION` of `tenantry_devkit.simulator`).
    """

    created: datetime | int | None
    api_version: str


class Events:
    """Creates events and sends them to the service, which has handled them when a method returns.

    The methods named after events take `EventOptions`, and raise `RefusedError` unless the service
    answers 200.
    """

    def __init__(self, service: RunningService, http: httpx2.Client, provider: Provider) -> None:
        self._service = service
        self._http = http
        self._provider = provider

    def subscription_updated(
        self,
        tenant: SuiteTenant,
        plan: str | None = None,
        *,
        status: str = "active",
        period_end: datetime | None = None,
        cancel_at_period_end: bool = False,
        **options: Unpack[EventOptions],
    ) -> SentEvent:
        """Send ``customer.subscription.updated``, by default with the current plan and a period of
        30 days.
        """
        period = {} if period_end is None else {"period_end": int(period_end.timestamp())}
        return self._emit(
            ev.SUBSCRIPTION_UPDATED,
            tenant,
            options,
            plan=plan,
            status=status,
            cancel_at_period_end=cancel_at_period_end,
            **period,
        )

    def subscription_deleted(
        self, tenant: SuiteTenant, **options: Unpack[EventOptions]
    ) -> SentEvent:
        """Send ``customer.subscription.deleted``: the tenant is on ``free`` and canceled."""
        return self._emit(ev.SUBSCRIPTION_DELETED, tenant, options)

    def payment_failed(
        self,
        tenant: SuiteTenant,
        *,
        amount: int = AMOUNT,
        invoice_url: str | None = "https://invoice.example/i/unpaid",
        **options: Unpack[EventOptions],
    ) -> SentEvent:
        """Send ``invoice.payment_failed``: the tenant is past due, and its owner gets a mail with
        the invoice's URL.

        ``amount`` is in cents.
        """
        return self._emit(
            ev.PAYMENT_FAILED, tenant, options, amount=amount, hosted_invoice_url=invoice_url
        )

    def payment_succeeded(
        self, tenant: SuiteTenant, *, amount: int = AMOUNT, **options: Unpack[EventOptions]
    ) -> SentEvent:
        """Send ``invoice.payment_succeeded``, which ends past due."""
        return self._emit(ev.PAYMENT_SUCCEEDED, tenant, options, amount=amount)

    def checkout_completed(
        self, tenant: SuiteTenant, plan: str = "pro", **options: Unpack[EventOptions]
    ) -> SentEvent:
        """Send ``checkout.session.completed``: the tenant's customer is linked to it."""
        return self._emit(ev.CHECKOUT_COMPLETED, tenant, options, plan=plan)

    def send(
        self, event: SentEvent | Mapping[str, Any] | bytes, *, signature: str | None = None
    ) -> httpx2.Response:
        """Send an event again, or any bytes, and return the service's answer.

        The default ``signature`` is that of `sign`; an empty one omits the header.
        """
        if isinstance(event, SentEvent):
            event = event.body
        body = event if isinstance(event, bytes) else msgspec.json.encode(event)
        header = self.sign(body) if signature is None else signature
        signed = {"Provider-Signature": header} if header else {}
        headers = {"Content-Type": "application/json; charset=utf-8", **signed}
        return self._http.post(
            WEBHOOK_PATH,
            content=body,
            headers=headers,
        )

    def sign(self, body: bytes, *, at: datetime | None = None, secret: str | None = None) -> str:
        """Return the signature header of a body, by default made now with the service's secret."""
        return sign(
            body,
            secret or self._service.webhook_secret,
            int(at.timestamp() if at else time.time()),
        )

    def _emit(
        self,
        event_type: str,
        tenant: SuiteTenant,
        options: EventOptions,
        *,
        plan: str | None = None,
        amount: int = AMOUNT,
        **fields: object,
    ) -> SentEvent:
        """Send an event of this type about the plan, by default the tenant's, with these fields."""
        moment = self._moment(options)
        if event_type == ev.SUBSCRIPTION_UPDATED:
            fields = {"period_end": moment + _PERIOD_SECONDS, **fields}
        objects = self._objects(tenant, plan, moment, amount)
        event = event_about(objects, event_type, moment, **fields)
        body = event_body(event, options.get("api_version", NEW_VERSION))
        sent = SentEvent(event.id, event_type, moment, body)
        response = self.send(sent)
        if not response.is_success:
            raise RefusedError(response)
        if options.get("created") is None:
            self._provider.advance(seconds=1)  # the provider's next event is later
        return sent

    def _moment(self, options: EventOptions) -> int:
        """Return the moment of the next event, by default a second after the one before."""
        created = options.get("created")
        if created is None:
            self._provider.advance(seconds=1)
            created = self._provider.now
        return created if isinstance(created, int) else int(created.timestamp())

    def _objects(
        self, tenant: SuiteTenant, plan: str | None, moment: int, amount: int
    ) -> SampleObjects:
        """Return what a checkout of the plan, or of the current one, creates at this moment.

        The subscription is the tenant's newest at the simulated provider, if it has one, with the
        plan's price.
        """
        price = self._service.price_of(plan or tenant.plan) or "price_unknown"
        subject = EventSubject(tenant.id, tenant.customer, price, amount)
        known = [
            each
            for each in self._provider.subscriptions.values()
            if each.customer == tenant.customer
        ]
        subscription_id = known[-1].id if known else tenant.subscription_id
        objects = sample_objects(subject, min(max(moment, 0), EPOCH_MAX), subscription_id)
        if not known:
            return objects
        first = replace(known[-1].items[0], price=objects.subscription.items[0].price)
        return objects._replace(
            subscription=replace(known[-1], items=(first, *known[-1].items[1:])),
            invoice=replace(objects.invoice, subscription_metadata=known[-1].metadata),
        )
