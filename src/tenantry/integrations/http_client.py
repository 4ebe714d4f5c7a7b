"""The HTTP client for the outside world."""

import ssl
from functools import cache
from typing import Any, Final

import httpx2

from tenantry.common.tracing import Tracing

_DIRECT: Final[dict[str, httpx2.AsyncBaseTransport | None]] = {
    "all://127.0.0.1": None,
    "all://localhost": None,
    "all://[::1]": None,
}


def new_http_client(timeout: float = 5.0, *, peer: str = "", tracing: Tracing | None = None) -> httpx2.AsyncClient:
    """A client that follows no redirects; ``timeout`` is for each step, in seconds. Whoever asks for it closes it.

    Loopback addresses are asked directly, whatever proxy the environment names for the rest. With ``tracing`` each
    request to ``peer`` is a span.
    """
    if tracing is not None:
        return _TracedClient(peer, tracing, timeout)
    return httpx2.AsyncClient(timeout=timeout, mounts=_DIRECT, follow_redirects=False, verify=_ssl_context())


@cache
def _ssl_context() -> ssl.SSLContext:
    """Read the certificates that this process trusts, once: that takes 20 ms."""
    return httpx2.create_ssl_context()


class _TracedClient(httpx2.AsyncClient):
    def __init__(self, peer: str, tracing: Tracing, timeout: float) -> None:
        super().__init__(timeout=timeout, mounts=_DIRECT, follow_redirects=False, verify=_ssl_context())
        self._peer = peer
        self._tracing = tracing

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # noqa: ANN401  # the library's
        """Send a request, as part of whatever is under way."""
        with self._tracing.call(self._peer, request.method, request.url.host, request.url.port) as span:
            response = await super().send(request, **options)
            span.note(response.status_code)
            return response
