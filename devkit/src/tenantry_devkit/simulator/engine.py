"""The simulated account with its clock, its billing and its deliveries."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

import httpx2
import msgspec
from msgspec.structs import replace

from tenantry.common.clock import Clock, system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry_devkit.simulator.account import TABLES, Account, SimulatedClock, Task
from tenantry_devkit.simulator.billing import Rules, SubscriptionBilling
from tenantry_devkit.simulator.delivery import Courier, Delivery
from tenantry_devkit.simulator.objects import (
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
from tenantry_devkit.simulator.requests import found
from tenantry_devkit.simulator.shapes import NEW_VERSION
from tenantry_devkit.simulator.storefront import Storefront

SECRET_KEY: Final = "sk_test_simulator"  # noqa: S105  # for simulators only
PRICES: Final = MappingProxyType({"price_free": 0, "price_pro": 2900, "price_business": 9900})
"""The default prices: those of the package's plan catalog."""
_URL: Final = "http://127.0.0.1:4242"
_ONE_SECOND: Final = 1.0


class AccountState(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated account at the simulated moment ``now``, in seconds since the Unix epoch."""

    now: int
    url: str
    tasks: list[Task]
    prices: list[Price]
    customers: list[Customer]
    subscriptions: list[Subscription]
    invoices: list[Invoice]
    invoice_numbers: dict[str, int]
    checkout_sessions: list[CheckoutSession]
    portal_sessions: list[PortalSession]
    endpoints: list[WebhookEndpoint]
    events: list[Event]
    deliveries: list[Delivery]

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> "AccountState":
        """Decode a state; raises `ValueError` for other content."""
        try:
            return msgspec.json.decode(content, type=cls)
        except NOT_JSON as error:
            raise ValueError(f"this is not the state of a simulated account: {error}") from error


class SimulationEngine:
    """What the API, the pages and the Python methods of the `Simulator` share."""

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
        self.secret_key = secret_key
        """The API key that it accepts."""
        self.account = account = Account(clock=clock, ids=Ids(seed), api_version=api_version, url=url)
        self.courier = Courier(account, wall_clock=wall_clock, seed=seed, concurrency=concurrency, client=client)
        self.billing = SubscriptionBilling(account, rules or Rules())
        self.storefront = Storefront(account, self.billing)
        self.prices: Mapping[str, Price] = account.prices
        self.customers: Mapping[str, Customer] = account.customers
        self.subscriptions: Mapping[str, Subscription] = account.subscriptions
        """All subscriptions by id, oldest first, including ended ones."""
        self.invoices: Mapping[str, Invoice] = account.invoices
        self.checkout_sessions: Mapping[str, CheckoutSession] = account.checkout_sessions
        self.endpoints: Mapping[str, WebhookEndpoint] = account.endpoints
        self._auto_deliver = auto_deliver
        account.on_event = self.courier.enqueue
        for price_id, amount in prices.items():
            self.billing.add_price(amount, price_id=price_id)
        for endpoint in endpoints:
            self.store_endpoint(endpoint)

    @property
    def url(self) -> str:
        """The address where it is served, without a slash at the end; those of hosted pages begin with it."""
        return self.account.url

    @url.setter
    def url(self, url: str) -> None:
        self.account.url = url

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.account.now, UTC)

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
        """Advance the clock: trials end, periods are renewed, payments and deliveries are retried, each when due."""
        by += timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        account, target = self.account, self.account.now + int(by.total_seconds())
        if target < account.now:
            raise ValueError("time does not go back")
        async with self.courier.locked():
            while (moment := self._next_moment()) is not None and moment <= target:
                account.clock.move_to(moment)
                account.agenda.run_due(moment)
                if self._auto_deliver:
                    await self.courier.deliver_due()
            account.clock.move_to(target)

    async def catch_up(self) -> None:
        """Do what is due now, unless another task is doing it."""
        moment = self._next_moment()
        if moment is not None and moment <= self.account.now and not self.courier.is_busy:
            await self.advance()

    async def run(self) -> None:
        """With ``running``: do what becomes due, until canceled."""
        while True:
            await self.catch_up()
            await asyncio.sleep(_ONE_SECOND)

    async def deliver(self) -> int:
        """Attempt every due delivery in order; return the number of requests."""
        async with self.courier.locked():
            return await self.courier.deliver_due()

    async def resend(self, event: Event | str, endpoint: WebhookEndpoint | str | None = None) -> list[Delivery]:
        """Deliver an event once more without faults, to one endpoint or all that want it."""
        endpoint_id = None if endpoint is None else id_of(endpoint)
        if endpoint_id is not None:
            found(self.account.endpoints, "webhook endpoint", endpoint_id, param="webhook_endpoint")
        deliveries = self.courier.again(found(self.account.events, "event", id_of(event)), endpoint_id)
        await self.deliver()
        return deliveries

    def store_endpoint(self, endpoint: WebhookEndpoint, endpoint_id: str | None = None) -> WebhookEndpoint:
        """Send future events there too; replaces the endpoint with this id."""
        account = self.account
        endpoint = replace(endpoint, id=endpoint_id or account.ids.new("we"), created=account.now)
        account.endpoints[endpoint.id] = endpoint
        return endpoint

    def state(self) -> AccountState:
        """Return the whole account, for `restore`, without delivery rules, idempotency keys and the seed."""
        account = self.account
        return AccountState(
            now=account.now,
            url=account.url,
            tasks=account.agenda.tasks(),
            invoice_numbers=self.billing.invoice_counts,
            deliveries=self.courier.log,
            **{name: list(getattr(account, name).values()) for name in TABLES},
        )

    def restore(self, state: AccountState) -> None:
        """Load another simulator's account into this empty one; `url` and time stay its own.

        The next `advance` does what was due before.
        """
        before, after = (msgspec.json.encode(f"{address}/")[:-1] for address in (state.url, self.url))
        state = AccountState.decode(state.encode().replace(before, after))
        for name in TABLES:
            getattr(self.account, name).update((thing.id, thing) for thing in getattr(state, name))
        self.account.agenda.restore(state.tasks)
        self.billing.invoice_counts.update(state.invoice_numbers)
        self.courier.restore(state.deliveries)

    def _next_moment(self) -> int | None:
        moments = [self.account.agenda.next_moment(), self.courier.next_moment() if self._auto_deliver else None]
        return min((moment for moment in moments if moment is not None), default=None)


def id_of(thing: Customer | Subscription | Invoice | Price | CheckoutSession | Event | WebhookEndpoint | str) -> str:
    return thing if isinstance(thing, str) else thing.id
