"""Prices, subscriptions, invoices."""

from typing import Final

from tenantry_devkit.simulator.api.paging import in_range
from tenantry_devkit.simulator.api.parameters import Parameters, missing_parameter
from tenantry_devkit.simulator.api.routes import Call, Route
from tenantry_devkit.simulator.clock import INTERVALS
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.errors import ApiError, found
from tenantry_devkit.simulator.objects import ENDED, Price, Subscription
from tenantry_devkit.simulator.shapes import Json
from tenantry_devkit.simulator.subscriptions import DAY, FirstPayment, ItemChange

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
