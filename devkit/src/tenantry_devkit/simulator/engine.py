"""The parts of a simulated account put together, and the passing of its time."""

from collections.abc import Mapping
from datetime import timedelta

import msgspec
from msgspec.structs import replace

from tenantry.common.encoding import NOT_JSON
from tenantry_devkit.simulator.account import Account
from tenantry_devkit.simulator.api_requests import check_url, found
from tenantry_devkit.simulator.clock import Task
from tenantry_devkit.simulator.customers import Checkouts, Customers
from tenantry_devkit.simulator.delivery import Courier, Delivery
from tenantry_devkit.simulator.objects import (
    CheckoutSession,
    Customer,
    Event,
    Invoice,
    PortalSession,
    Price,
    Subscription,
    WebhookEndpoint,
)
from tenantry_devkit.simulator.subscriptions import Rules, Subscriptions


class Engine:
    """What the API, the pages and the Python methods all work with.

    With ``auto_deliver``, passing time delivers what is due; without, `deliver` alone does.
    """

    def __init__(
        self, account: Account, courier: Courier, *, rules: Rules, secret_key: str, auto_deliver: bool
    ) -> None:
        self.account = account
        self.courier = courier
        self.secret_key = secret_key
        self.auto_deliver = auto_deliver
        self.subscriptions = Subscriptions(account, rules)
        self.customers = Customers(account, self.subscriptions)
        self.checkouts = Checkouts(account, self.customers, self.subscriptions)
        account.on_event = courier.enqueue

    async def advance(self, by: timedelta) -> None:
        """Let time pass: whatever becomes due happens at its moment, in order."""
        account, target = self.account, self.account.now + int(by.total_seconds())
        if target < account.now:
            raise ValueError("time does not go back")
        async with self.courier.at_work():
            while (moment := self._next_moment()) is not None and moment <= target:
                account.clock.move_to(moment)
                account.agenda.run_due(moment)
                if self.auto_deliver:
                    await self.courier.deliver_due()
            account.clock.move_to(target)

    async def deliver(self) -> int:
        """Attempt every delivery that is due; returns the number of requests."""
        async with self.courier.at_work():
            return await self.courier.deliver_due()

    async def catch_up(self) -> None:
        """After a request: what is due by now, unless that is being done already."""
        moment = self._next_moment()
        if moment is not None and moment <= self.account.now and not self.courier.is_busy:
            await self.advance(timedelta(0))

    async def resend(self, event_id: str, endpoint_id: str | None = None) -> list[Delivery]:
        """Deliver an event once more, at once, whatever misbehaviour is asked for.

        Raises `ApiError` when there is no such event or endpoint.
        """
        event = found(self.account.events, "event", event_id)
        if endpoint_id is not None:
            found(self.account.endpoints, "webhook endpoint", endpoint_id, param="webhook_endpoint")
        deliveries = self.courier.again(event, endpoint_id)
        await self.deliver()
        return deliveries

    def add_price(
        self,
        unit_amount: int,
        *,
        price_id: str | None = None,
        currency: str = "eur",
        interval: str = "month",
        interval_count: int = 1,
        product: str | None = None,
        nickname: str | None = None,
        lookup_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Price:
        """A new price; an id that is taken replaces that price for whoever subscribes from now on."""
        account = self.account
        price = Price(
            id=price_id or account.ids.new("price"),
            created=account.now,
            product=product or account.ids.new("prod"),
            unit_amount=unit_amount,
            currency=currency,
            interval=interval,
            interval_count=interval_count,
            nickname=nickname,
            lookup_key=lookup_key,
            metadata=dict(metadata or {}),
        )
        account.add(price, "price.created")
        return price

    def add_endpoint(self, wanted: WebhookEndpoint, endpoint_id: str | None = None) -> WebhookEndpoint:
        """From now on, send events there too; an id that is taken replaces that endpoint."""
        account = self.account
        endpoint = replace(wanted, id=endpoint_id or account.ids.new("we"), created=account.now)
        account.endpoints[endpoint.id] = endpoint
        return endpoint

    def open_portal(self, customer_id: str, return_url: str | None) -> PortalSession:
        """A portal session of a customer; raises `ApiError` if there is no such customer or the address is none."""
        account = self.account
        check_url(return_url, "return_url")
        customer = self.customers.living(customer_id, param="customer")
        session_id = account.ids.new("bps")
        session = PortalSession(
            id=session_id,
            created=account.now,
            customer=customer.id,
            url=f"{account.url}/p/session/{session_id}",
            return_url=return_url,
        )
        account.portal_sessions[session_id] = session
        return session

    def _next_moment(self) -> int | None:
        moments = [self.account.agenda.next_moment(), self.courier.next_moment() if self.auto_deliver else None]
        return min((moment for moment in moments if moment is not None), default=None)


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


def state_of(engine: Engine) -> AccountState:
    """The account as it is now."""
    account = engine.account
    return AccountState(
        now=account.now,
        url=account.url,
        tasks=account.agenda.tasks(),
        prices=list(account.prices.values()),
        customers=list(account.customers.values()),
        subscriptions=list(account.subscriptions.values()),
        invoices=list(account.invoices.values()),
        invoice_numbers=engine.subscriptions.invoicing.numbers,
        checkout_sessions=list(account.checkout_sessions.values()),
        portal_sessions=list(account.portal_sessions.values()),
        endpoints=list(account.endpoints.values()),
        events=list(account.events.values()),
        deliveries=engine.courier.log,
    )


def moved_to(state: AccountState, url: str) -> AccountState:
    """The same account served at another address: the addresses of its hosted pages begin with ``url``."""
    before, after = (msgspec.json.encode(f"{address}/")[:-1] for address in (state.url, url))
    return decoded(encoded(state).replace(before, after))


def encoded(state: AccountState) -> bytes:
    """The state as JSON."""
    return msgspec.json.encode(state)


def decoded(content: bytes) -> AccountState:
    """The state that `encoded` gave; raises `ValueError` for anything else."""
    try:
        return msgspec.json.decode(content, type=AccountState)
    except NOT_JSON as error:
        raise ValueError(f"this is not the state of a simulated account: {error}") from error


def restore(engine: Engine, state: AccountState) -> None:
    """Fill an empty account. Its clock is not moved; what is due by its present moment happens at the next advance."""
    account = engine.account
    account.agenda.restore(state.tasks)
    account.prices.update((price.id, price) for price in state.prices)
    account.customers.update((customer.id, customer) for customer in state.customers)
    account.subscriptions.update((subscription.id, subscription) for subscription in state.subscriptions)
    account.invoices.update((invoice.id, invoice) for invoice in state.invoices)
    account.checkout_sessions.update((session.id, session) for session in state.checkout_sessions)
    account.portal_sessions.update((session.id, session) for session in state.portal_sessions)
    account.endpoints.update((endpoint.id, endpoint) for endpoint in state.endpoints)
    account.events.update((event.id, event) for event in state.events)
    engine.subscriptions.invoicing.numbers.update(state.invoice_numbers)
    engine.courier.restore(state.deliveries)
