"""The payment provider's API: checkout, the customer portal, webhook endpoints, subscriptions, events."""

import asyncio
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from tenantry.common.clock import DEFAULT_TIMEOUTS, EPOCH_MAX, Clock, system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry.common.secret import Secret
from tenantry.common.tracing import Tracing
from tenantry.domain import errors
from tenantry.domain.billing.snapshot import CustomerSubscriptions, ProviderSubscription
from tenantry.integrations.stripe.decode import NotASubscriptionError, decode_subscription

if TYPE_CHECKING:
    from stripe import StripeClient, StripeError, StripeResponse

    from tenantry.integrations.stripe.transport import Transport

API_VERSION: Final = "2026-10-28.endive"
"""The shape of requests and responses; it changes with this module, not with the provider's package."""
ORG_ID: Final = "orgId"
"""The metadata key that names the tenant (SPEC 2.2)."""
MOST_EVENT_TYPES: Final = 20
"""The most types of events in one request."""
MOST_PER_PAGE: Final = 100
"""The most objects on a page."""

_RETRIES: Final = 2
_MISSING: Final = "resource_missing"
_SUBSCRIPTIONS: Final = "/v1/subscriptions"
_EVENTS: Final = "/v1/events"
_ENDPOINTS: Final = "/v1/webhook_endpoints"
_SAFE_WORD: Final = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)
_NO_WORD: Final = "unknown"

logger = logging.getLogger(__name__)


class ProviderEndpoint(msgspec.Struct, frozen=True):
    """A webhook endpoint at the provider; ``status`` is ``enabled`` or ``disabled``."""

    url: str
    enabled_events: tuple[str, ...]
    status: str


class ProviderPrice(NamedTuple):
    """A price at the provider: whether it is for sale, and whether it is for subscriptions."""

    active: bool
    recurring: bool


@dataclass(eq=False)
class ProviderApi:
    """Calls the provider's API over connections that stay open until `aclose`, all in one event loop.

    A call takes at most ``timeout`` seconds for each of three tries. Raises `ProviderUnavailableError` if the provider
    is unreachable, overloaded, broken, or answers with a malformed response; `ProviderRefusedError` if it rejects the
    request; with an idempotency key also `IdempotencyMismatchError` and `IdempotencyInFlightError`. ``clock`` counts
    only where a response has no date.
    """

    secret_key: Secret
    api_base: str
    clock: Clock = system_clock
    _: KW_ONLY
    timeout: float = DEFAULT_TIMEOUTS.payment_provider
    tracing: Tracing | None = None

    def __post_init__(self) -> None:
        self._connecting = asyncio.Lock()
        self._connection: tuple[StripeClient, Transport] | None = None

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        async with self._connecting:
            if self._connection is not None:
                _, transport = self._connection
                self._connection = None
                await transport.close_async()

    async def create_checkout_session(
        self,
        *,
        tenant_id: str,
        price_id: str,
        customer_id: str | None,
        customer_email: str | None,
        success_url: str,
        cancel_url: str,
        idempotency_key: str | None,
    ) -> str:
        """Start a checkout for a subscription and return its URL for the buyer.

        The session and the subscription carry the tenant's id; ``customer_email`` counts without a customer.
        """
        params: dict[str, object] = {
            "mode": "subscription",
            "line_items": [{"price": price_id, "quantity": 1}],
            "success_url": success_url,
            "cancel_url": cancel_url,
            "client_reference_id": tenant_id,
            "metadata": {ORG_ID: tenant_id},
            "subscription_data": {"metadata": {ORG_ID: tenant_id}},
        }
        if customer_id is not None:
            params["customer"] = customer_id
        elif customer_email is not None:
            params["customer_email"] = customer_email
        return await self._create_session("/v1/checkout/sessions", params, idempotency_key)

    async def create_portal_session(self, *, customer_id: str, return_url: str, idempotency_key: str | None) -> str:
        """Open the customer portal and return its URL, which for some minutes needs no other credential."""
        params = {"customer": customer_id, "return_url": return_url}
        return await self._create_session("/v1/billing_portal/sessions", params, idempotency_key)

    async def _create_session(self, path: str, params: Mapping[str, object], idempotency_key: str | None) -> str:
        options = {"idempotency_key": idempotency_key} if idempotency_key else {}
        async with self._client() as client:
            response = await client.raw_request_async("post", path, **params, **options)
        try:
            return msgspec.json.decode(response.body, type=_Session).url
        except NOT_JSON as error:
            raise _malformed(f"{path}: {error}", response.request_id) from None

    async def webhook_endpoints(self) -> list[ProviderEndpoint] | None:
        """Return the webhook endpoints; None if the key lacks the permission."""
        async with self._client() as client:
            import stripe  # noqa: PLC0415  # slow to import

            try:
                pages = [page async for page in read_pages(client, _ENDPOINTS, {}, self.clock)]
            except stripe.PermissionError:
                return None
        try:
            return [msgspec.json.decode(raw, type=ProviderEndpoint) for page in pages for raw in page.objects]
        except NOT_JSON as error:
            raise _malformed(f"{_ENDPOINTS}: {error}", pages[0].request_id) from None

    async def prices(self, price_ids: Collection[str]) -> dict[str, ProviderPrice | None] | None:
        """Return these prices, None for an unknown one; None instead of all if the key lacks the permission."""
        async with self._client() as client:
            import stripe  # noqa: PLC0415  # slow to import

            found: dict[str, ProviderPrice | None] = {}
            for price_id in price_ids:
                try:
                    price = await client.v1.prices.retrieve_async(price_id)
                except stripe.PermissionError:
                    return None
                except stripe.InvalidRequestError as error:
                    if error.code != _MISSING:
                        raise
                    found[price_id] = None
                else:
                    found[price_id] = ProviderPrice(price.active, price.recurring is not None)
            return found

    async def subscriptions_of(self, customer_id: str) -> CustomerSubscriptions | None:
        """Return all subscriptions of a customer, ended ones included; None for an unknown customer.

        The provider knows the customers of the API key's mode, live or test.
        """
        async with self._client() as client:
            import stripe  # noqa: PLC0415  # slow to import

            params = {"customer": customer_id, "status": "all"}
            try:
                pages = [page async for page in read_pages(client, _SUBSCRIPTIONS, params, self.clock)]
            except stripe.InvalidRequestError as error:
                if _detail(error, "code") == _MISSING and _detail(error, "param") in ("customer", _NO_WORD):
                    return None
                raise
        subscriptions = [subscription for page in pages for subscription in _subscriptions(page, customer_id)]
        return CustomerSubscriptions(pages[0].sent_at, tuple(subscriptions))

    async def events_since(
        self, since: int, types: Collection[str] | None, until: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the account's events of these types (None: all), created from ``since`` to ``until``, as JSON.

        The newest come first; events created meanwhile are not among them. The provider lists events for 30 days.
        Raises `ValueError` unless there are 1 to 20 types; any step can raise the errors of a call.
        """
        params: dict[str, object] = {"created": {"gte": since} if until is None else {"gte": since, "lte": until}}
        if types is not None:
            if not 1 <= len(types) <= MOST_EVENT_TYPES:
                raise ValueError(f"the provider lists 1 to {MOST_EVENT_TYPES} types at once, not {len(types)}")
            params["types"] = sorted(types)
        async with self._client() as client, aclosing(read_pages(client, _EVENTS, params, self.clock)) as pages:
            async for page in pages:
                for event in page.objects:
                    yield event

    @asynccontextmanager
    async def _client(self) -> "AsyncIterator[StripeClient]":
        async with self._connecting:
            if self._connection is None:
                # The first import would block the event loop for too long.
                self._connection = await asyncio.to_thread(self._connect)
            client, _ = self._connection
        import stripe  # noqa: PLC0415  # slow to import

        try:
            yield client
        except stripe.StripeError as error:
            raise _domain_error(error) from None  # the cause holds the provider's response

    def _connect(self) -> "tuple[StripeClient, Transport]":
        import stripe  # noqa: PLC0415  # slow to import

        from tenantry.integrations.stripe.transport import Transport  # noqa: PLC0415

        # This switch of the whole package keeps it from reporting the latency of earlier calls to the provider.
        stripe.enable_telemetry = False
        transport = Transport(self.timeout, self.tracing)
        client = stripe.StripeClient(
            self.secret_key.reveal(),
            stripe_version=API_VERSION,
            base_addresses={"api": self.api_base},
            max_network_retries=_RETRIES,
            http_client=transport,
        )
        return client, transport


def mode_of_key(secret_key: Secret) -> bool | None:
    """Return the ``livemode`` of an API key of the provider; None if its prefix does not show it."""
    key = secret_key.reveal()
    if key.startswith(("sk_live_", "rk_live_")):
        return True
    return False if key.startswith(("sk_test_", "rk_test_")) else None


def _subscriptions(page: "ListPage", customer_id: str) -> list[ProviderSubscription]:
    try:
        subscriptions = [decode_subscription(raw) for raw in page.objects]
    except NotASubscriptionError as error:
        raise _malformed(f"{_SUBSCRIPTIONS}: {error}", page.request_id) from None
    if any(subscription.customer_id != customer_id for subscription in subscriptions):
        raise _malformed(f"{_SUBSCRIPTIONS}: a subscription of another customer", page.request_id)
    return subscriptions


class _Session(msgspec.Struct):
    url: Annotated[str, msgspec.Meta(min_length=1)]


class _ListBody(msgspec.Struct):
    data: list[msgspec.Raw]
    has_more: bool


class _ObjectId(msgspec.Struct):
    id: str


class ListPage(NamedTuple):
    """A page of a list: its objects as JSON, and the second of the provider's clock in which it was requested."""

    objects: list[bytes]
    sent_at: int
    request_id: str | None


async def read_pages(
    client: "StripeClient", path: str, params: Mapping[str, object], clock: Clock
) -> AsyncGenerator[ListPage, None]:
    """Request a list page by page.

    Raises the errors of the provider's package, and `ProviderUnavailableError` for a malformed page.
    """
    after: str | None = None
    while True:
        now, started = clock(), time.monotonic()
        response: StripeResponse = await client.raw_request_async(
            "get", path, **params, limit=MOST_PER_PAGE, starting_after=after
        )
        sent_at = second_sent(response.headers.get("date"), time.monotonic() - started, now)
        try:
            page = msgspec.json.decode(response.body, type=_ListBody)
            last = msgspec.json.decode(page.data[-1], type=_ObjectId).id if page.has_more and page.data else None
        except NOT_JSON as error:
            raise _malformed(f"{path}: {error}", response.request_id) from None
        if page.has_more and last in (None, "", after):
            raise _malformed(f"{path}: the list does not continue", response.request_id)
        yield ListPage([bytes(raw) for raw in page.data], sent_at, response.request_id)
        if not page.has_more:
            return
        after = last


def second_sent(date: str | None, elapsed: float, sent_at: datetime) -> int:
    """Return the second of the provider's clock in which a request was sent, or an earlier one (Unix time).

    ``date`` is the header of a response that took ``elapsed`` seconds: the provider wrote it within that time. Where it
    is missing or malformed, our own clock counts: ``sent_at``.
    """
    try:
        answered = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return int(sent_at.timestamp())
    if answered.tzinfo is None:
        answered = answered.replace(tzinfo=UTC)  # the old form of the header names no zone and means UTC
    second = int(answered.timestamp()) - math.ceil(elapsed)
    return second if 0 <= second <= EPOCH_MAX else int(sent_at.timestamp())


def _malformed(why: str, request_id: str | None = None) -> errors.ProviderUnavailableError:
    logger.warning("the payment provider's answer cannot be used: %s, request %s", why, _word(request_id))
    return errors.ProviderUnavailableError("The payment provider's answer cannot be used.")


def _domain_error(error: "StripeError") -> errors.DomainError:
    """Translate an error; the log has enough to find the request at the provider."""
    status = error.http_status or 0
    kind, code, request_id = _detail(error, "type"), _detail(error, "code"), _word(error.request_id)
    logger.warning(
        "the payment provider rejected a request: %s, status %d, type %s, code %s, parameter %s, request %s",
        type(error.__cause__ or error).__name__, status, kind, code, _detail(error, "param"), request_id,
    )  # fmt: skip
    if code == "idempotency_key_in_use":
        return errors.IdempotencyInFlightError("A request with this Idempotency-Key is still being carried out.")
    if kind == "idempotency_error":
        return errors.IdempotencyMismatchError("This Idempotency-Key was used with another request body.")
    is_temporary = status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.CONFLICT) or code == "rate_limit"
    if is_temporary or not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return errors.ProviderUnavailableError("The payment provider is out of reach. Try again shortly.")
    if status == HTTPStatus.UNAUTHORIZED:
        message = "The payment provider does not accept this service's API key (PROVIDER_SECRET_KEY)."
    elif status == HTTPStatus.FORBIDDEN:
        message = (
            "The payment provider does not let this service's API key (PROVIDER_SECRET_KEY) do this: it lacks a "
            f"permission ({code}, request {request_id})."
        )
    else:
        message = f"The payment provider refused the request (status {status}, {code}, request {request_id})."
    return errors.ProviderRefusedError(message, of_key=status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN))


def _detail(error: "StripeError", name: str) -> str:
    body = error.json_body
    details = body.get("error") if isinstance(body, dict) else None
    return _word(details.get(name) if isinstance(details, dict) else None)


def _word(value: object) -> str:
    """Return a plain word as it is, so that no message or address gets into logs and answers."""
    return value if isinstance(value, str) and _SAFE_WORD.fullmatch(value) else _NO_WORD
