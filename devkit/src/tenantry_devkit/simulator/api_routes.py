"""Routes of the simulated provider's API."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from tenantry_devkit.simulator.api_requests import (
    ApiError,
    Call,
    Parameters,
    Route,
    found,
    in_range,
    missing,
    missing_parameter,
)
from tenantry_devkit.simulator.clock import INTERVALS
from tenantry_devkit.simulator.customers import MODES
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.objects import ENDED, Card, Event, Price, Subscription, WebhookEndpoint
from tenantry_devkit.simulator.shapes import Json, render_event
from tenantry_devkit.simulator.subscriptions import DAY, FirstPayment, ItemChange

_DECLINING_CARDS: Final = frozenset({"pm_card_chargeCustomerFail", "tok_chargeCustomerFail"})
"""The provider's own test cards that can be kept, and decline every charge."""
_PLAIN: Final = ("email", "name", "description")


class CustomerRoutes:
    """The handlers for those who buy."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._account = engine.account

    def routes(self) -> list[Route]:
        """Which handler answers what."""
        return [
            Route("POST", "/v1/customers", self._create),
            Route("GET", "/v1/customers", self._list),
            Route("GET", "/v1/customers/{}", self._retrieve),
            Route("POST", "/v1/customers/{}", self._update),
            Route("DELETE", "/v1/customers/{}", self._delete),
            Route("POST", "/v1/checkout/sessions", self._create_checkout),
            Route("GET", "/v1/checkout/sessions", self._list_checkouts),
            Route("GET", "/v1/checkout/sessions/{}", self._checkout),
            Route("POST", "/v1/checkout/sessions/{}/expire", self._expire_checkout),
            Route("POST", "/v1/billing_portal/sessions", self._create_portal),
        ]

    def _create(self, call: Call) -> Json:
        given = call.parameters
        customer = self._engine.customers.create(
            email=given.text("email"),
            name=given.text("name"),
            description=given.text("description"),
            metadata=given.metadata(),
            card=_card(call) or Card.WORKS,
        )
        return call.render(customer)

    def _list(self, call: Call) -> Json:
        given = call.parameters
        email = given.text("email")
        made_in_time = in_range(given, "created")
        return call.page(
            (
                customer
                for customer in self._account.customers.values()
                if not customer.deleted and email in {None, customer.email} and made_in_time(customer.created)
            ),
            "customer",
        )

    def _retrieve(self, call: Call) -> Json:
        return call.render(found(self._account.customers, "customer", call.id))

    def _update(self, call: Call) -> Json:
        given = call.parameters
        fields: dict[str, Any] = {name: given.text(name) for name in _PLAIN if name in given}
        card = _card(call)
        if card is not None:
            self._engine.customers.use_card(call.id, card)
        return call.render(self._engine.customers.update(call.id, given.metadata() or {}, **fields))

    def _delete(self, call: Call) -> Json:
        return call.render(self._engine.customers.delete(call.id))

    def _create_checkout(self, call: Call) -> Json:
        given = call.parameters
        mode = given.choice("mode", MODES)
        if mode is None:
            raise missing_parameter("mode")
        items = given.each("line_items")
        if not items:
            raise missing_parameter("line_items")
        customer = given.text("customer")
        if customer is not None:
            self._engine.customers.living(customer, param="customer")
            if given.text("customer_email") is not None:
                raise ApiError(400, "You may only specify one of these parameters: customer, customer_email.")
        if given.text("ui_mode") in {None, "hosted", "hosted_page"}:
            given.required("success_url")
        wishes = given.inner("subscription_data")
        session = self._engine.checkouts.create(
            [
                (
                    found(self._account.prices, "price", item.required("price"), param=item.name_of("price")),
                    item.integer("quantity") or 1,
                )
                for item in items
            ],
            mode=mode,
            customer=customer,
            customer_email=given.text("customer_email"),
            client_reference_id=given.text("client_reference_id"),
            metadata=given.metadata() or {},
            subscription_metadata=wishes.metadata() or {},
            trial_days=wishes.integer("trial_period_days") or 0,
            success_url=given.text("success_url"),
            cancel_url=given.text("cancel_url"),
        )
        return call.render(session)

    def _list_checkouts(self, call: Call) -> Json:
        given = call.parameters
        customer, subscription, status = (given.text(name) for name in ("customer", "subscription", "status"))
        made_in_time = in_range(given, "created")
        return call.page(
            (
                session
                for session in self._account.checkout_sessions.values()
                if customer in {None, session.customer}
                and subscription in {None, session.subscription}
                and status in {None, session.status}
                and made_in_time(session.created)
            ),
            "checkout.session",
        )

    def _checkout(self, call: Call) -> Json:
        return call.render(found(self._account.checkout_sessions, "checkout.session", call.id))

    def _expire_checkout(self, call: Call) -> Json:
        session = found(self._account.checkout_sessions, "checkout.session", call.id)
        return call.render(self._engine.checkouts.expire(session.id))

    def _create_portal(self, call: Call) -> Json:
        given = call.parameters
        session = self._engine.open_portal(given.required("customer"), given.text("return_url"))
        return call.render(session)


def _card(call: Call) -> Card | None:
    """How the card behaves that a request names by one of the provider's names for test cards."""
    given = call.parameters
    settings = given.inner("invoice_settings")
    named = given.text("payment_method") or given.text("source") or settings.text("default_payment_method")
    if named is None:
        return None
    return Card.DECLINES if named in _DECLINING_CARDS else Card.WORKS


_STATUSES: Final = (
    "active", "all", "canceled", "ended", "incomplete", "incomplete_expired", "past_due", "paused", "trialing",
    "unpaid",
)  # fmt: skip
_FIRST_PAYMENTS: Final = tuple(way.value for way in FirstPayment if way is not FirstPayment.CHECKOUT)


class BillingRoutes:
    """The handlers for what is sold."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._account = engine.account

    def routes(self) -> list[Route]:
        """Which handler answers what."""
        return [
            Route("POST", "/v1/prices", self._create_price),
            Route("GET", "/v1/prices", self._list_prices),
            Route("GET", "/v1/prices/{}", self._price),
            Route("POST", "/v1/subscriptions", self._create_subscription),
            Route("GET", "/v1/subscriptions", self._list_subscriptions),
            Route("GET", "/v1/subscriptions/{}", self._subscription),
            Route("POST", "/v1/subscriptions/{}", self._update_subscription),
            Route("DELETE", "/v1/subscriptions/{}", self._cancel_subscription),
            Route("GET", "/v1/invoices", self._list_invoices),
            Route("GET", "/v1/invoices/{}", self._invoice),
            Route("POST", "/v1/invoices/{}/pay", self._pay_invoice),
        ]

    def _create_price(self, call: Call) -> Json:
        given = call.parameters
        currency, amount = given.required("currency"), given.integer("unit_amount")
        if amount is None:
            raise missing_parameter("unit_amount")
        recurring = given.inner("recurring")
        price = self._engine.add_price(
            amount,
            currency=currency.lower(),
            interval=recurring.choice("interval", tuple(sorted(INTERVALS))) or "month",
            interval_count=recurring.integer("interval_count") or 1,
            product=given.text("product"),
            nickname=given.text("nickname"),
            lookup_key=given.text("lookup_key"),
            metadata=given.metadata(),
        )
        return call.render(price)

    def _list_prices(self, call: Call) -> Json:
        given = call.parameters
        active, product, keys = given.boolean("active"), given.text("product"), given.texts("lookup_keys")
        made_in_time = in_range(given, "created")
        return call.page(
            (
                price
                for price in self._account.prices.values()
                if active in {None, price.active}
                and product in {None, price.product}
                and (not keys or price.lookup_key in keys)
                and made_in_time(price.created)
            ),
            "price",
        )

    def _price(self, call: Call) -> Json:
        return call.render(found(self._account.prices, "price", call.id))

    def _create_subscription(self, call: Call) -> Json:
        given = call.parameters
        customer = self._engine.customers.living(given.required("customer"), param="customer")
        items = given.each("items")
        if not items:
            raise missing_parameter("items")
        for name in ("default_payment_method", "trial_from_plan", "backdate_start_date", "collection_method"):
            if given.text(name) not in {None, "charge_automatically", customer.payment_method}:
                raise ApiError(400, f"The simulator does not know this {name}.", param=name)
        days, trial_end = given.integer("trial_period_days"), given.text("trial_end")
        if trial_end == "now":
            end = None
        else:
            end = given.integer("trial_end") or (self._account.now + days * DAY if days else None)
        behaviour = given.choice("payment_behavior", _FIRST_PAYMENTS) or FirstPayment.ALLOW_INCOMPLETE
        subscription = self._engine.subscriptions.create(
            customer.id,
            [(self._price_of(item), item.integer("quantity") or 1) for item in items],
            metadata=given.metadata() or {},
            trial_end=end,
            cancel_at_period_end=given.boolean("cancel_at_period_end") or False,
            first_payment=FirstPayment(behaviour),
        )
        return call.render(subscription)

    def _list_subscriptions(self, call: Call) -> Json:
        given = call.parameters
        customer, price, status = self._customer(call), given.text("price"), given.choice("status", _STATUSES)
        made_in_time = in_range(given, "created")
        ends_in_time = in_range(given, "current_period_end")
        return call.page(
            (
                subscription
                for subscription in self._account.subscriptions.values()
                if customer in {None, subscription.customer}
                and (price is None or any(item.price.id == price for item in subscription.items))
                and _has_status(subscription, status)
                and made_in_time(subscription.created)
                and ends_in_time(subscription.period_end)
            ),
            "subscription",
        )

    def _subscription(self, call: Call) -> Json:
        return call.render(found(self._account.subscriptions, "subscription", call.id))

    def _update_subscription(self, call: Call) -> Json:
        given = call.parameters
        subscription = self._engine.subscriptions.update(
            call.id,
            items=[self._item_change(item) for item in given.each("items")],
            metadata=given.metadata(),
            cancel_at_period_end=given.boolean("cancel_at_period_end"),
            end_trial=given.text("trial_end") == "now",
        )
        return call.render(subscription)

    def _cancel_subscription(self, call: Call) -> Json:
        return call.render(self._engine.subscriptions.cancel(call.id))

    def _customer(self, call: Call) -> str | None:
        """The customer that a list is asked for, if any; a deleted one has lists too."""
        customer = call.parameters.text("customer")
        return None if customer is None else found(self._account.customers, "customer", customer, param="customer").id

    def _list_invoices(self, call: Call) -> Json:
        given = call.parameters
        customer, subscription, status = self._customer(call), given.text("subscription"), given.text("status")
        made_in_time = in_range(given, "created")
        return call.page(
            (
                invoice
                for invoice in self._account.invoices.values()
                if customer in {None, invoice.customer}
                and subscription in {None, invoice.subscription}
                and status in {None, invoice.status}
                and made_in_time(invoice.created)
            ),
            "invoice",
        )

    def _invoice(self, call: Call) -> Json:
        return call.render(found(self._account.invoices, "invoice", call.id))

    def _pay_invoice(self, call: Call) -> Json:
        return call.render(self._engine.subscriptions.pay(found(self._account.invoices, "invoice", call.id).id))

    def _price_of(self, item: Parameters) -> Price:
        return found(self._account.prices, "price", item.required("price"), param=item.name_of("price"))

    def _item_change(self, item: Parameters) -> ItemChange:
        price = self._price_of(item) if "price" in item else None
        return ItemChange(item.text("id"), price, item.integer("quantity"), item.boolean("deleted") or False)


def _has_status(subscription: Subscription, status: str | None) -> bool:
    if status is None:
        return subscription.status != "canceled"
    if status == "ended":
        return subscription.status in ENDED
    return status in {"all", subscription.status}


KEPT_SECONDS: Final = 30 * DAY
"""How long the API knows an event."""


class EventRoutes:
    """The handlers for what happened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._account = engine.account

    def routes(self) -> list[Route]:
        """Which handler answers what."""
        return [
            Route("GET", "/v1/events", self._list),
            Route("GET", "/v1/events/{}", self._retrieve),
            Route("POST", "/v1/events/{}/retry", self._retry),
            Route("POST", "/v1/webhook_endpoints", self._create_endpoint),
            Route("GET", "/v1/webhook_endpoints", self._list_endpoints),
            Route("GET", "/v1/webhook_endpoints/{}", self._endpoint),
            Route("DELETE", "/v1/webhook_endpoints/{}", self._delete_endpoint),
        ]

    def _list(self, call: Call) -> Json:
        given = call.parameters
        one, several = given.text("type"), given.texts("types")
        if one is not None and several:
            raise ApiError(400, "You may only specify one of these parameters: type, types.")
        types = [one] if one else several
        delivered = given.boolean("delivery_success")
        undelivered = set() if delivered is None else self._engine.courier.undelivered()
        is_wanted, made_in_time = _among(types), in_range(given, "created")
        return call.page(
            (
                event
                for event in self._account.events.values()
                if self._is_kept(event)
                and is_wanted(event.type)
                and made_in_time(event.created)
                and (delivered is None or delivered is (event.id not in undelivered))
            ),
            "event",
            self._show,
        )

    def _retrieve(self, call: Call) -> Json:
        return self._show(self._kept(call.id))

    def _retry(self, call: Call) -> Json:
        event, endpoint = self._kept(call.id), call.parameters.text("webhook_endpoint")
        if endpoint is not None:
            found(self._account.endpoints, "webhook endpoint", endpoint, param="webhook_endpoint")
        self._engine.courier.again(event, endpoint)
        return self._show(event)

    def _create_endpoint(self, call: Call) -> Json:
        given = call.parameters
        events = given.texts("enabled_events")
        if not events:
            raise missing_parameter("enabled_events")
        endpoint = WebhookEndpoint(
            url=given.required("url"),
            secret=self._account.ids.new("whsec"),
            enabled_events=tuple(events),
            api_version=given.text("api_version"),
            description=given.text("description"),
            metadata=given.metadata() or {},
        )
        endpoint = self._engine.add_endpoint(endpoint)
        # Told this once, as the provider does.
        return {**call.render(endpoint), "secret": endpoint.secret}

    def _list_endpoints(self, call: Call) -> Json:
        return call.page(self._account.endpoints.values(), "webhook endpoint")

    def _endpoint(self, call: Call) -> Json:
        return call.render(found(self._account.endpoints, "webhook endpoint", call.id))

    def _delete_endpoint(self, call: Call) -> Json:
        endpoint = found(self._account.endpoints, "webhook endpoint", call.id)
        del self._account.endpoints[endpoint.id]
        return {"id": endpoint.id, "object": "webhook_endpoint", "deleted": True}

    def _show(self, event: Event) -> Json:
        return render_event(event, self._account.api_version)

    def _is_kept(self, event: Event) -> bool:
        return event.created > self._account.now - KEPT_SECONDS

    def _kept(self, event_id: str) -> Event:
        event = found(self._account.events, "event", event_id)
        if not self._is_kept(event):
            raise missing("event", event_id)
        return event


def _among(wanted: Sequence[str]) -> Callable[[str], bool]:
    """Whether a type is one of these, of which some may end in ``*``; without any, every type is."""
    whole = frozenset(wanted)
    beginnings = tuple(each.removesuffix("*") for each in wanted if each.endswith("*"))
    return lambda event_type: not whole or event_type in whole or event_type.startswith(beginnings)
