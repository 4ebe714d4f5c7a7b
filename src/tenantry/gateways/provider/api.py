"""The payment provider's API: checkout, the customer portal, webhook endpoints."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from tenantry.kit.secret import Secret

if TYPE_CHECKING:
    from stripe import StripeClient, StripeError
    from stripe.params.billing_portal import SessionCreateParams as PortalParams
    from stripe.params.checkout import SessionCreateParams as CheckoutParams

    from tenantry.gateways.provider.transport import Transport

API_VERSION: Final = "2026-10-28.endive"
"""The shape of requests and answers; it changes with this module, not with the provider's package."""

ORG_ID: Final = "orgId"
"""The metadata key by which events find their tenant (SPEC 2.2)."""

_TIMEOUT: Final = 10.0
_RETRIES: Final = 2
_MOST_PER_PAGE: Final = 100
_SAFE_WORD: Final = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)

_log = logging.getLogger(__name__)


class WebhookEndpoint(NamedTuple):
    """An address that the provider sends events to; ``status`` is ``enabled`` or ``disabled``."""

    url: str
    enabled_events: tuple[str, ...]
    status: str


class ProviderApi:
    """Calls the provider's API, with connections of their own for each call.

    A call takes at most 10 s a try and three tries. Raises `ProviderUnavailableError` when the provider is out of
    reach, overloaded or broken, `ProviderRefusedError` when it refuses, and, where an idempotency key is given,
    `IdempotencyMismatchError` and `IdempotencyInFlightError`. Without one, every call is a new request.
    """

    def __init__(self, secret_key: Secret, api_base: str) -> None:
        self._secret_key = secret_key
        self._api_base = api_base

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
                page = await client.v1.webhook_endpoints.list_async({"limit": _MOST_PER_PAGE})
                return [
                    WebhookEndpoint(endpoint.url, tuple(endpoint.enabled_events), endpoint.status)
                    async for endpoint in page.auto_paging_iter()
                ]
            except stripe.PermissionError:
                return None

    @asynccontextmanager
    async def _client(self) -> "AsyncIterator[StripeClient]":
        # The first import takes longer than a request may block the others.
        client, transport = await asyncio.to_thread(self._connect)
        import stripe  # noqa: PLC0415  # slow to import

        try:
            yield client
        except stripe.StripeError as error:
            # The cause is cut off: it holds whatever the provider answered.
            raise _refusal(error) from None
        finally:
            await transport.close_async()

    def _connect(self) -> "tuple[StripeClient, Transport]":
        import stripe  # noqa: PLC0415  # slow to import

        from tenantry.gateways.provider.transport import Transport  # noqa: PLC0415

        # A switch of the whole package: it would tell the provider how long earlier calls took.
        stripe.enable_telemetry = False
        transport = Transport(_TIMEOUT)
        client = stripe.StripeClient(
            self._secret_key.reveal(),
            stripe_version=API_VERSION,
            base_addresses={"api": self._api_base},
            max_network_retries=_RETRIES,
            http_client=transport,
        )
        return client, transport


def _address(url: str | None) -> str:
    if not url:
        raise ProviderUnavailableError("The payment provider's answer cannot be used.")
    return url


def _refusal(error: "StripeError") -> DomainError:
    """What an error means to our callers; the log says enough to find the request at the provider."""
    status = error.http_status or 0
    kind, code, parameter = _words(error, "type"), _words(error, "code"), _words(error, "param")
    request_id = _word(error.request_id)
    _log.warning(
        "the payment provider did not do as asked: %s, status %d, type %s, code %s, parameter %s, request %s",
        type(error.__cause__ or error).__name__, status, kind, code, parameter, request_id,
    )  # fmt: skip
    if code == "idempotency_key_in_use":
        return IdempotencyInFlightError("A request with this Idempotency-Key is still being carried out.")
    if kind == "idempotency_error":
        return IdempotencyMismatchError("This Idempotency-Key was used with another request body.")
    if not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR or _is_passing(status, code):
        return ProviderUnavailableError("The payment provider is out of reach. Try again shortly.")
    if status == HTTPStatus.UNAUTHORIZED:
        return ProviderRefusedError("The payment provider does not accept this service's API key.")
    return ProviderRefusedError(f"The payment provider refused the request ({code}, request {request_id}).")


def _is_passing(status: int, code: str) -> bool:
    """Whether the same request may well succeed later: rate limits, old and new, and locks."""
    return status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.CONFLICT) or code == "rate_limit"


def _words(error: "StripeError", name: str) -> str:
    body = error.json_body
    details = body.get("error") if isinstance(body, dict) else None
    return _word(details.get(name) if isinstance(details, dict) else None)


def _word(value: object) -> str:
    """The value if it is a plain word, so that no message and no address gets into logs and answers."""
    return value if isinstance(value, str) and _SAFE_WORD.fullmatch(value) else "unknown"
