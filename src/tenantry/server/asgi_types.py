"""Requests and answers of the hot routes, which no framework sees: nothing but what they need."""

import random
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

import msgspec

from tenantry.domain.errors import PayloadTooLargeError
from tenantry.server.problems import Header

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 1_048_576
_LENGTH_DIGITS: Final = 18
# A credential that is sent as one by mistake must reach neither logs nor the audit trail.
_OWN_REQUEST_ID: Final = re.compile(rb"(?!svc_|eyJ|whsec_|[sr]k_)[A-Za-z0-9._-]{1,128}")
_JSON: Final[Header] = (b"content-type", b"application/json")
_TEXT: Final[Header] = (b"content-type", b"text/plain; charset=utf-8")


IS_WHOLE: Final = "tenantry.is_whole"
"""Where a request's scope says whether its body was complete when the application received the head."""

CALLER: Final = "tenantry.caller"
"""Where a request's scope holds who sent it, once that is known; whether they are let in is told after that."""

CLAIMS: Final = "tenantry.claims"
"""The same of a user who may belong to no tenant yet: what the token says."""

OPERATOR: Final = "tenantry.operator"
"""What a request's scope holds where the operator sent it."""

TENANT: Final = "tenantry.tenant"
"""Where a request's scope holds the tenant that it turned out to be about, where nobody's credential says so."""

OUTCOME: Final = "tenantry.outcome"
"""Where a request's scope holds what became of it: the code of a refusal, or of an event its outcome."""


class ClientGoneError(Exception):
    """The client hung up before it had sent its whole request: there is nobody to answer."""


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """The value of a header (name in lower case); several of one name are joined (RFC 9110, section 5.3).

    No credential survives that.
    """
    values = [value for key, value in scope["headers"] if key == name]
    if not values:
        return None
    return values[0] if len(values) == 1 else b", ".join(values)


def request_id_of(given: bytes | None) -> bytes:
    """The client's own ``X-Request-Id`` if it is a plain word, else a new one: no secret, only unlike others."""
    if given is not None and _OWN_REQUEST_ID.fullmatch(given):
        return given
    return b"%032x" % random.getrandbits(128)


class RawRequest:
    """An HTTP request. Without ``receive``, ``whole`` is its body, and it is handed on once that is there."""

    __slots__ = ("_headers", "_receive", "path", "request_id", "scope", "whole")

    def __init__(self, scope: Scope, receive: Receive | None = None) -> None:
        self.scope = scope
        """As in ASGI, and no more of it than is asked for here."""
        self.path: str = scope["path"]
        self._headers: dict[bytes, bytes] | None = dict(scope["headers"])
        if len(self._headers) != len(scope["headers"]):
            self._headers = None  # several of one name
        self.request_id = request_id_of(self.header(b"x-request-id"))
        """Told with the answer."""
        self._receive = receive
        self.whole = b""

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, as `header_of` has it."""
        return header_of(self.scope, name) if self._headers is None else self._headers.get(name)

    async def body(self) -> bytes:
        """The body; raises `PayloadTooLargeError` past 1 MiB, before it is read whole, and `ClientGoneError`."""
        if self._receive is None:
            return self.whole
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and (len(length) > _LENGTH_DIGITS or int(length) > MAX_BODY):
            raise PayloadTooLargeError(f"The body is larger than {MAX_BODY} bytes.")
        body, more = await _next_part(self._receive)
        if more:
            parts, size = [body], len(body)
            while more and size <= MAX_BODY:
                body, more = await _next_part(self._receive)
                parts.append(body)
                size += len(body)
            body = b"".join(parts)
        if len(body) > MAX_BODY:
            raise PayloadTooLargeError(f"The body is larger than {MAX_BODY} bytes.")
        return body


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), message.get("more_body", False)


class RawAnswer(msgspec.Struct):
    """An HTTP answer."""

    status: int
    headers: list[Header]
    body: bytes = b""

    @classmethod
    def json(cls, body: bytes) -> "RawAnswer":
        """A 200 with a JSON body."""
        return cls(200, [_JSON], body)

    @classmethod
    def text(cls, status: int, text: str, *headers: Header) -> "RawAnswer":
        """A plain-text answer."""
        return cls(status, [_TEXT, *headers], text.encode())


RawHandler = Callable[[RawRequest], Awaitable[RawAnswer]]


class HotRoute(msgspec.Struct, frozen=True):
    """A route that is answered without a framework; ``template`` is its name in the metrics."""

    template: str
    handler: RawHandler


HOT_DOOR: Final = "tenantry.hot_door"
"""Where the state of the ASGI lifespan holds the `HotDoor`."""


class HotDoor(Protocol):
    """Where the server's protocol hands in requests of hot routes, past ASGI."""

    def find(self, method: str, path: str) -> HotRoute | None:
        """The hot route that answers this."""

    async def answer(self, route: HotRoute, request: RawRequest) -> RawAnswer:
        """The answer with all its headers but the server's own; every fault is one too."""

    def count_gone(self, route: HotRoute, request: RawRequest) -> None:
        """Count a client that hung up before its request was whole."""

    def fault(self, request: RawRequest) -> RawAnswer:
        """The answer where there is none that could be sent: a fault of ours."""
