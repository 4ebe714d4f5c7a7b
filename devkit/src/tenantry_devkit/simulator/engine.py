"""The simulated account with its clock, its customers, its billing and its deliveries."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

import httpx2
import msgspec
from msgspec.structs import replace

from tenantry.common.clock import Clock, system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry_devkit.simulator.account import (
    Account,
    ApiError,
    SimulatedClock,
    Task,
    missing,
)
from tenantry_devkit.simulator.delivery import Courier, Delivery, DeliveryRule
from tenantry_devkit.simulator.invoices import DAY, Rules, declined
from tenantry_devkit.simulator.objects import (
    NEW_VERSION,
    BillingMode,
    BillingObject,
    Card,
    CheckoutSession,
    Customer,
    Ids,
    Invoice,
    Item,
    MetadataChanges,
    MissingPaymentMethod,
    PortalFlow,
    PortalSession,
    Price,
    ProviderEvent,
    Subscription,
    Terms,
    WebhookEndpoint,
    id_of,
    merged,
)
from tenantry_devkit.simulator.refusals import (
    check_customer_currency,
    check_items,
    check_line_items,
    check_new_prices,
    check_trial,
    paid_in,
)
from tenantry_devkit.simulator.subscriptions import (
    FirstPayment,
    PricedItems,
    SubscriptionBilling,
)

SECRET_KEY: Final = "sk_test_simulator"  # noqa: S105  # for simulators only
PRICES: Final = MappingProxyType({"price_free": 0, "price_pro": 2900, "price_business": 9900})
"""The default prices: those of the package's plan catalog."""
PROMOTION_CODES: Final = MappingProxyType({"SAVE20": 20})
"""The promotion codes, and the percentage that each takes off every invoice."""
_URL: Final = "http://127.0.0.1:4242"
_ONE_SECOND: Final = 1.0
_PREFIX_LENGTH: Final = 8


class AccountState(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated account at the simulated moment ``now``, in seconds since the Unix epoch."""

    now: int
    url: str
    tasks: list[Task]
    objects: list[BillingObject | PortalSession | WebhookEndpoint | ProviderEvent]
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


class SimulationEngine(SubscriptionBilling):
    """The Python methods of the `Simulator`, which the API and the pages call too."""

    def __init__(
        self,
        *,
        secret_key: str = SECRET_KEY,
        endpoints: Sequence[WebhookEndpoint] = (),
        prices: Mapping[str, int] = PRICES,
        promotion_codes: Mapping[str, int] = PROMOTION_CODES,
        seed: int = 0,
        start: datetime | None = None,
        api_version: str = NEW_VERSION,
        rules: Rules | None = None,
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
        self.promotion_codes = promotion_codes
        account = Account(clock=clock, ids=Ids(seed), api_version=api_version)
        self.courier = Courier(
            account,
            wall_clock=wall_clock,
            seed=seed,
            concurrency=concurrency,
            client=client,
        )
        super().__init__(account, rules or Rules(), url)
        self.checkout_sessions: Mapping[str, CheckoutSession] = account.table(CheckoutSession)
        self.endpoints: Mapping[str, WebhookEndpoint] = account.table(WebhookEndpoint)
        self._actions["expire_checkout"] = self._expire_if_open
        account.on_event = self.courier.enqueue
        for price_id, amount in prices.items():
            self.price(price_id, amount)
        for endpoint in endpoints:
            self.store_endpoint(endpoint)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.account.now, UTC)

    async def advance(self, by: timedelta = timedelta(0), /, **parts: float) -> None:
        """Advance the clock: trials end, periods are renewed, payments and deliveries are retried,
        each when due.

        ``parts`` are days, hours, minutes and seconds, like those of a `timedelta`.
        """
        by += timedelta(**parts)
        account, target = self.account, self.account.now + int(by.total_seconds())
        if target < account.now:
            raise ValueError("time does not go back")
        async with self.courier.locked():
            while (moment := self._next_moment()) is not None and moment <= target:
                account.clock.move_to(moment)
                for task in account.agenda.take_due(moment):
                    self._actions[task.action](*task.arguments)
                await self.courier.deliver_due()
            account.clock.move_to(target)

    async def catch_up(self) -> None:
        """Do what is due now, unless another task is doing it."""
        moment = self._next_moment()
        if moment is not None and moment <= self.account.now and not self.courier.lock.locked():
            await self.advance()

    async def run(self) -> None:
        """With ``running``: do what becomes due, until canceled."""
        while True:
            await self.catch_up()
            await asyncio.sleep(_ONE_SECOND)

    def _next_moment(self) -> int | None:
        moments = (self.account.agenda.next_moment(), self.courier.queue.next_moment())
        return min((moment for moment in moments if moment is not None), default=None)

    def state(self) -> AccountState:
        """Return the whole account, for `restore`, without delivery rules, idempotency keys and the
        seed.
        """
        return AccountState(
            now=self.account.now,
            url=self.url,
            tasks=self.account.agenda.items(),
            objects=[thing for table in self.account.tables.values() for thing in table.values()],
            deliveries=self.courier.log,
        )

    def restore(self, state: AccountState) -> None:
        """Load another simulator's account into this empty one; `url` and time stay its own.

        The next `advance` does what was due before.
        """
        before, after = (
            msgspec.json.encode(f"{address}/")[:-1] for address in (state.url, self.url)
        )
        state = AccountState.decode(state.encode().replace(before, after))
        for thing in state.objects:
            self.account.add(thing)
        for task in state.tasks:
            self.account.agenda.add(task.moment, task)
        self.courier.restore(state.deliveries)

    def events(self, *types: str) -> list[ProviderEvent]:
        """Return the events of these types, or all, oldest first."""
        return [
            event
            for event in self.account.table(ProviderEvent).values()
            if not types or event.type in types
        ]

    async def deliver(self) -> int:
        """Attempt every due delivery in order; return the number of requests."""
        async with self.courier.locked():
            return await self.courier.deliver_due()

    async def resend(self, event: ProviderEvent | str) -> list[Delivery]:
        """Deliver an event once more without faults, to all endpoints that want it."""
        deliveries = self.courier.again(self.account.find(ProviderEvent, id_of(event)))
        await self.deliver()
        return deliveries

    def deliveries(self, event: ProviderEvent | str | None = None) -> list[Delivery]:
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
        types: Collection[str] = (),
        only: Callable[[ProviderEvent], bool] | None = None,
    ) -> None:
        """Add a `DeliveryRule` for the events from now on; of several matching rules, the newest
        counts.
        """
        rule = DeliveryRule(
            drop=drop,
            duplicates=duplicates,
            reorder=reorder,
            delay=delay,
            types=types,
            only=only,
        )
        self.courier.rules.append(rule)

    def behave(self) -> None:
        """Remove every rule; lost and delayed deliveries stay so."""
        self.courier.rules.clear()

    def add_endpoint(
        self,
        url: str,
        secret: str,
        *,
        enabled_events: Collection[str] = ("*",),
        api_version: str | None = None,
    ) -> WebhookEndpoint:
        """Send future events there too, by default in the account's shape."""
        endpoint = WebhookEndpoint(
            url=url,
            secret=secret,
            enabled_events=tuple(enabled_events),
            api_version=api_version,
        )
        return self.store_endpoint(endpoint)

    def store_endpoint(self, endpoint: WebhookEndpoint) -> WebhookEndpoint:
        """Send future events there too; replaces the endpoint with this id, if it has one."""
        account = self.account
        return account.add(
            replace(
                endpoint,
                id=endpoint.id or account.ids.new("we"),
                created=account.now,
            )
        )

    def customer(
        self,
        customer_id: str | None = None,
        *,
        email: str | None = None,
        name: str | None = None,
        metadata: MetadataChanges | None = None,
        card: Card = Card.WORKS,
    ) -> Customer:
        account = self.account
        fresh = account.ids.new("cus")
        customer = Customer(
            id=customer_id or fresh,
            created=account.now,
            payment_method=account.ids.new("pm"),
            invoice_prefix=fresh[-_PREFIX_LENGTH:].upper(),
            metadata=merged({}, metadata),
            card=card,
            email=email,
            name=name,
        )
        account.add(customer)
        account.emit("customer.created", customer)
        return customer

    def card_declines(self, customer: Customer | str) -> None:
        """Let the customer's future payments fail."""
        self.account.set_card(id_of(customer), Card.DECLINES)

    def card_works(self, customer: Customer | str) -> None:
        """Let the customer's future payments succeed; open invoices are retried when due, or by
        `pay`.
        """
        self.account.set_card(id_of(customer), Card.WORKS)

    def delete_customer(self, customer: Customer | str) -> Customer:
        """Delete a customer and end the subscriptions at once."""
        account, before = self.account, self.account.find_customer(id_of(customer))
        for subscription in list(self.subscriptions.values()):
            if subscription.customer == before.id and not subscription.has_ended:
                self.cancel(subscription)
        account.emit("customer.deleted", before)
        return account.change(before, deleted=True)

    def checkout(
        self,
        price: Price | str | PricedItems,
        *,
        metadata: MetadataChanges | None = None,
        subscription_metadata: MetadataChanges | None = None,
        customer: Customer | str | None = None,
        customer_email: str | None = None,
        client_reference_id: str | None = None,
        currency: str | None = None,
        trial_days: int = 0,
        missing_payment_method: MissingPaymentMethod = "create_invoice",
        billing_mode: BillingMode | None = None,
        automatic_tax: bool = False,
        tax_id_collection: bool = False,
        allow_promotion_codes: bool = False,
        success_url: str | None = None,
        cancel_url: str | None = None,
    ) -> CheckoutSession:
        """Begin a checkout of a price, or of several with quantities, which is open for a day.

        The subscription gets the session's metadata, or its own. Without a ``currency`` it is the
        customer's, where all prices have it. Raises `ApiError` for a malformed URL, and for what
        the provider does not sell together, or in this currency.
        """
        account = self.account
        _check_url(success_url, "success_url")
        _check_url(cancel_url, "cancel_url")
        if customer is not None:
            customer = account.find_customer(id_of(customer), param="customer").id
        session_id = account.ids.new("cs_test")
        prices = tuple(self._with_quantities(price))
        check_line_items(prices)
        check_trial(trial_days, "subscription_data[trial_period_days]")
        prices = self._in_currency(prices, currency, customer)
        session = CheckoutSession(
            id=session_id,
            created=account.now,
            expires_at=account.now + DAY,
            url=f"{self.url}/c/pay/{session_id}",
            prices=prices,
            success_url=success_url and success_url.replace("{CHECKOUT_SESSION_ID}", session_id),
            cancel_url=cancel_url,
            customer=customer,
            customer_email=customer_email,
            client_reference_id=client_reference_id,
            metadata=merged({}, metadata),
            subscription_metadata=merged(
                {}, metadata if subscription_metadata is None else subscription_metadata
            ),
            trial_days=trial_days,
            missing_payment_method=missing_payment_method,
            billing_mode=billing_mode,
            terms=Terms(is_taxed=automatic_tax),
            tax_id_collection=tax_id_collection,
            allow_promotion_codes=allow_promotion_codes,
        )
        account.plan(session.expires_at, "expire_checkout", session_id)
        return account.add(session)

    def _in_currency(
        self, prices: tuple[tuple[Price, int | None], ...], wanted: str | None, customer: str | None
    ) -> tuple[tuple[Price, int | None], ...]:
        """Return the prices of a checkout in its currency. Raises `ApiError`."""
        bound = None if customer is None else self._bound_currency(customer)
        default = prices[0][0].currency
        has_bound = bound is not None and all(bound in price.amounts for price, _ in prices)
        currency = wanted or (bound if bound is not None and has_bound else default)
        prices = tuple(paid_in(prices, currency, "line_items"))
        check_customer_currency(bound, prices)
        return prices

    def _bound_currency(self, customer: str) -> str | None:
        """Return the currency of a customer's subscription, or open checkout; None without one."""
        opened = (
            session.currency
            for session in self.checkout_sessions.values()
            if session.customer == customer and session.status == "open"
        )
        return self._currency_of(customer) or next(opened, None)

    def apply_promotion_code(self, session: CheckoutSession | str, code: str) -> CheckoutSession:
        """Enter a promotion code in an open checkout; raises `ApiError` for an unknown one, and if
        the session accepts none.
        """
        before = self._open_session(session)
        if not before.allow_promotion_codes or code not in self.promotion_codes:
            raise ApiError(400, f"This code is invalid: {code}", code="promotion_code_invalid")
        terms = replace(before.terms, percent_off=self.promotion_codes[code])
        return self.account.change(before, terms=terms)

    def complete(
        self,
        session: CheckoutSession | str,
        card: Card = Card.WORKS,
        *,
        async_payment: bool = False,
        tax_id: str | None = None,
    ) -> CheckoutSession:
        """Pay with this card: creates customer, subscription and all events,
        ``checkout.session.completed`` last.

        Without a card it begins a trial. Raises `ApiError` if the card declines, or is missing
        although something is due (the session stays open), and if the session is not open.

        With ``async_payment`` the payment is pending, as with a bank debit, until
        `async_payment_succeeds` or `async_payment_fails`. The subscription is active meanwhile.
        """
        account, session = self.account, self._open_session(session)
        if card is Card.DECLINES or (card is Card.MISSING and session.is_due):
            raise declined()
        is_pending = async_payment and session.is_due
        customer = session.customer or self.customer(email=session.customer_email).id
        account.set_card(customer, card)
        subscription = self.subscribe(
            customer,
            session.prices,
            metadata=session.subscription_metadata,
            trial_days=session.trial_days,
            missing_payment_method=session.missing_payment_method,
            billing_mode=session.billing_mode,
            first_payment=FirstPayment.PENDING if is_pending else FirstPayment.CHECKOUT,
            terms=session.terms,
        )
        status = "unpaid" if is_pending else "paid"
        return account.change(
            session,
            "checkout.session.completed",
            status="complete",
            payment_status=status if session.is_due else "no_payment_required",
            url=None,
            payment_pending=is_pending,
            customer=customer,
            subscription=subscription.id,
            invoice=subscription.latest_invoice,
            tax_id=tax_id,
        )

    def async_payment_succeeds(self, session: CheckoutSession | str) -> CheckoutSession:
        """Let a pending payment succeed; raises `ApiError` if there is none."""
        before = self._pending_session(session)
        if invoice := self._open_invoice(before):
            self._settle(invoice)
        fields = {"payment_status": "paid", "payment_pending": False}
        return self.account.change(before, "checkout.session.async_payment_succeeded", **fields)

    def async_payment_fails(self, session: CheckoutSession | str) -> CheckoutSession:
        """Let a pending payment fail like that of a renewal; raises `ApiError` if there is none."""
        before = self._pending_session(session)
        invoice = self._open_invoice(before)
        if invoice and not self.subscriptions[invoice.subscription].has_ended:
            self._fail(invoice)
        return self.account.change(
            before, "checkout.session.async_payment_failed", payment_pending=False
        )

    def _open_invoice(self, session: CheckoutSession) -> Invoice | None:
        invoice = self.invoices.get(session.invoice or "")
        return invoice if invoice and invoice.status == "open" else None

    def expire(self, session: CheckoutSession | str) -> CheckoutSession:
        """End an open checkout; raises `ApiError` if it is not open."""
        before = self._open_session(session)
        return self.account.change(
            before,
            "checkout.session.expired",
            status="expired",
            url=None,
        )

    def portal(
        self,
        customer: Customer | str,
        return_url: str | None = None,
        flow: PortalFlow | None = None,
    ) -> PortalSession:
        """Open the portal for a customer, or one action of it; raises `ApiError` for an unknown
        customer, a malformed URL, or a flow that does not fit the customer's subscription.
        """
        account = self.account
        _check_url(return_url, "return_url")
        known = account.find_customer(id_of(customer), param="customer")
        if flow is not None:
            self._check_flow(flow, known.id)
        session_id = account.ids.new("bps")
        session = PortalSession(
            id=session_id,
            created=account.now,
            customer=known.id,
            url=f"{self.url}/p/session/{session_id}",
            return_url=return_url,
            flow=flow,
        )
        return account.add(session)

    def _check_flow(self, flow: PortalFlow, customer_id: str) -> None:
        """Raise `ApiError` unless the customer can do what a flow is for."""
        _check_url(flow.return_url, "flow_data[after_completion][redirect][return_url]")
        if flow.subscription is None:
            return
        param = f"flow_data[{flow.type}][subscription]"
        subscription = self.account.find(Subscription, flow.subscription, param=param)
        if subscription.customer != customer_id or subscription.has_ended:
            raise missing(Subscription, subscription.id, param=param)
        if flow.type == "subscription_cancel" and subscription.cancel_at is not None:
            raise ApiError(400, "The subscription is already set to be canceled.", param=param)
        if flow.type == "subscription_update_confirm":
            self._check_update(flow, subscription)

    def _check_update(self, flow: PortalFlow, subscription: Subscription) -> None:
        """Raise `ApiError` unless the update changes the subscription's only item."""
        param = "flow_data[subscription_update_confirm][items]"
        if len(subscription.items) > 1:
            raise ApiError(400, "A subscription with several items cannot be updated.", param=param)
        item = subscription.items[0]
        if flow.item != item.id:
            raise missing(Item, flow.item or "", param=f"{param}[0][id]")
        price = self.account.find(Price, flow.price or item.price.id, param=f"{param}[0][price]")
        check_items([(price, flow.quantity)], params=[f"{param}[0]"])
        check_new_prices([price], f"{param}[0][price]")
        if (price.id, flow.quantity or item.quantity) == (item.price.id, item.quantity):
            raise ApiError(400, "The update would change nothing.", param=param)

    def _open_session(self, session: CheckoutSession | str) -> CheckoutSession:
        found = self.account.find(CheckoutSession, id_of(session))
        if found.status != "open":
            raise ApiError(
                400, f"This Checkout Session is {found.status} and cannot be used any more."
            )
        return found

    def _pending_session(self, session: CheckoutSession | str) -> CheckoutSession:
        found = self.account.find(CheckoutSession, id_of(session))
        if not found.payment_pending:
            raise ApiError(400, "This Checkout Session has no pending payment.")
        return found

    def _expire_if_open(self, session_id: str) -> None:
        if self.checkout_sessions[session_id].status == "open":
            self.expire(session_id)


def _check_url(url: str | None, param: str) -> None:
    """Raise `ApiError` unless it is a web address."""
    if url is not None and not url.startswith(("https://", "http://")):
        raise ApiError(400, "Not a valid URL", code="url_invalid", param=param)
