"""The payment provider's API: checkout, the customer portal, webhook endpoints, subscriptions,
events.
"""

import logging
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus
from itertools import chain
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote

import msgspec

from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock, system_clock
from tenantry.common.encoding import NOT_JSON, one_line
from tenantry.common.secret import Secret
from tenantry.common.tracing import Tracing
from tenantry.domain import errors
from tenantry.domain.billing.customer_account import BilledSubscription, CustomerAccount
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.snapshot import CustomerSubscriptions, ProviderSubscription
from tenantry.domain.checkout import CURRENCY, CheckoutRequest, CompletedCheckout
from tenantry.domain.portal import ActionKind, PortalAction
from tenantry.domain.prices import CurrencyAmount, Interval, PlanPrice
from tenantry.integrations.stripe.answers import (
    NO_WORD,
    ListBody,
    ListPage,
    ObjectId,
    decode_answer,
    malformed,
    read_object,
    read_pages,
    safe_word,
)
from tenantry.integrations.stripe.connection import (
    TEMPORARY,
    MissingError,
    NotPermittedError,
    ProviderConnection,
    RequestRejectedError,
)
from tenantry.integrations.stripe.customer_reading import SubscriptionBody, read_customer
from tenantry.integrations.stripe.decode import (
    MalformedObjectError,
    decode_checkout,
    decode_subscription,
)
from tenantry.integrations.stripe.payments import PaymentOwner, read_payment_owner

ORG_ID: Final = "orgId"
"""The metadata key that names the tenant (SPEC 2.2)."""
MOST_EVENT_TYPES: Final = 20
"""The most types of events in one request."""

_SUBSCRIPTIONS: Final = "/v1/subscriptions"
_ITEMS: Final = "/v1/subscription_items"
_CHECKOUTS: Final = "/v1/checkout/sessions"
_PORTALS: Final = "/v1/billing_portal/sessions"
_EVENTS: Final = "/v1/events"
_ENDPOINTS: Final = "/v1/webhook_endpoints"
_PRICES: Final = "/v1/prices"
_FLOWS: Final[Mapping[ActionKind, str]] = {
    "payment_method": "payment_method_update",
    "cancel": "subscription_cancel",
    "change": "subscription_update_confirm",
}
_LONGEST_MESSAGE: Final = 500
_OTHER_MODE: Final = re.compile("similar object exists in (live|test) mode")
_CUSTOMER_OF_OTHER_MODE: Final = (
    "The payment provider has this customer in another mode, live or test, "
    "than the one that this service uses."
)
# The provider has no code for these refusals.
_CUSTOMER_CURRENCY: Final = re.compile("combine currencies on a single customer")
_CURRENCY: Final = re.compile(r"\bcurrenc(y|ies)\b", re.IGNORECASE)
_MAIL_ADDRESS: Final = re.compile(r"[^\s'\"<>]+@[^\s'\"<>]+")
_MODES: Final = {"sk_live_": True, "rk_live_": True, "sk_test_": False, "rk_test_": False}
_KEY_REFUSALS: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: (
        "The payment provider does not accept this service's API key (PROVIDER_SECRET_KEY)."
    ),
    HTTPStatus.FORBIDDEN: (
        "The payment provider does not let this service's API key (PROVIDER_SECRET_KEY) do this: it lacks a "
        "permission ({code}, request {request_id})."
    ),
}
_REFUSAL: Final = (
    "The payment provider refused the request (status {status}, {code}, request {request_id})."
)

logger = logging.getLogger(__name__)


class ProviderEndpoint(msgspec.Struct, frozen=True):
    """A webhook endpoint at the provider; ``status`` is ``enabled`` or ``disabled``."""

    url: str
    enabled_events: tuple[str, ...]
    status: str


class ListedSubscription(NamedTuple):
    """A subscription of the account's list, which is live or of test mode; None if it cannot be
    decoded: see ``fault``.

    ``id`` and ``customer_id`` are also known of most that cannot be decoded.
    """

    id: str
    customer_id: str | None
    livemode: bool | None
    subscription: ProviderSubscription | None
    fault: str | None = None


class ProviderPrice(NamedTuple):
    """A price at the provider: whether it is for sale, and what it costs each period; None if it is
    not for subscriptions. A metered price has no quantity.
    """

    active: bool
    recurring: PlanPrice | None
    is_metered: bool = False


class ProviderCheckout(msgspec.Struct, frozen=True):
    """A checkout session at the provider; ``url`` is for the buyer."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    url: Annotated[str, msgspec.Meta(min_length=1)]


@dataclass(eq=False)
class ProviderApi:
    """Calls the provider's API over connections that stay open until `aclose`, all in one event
    loop.

    A call takes at most ``timeout`` seconds for each of three tries. Raises
    `ProviderUnavailableError` if the provider is unreachable, overloaded, broken, or answers with a
    malformed response; `ProviderRefusedError` if it rejects the request; with an idempotency key
    also `IdempotencyMismatchError` and `IdempotencyInFlightError`. ``clock`` counts only where a
    response has no date.
    """

    secret_key: Secret
    api_base: str
    clock: Clock = system_clock
    _: KW_ONLY
    timeout: float = DEFAULT_TIMEOUTS.payment_provider
    tracing: Tracing | None = None

    def __post_init__(self) -> None:
        self._connection: ProviderConnection | None = None
        self._metered: dict[str, bool] = {}  # a price never changes this

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    async def create_checkout_session(
        self, request: CheckoutRequest, idempotency_key: str | None
    ) -> ProviderCheckout:
        """Start a checkout for a subscription.

        The session and the subscription carry the tenant's id.
        """
        params = _checkout_params(request)
        with self._connected() as connection:
            response = await connection.send("POST", _CHECKOUTS, params, idempotency_key)
        return decode_answer(ProviderCheckout, response.body, _CHECKOUTS, response.request_id)

    async def end_checkout_session(self, session_id: str) -> CompletedCheckout | None:
        """End a checkout session, so that it cannot be completed; return what it made if it was
        completed before.

        A session that the provider does not know was not. One that it will not end, because its
        buyer is paying, counts as completed
        (https://docs.stripe.com/api/checkout/sessions/expire).
        """
        path = f"{_CHECKOUTS}/{quote(session_id, safe='')}"
        with self._connected() as connection, suppress(MissingError):
            try:
                await connection.send("POST", f"{path}/expire", {})
            except RequestRejectedError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return None
                if error.status != HTTPStatus.BAD_REQUEST or isinstance(error, MissingError):
                    raise
                expanded = {"expand": ["subscription"]}
                found = await read_object(connection, _SessionOutcome, path, expanded)
                if found.status != "expired":
                    return CompletedCheckout(_made_by(found))
        return None

    async def create_portal_session(
        self,
        *,
        customer_id: str,
        return_url: str,
        idempotency_key: str | None,
        action: PortalAction | None = None,
    ) -> str:
        """Open the customer portal, or one action of it, and return its URL, which for some minutes
        needs no other credential.
        """
        price_id = action.price_id if action else None
        if action and price_id and await self.metered_among([price_id]):
            action = msgspec.structs.replace(action, quantity=None)
        params = {
            "customer": customer_id,
            "return_url": return_url,
            "flow_data": action and _flow_params(action, return_url),
        }
        with self._connected() as connection:
            response = await connection.send("POST", _PORTALS, params, idempotency_key)
        return decode_answer(_Session, response.body, _PORTALS, response.request_id).url

    async def webhook_endpoints(self) -> list[ProviderEndpoint] | None:
        """Return the webhook endpoints; None if the key lacks the permission."""
        with self._connected() as connection, suppress(NotPermittedError):
            pages = [page async for page in read_pages(connection, _ENDPOINTS, {})]
            return list(chain.from_iterable(map(_endpoints, pages)))
        return None

    async def prices(self, price_ids: Collection[str]) -> dict[str, ProviderPrice | None] | None:
        """Return these prices, None for an unknown one; None instead of all if the key lacks the
        permission.
        """
        with self._connected() as connection, suppress(NotPermittedError):
            return {price_id: await _read_price(connection, price_id) for price_id in price_ids}
        return None

    async def metered_among(self, price_ids: Collection[str]) -> set[str]:
        """Return the metered prices, of which the provider refuses a quantity; each price is asked
        for once.

        Without the permission to read prices all count as licensed.
        """
        with self._connected() as connection, suppress(NotPermittedError):
            for price_id in {*price_ids} - self._metered.keys():
                price = await _read_price(connection, price_id)
                if price is not None:
                    self._metered[price_id] = price.is_metered
        return {price_id for price_id in price_ids if self._metered.get(price_id)}

    async def customer_account(self, customer_id: str) -> CustomerAccount:
        """Return a customer's subscriptions, payment method, next charges and invoices; nothing of
        an unknown customer.
        """
        with self._connected() as connection:
            try:
                return await read_customer(connection, customer_id)
            except MissingError:
                return CustomerAccount()
            except NOT_JSON as error:
                raise malformed(f"customer: {error}") from None

    async def payment_owner(self, payment_id: str, *, by_invoice: bool) -> PaymentOwner | None:
        """Return whose a charge or payment intent is; None for an unknown one."""
        with self._connected() as connection, suppress(MissingError):
            return await read_payment_owner(connection, payment_id, by_invoice=by_invoice)
        return None

    async def subscriptions_of(self, customer_id: str) -> CustomerSubscriptions | None:
        """Return all subscriptions of a customer, ended ones included; None for an unknown
        customer.

        The provider knows the customers of the API key's mode, live or test.
        """
        params = {"customer": customer_id, "status": "all"}
        with self._connected() as connection:
            try:
                pages = [
                    await _with_all_items(connection, page)
                    async for page in read_pages(connection, _SUBSCRIPTIONS, params)
                ]
            except MissingError as error:
                if safe_word(error.param) not in ("customer", NO_WORD):
                    raise
                return None
        subscriptions = chain.from_iterable(_subscriptions(page, customer_id) for page in pages)
        return CustomerSubscriptions(pages[0].sent_at, tuple(subscriptions))

    async def subscription(self, subscription_id: str) -> CustomerSubscriptions | None:
        """Return a subscription, which the provider has even of a deleted customer; None for an
        unknown one.
        """
        with self._connected() as connection, suppress(MissingError):
            response = await connection.send("GET", _subscription_path(subscription_id), {})
            body = await _whole(connection, response.body)
            found = _decoded_subscription(body, _SUBSCRIPTIONS, response.request_id)
            return CustomerSubscriptions(response.sent_at, (found,))
        return None

    async def billed_by(self, subscription_id: str) -> BilledSubscription | None:
        """Return the items of a subscription with their quantities; None for an unknown one."""
        with self._connected() as connection, suppress(MissingError):
            response = await connection.send("GET", _subscription_path(subscription_id), {})
            body = await _whole(connection, response.body)
            found = decode_answer(SubscriptionBody, body, _SUBSCRIPTIONS, response.request_id)
            return found.to_subscription()
        return None

    async def set_quantity(
        self,
        subscription_id: str,
        item_id: str,
        quantity: int,
        idempotency_key: str,
    ) -> None:
        """Set the quantity of an item of a subscription."""
        params = {"items": [{"id": item_id, "quantity": quantity}]}
        with self._connected() as connection:
            await connection.send(
                "POST", _subscription_path(subscription_id), params, idempotency_key
            )

    async def every_subscription(
        self, after: str | None = None
    ) -> AsyncGenerator[list[ListedSubscription], None]:
        """Yield the subscriptions of all customers of the account, ended ones included, 100 at a
        time.

        The newest come first, from the beginning or ``after`` a subscription; those created
        meanwhile are not among them. What changes while the list is read may be listed as it was
        before. Any step can raise the errors of a call.
        """
        async with aclosing(self._pages(_SUBSCRIPTIONS, {"status": "all"}, after)) as pages:
            async for page in pages:
                with self._connected() as connection:
                    whole = await _with_all_items(connection, page)
                yield [_listed(raw, whole) for raw in whole.objects]

    async def checkout_of(
        self,
        subscription_id: str,
        event_id: str,
        *,
        reference_links: bool,
    ) -> BillingEvent | None:
        """Return the checkout session that made a subscription, as the event ``event_id`` of its
        completion.

        None if no session did, if it names no tenant or cannot be used, or if the key lacks the
        permission to read sessions. A session that cannot be used may be another product's, so it
        is only logged.
        """
        params = {"subscription": subscription_id, "limit": 1}
        sessions: list[msgspec.Raw] = []
        with self._connected() as connection, suppress(NotPermittedError, MissingError):
            sessions = (await read_object(connection, ListBody, _CHECKOUTS, params)).data
        if not sessions:
            return None
        try:
            session = decode_checkout(bytes(sessions[0]), event_id, reference_links=reference_links)
        except MalformedObjectError as error:
            logger.info(
                "the checkout session of subscription %s is left out: %s",
                safe_word(subscription_id),
                error,
            )
            return None
        return session if session.org_id and session.customer_id else None

    async def events_since(
        self,
        since: int,
        types: Collection[str] | None,
        until: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the account's events of these types (None: all), created from ``since`` to
        ``until``, as JSON.

        The newest come first; events created meanwhile are not among them. The provider lists
        events for 30 days. Raises `ValueError` unless there are 1 to 20 types; any step can raise
        the errors of a call.
        """
        if types is not None and not 1 <= len(types) <= MOST_EVENT_TYPES:
            raise ValueError(
                f"the provider lists 1 to {MOST_EVENT_TYPES} types at once, not {len(types)}"
            )
        params = {
            "created": {"gte": since, "lte": until},
            "types": None if types is None else sorted(types),
        }
        async with aclosing(self._pages(_EVENTS, params)) as pages:
            async for page in pages:
                for event in page.objects:
                    yield event

    async def event(self, event_id: str) -> bytes | None:
        """Return an event as JSON; None for an unknown one, or one that is older than 30 days."""
        path = f"{_EVENTS}/{quote(event_id, safe='')}"
        with self._connected() as connection, suppress(MissingError):
            response = await connection.send("GET", path, {})
            found = decode_answer(ObjectId, response.body, path, response.request_id)
            if found.id != event_id:
                raise malformed(f"{path}: another event", response.request_id)
            return response.body
        return None

    async def _pages(
        self, path: str, params: Mapping[str, object], after: str | None = None
    ) -> AsyncGenerator[ListPage, None]:
        with self._connected() as connection:
            async with aclosing(read_pages(connection, path, params, after)) as pages:
                async for page in pages:
                    yield page

    @contextmanager
    def _connected(self) -> Iterator[ProviderConnection]:
        if self._connection is None:
            self._connection = ProviderConnection(
                self.secret_key,
                self.api_base,
                self.timeout,
                self.tracing,
                self.clock,
            )
        try:
            yield self._connection
        except RequestRejectedError as error:
            raise _domain_error(error) from None


def mode_of_key(secret_key: Secret) -> bool | None:
    """Return the ``livemode`` of an API key of the provider; None if its prefix does not show
    it.
    """
    return _MODES.get(secret_key.reveal()[:8])


def _subscription_path(subscription_id: str) -> str:
    return f"{_SUBSCRIPTIONS}/{quote(subscription_id, safe='')}"


def _checkout_params(request: CheckoutRequest) -> dict[str, object]:
    """Return the parameters of a checkout session
    (https://docs.stripe.com/api/checkout/sessions/create).
    """
    items = [{"price": item.price_id, "quantity": item.quantity} for item in request.items]
    params: dict[str, object] = {
        "mode": "subscription",
        "line_items": items,
        "success_url": request.success_url,
        "cancel_url": request.cancel_url,
        "client_reference_id": request.tenant_id,
        "metadata": {ORG_ID: request.tenant_id},
        "subscription_data": {
            "metadata": {ORG_ID: request.tenant_id},
            "trial_period_days": request.trial_days or None,
        },
        "customer": request.customer_id,
        "customer_email": request.customer_email if request.customer_id is None else None,
        "allow_promotion_codes": request.promotion_codes or None,
        "currency": request.currency,
    }
    if request.tax:
        params["automatic_tax"] = {"enabled": True}
        params["tax_id_collection"] = {"enabled": True}
        if request.customer_id is not None:
            # The provider takes the place and the name of a known customer only when it may store
            # what the buyer enters.
            params["customer_update"] = {"address": "auto", "name": "auto"}
    return params


def _flow_params(action: PortalAction, return_url: str) -> Mapping[str, object]:
    """Return the flow of an action, which leads back when it is done
    (https://docs.stripe.com/customer-management/portal-deep-links).
    """
    kind = _FLOWS[action.kind]
    flow: dict[str, object] = {
        "type": kind,
        "after_completion": {"type": "redirect", "redirect": {"return_url": return_url}},
    }
    if action.subscription_id is not None:
        flow[kind] = {
            "subscription": action.subscription_id,
            "items": None if action.item_id is None else [_changed_item(action)],
        }
    return flow


def _changed_item(action: PortalAction) -> Mapping[str, object]:
    return {"id": action.item_id, "price": action.price_id, "quantity": action.quantity}


async def _with_all_items(connection: ProviderConnection, page: ListPage) -> ListPage:
    """Return a page of subscriptions, each with all of its items."""
    return page._replace(objects=[await _whole(connection, raw) for raw in page.objects])


async def _whole(connection: ProviderConnection, subscription: bytes) -> bytes:
    """Return a subscription with all of its items: the provider puts only the first into the
    object, and the rest into a list (https://docs.stripe.com/api/subscription_items/list).
    """
    try:
        head = msgspec.json.decode(subscription, type=_SubscriptionHead)
    except NOT_JSON:
        return subscription  # its reader says what is malformed
    if not head.items.has_more:
        return subscription
    pages = [page async for page in read_pages(connection, _ITEMS, {"subscription": head.id})]
    items = [msgspec.Raw(item) for page in pages for item in page.objects]
    fields = msgspec.json.decode(subscription, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(fields | {"items": {"data": items, "has_more": False}})


async def _read_price(connection: ProviderConnection, price_id: str) -> ProviderPrice | None:
    """Return a price with the currencies that it is sold in, which the provider leaves out unless
    it is asked; None for an unknown one.
    """
    path = f"{_PRICES}/{quote(price_id, safe='')}"
    with suppress(MissingError):
        price = await read_object(connection, _Price, path, {"expand": ["currency_options"]})
        return ProviderPrice(price.active, price.to_plan_price(price_id), price.is_metered)
    return None


def _endpoints(page: ListPage) -> list[ProviderEndpoint]:
    return [
        decode_answer(ProviderEndpoint, raw, _ENDPOINTS, page.request_id) for raw in page.objects
    ]


def _subscriptions(page: ListPage, customer_id: str) -> list[ProviderSubscription]:
    try:
        subscriptions = list(map(decode_subscription, page.objects))
    except MalformedObjectError as error:
        raise malformed(f"{_SUBSCRIPTIONS}: {error}", page.request_id) from None
    if any(subscription.customer_id != customer_id for subscription in subscriptions):
        raise malformed(f"{_SUBSCRIPTIONS}: a subscription of another customer", page.request_id)
    return subscriptions


def _made_by(session: "_SessionOutcome") -> ProviderSubscription | None:
    """Return the subscription of a session; None for one that has none yet."""
    raw = bytes(session.subscription)
    return None if raw == b"null" else _decoded_subscription(raw, _CHECKOUTS, None)


def _decoded_subscription(raw: bytes, path: str, request_id: str | None) -> ProviderSubscription:
    try:
        return decode_subscription(raw)
    except MalformedObjectError as error:
        raise malformed(f"{path}: {error}", request_id) from None


def _listed(raw: bytes, page: ListPage) -> ListedSubscription:
    known = decode_answer(_ListedObject, raw, _SUBSCRIPTIONS, page.request_id)
    try:
        subscription = decode_subscription(raw)
    except MalformedObjectError as error:
        customer_id = known.customer if isinstance(known.customer, str) else None
        return ListedSubscription(
            known.id,
            customer_id,
            known.livemode,
            None,
            str(error),
        )
    return ListedSubscription(
        subscription.id,
        subscription.customer_id,
        known.livemode,
        subscription,
    )


class _ListedObject(msgspec.Struct):
    id: str
    customer: object = None
    livemode: bool | None = None


class _Session(msgspec.Struct):
    url: Annotated[str, msgspec.Meta(min_length=1)]


class _Recurring(msgspec.Struct, frozen=True):
    interval: Interval
    interval_count: Annotated[int, msgspec.Meta(ge=1)] = 1
    usage_type: str = "licensed"


class _SessionOutcome(msgspec.Struct):
    status: str
    subscription: msgspec.Raw = msgspec.Raw(b"null")


_Currency = Annotated[str, msgspec.Meta(pattern=CURRENCY)]


class _CurrencyOption(msgspec.Struct):
    unit_amount: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Price(_CurrencyOption, kw_only=True):
    """A price (https://docs.stripe.com/api/prices/object). ``unit_amount`` is null for tiers and
    for fractions of a cent; that of a package is not the price of one seat. ``currency_options``
    has the price's own currency too.
    """

    active: bool
    currency: _Currency
    currency_options: dict[_Currency, _CurrencyOption] = {}
    recurring: _Recurring | None = None
    transform_quantity: dict[str, object] | None = None

    @property
    def is_metered(self) -> bool:
        return self.recurring is not None and self.recurring.usage_type == "metered"

    def to_plan_price(self, price_id: str) -> PlanPrice | None:
        period = self.recurring
        if period is None:
            return None
        is_by_use = self.is_metered or self.transform_quantity is not None
        amounts = {
            currency: None if is_by_use else option.unit_amount
            for currency, option in ({self.currency: self} | self._other_options).items()
        }
        return PlanPrice(
            price_id,
            period.interval,
            period.interval_count,
            self.currency,
            amounts[self.currency],
            tuple(CurrencyAmount(*each) for each in amounts.items()),
        )

    @property
    def _other_options(self) -> dict[str, _CurrencyOption]:
        options = sorted(self.currency_options.items())
        return {currency: option for currency, option in options if currency != self.currency}


class _NestedList(msgspec.Struct):
    has_more: bool = False


class _SubscriptionHead(msgspec.Struct):
    """A subscription, which lacks some of its items if these have more."""

    id: str
    items: _NestedList


def _domain_error(error: RequestRejectedError) -> errors.DomainError:
    """Translate an error; the log has enough to find the request at the provider."""
    # Its message about a key can repeat the key.
    said = None if error.status in _KEY_REFUSALS else _message(error.message)
    _log_rejection(error, said)
    if error.code == "idempotency_key_in_use":
        return errors.IdempotencyInFlightError(
            "A request with this Idempotency-Key is still being carried out."
        )
    if error.kind == "idempotency_error":
        return errors.IdempotencyMismatchError(
            "This Idempotency-Key was used with another request body."
        )
    if _can_succeed_later(error):
        return errors.ProviderUnavailableError(
            "The payment provider is out of reach. Try again shortly."
        )
    return _refusal(error, said)


def _log_rejection(error: RequestRejectedError, said: str | None) -> None:
    logger.warning(
        "the payment provider rejected a request: %s, status %d, type %s, code %s, parameter %s, request %s: %s",
        error.cause,
        error.status,
        safe_word(error.kind),
        safe_word(error.code),
        safe_word(error.param),
        safe_word(error.request_id),
        said or "no message",
    )


def _can_succeed_later(error: RequestRejectedError) -> bool:
    is_of_client = HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR
    return not is_of_client or error.status in TEMPORARY or error.code == "rate_limit"


def _refusal(error: RequestRejectedError, said: str | None) -> errors.ProviderRefusedError:
    """Return the refusal of a request that would be refused again."""
    status, code = error.status, safe_word(error.code)
    is_of_customer = code == "resource_missing" and error.param == "customer"
    is_of_other_mode = is_of_customer and _OTHER_MODE.search(said or "") is not None
    text = _CUSTOMER_OF_OTHER_MODE if is_of_other_mode else _KEY_REFUSALS.get(status, _REFUSAL)
    return errors.ProviderRefusedError(
        text.format(status=status, code=code, request_id=safe_word(error.request_id)),
        provider_code=code,
        said=said,
        of_key=status in _KEY_REFUSALS,
        is_customer_missing=is_of_customer and not is_of_other_mode,
        currency_of=_currency_of(error, said or ""),
    )


def _currency_of(error: RequestRejectedError, said: str) -> errors.CurrencyOwner | None:
    """Return what has other currencies than the request's, if the provider refuses that."""
    if _CUSTOMER_CURRENCY.search(said):
        return "customer"
    return "price" if error.param == "currency" or _CURRENCY.search(said) else None


def _message(value: object) -> str | None:
    """Return the provider's message as one printable line without mail addresses. It is for the
    operator alone: it can name other objects of the account.
    """
    if not isinstance(value, str):
        return None
    line = _MAIL_ADDRESS.sub("(mail address)", one_line(value))
    return line[:_LONGEST_MESSAGE] or None
