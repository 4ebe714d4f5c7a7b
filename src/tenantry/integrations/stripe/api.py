"""The payment provider's API: checkout, the customer portal, webhook endpoints, subscriptions, events."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock, system_clock
from tenantry.common.secret import Secret
from tenantry.common.tracing import Tracing
from tenantry.domain.billing.snapshot import CustomerSubscriptions, ProviderSubscription
from tenantry.integrations.stripe.answers import (
    MOST_PER_PAGE,
    Page,
    is_unknown_customer,
    read_page,
    refusal,
    second_asked,
    unusable,
)
from tenantry.integrations.stripe.decode import NotASubscriptionError, decode_subscription

if TYPE_CHECKING:
    from stripe import StripeClient
    from stripe.params.billing_portal import SessionCreateParams as PortalParams
    from stripe.params.checkout import SessionCreateParams as CheckoutParams

    from tenantry.integrations.stripe.transport import Transport

API_VERSION: Final = "2026-10-28.endive"
"""The shape of requests and answers; it changes with this module, not with the provider's package."""

ORG_ID: Final = "orgId"
"""The metadata key by which events find their tenant (SPEC 2.2)."""

MOST_EVENT_TYPES: Final = 20
"""How many types of events the provider lets one ask for at once."""

_RETRIES: Final = 2
_MISSING: Final = "resource_missing"
_SUBSCRIPTIONS: Final = "/v1/subscriptions"
_EVENTS: Final = "/v1/events"


class WebhookEndpoint(NamedTuple):
    """An address that the provider sends events to; ``status`` is ``enabled`` or ``disabled``."""

    url: str
    enabled_events: tuple[str, ...]
    status: str


class Price(NamedTuple):
    """A price of the provider's: whether it can still be bought, and whether it is one of a subscription."""

    active: bool
    recurring: bool


class ProviderApi:
    """Calls the provider's API over connections that are kept until `aclose`, all in one event loop.

    A call takes at most ``timeout`` seconds a try and three tries. Raises `ProviderUnavailableError` when the provider
    is out of reach, overloaded or broken, or answers with something of no use, `ProviderRefusedError` when it refuses,
    and, where an idempotency key is given, `IdempotencyMismatchError` and `IdempotencyInFlightError`. Without one,
    every call is a new request. ``clock`` counts only where the provider does not say what time it is.
    """

    def __init__(
        self,
        secret_key: Secret,
        api_base: str,
        clock: Clock = system_clock,
        *,
        timeout: float = DEFAULT_TIMEOUTS.payment_provider,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._secret_key = secret_key
        self._api_base = api_base
        self._clock = clock
        self._timeout = timeout
        self._connecting = asyncio.Lock()
        self._connection: tuple[StripeClient, Transport] | None = None

    async def aclose(self) -> None:
        """Close the connections that are kept; a later call would make new ones."""
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
        """Begin a checkout for a subscription and return the address to send the buyer to.

        The session and the subscription carry the tenant's id; ``customer_email`` counts where there is no customer.
        """
        params: CheckoutParams = {
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
        async with self._client() as client:
            session = await client.v1.checkout.sessions.create_async(
                params, {"idempotency_key": idempotency_key} if idempotency_key else None
            )
            return _address(session.url)

    async def create_portal_session(self, *, customer_id: str, return_url: str, idempotency_key: str | None) -> str:
        """Open the customer portal and return its address; who knows it acts for the customer for some minutes."""
        params: PortalParams = {"customer": customer_id, "return_url": return_url}
        async with self._client() as client:
            session = await client.v1.billing_portal.sessions.create_async(
                params, {"idempotency_key": idempotency_key} if idempotency_key else None
            )
            return _address(session.url)

    async def webhook_endpoints(self) -> list[WebhookEndpoint] | None:
        """Where the provider sends events to; None if the key has no right to know."""
        async with self._client() as client:
            import stripe  # noqa: PLC0415  # slow to import

            try:
                page = await client.v1.webhook_endpoints.list_async({"limit": MOST_PER_PAGE})
                return [
                    WebhookEndpoint(endpoint.url, tuple(endpoint.enabled_events), endpoint.status)
                    async for endpoint in page.auto_paging_iter()
                ]
            except stripe.PermissionError:
                return None

    async def prices(self, price_ids: Collection[str]) -> dict[str, Price | None] | None:
        """These prices, None for one that the provider does not know; None in all if the key has no right to know."""
        async with self._client() as client:
            import stripe  # noqa: PLC0415  # slow to import

            found: dict[str, Price | None] = {}
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
                    found[price_id] = Price(price.active, price.recurring is not None)
            return found

    async def subscriptions_of(self, customer_id: str) -> CustomerSubscriptions | None:
        """All subscriptions of a customer, ended ones included; None if the provider does not know the customer.

        It knows those of the mode, live or test, that the API key belongs to.
        """
        async with self._client() as client:
            import stripe  # noqa: PLC0415  # slow to import

            params = {"customer": customer_id, "status": "all"}
            asked, begun = self._clock(), time.monotonic()
            try:
                page = await read_page(client, _SUBSCRIPTIONS, params)
                as_of = second_asked(page.date, time.monotonic() - begun, asked)
                subscriptions = _subscriptions(page, customer_id)
                while page.next_after is not None:
                    page = await read_page(client, _SUBSCRIPTIONS, params, page.next_after)
                    subscriptions += _subscriptions(page, customer_id)
            except stripe.InvalidRequestError as error:
                if is_unknown_customer(error):
                    return None
                raise
            return CustomerSubscriptions(as_of, tuple(subscriptions))

    async def events_since(
        self, since: int, types: Collection[str] | None, until: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The account's events of these types (None: of all), created at or after this second, newest first, as JSON.

        With ``until`` none that was created after that second.
        The provider keeps events for 30 days. Raises `ValueError` unless there are 1 to 20 types; the errors of a call
        may come at any event. Events that are created meanwhile are not among them.
        """
        params: dict[str, object] = {"created": {"gte": since} if until is None else {"gte": since, "lte": until}}
        if types is not None:
            if not 1 <= len(types) <= MOST_EVENT_TYPES:
                raise ValueError(
                    f"the provider lists 1 to {MOST_EVENT_TYPES} types of events at once, not {len(types)}"
                )  # fmt: skip
            params["types"] = sorted(types)
        after: str | None = None
        while True:
            async with self._client() as client:
                page = await read_page(client, _EVENTS, params, after)
            for event in page.objects:
                yield event
            after = page.next_after
            if after is None:
                return

    @asynccontextmanager
    async def _client(self) -> "AsyncIterator[StripeClient]":
        async with self._connecting:
            if self._connection is None:
                # The first import takes longer than a request may block the others.
                self._connection = await asyncio.to_thread(self._connect)
            client, _ = self._connection
        import stripe  # noqa: PLC0415  # slow to import

        try:
            yield client
        except stripe.StripeError as error:
            # The cause is cut off: it holds whatever the provider answered.
            raise refusal(error) from None

    def _connect(self) -> "tuple[StripeClient, Transport]":
        import stripe  # noqa: PLC0415  # slow to import

        from tenantry.integrations.stripe.transport import Transport  # noqa: PLC0415

        # A switch of the whole package: it would tell the provider how long earlier calls took.
        stripe.enable_telemetry = False
        transport = Transport(self._timeout, self._tracing)
        client = stripe.StripeClient(
            self._secret_key.reveal(),
            stripe_version=API_VERSION,
            base_addresses={"api": self._api_base},
            max_network_retries=_RETRIES,
            http_client=transport,
        )
        return client, transport


def mode_of_key(secret_key: Secret) -> bool | None:
    """Whether an API key of the provider acts in live mode (its events' ``livemode``); None if it does not say."""
    key = secret_key.reveal()
    if key.startswith(("sk_live_", "rk_live_")):
        return True
    return False if key.startswith(("sk_test_", "rk_test_")) else None


def _address(url: str | None) -> str:
    if not url:
        raise unusable("a session without an address")
    return url


def _subscriptions(page: Page, customer_id: str) -> list[ProviderSubscription]:
    try:
        subscriptions = [decode_subscription(raw) for raw in page.objects]
    except NotASubscriptionError as error:
        raise unusable(f"{_SUBSCRIPTIONS}: {error}", page.request_id) from None
    if any(subscription.customer_id != customer_id for subscription in subscriptions):
        raise unusable(f"{_SUBSCRIPTIONS}: a subscription of another customer", page.request_id)
    return subscriptions
