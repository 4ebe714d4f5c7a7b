"""The HTTP client for other services."""

import ssl
from functools import cache
from typing import Any, Final

import httpx2

from tenantry.common.tracing import Tracing

_DIRECT: Final[dict[str, httpx2.AsyncBaseTransport | None]] = {
    "all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None
}  # fmt: skip
"""Loopback addresses bypass the proxies of the environment."""


def new_http_client(timeout: float = 5.0, *, peer: str = "", tracing: Tracing | None = None) -> httpx2.AsyncClient:
    """Make a client without redirects; ``timeout`` bounds each step, in seconds. The caller closes it."""
    return _Client(timeout, peer, tracing)


@cache
def _ssl_context() -> ssl.SSLContext:
    """Load the trusted certificates once a process: it takes 20 ms."""
    return httpx2.create_ssl_context()


class _Client(httpx2.AsyncClient):
    def __init__(self, timeout: float, peer: str, tracing: Tracing | None) -> None:
        super().__init__(timeout=timeout, mounts=_DIRECT, follow_redirects=False, verify=_ssl_context())
        self._peer = peer
        self._tracing = tracing

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # noqa: ANN401  # the library's
        if self._tracing is None:
            return await super().send(request, **options)
        with self._tracing.call(self._peer, request.method, request.url.host, request.url.port) as span:
            response = await super().send(request, **options)
            span.note(response.status_code)
            return response
