"""An HTTP client for the provider's package. Import this module only where it is used: the package loads slowly."""

import asyncio
from collections.abc import Awaitable, Mapping
from http import HTTPStatus

import httpx2
import stripe

from tenantry.common.tracing import Tracing
from tenantry.integrations.http_client import new_http_client


class Transport(stripe.HTTPClient):
    """Sends requests over our HTTP client: the package's own client for httpx uses a deprecated parameter.

    A connection that the provider has closed is replaced; if that is noticed on sending, it costs a try. ``timeout`` is
    that of one try, in seconds. Redirects are not followed, because they would carry the API key elsewhere.
    """

    name = "httpx2"

    def __init__(self, timeout: float, tracing: Tracing | None = None) -> None:
        super().__init__()
        self._timeout = timeout
        self._client = new_http_client(timeout, peer="payment provider", tracing=tracing)

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: str | None = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """Send one request. Raises `stripe.APIConnectionError`, after which the package tries again."""
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.request(method, url, headers=dict(headers), content=post_data)
            response.content.decode()  # the package expects UTF-8
        except (httpx2.HTTPError, TimeoutError, UnicodeDecodeError) as error:
            raise stripe.APIConnectionError(type(error).__name__, should_retry=True) from error  # type: ignore[no-untyped-call]
        if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            # Without this header the package does not retry after a rate limit.
            response.headers.setdefault("Stripe-Should-Retry", "true")
        return response.content, response.status_code, response.headers

    def sleep_async(self, secs: float) -> Awaitable[None]:
        return asyncio.sleep(secs)

    async def close_async(self) -> None:
        await self._client.aclose()
