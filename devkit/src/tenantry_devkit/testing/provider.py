"""The payment provider of a test: the simulator, which lives in another thread, with the methods that it has."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import Context
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx2

from tenantry.domain.plans import Catalog
from tenantry.integrations.http_client import new_http_client
from tenantry_devkit.simulator import CheckoutSession, Customer, Invoice, Price, Simulator, Subscription
from tenantry_devkit.simulator.asgi import Receive, Scope, Send

P = ParamSpec("P")
R = TypeVar("R")

_DELIVERY_SECONDS = 20.0
_PRICE = 2900


class ProviderPort:
    """Where the service finds the payment provider: the simulator attached last; it has a thread's event loop."""

    def __init__(self) -> None:
        self.url = ""
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._client: httpx2.AsyncClient | None = None
        self._attached: list[Simulator] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        simulator = next(reversed(self._attached), None) or Simulator(url=self.url)
        await simulator(scope, receive, send)

    async def run(self) -> None:
        """Hold what simulators share, until cancelled."""
        async with new_http_client(_DELIVERY_SECONDS) as client:
            self._client = client
            self._loop.set_result(asyncio.get_running_loop())
            await asyncio.Event().wait()

    def attach(self, make: Callable[[httpx2.AsyncClient], Simulator]) -> Simulator:
        """Make a simulator, and answer with it from now on, until another is attached or this one is detached."""

        async def attaching() -> Simulator:
            assert self._client is not None  # noqa: S101
            simulator = make(self._client)
            self._attached.append(simulator)
            return simulator

        return self.call(attaching())

    def detach(self, simulator: Simulator) -> None:
        """Answer with the one attached before it, if it is the last."""
        if simulator in self._attached:
            self._attached.remove(simulator)

    def call(self, acting: Coroutine[Any, Any, R]) -> R:
        """Do something in the event loop, and wait for it."""
        # with no context of the caller's, who may be in an event loop of another kind
        scheduled = Context().run(asyncio.run_coroutine_threadsafe, acting, self._loop.result())
        return scheduled.result()


def _at_once(method: Callable[Concatenate[Simulator, P], R]) -> "Callable[Concatenate[Provider, P], R]":
    """A method of the simulator's that returns at once."""

    @functools.wraps(method)
    def call(self: "Provider", /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def acting() -> R:
            return method(self._simulator, *args, **kwargs)

        return self._port.call(acting())

    return call


def _awaited(
    method: Callable[Concatenate[Simulator, P], Coroutine[Any, Any, R]],
) -> "Callable[Concatenate[Provider, P], R]":
    """A method of the simulator's that takes until it is done."""

    @functools.wraps(method)
    def call(self: "Provider", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._port.call(method(self._simulator, *args, **kwargs))

    return call


class Provider:
    """The simulated payment provider of a test, attached to the service.

    Its methods are those of `tenantry_devkit.simulator.Simulator`, but none needs ``await``. Its clock begins at the
    present and stands still until `advance` moves it.
    """

    def __init__(
        self, port: ProviderPort, catalog: Catalog, *, secret_key: str, seed: int, endpoint: str, endpoint_secret: str,
        enabled_events: frozenset[str],
    ) -> None:  # fmt: skip
        def make(client: httpx2.AsyncClient) -> Simulator:
            simulator = Simulator(secret_key=secret_key, prices={}, seed=seed, client=client, url=port.url)
            for number, plan in enumerate(catalog.plans):
                for price_id in plan.stripe_price_ids:
                    simulator.price(price_id, _PRICE * number)
            simulator.add_endpoint(endpoint, endpoint_secret, enabled_events=enabled_events)
            return simulator

        self._port = port
        self._simulator = port.attach(make)

    def detach(self) -> None:
        """Leave its place to the one that was attached before."""
        self._port.detach(self._simulator)

    @property
    def url(self) -> str:
        """Where its API and its pages are."""
        return self._port.url

    advance = _awaited(Simulator.advance)
    deliver = _awaited(Simulator.deliver)
    resend = _awaited(Simulator.resend)

    add_endpoint = _at_once(Simulator.add_endpoint)
    behave = _at_once(Simulator.behave)
    cancel = _at_once(Simulator.cancel)
    card_declines = _at_once(Simulator.card_declines)
    card_works = _at_once(Simulator.card_works)
    change_plan = _at_once(Simulator.change_plan)
    checkout = _at_once(Simulator.checkout)
    complete = _at_once(Simulator.complete)
    customer = _at_once(Simulator.customer)
    delete_customer = _at_once(Simulator.delete_customer)
    deliveries = _at_once(Simulator.deliveries)
    end_trial = _at_once(Simulator.end_trial)
    events = _at_once(Simulator.events)
    expire = _at_once(Simulator.expire)
    misbehave = _at_once(Simulator.misbehave)
    pay = _at_once(Simulator.pay)
    portal = _at_once(Simulator.portal)
    price = _at_once(Simulator.price)
    resume = _at_once(Simulator.resume)
    set_metadata = _at_once(Simulator.set_metadata)
    subscribe = _at_once(Simulator.subscribe)

    @property
    def now(self) -> datetime:
        """The simulated moment."""
        return self._simulator.now

    @property
    def prices(self) -> Mapping[str, Price]:
        """All prices by id, oldest first."""
        return dict(self._simulator.prices)

    @property
    def customers(self) -> Mapping[str, Customer]:
        """All customers by id, oldest first."""
        return dict(self._simulator.customers)

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """All subscriptions by id, oldest first, ended ones too."""
        return dict(self._simulator.subscriptions)

    @property
    def invoices(self) -> Mapping[str, Invoice]:
        """All invoices by id, oldest first."""
        return dict(self._simulator.invoices)

    @property
    def checkout_sessions(self) -> Mapping[str, CheckoutSession]:
        """All checkout sessions by id, oldest first."""
        return dict(self._simulator.checkout_sessions)
