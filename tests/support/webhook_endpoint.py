"""A receiver of webhooks on loopback, which records what arrives."""

import asyncio
import random
import ssl
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import msgspec

from tenantry.common.secret import Secret
from tenantry.domain.outbound_events import TypeFilter
from tenantry.domain.webhooks import WebhookEndpoint

LOOPBACK: Final = "127.0.0.1"
SECRET: Final = "whsec_dIczB9hsfDTAdsKYG3h4T72HD3SVHxu2"
CUT: Final = b"cut"
SILENT: Final = b"silent"
_PATIENCE: Final = 20.0
_FAILING: Final = 0.3
_FAILURES: Final = (302, 404, 500, 503)
_MAX_ATTEMPTS: Final = 5
OTHER_SECRET: Final = "whsec_XRUabqgwIh+UaBo2KdKie5npNOaOWtTS"
MOST_REPEATED: Final = 20_000


def endpoint_at(
    url: str,
    *,
    name: str = "app",
    types: tuple[str, ...] = ("tenant.*",),
    secrets: tuple[str, ...] = (SECRET,),
    allow_private: bool = True,
) -> WebhookEndpoint:
    """Make an endpoint, which may be on this machine."""
    return WebhookEndpoint(name, url, TypeFilter(types), tuple(map(Secret, secrets)), allow_private)


class ReceivedWebhook(msgspec.Struct):
    """A request: its first line, its headers by their names in lower case, its body."""

    line: str
    headers: Mapping[str, str]
    body: bytes


def answer(status: int, *headers: str, body: bytes = b"") -> bytes:
    """Write a response, after which the receiver closes the connection."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class WebhookServer:
    """Answers each request with ``response``, once ``hold`` is set.

    ``responses`` are used up first; `CUT` resets the connection, `SILENT` answers nothing.
    ``repeats`` follows the response `MOST_REPEATED` times, or until the sender has closed the
    connection.
    """

    def __init__(self) -> None:
        self.response = answer(HTTPStatus.NO_CONTENT)
        self.responses: deque[bytes] = deque()
        self._arrived = asyncio.Condition()
        self.repeats = b""
        self.repeated = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.connections = 0
        self.received: list[ReceivedWebhook] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self.connections += 1
        try:
            request = await self._receive(reader)
            await self.hold.wait()
            response = self.response_to(request)
            if response == CUT:
                writer.transport.abort()
                return
            if response == SILENT:
                await reader.read()  # until the sender gives up
                return
            writer.write(response)
            await writer.drain()
            while self.repeats and self.repeated < MOST_REPEATED:
                self.repeated += 1
                writer.write(self.repeats)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    def response_to(self, request: ReceivedWebhook) -> bytes:  # noqa: ARG002  # for subclasses
        """Return the response to a request."""
        return self.responses.popleft() if self.responses else self.response

    async def _receive(self, reader: asyncio.StreamReader) -> ReceivedWebhook:
        request = await _read(reader)
        async with self._arrived:
            self.received.append(request)
            self._arrived.notify_all()
        return request

    async def until(self, number: int) -> None:
        """Wait until this many requests have arrived."""
        async with asyncio.timeout(_PATIENCE), self._arrived:
            await self._arrived.wait_for(lambda: len(self.received) >= number)

    @property
    def url(self) -> str:
        """The address of the receiver."""
        return f"http://{LOOPBACK}:{self.port}/hooks"


async def _read(reader: asyncio.StreamReader) -> ReceivedWebhook:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *fields = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
    body = await reader.readexactly(int(headers["content-length"]))
    return ReceivedWebhook(line, headers, body)


class UnreliableServer(WebhookServer):
    """Fails at three of ten requests, in several ways, but not at a message's fifth attempt."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)  # noqa: S311  # no secret
        self._attempts = Counter[str]()
        self.accepted = Counter[str]()

    def response_to(self, request: ReceivedWebhook) -> bytes:
        message_id = request.headers["webhook-id"]
        self._attempts[message_id] += 1
        if self._random.random() < _FAILING and self._attempts[message_id] < _MAX_ATTEMPTS:
            return self._random.choice([*map(answer, _FAILURES), CUT, SILENT])
        self.accepted[message_id] += 1
        return self.response


@asynccontextmanager
async def running_webhook_server(
    host: str = LOOPBACK, *, certificate: ssl.SSLContext | None = None
) -> AsyncIterator[WebhookServer]:
    """Run a receiver while the block runs."""
    receiver = WebhookServer()
    async with listening(receiver, host, certificate):
        yield receiver


@asynccontextmanager
async def listening(
    receiver: WebhookServer, host: str = LOOPBACK, certificate: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Let a receiver listen while the block runs."""
    server = await asyncio.start_server(receiver.serve, host, 0, ssl=certificate)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield
        receiver.repeats = b""
        receiver.hold.set()
