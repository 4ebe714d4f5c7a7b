"""The provider's API under ``/v1``."""

import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from litestar import Request, Response
from msgspec import Struct
from msgspec.structs import asdict

from tenantry_devkit.simulator import parameters as params
from tenantry_devkit.simulator.account import ApiError, missing, missing_parameter
from tenantry_devkit.simulator.engine import SimulationEngine
from tenantry_devkit.simulator.invoices import DAY
from tenantry_devkit.simulator.objects import (
    CheckoutSession,
    Customer,
    Invoice,
    Item,
    Json,
    PortalSession,
    Price,
    ProviderEvent,
    ProviderObject,
    Shape,
    Subscription,
    WebhookEndpoint,
    as_list,
    merged,
    render_event,
)
from tenantry_devkit.simulator.subscriptions import FirstPayment

T = TypeVar("T", bound=ProviderObject)
_Result = ProviderObject | Json | tuple[list[Any], bool]
"""An object, JSON, or a page of a list and whether there is more."""

_EVENT_SECONDS: Final = 30 * DAY
"""How long the API lists an event."""
_OBJECTS: Final[Mapping[str, tuple[type[ProviderObject], type[params.ListParameters]]]] = {
    "prices": (Price, params.ListParameters),
    "customers": (Customer, params.CustomerList),
    "subscriptions": (Subscription, params.SubscriptionList),
    "invoices": (Invoice, params.InvoiceList),
    "checkout/sessions": (CheckoutSession, params.InvoiceList),
    "webhook_endpoints": (WebhookEndpoint, params.ListParameters),
    "events": (ProviderEvent, params.EventList),
}
"""What can be retrieved and listed, with the list's filters, by its path."""
_EXPANDABLE: Final = {
    "customer": Customer,
    "subscription": Subscription,
    "latest_invoice": Invoice,
    "price": Price,
}


class Api:
    """Answers authenticated requests; repeats the response of a repeated idempotency key."""

    def __init__(self, engine: SimulationEngine) -> None:
        self._engine = engine
        self._account = engine.account
        self._answers: dict[str, tuple[object, str, int, Json]] = {}
        operations: dict[str, tuple[Callable[..., _Result], type[Struct] | None]] = {
            "POST /v1/customers": (self._create_customer, params.CustomerFields),
            "POST /v1/customers/{}": (self._update_customer, params.CustomerFields),
            "DELETE /v1/customers/{}": (engine.delete_customer, None),
            "POST /v1/subscriptions": (self._create_subscription, params.NewSubscription),
            "POST /v1/subscriptions/{}": (self._update_subscription, params.SubscriptionChanges),
            "DELETE /v1/subscriptions/{}": (engine.cancel, None),
            "GET /v1/subscription_items": (self._list_items, params.ItemList),
            "POST /v1/subscriptions/{}/resume": (engine.resume_paused, None),
            "POST /v1/invoices/create_preview": (self._preview_invoice, params.PreviewParameters),
            "POST /v1/invoices/{}/pay": (engine.pay, None),
            "POST /v1/invoices/{}/void": (engine.void_invoice, None),
            "POST /v1/invoices/{}/mark_uncollectible": (engine.mark_uncollectible, None),
            "POST /v1/checkout/sessions": (self._create_checkout, params.CheckoutParameters),
            "POST /v1/checkout/sessions/{}/expire": (engine.expire, None),
            "POST /v1/billing_portal/sessions": (self._create_portal, params.PortalParameters),
        }
        for path, (kind, filters) in _OBJECTS.items():
            operations[f"GET /v1/{path}"] = partial(self._list, kind), filters
            operations[f"GET /v1/{path}/{{}}"] = partial(self._retrieve, kind), None
        self._operations = [
            (re.compile(re.escape(route).replace(r"\{\}", "([^/]+)")), *operation)
            for route, operation in operations.items()
        ]

    def respond(self, request: Request[Any, Any, Any], body: bytes) -> Response[bytes]:
        """Answer a request."""
        request_id = self._account.ids.new("req")
        version = request.headers.get("stripe-version") or self._account.api_version
        headers = {"Request-Id": request_id, "Stripe-Version": version}
        try:
            status, answer = self._answer(
                request,
                body,
                Shape.of(version),
                headers,
            )
        except ApiError as error:
            status, answer = error.status, {"error": error.error}
            if status == 401:  # noqa: PLR2004
                headers["WWW-Authenticate"] = 'Bearer realm="Stripe"'
        return params.json_response(answer, status, headers)

    def _answer(
        self, request: Request[Any, Any, Any], body: bytes, shape: Shape, headers: dict[str, str]
    ) -> tuple[int, Json]:
        self._check_key(request.headers.get("authorization", ""))
        if body and request.content_type[0] not in {"", params.FORM}:
            raise ApiError(400, f"Invalid request: the body must be {params.FORM}.")
        parameters = params.parse(
            request.scope["query_string"].decode("latin-1"), body.decode("utf-8", "replace")
        )
        request_id, path = headers["Request-Id"], request.url.path
        key = request.headers.get("idempotency-key") if request.method == "POST" else None
        if key in self._answers:
            first, original, status, answer = self._answers[key]
            _check_repetition(first, (path, parameters))
            headers |= {"Idempotent-Replayed": "true", "Original-Request": original}
            return status, answer
        status, answer = self._act(request.method, path, parameters, shape)
        if key is not None:
            self._answers[key] = (path, parameters), request_id, status, answer
        return status, answer

    def _check_key(self, authorization: str) -> None:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            message = "You did not provide an API key. You need to provide it in the Authorization header, as a Bearer."
            raise ApiError(401, message)
        if not hmac.compare_digest(key.encode(), self._engine.secret_key.encode()):
            raise ApiError(401, "Invalid API Key provided.")

    def _act(self, method: str, path: str, parameters: Json, shape: Shape) -> tuple[int, Json]:
        action, kind, ids = self._operation(f"{method} {path}")
        given = [] if kind is None else [params.decode(parameters, kind)]
        try:
            answer = self._json(action(*given, *ids), path, shape)
        except ApiError as error:
            # a declined charge has happened: its response is stored with the key
            if error.status != 402:  # noqa: PLR2004
                raise
            return error.status, {"error": error.error}
        for wanted in params.decode(parameters, params.Expansion).expand:
            self._expand(answer, wanted.split("."), shape)
        return 200, answer

    def _operation(
        self, request: str
    ) -> tuple[Callable[..., _Result], type[Struct] | None, tuple[str, ...]]:
        """Return the method of a request, its parameters, and the ids in the path."""
        for pattern, action, kind in self._operations:
            if match := pattern.fullmatch(request):
                return action, kind, match.groups()
        method, _, path = request.partition(" ")
        raise ApiError(404, f"Unrecognized request URL ({method}: {path}).")

    def _json(self, result: _Result, path: str, shape: Shape) -> Json:
        if isinstance(result, tuple):
            things, has_more = result
            return as_list(
                path,
                [self._json(thing, path, shape) for thing in things],
                has_more=has_more,
            )
        if isinstance(result, ProviderEvent):
            return render_event(result, self._account.api_version)
        return result.render(shape) if isinstance(result, ProviderObject) else result

    def _expand(self, answer: object, path: Sequence[str], shape: Shape) -> None:
        """Replace the ids at this path by their objects, as in ``expand[]=data.customer``."""
        if isinstance(answer, list):
            for member in answer:
                self._expand(member, path, shape)
        if not path or not isinstance(answer, dict):
            return
        name, *rest = path
        if name == "currency_options" and answer.get("object") == "price":
            price = self._account.find(Price, answer["id"])
            answer[name] = price.render_currency_options()
        value = answer.get(name)
        if isinstance(value, str):
            answer[name] = self._expanded(name, value, shape)
        self._expand(
            answer.get(name),
            rest,
            shape,
        )

    def _expanded(self, name: str, value: str, shape: Shape) -> object:
        """Return the object that an attribute names; the value itself where it names none."""
        if name == "default_payment_method":
            owners = self._account.table(Customer).values()
            owner = next((each for each in owners if each.payment_method == value), None)
            return value if owner is None else owner.render_payment_method()
        things = self._account.tables[_EXPANDABLE[name]] if name in _EXPANDABLE else {}
        return things[value].render(shape) if value in things else value

    def _retrieve(self, kind: type[T], wanted: str) -> T:
        thing = self._account.find(kind, wanted)
        if not self._is_listed(thing):
            raise missing(kind, wanted)
        return thing

    def _list(
        self, kind: type[ProviderObject], given: params.ListParameters
    ) -> tuple[list[Any], bool]:
        """Return a page of the objects that pass the filters."""
        customer = getattr(given, "customer", None)
        if customer is not None:
            self._account.find(Customer, customer, param="customer")
        things: Iterable[ProviderObject] = self._account.table(kind).values()
        if customer is not None:  # of thousands, in a fraction of the time of all filters
            things = [thing for thing in things if getattr(thing, "customer", None) == customer]
        matching = [thing for thing in things if given.matches(thing) and self._is_listed(thing)]
        return params.page(
            matching[::-1],
            kind,
            given,
        )

    def _list_items(self, given: params.ItemList) -> tuple[list[Any], bool]:
        """Return a page of the items of a subscription, in its order."""
        subscription = self._account.find(Subscription, given.subscription, param="subscription")
        items, has_more = params.page(subscription.items, Item, given)
        wanted = {item.id for item in items}
        rendered = subscription.render_items(Shape.NEW)
        return [item for item in rendered if item["id"] in wanted], has_more

    def _create_customer(self, given: params.CustomerFields) -> Customer:
        return self._engine.customer(metadata=given.metadata, **given.fields)

    def _update_customer(self, given: params.CustomerFields, customer_id: str) -> Customer:
        before = self._account.find_customer(customer_id)
        metadata = merged(before.metadata, given.metadata)
        return self._account.change(
            before,
            "customer.updated",
            metadata=metadata,
            **given.fields,
        )

    def _create_subscription(self, given: params.NewSubscription) -> Subscription:
        return self._engine.subscribe(
            given.customer,
            [
                (price, 1 if quantity is None and not price.is_metered else quantity)
                for price, quantity in self._priced(given.items, "items")
            ],
            metadata=given.metadata,
            cancel_at_period_end=given.cancel_at_period_end,
            cancel_at=given.cancel_at,
            first_payment=FirstPayment(given.payment_behavior),
            **given.fields,
        )

    def _update_subscription(
        self, given: params.SubscriptionChanges, subscription_id: str
    ) -> Subscription:
        fields = asdict(given)
        missing_payment_method = fields.pop("trial_settings").end_behavior.missing_payment_method
        return self._engine.update_subscription(
            subscription_id,
            **fields,
            missing_payment_method=missing_payment_method,
        )

    def _create_checkout(self, given: params.CheckoutParameters) -> CheckoutSession:
        if given.customer is not None and given.customer_email is not None:
            raise ApiError(
                400, "You may only specify one of these parameters: customer, customer_email."
            )
        if given.ui_mode in {"hosted", "hosted_page"} and given.success_url is None:
            raise missing_parameter("success_url")
        _check_customer_update(given)
        fields = asdict(given)
        for name in ("mode", "line_items", "subscription_data", "ui_mode", "customer_update"):
            del fields[name]
        fields["automatic_tax"] = given.automatic_tax.enabled
        fields["tax_id_collection"] = given.tax_id_collection.enabled
        return self._engine.checkout(
            self._priced(given.line_items, "line_items"),
            subscription_metadata=given.subscription_data.metadata,
            **given.subscription_data.fields,
            **fields,
        )

    def _create_portal(self, given: params.PortalParameters) -> PortalSession:
        flow = given.flow_data.to_flow() if given.flow_data else None
        return self._engine.portal(given.customer, given.return_url, flow)

    def _preview_invoice(self, given: params.PreviewParameters) -> Invoice:
        return self._engine.preview(given.subscription)

    def _priced(self, items: Sequence[params.NewItem], name: str) -> list[tuple[Price, int | None]]:
        return [
            (
                self._account.find(
                    Price,
                    item.price,
                    param=f"{name}[{number}][price]",
                ),
                item.quantity,
            )
            for number, item in enumerate(items)
        ]

    def _is_listed(self, thing: ProviderObject) -> bool:
        return (
            not isinstance(thing, ProviderEvent)
            or thing.created > self._account.now - _EVENT_SECONDS
        )


def _check_customer_update(given: params.CheckoutParameters) -> None:
    """Raise `ApiError` where tax of a known customer needs what the checkout may not store."""
    if given.customer is None:
        return
    if given.automatic_tax.enabled and given.customer_update.address != "auto":
        message = (
            "Automatic tax calculation in Checkout requires a valid address on the Customer. "
            "Set `customer_update[address]` to 'auto'."
        )
        raise ApiError(400, message, code="customer_tax_location_invalid")
    if given.tax_id_collection.enabled and given.customer_update.name != "auto":
        message = (
            "Tax ID collection requires updating business name on the customer. "
            "Set `customer_update[name]` to `auto`."
        )
        raise ApiError(400, message)


def _check_repetition(first: object, request: object) -> None:
    """Raise `ApiError` for another request with an idempotency key."""
    if first != request:
        message = (
            "Keys for idempotent requests can only be used with the same parameters "
            "they were first used with."
        )
        raise ApiError(400, message, type="idempotency_error")
