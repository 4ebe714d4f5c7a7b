"""Customers, and the sessions that they are sent to."""

from typing import Any, Final

from tenantry_devkit.simulator.api.paging import in_range
from tenantry_devkit.simulator.api.parameters import missing_parameter
from tenantry_devkit.simulator.api.routes import Call, Route
from tenantry_devkit.simulator.checkout import MODES
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.errors import ApiError, found
from tenantry_devkit.simulator.objects import Card
from tenantry_devkit.simulator.shapes import Json

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
