"""The HTTP client for other services, and bounded requests with it to the identity provider."""

import contextlib
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from tenantry.common.http import is_loopback
from tenantry.common.tracing import Tracing
from tenantry.integrations.bounded_network import BoundedNetwork

_DIRECT: Final[dict[str, httpx2.AsyncBaseTransport | None]] = {
    "all://127.0.0.1": None,
    "all://localhost": None,
    "all://[::1]": None,
}
"""Loopback addresses bypass the proxies of the environment."""
MAX_BODY_BYTES: Final = 256 * 1024
_MAX_VALUES: Final = 40_000
"""Decoding JSON takes up to 0.4 us for each value, without a break."""
_PLAIN: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}


def new_http_client(
    timeout: float = 5.0, *, peer: str = "", tracing: Tracing | None = None
) -> httpx2.AsyncClient:
    """Make a client without redirects; ``timeout`` bounds each step, in seconds. The caller closes
    it.
    """
    return _Client(timeout, peer, tracing)


@cache
def ssl_context() -> ssl.SSLContext:
    """Load the trusted certificates once a process: it takes 20 ms."""
    context = httpx2.create_ssl_context()
    # a new handshake would be a part of reading
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


class _Client(httpx2.AsyncClient):
    def __init__(
        self,
        timeout: float,
        peer: str,
        tracing: Tracing | None,
    ) -> None:
        super().__init__(
            timeout=timeout, mounts=_DIRECT, follow_redirects=False, verify=ssl_context()
        )
        for transport in (self._transport, *self._mounts.values()):
            if isinstance(transport, httpx2.AsyncHTTPTransport):
                # httpx2 passes no network on to httpcore2
                pool = transport._pool  # noqa: SLF001
                pool._network_backend = BoundedNetwork(pool._network_backend)  # noqa: SLF001
        self._peer = peer
        self._tracing = tracing

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # noqa: ANN401  # the library's
        if self._tracing is None:
            return await super().send(request, **options)
        with self._tracing.call(
            self._peer, request.method, request.url.host, request.url.port
        ) as span:
            response = await super().send(request, **options)
            span.note(response.status_code)
            return response


class FetchError(Exception):
    """The response cannot be used; the message contains no secret."""


class ResponseTooLargeError(FetchError):
    """The body has too many bytes or values."""


def is_secure(url: str, *, allow_http: bool = False) -> bool:
    """Whether ``url`` is https, or http on loopback (or anywhere with ``allow_http``), and
    ASCII.
    """
    parsed = _parsed(url)
    if parsed is None or not parsed.host:
        return False
    plain_is_safe = allow_http or is_loopback(parsed.host)
    return parsed.scheme == "https" or (parsed.scheme == "http" and plain_is_safe)


def _parsed(url: str) -> httpx2.URL | None:
    """Return the parts of an address in visible ASCII."""
    if not url.isascii() or not url.isprintable():
        return None
    try:
        urlsplit(url)  # other modules use it, and it rejects more
        return httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError):
        return None


async def fetch(
    client: httpx2.AsyncClient,
    url: str,
    *,
    allow_http: bool,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """GET ``url``; return the body of a 200 response. Bounds and errors are those of `request`."""
    status, body = await request(
        client,
        "GET",
        url,
        headers or {},
        allow_http=allow_http,
    )
    if status != httpx2.codes.OK:
        raise FetchError(f"answered {status}")
    return body


async def request(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: str | None = None,
    *,
    allow_http: bool,
) -> tuple[int, bytes]:
    """Return the status and body of a response of at most 256 KiB. Raises `FetchError` and client
    errors.
    """
    if not is_secure(url, allow_http=allow_http):
        raise FetchError("not an https address")
    # Without the client's defaults: no user's cookies are sent with another user's request.
    plain = httpx2.Request(
        method,
        url,
        headers={**_PLAIN, **headers},
        content=content,
    )
    response = await client.send(
        plain,
        stream=True,
        auth=None,
        follow_redirects=False,
    )
    return response.status_code, await read_body(response, MAX_BODY_BYTES)


async def read_body(response: httpx2.Response, most_bytes: int) -> bytes:
    """Read a response of JSON to its end, and close it. Raises `FetchError` and client errors.

    A compressed one is refused: a small body can become a large one.
    """
    async with contextlib.aclosing(response):
        if response.headers.get("content-encoding", "identity") != "identity":
            raise FetchError("answered with a compressed body")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > most_bytes:
                raise ResponseTooLargeError(f"answered with more than {most_bytes} bytes")
    if body.count(b",") >= _MAX_VALUES:
        raise ResponseTooLargeError(f"answered with more than {_MAX_VALUES} values")
    return bytes(body)
