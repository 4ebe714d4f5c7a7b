"""The provider's API under ``/v1``."""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tenantry_devkit.simulator.account import INTERVALS
from tenantry_devkit.simulator.billing import DAY, FirstPayment, ItemChange
from tenantry_devkit.simulator.engine import SimulationEngine
from tenantry_devkit.simulator.objects import ENDED, Card, Event, Price, Subscription, WebhookEndpoint
from tenantry_devkit.simulator.requests import (
    FORM,
    ApiCall,
    ApiError,
    HttpRequest,
    HttpResponse,
    Parameters,
    Routes,
    expand,
    found,
    in_range,
    missing,
    missing_parameter,
)
from tenantry_devkit.simulator.shapes import Json, Shape, render, render_event
from tenantry_devkit.simulator.storefront import CHECKOUT_MODES

_DECLINING_CARDS: Final = frozenset({"pm_card_chargeCustomerFail", "tok_chargeCustomerFail"})
"""The provider's test cards that can be stored and decline every charge."""
_SUBSCRIPTION_STATUSES: Final = (
    "active", "all", "canceled", "ended", "incomplete", "incomplete_expired", "past_due", "paused", "trialing",
    "unpaid",
)  # fmt: skip
_FILTERS: Final = {
    "prices": ("product",),
    "customers": ("email",),
    "subscriptions": ("customer",),
    "invoices": ("customer", "subscription", "status"),
    "checkout/sessions": ("customer", "subscription", "status"),
}
"""The attributes by which lists can be filtered."""
_FIRST_PAYMENTS: Final = tuple(way.value for way in FirstPayment if way is not FirstPayment.CHECKOUT)
_EVENT_SECONDS: Final = 30 * DAY
"""How long the API lists an event."""
_SHOWN_KEY_CHARACTERS: Final = 4
_LONGEST_IDEMPOTENCY_KEY: Final = 255

Handler = Callable[[ApiCall], Json]


class Api:
    """Answers authenticated requests; repeats the response of a repeated idempotency key."""

    def __init__(self, engine: SimulationEngine) -> None:
        self._engine = engine
        self._account = account = engine.account
        self._billing = billing = engine.billing
        self._storefront = storefront = engine.storefront
        self._replies: dict[str, tuple[object, str, HttpResponse]] = {}
        self._tables: dict[str, tuple[str, Mapping[str, Any]]] = {
            "prices": ("price", account.prices),
            "customers": ("customer", account.customers),
            "subscriptions": ("subscription", account.subscriptions),
            "invoices": ("invoice", account.invoices),
            "checkout/sessions": ("checkout.session", account.checkout_sessions),
            "webhook_endpoints": ("webhook endpoint", account.endpoints),
        }
        handlers: dict[str, Handler] = {
            **{f"GET /v1/{path}/{{}}": partial(_retrieve, *table) for path, table in self._tables.items()},
            "POST /v1/prices": self._create_price,
            "GET /v1/prices": self._list_prices,
            "POST /v1/customers": self._create_customer,
            "GET /v1/customers": lambda call: self._list("customers", call, lambda customer: not customer.deleted),
            "POST /v1/customers/{}": self._update_customer,
            "DELETE /v1/customers/{}": lambda call: call.render(storefront.delete_customer(call.id)),
            "POST /v1/subscriptions": self._create_subscription,
            "GET /v1/subscriptions": self._list_subscriptions,
            "POST /v1/subscriptions/{}": self._update_subscription,
            "DELETE /v1/subscriptions/{}": lambda call: call.render(billing.cancel_subscription(call.id)),
            "GET /v1/invoices": partial(self._list, "invoices"),
            "POST /v1/invoices/{}/pay": lambda call: call.render(billing.pay(call.id)),
            "POST /v1/checkout/sessions": self._create_checkout,
            "GET /v1/checkout/sessions": partial(self._list, "checkout/sessions"),
            "POST /v1/checkout/sessions/{}/expire": lambda call: call.render(storefront.expire_checkout(call.id)),
            "POST /v1/billing_portal/sessions": self._create_portal,
            "GET /v1/events": self._list_events,
            "GET /v1/events/{}": lambda call: self._render_event(self._event(call.id)),
            "POST /v1/events/{}/retry": self._retry_event,
            "POST /v1/webhook_endpoints": self._create_endpoint,
            "GET /v1/webhook_endpoints": lambda call: call.page(account.endpoints.values(), "webhook endpoint"),
            "DELETE /v1/webhook_endpoints/{}": self._delete_endpoint,
        }
        self._routes = Routes(handlers)

    def respond(self, request: HttpRequest) -> HttpResponse:
        """Answer a request; the events that it causes name its ``Request-Id``."""
        request_id = self._account.ids.new("req")
        version = request.headers.get("stripe-version") or self._account.api_version
        try:
            response = self._respond_once(request, request_id, version)
        except ApiError as error:
            response = HttpResponse.of_error(error)
            if error.status == 401:  # noqa: PLR2004
                response.headers["WWW-Authenticate"] = 'Bearer realm="Stripe"'
        return replace(response, headers={"Request-Id": request_id, "Stripe-Version": version, **response.headers})

    def _respond_once(self, request: HttpRequest, request_id: str, version: str) -> HttpResponse:
        self._check_key(request.headers.get("authorization", ""))
        if request.body and request.media_type not in {"", FORM}:
            raise ApiError(400, f"Invalid request: the body must be {FORM}.")
        parameters = Parameters.parse(request.query, request.text)
        key = request.headers.get("idempotency-key") if request.method == "POST" else None
        if key is None:
            return self._act(request, parameters, version, request_id, None)
        if len(key) > _LONGEST_IDEMPOTENCY_KEY:
            message = f"Idempotency keys have at most {_LONGEST_IDEMPOTENCY_KEY} characters."
            raise ApiError(400, message, type="idempotency_error")
        fingerprint = (request.path, parameters.values)
        if key in self._replies:
            return self._replay(key, fingerprint)
        response = self._act(request, parameters, version, request_id, key)
        self._replies[key] = fingerprint, request_id, response
        return response

    def _check_key(self, authorization: str) -> None:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            message = "You did not provide an API key. You need to provide it in the Authorization header, as a Bearer."
            raise ApiError(401, message)
        if not hmac.compare_digest(key.encode(), self._engine.secret_key.encode()):
            masked = "*" * max(0, len(key) - _SHOWN_KEY_CHARACTERS) + key[-_SHOWN_KEY_CHARACTERS:]
            raise ApiError(401, f"Invalid API Key provided: {masked}")

    def _replay(self, key: str, fingerprint: object) -> HttpResponse:
        first, request_id, response = self._replies[key]
        if first != fingerprint:
            message = (
                "Keys for idempotent requests can only be used with the same parameters they were first used with. "
                f"Try using a key other than '{key}' if you meant to execute a different request."
            )
            raise ApiError(400, message, type="idempotency_error")
        return replace(response, headers={"Idempotent-Replayed": "true", "Original-Request": request_id})

    def _act(
        self, request: HttpRequest, parameters: Parameters, version: str, request_id: str, key: str | None
    ) -> HttpResponse:
        route = self._routes.find(request.method, request.path)
        if route is None:
            raise ApiError(404, f"Unrecognized request URL ({request.method}: {request.path}).")
        handler, ids = route
        shape = Shape.of(version)
        with self._account.request(request_id, key):
            try:
                body = handler(ApiCall(request.path, ids, parameters, shape))
            except ApiError as error:
                # a declined charge has happened: its response is stored with the key
                if error.status != 402:  # noqa: PLR2004
                    raise
                return HttpResponse.of_error(error)
        expand(body, parameters.texts("expand"), lambda field, wanted: self._related(field, wanted, shape))
        return HttpResponse.json(body)

    def _related(self, field: str, wanted: str, shape: Shape) -> Json | None:
        account = self._account
        tables: dict[str, Mapping[str, object]] = {
            "customer": account.customers,
            "subscription": account.subscriptions,
            "latest_invoice": account.invoices,
            "price": account.prices,
        }
        thing = tables.get(field, {}).get(wanted)
        return None if thing is None else render(thing, shape)

    def _list(self, path: str, call: ApiCall, test: Callable[[Any], bool] = lambda _: True) -> Json:
        """Return a page of the objects that pass a test, the filter ``created`` and those of `_FILTERS`."""
        kind, table = self._tables[path]
        wanted = {name: text for name in _FILTERS[path] if (text := call.parameters.text(name)) is not None}
        if "customer" in wanted:
            found(self._account.customers, "customer", wanted["customer"], param="customer")
        is_in_range = in_range(call.parameters, "created")

        def matches(thing: Any) -> bool:  # noqa: ANN401
            is_equal = all(getattr(thing, name) == text for name, text in wanted.items())
            return is_equal and is_in_range(thing.created) and test(thing)

        return call.page(filter(matches, table.values()), kind)

    def _create_price(self, call: ApiCall) -> Json:
        given = call.parameters
        currency, amount = given.required("currency"), given.integer("unit_amount")
        if amount is None:
            raise missing_parameter("unit_amount")
        recurring = given.inner("recurring")
        price = self._billing.add_price(
            amount,
            currency=currency.lower(),
            interval=recurring.choice("interval", INTERVALS) or "month",
            interval_count=recurring.integer("interval_count") or 1,
            product=given.text("product"),
            nickname=given.text("nickname"),
            lookup_key=given.text("lookup_key"),
            metadata=given.metadata() or {},
        )
        return call.render(price)

    def _list_prices(self, call: ApiCall) -> Json:
        active, keys = call.parameters.boolean("active"), call.parameters.texts("lookup_keys")
        return self._list(
            "prices", call, lambda price: active in {None, price.active} and (not keys or price.lookup_key in keys)
        )

    def _create_customer(self, call: ApiCall) -> Json:
        given = call.parameters
        fields = {name: given.text(name) for name in ("email", "name", "description")}
        card = _card(given) or Card.WORKS
        return call.render(self._storefront.create_customer(metadata=given.metadata(), card=card, **fields))

    def _update_customer(self, call: ApiCall) -> Json:
        given = call.parameters
        fields = {name: given.text(name) for name in ("email", "name", "description") if name in given}
        card = _card(given)
        if card is not None:
            self._storefront.set_card(call.id, card)
        return call.render(self._storefront.update_customer(call.id, given.metadata() or {}, **fields))

    def _create_subscription(self, call: ApiCall) -> Json:
        given = call.parameters
        customer = self._storefront.customer(given.required("customer"), param="customer")
        items = given.each("items")
        if not items:
            raise missing_parameter("items")
        for name in ("default_payment_method", "trial_from_plan", "backdate_start_date", "collection_method"):
            if given.text(name) not in {None, "charge_automatically", customer.payment_method}:
                raise ApiError(400, f"The simulator does not know this {name}.", param=name)
        days, end = given.integer("trial_period_days"), None
        if given.text("trial_end") != "now":
            end = given.integer("trial_end") or (self._account.now + days * DAY if days else None)
        behavior = given.choice("payment_behavior", _FIRST_PAYMENTS) or FirstPayment.ALLOW_INCOMPLETE
        subscription = self._billing.subscribe(
            customer.id,
            [(self._price(item), item.integer("quantity") or 1) for item in items],
            metadata=given.metadata() or {},
            trial_end=end,
            cancel_at_period_end=given.boolean("cancel_at_period_end") or False,
            first_payment=FirstPayment(behavior),
        )
        return call.render(subscription)

    def _list_subscriptions(self, call: ApiCall) -> Json:
        given = call.parameters
        price, status = given.text("price"), given.choice("status", _SUBSCRIPTION_STATUSES)
        ends_in_range = in_range(given, "current_period_end")
        return self._list(
            "subscriptions",
            call,
            lambda subscription: (
                (price is None or any(item.price.id == price for item in subscription.items))
                and _has_status(subscription, status)
                and ends_in_range(subscription.period_end)
            ),
        )

    def _update_subscription(self, call: ApiCall) -> Json:
        given = call.parameters
        subscription = self._billing.update_subscription(
            call.id,
            items=[self._item_change(item) for item in given.each("items")],
            metadata=given.metadata(),
            cancel_at_period_end=given.boolean("cancel_at_period_end"),
            end_trial=given.text("trial_end") == "now",
        )
        return call.render(subscription)

    def _create_checkout(self, call: ApiCall) -> Json:
        given = call.parameters
        mode = given.choice("mode", CHECKOUT_MODES)
        if mode is None:
            raise missing_parameter("mode")
        items = given.each("line_items")
        if not items:
            raise missing_parameter("line_items")
        customer = given.text("customer")
        if customer is not None:
            self._storefront.customer(customer, param="customer")
            if given.text("customer_email") is not None:
                raise ApiError(400, "You may only specify one of these parameters: customer, customer_email.")
        if given.text("ui_mode") in {None, "hosted", "hosted_page"}:
            given.required("success_url")
        data = given.inner("subscription_data")
        session = self._storefront.create_checkout(
            [(self._price(item), item.integer("quantity") or 1) for item in items],
            mode=mode,
            customer=customer,
            customer_email=given.text("customer_email"),
            client_reference_id=given.text("client_reference_id"),
            metadata=given.metadata() or {},
            subscription_metadata=data.metadata() or {},
            trial_days=data.integer("trial_period_days") or 0,
            success_url=given.text("success_url"),
            cancel_url=given.text("cancel_url"),
        )
        return call.render(session)

    def _create_portal(self, call: ApiCall) -> Json:
        given = call.parameters
        return call.render(self._storefront.open_portal(given.required("customer"), given.text("return_url")))

    def _list_events(self, call: ApiCall) -> Json:
        given = call.parameters
        one, several = given.text("type"), given.texts("types")
        if one is not None and several:
            raise ApiError(400, "You may only specify one of these parameters: type, types.")
        types = [one] if one else several
        prefixes = tuple(each.removesuffix("*") for each in types if each.endswith("*"))
        delivered = given.boolean("delivery_success")
        undelivered = set() if delivered is None else self._engine.courier.undelivered()
        is_in_range = in_range(given, "created")
        events = (
            event
            for event in self._account.events.values()
            if self._is_listed(event)
            and (not types or event.type in types or event.type.startswith(prefixes))
            and is_in_range(event.created)
            and (delivered is None or delivered is (event.id not in undelivered))
        )
        return call.page(events, "event", self._render_event)

    def _retry_event(self, call: ApiCall) -> Json:
        event, endpoint = self._event(call.id), call.parameters.text("webhook_endpoint")
        if endpoint is not None:
            found(self._account.endpoints, "webhook endpoint", endpoint, param="webhook_endpoint")
        self._engine.courier.again(event, endpoint)
        return self._render_event(event)

    def _create_endpoint(self, call: ApiCall) -> Json:
        given = call.parameters
        events = given.texts("enabled_events")
        if not events:
            raise missing_parameter("enabled_events")
        endpoint = self._engine.store_endpoint(
            WebhookEndpoint(
                url=given.required("url"),
                secret=self._account.ids.new("whsec"),
                enabled_events=tuple(events),
                api_version=given.text("api_version"),
                description=given.text("description"),
                metadata=given.metadata() or {},
            )
        )
        return {**call.render(endpoint), "secret": endpoint.secret}  # only now, like the provider

    def _delete_endpoint(self, call: ApiCall) -> Json:
        endpoint = found(self._account.endpoints, "webhook endpoint", call.id)
        del self._account.endpoints[endpoint.id]
        return {"id": endpoint.id, "object": "webhook_endpoint", "deleted": True}

    def _price(self, item: Parameters) -> Price:
        return found(self._account.prices, "price", item.required("price"), param=item.name_of("price"))

    def _item_change(self, item: Parameters) -> ItemChange:
        price = self._price(item) if "price" in item else None
        return ItemChange(item.text("id"), price, item.integer("quantity"), item.boolean("deleted") or False)

    def _render_event(self, event: Event) -> Json:
        return render_event(event, self._account.api_version)

    def _is_listed(self, event: Event) -> bool:
        return event.created > self._account.now - _EVENT_SECONDS

    def _event(self, event_id: str) -> Event:
        event = found(self._account.events, "event", event_id)
        if not self._is_listed(event):
            raise missing("event", event_id)
        return event


def _retrieve(kind: str, table: Mapping[str, object], call: ApiCall) -> Json:
    return call.render(found(table, kind, call.id))


def _card(given: Parameters) -> Card | None:
    """Return how the test card behaves that a request names."""
    settings = given.inner("invoice_settings")
    named = given.text("payment_method") or given.text("source") or settings.text("default_payment_method")
    if named is None:
        return None
    return Card.DECLINES if named in _DECLINING_CARDS else Card.WORKS


def _has_status(subscription: Subscription, status: str | None) -> bool:
    if status is None:
        return subscription.status != "canceled"
    if status == "ended":
        return subscription.status in ENDED
    return status in {"all", subscription.status}
