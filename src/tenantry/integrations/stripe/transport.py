"""Carrying the requests of the provider's package over our HTTP client.

A module of its own, for whoever calls the provider to import: the package takes long to load.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from http import HTTPStatus

import httpx2
import stripe

from tenantry.common.tracing import Tracing
from tenantry.integrations.http_client import new_http_client


class Transport(stripe.HTTPClient):
    """The package's own client for httpx still gives bodies to it in a deprecated way; this one does not.

    Connections are kept. One that the provider has closed meanwhile is replaced, or, if that is noticed only on
    sending, costs a try. ``timeout`` is that of one try, in seconds. Redirects are not followed: they would carry the
    API key elsewhere.
    """

    name = "httpx2"

    def __init__(self, timeout: float, tracing: Tracing | None = None) -> None:
        super().__init__()
        self._timeout = timeout
        self._client = new_http_client(timeout, peer="payment provider", tracing=tracing)

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: str | None = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """Send one request; raises `stripe.APIConnectionError`, which the package answers with another try."""
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.request(method, url, headers=dict(headers), content=post_data)
            response.content.decode()  # which the package takes for granted: UTF-8
        except (httpx2.HTTPError, TimeoutError, UnicodeDecodeError) as error:
            raise stripe.APIConnectionError(type(error).__name__, should_retry=True) from error  # type: ignore[no-untyped-call]
        if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            # The package gives up on a rate limit at once, unless the provider says otherwise.
            response.headers.setdefault("Stripe-Should-Retry", "true")
        return response.content, response.status_code, response.headers

    def sleep_async(self, secs: float) -> Awaitable[None]:
        """Wait between two tries."""
        return asyncio.sleep(secs)

    async def close_async(self) -> None:
        """Close the connections."""
        await self._client.aclose()
