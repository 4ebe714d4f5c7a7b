"""Sends messages to the endpoints of webhooks, and to public addresses alone."""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from threading import Thread
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import httpcore2
import msgspec

from tenantry import __version__
from tenantry.common.http import parse_http_date
from tenantry.common.tracing import Tracing
from tenantry.domain.public_addresses import is_public
from tenantry.domain.webhooks import WebhookEndpoint, signed_headers
from tenantry.integrations.bounded_network import BoundedNetwork, ResponseLimitError
from tenantry.integrations.http_client import ssl_context

TIMEOUT: Final = 15.0
"""Seconds for an attempt: resolution, connection, request and response."""
_MAX_ADDRESSES: Final = 3
"""How many addresses of a name an attempt tries."""
MAX_RESOLVED: Final = 32
"""How many of the resolver's addresses are looked at."""
_MAX_BODY_BYTES: Final = 16 * 1024
"""How much of a response is read: a receiver may see an error where its response is not read."""
_USER_AGENT: Final = f"tenantry/{__version__}"
_PEER: Final = "webhook receiver"
_SUCCESS: Final = range(200, 300)
_SECONDS: Final = re.compile("[0-9]{1,9}")

Address: TypeAlias = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
GetAddressInfo = Callable[..., Sequence[tuple[Any, ...]]]


class DeliveryResult(msgspec.Struct, frozen=True):
    """The outcome of an attempt: the status of the response, or why there was none.

    ``error`` is safe to show. ``retry_after`` is when the receiver wants the next attempt.
    """

    status: int | None = None
    retry_after: timedelta | None = None
    error: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether the receiver has accepted the message. A redirect is a failure."""
        return self.status in _SUCCESS


class _RefusedAddressError(Exception):
    """An address of the name is not public."""


class _ResolutionError(Exception):
    """The name has no address."""


_ERRORS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (_RefusedAddressError, "the address is not public, and allow_private is not set"),
    (_ResolutionError, "the host name cannot be resolved"),
    (ssl.SSLError, "no TLS, or the certificate is not trusted for this host name"),
    (httpcore2.ConnectError, "no connection"),
    (httpcore2.ConnectTimeout, "no connection"),
    (ResponseLimitError, "the response exceeds a limit"),
    (
        httpcore2.ProtocolError,
        "the connection was closed without a response, or the response is malformed",
    ),
    (httpcore2.NetworkError, "the connection was lost"),
    (OSError, "the connection was lost"),
)
"""What to show of an error or its cause, by the first that fits. Their own texts may contain the
response.
"""


async def resolve(
    host: str, port: int, getaddrinfo: GetAddressInfo = socket.getaddrinfo
) -> Sequence[Address]:
    """Return the addresses of a host, in the order in which to try them. Raises `OSError` and
    `UnicodeError`.

    A thread of its own does it. The event loop has few: lookups that get no answer for a long time
    would delay those for mails and the database.
    """
    found = Future[Sequence[Address]]()
    Thread(target=_look_up, args=(host, port, found, getaddrinfo), daemon=True).start()
    return await asyncio.wrap_future(found)


def _look_up(
    host: str, port: int, found: "Future[Sequence[Address]]", getaddrinfo: GetAddressInfo
) -> None:
    if not found.set_running_or_notify_cancel():
        return
    try:
        listed = getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        found.set_exception(error)
    else:
        read = listed[:MAX_RESOLVED]
        addresses = dict.fromkeys(ip_address(socket_address[0]) for *_, socket_address in read)
        found.set_result(list(addresses))


class WebhookClient:
    """Sends signed messages, each on a separate connection.

    It follows no redirect, uses no proxy and sends no cookie.
    """

    def __init__(
        self,
        tracing: Tracing | None = None,
        *,
        timeout: float = TIMEOUT,
        resolve: Resolve = resolve,
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        """``timeout`` bounds an attempt, in seconds; ``trusted`` replaces the system's
        certificates.
        """
        self._tracing = tracing
        self._timeout = timeout
        self._resolve = resolve
        self._trusted = trusted

    async def send(
        self, endpoint: WebhookEndpoint, webhook_id: str, body: bytes, now: datetime
    ) -> DeliveryResult:
        """Send a message in JSON once, signed as of ``now``. Raises nothing but cancellation."""
        parts = urlsplit(endpoint.url)
        headers = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "User-Agent": _USER_AGENT,
            **signed_headers(endpoint, webhook_id, now, body),
        }
        if self._tracing is None:
            return await self._post(endpoint, headers, body, now)
        with self._tracing.call(_PEER, "POST", parts.hostname or "", parts.port) as span:
            result = await self._post(endpoint, headers, body, now)
            if result.status is not None:
                span.note(result.status)
            return result

    async def _post(
        self, endpoint: WebhookEndpoint, headers: dict[str, str], body: bytes, now: datetime
    ) -> DeliveryResult:
        url = _request_url(endpoint.url)
        connection = httpcore2.AsyncHTTPConnection(
            origin=url.origin,
            ssl_context=self._trusted or ssl_context(),
            network_backend=BoundedNetwork(
                _CheckedNetwork(self._resolve, is_any=endpoint.allow_private)
            ),
        )
        request = connection.stream(
            "POST",
            url,
            headers=list(headers.items()),
            content=body,
            extensions={"timeout": {"connect": self._timeout / _MAX_ADDRESSES}},
        )
        result: DeliveryResult | None = None
        try:
            async with asyncio.timeout(self._timeout), connection, request as response:
                result = _result(response, now)
                await _read_some(response)
        except TimeoutError:
            return result or DeliveryResult(error=f"no response within {self._timeout:g} s")
        except tuple(kind for kind, _ in _ERRORS) as error:
            return result or DeliveryResult(error=_shown(error))
        return result


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to the addresses that it has checked: a name may resolve to others the next time.

    TLS and HTTP still use the name.
    """

    def __init__(self, resolve: Resolve, *, is_any: bool) -> None:
        self._resolve = resolve
        self._is_any = is_any
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # the library's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that accepts; refuse them all if one is not public.

        ``timeout`` is for each address, in seconds.
        """
        addresses = await self._addresses(host, port)
        failure: Exception = _ResolutionError()
        for address in _to_try(addresses):
            try:
                return await self._network.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _addresses(self, host: str, port: int) -> Sequence[Address]:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):
            raise _ResolutionError from None
        if not self._is_any and not all(map(is_public, addresses)):
            raise _RefusedAddressError
        return addresses


def _to_try(addresses: Sequence[Address]) -> list[Address]:
    """Return the first addresses, the last one of the other family if a name has both: a machine
    may reach only one.
    """
    chosen = list(addresses[:_MAX_ADDRESSES])
    others = [address for address in addresses if address.version != chosen[0].version]
    if others and others[0] not in chosen:
        chosen[-1] = others[0]
    return chosen


def _request_url(url: str) -> httpcore2.URL:
    """Return the URL with its whole path: `httpcore2.URL` leaves out what follows a semicolon."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return httpcore2.URL(
        scheme=parts.scheme,
        host=parts.hostname or "",
        port=parts.port,
        target=f"{parts.path or '/'}{query}",
    )


def _shown(error: Exception) -> str:
    return next(
        text
        for kind, text in _ERRORS
        if isinstance(error, kind) or isinstance(error.__cause__, kind)
    )


def _result(response: httpcore2.Response, now: datetime) -> DeliveryResult:
    headers = {name.lower(): value for name, value in response.headers}
    retry_after = parse_retry_after(headers.get(b"retry-after", b"").decode("latin-1"), now)
    return DeliveryResult(response.status, retry_after)


async def _read_some(response: httpcore2.Response) -> None:
    size = 0
    async for chunk in response.aiter_stream():
        size += len(chunk)
        if size > _MAX_BODY_BYTES:
            return


def parse_retry_after(value: str, now: datetime) -> timedelta | None:
    """Read a ``Retry-After``, in seconds or an HTTP date (RFC 9110 section 10.2.3); None if it is
    neither.
    """
    if _SECONDS.fullmatch(value):
        return timedelta(seconds=int(value))
    moment = parse_http_date(value)
    return None if moment is None else max(moment - now, timedelta())
