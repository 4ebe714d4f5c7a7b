"""An HTTP client for the provider's own package, which uses a deprecated parameter of httpx in its
own.
"""

import asyncio
from collections.abc import Awaitable, Mapping

import httpx2
import stripe

from tenantry.integrations.http_client import new_http_client


class Transport(stripe.HTTPClient):
    """Sends the package's requests over our HTTP client; ``timeout`` is that of one try, in
    seconds.
    """

    name = "httpx2"

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout
        self._client = new_http_client(timeout)

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: str | None = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """Send one request. Raises `stripe.APIConnectionError`."""
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.request(
                    method, url, headers=dict(headers), content=post_data
                )
        except (httpx2.HTTPError, TimeoutError) as error:
            raise stripe.APIConnectionError(type(error).__name__) from error  # type: ignore[no-untyped-call]
        return response.content, response.status_code, response.headers

    def sleep_async(self, secs: float) -> Awaitable[None]:
        return asyncio.sleep(secs)

    async def close_async(self) -> None:
        await self._client.aclose()
