"""The payment provider of a test."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import Context
from datetime import datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import httpx2

from tenantry.domain.plans import Catalog
from tenantry.integrations.http_client import new_http_client
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.simulator import CheckoutSession, Customer, Invoice, Price, Simulator, Subscription

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
