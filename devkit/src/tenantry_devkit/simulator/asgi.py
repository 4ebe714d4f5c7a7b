"""Requests and answers, in plain ASGI."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 1_048_576


class TooLargeError(Exception):
    """The body is larger than 1 MiB."""


class GoneError(Exception):
    """The client hung up before it had sent its request."""


@dataclass(frozen=True)
class Request:
    """An HTTP request; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes
    content_type: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: object, status: int = 200) -> "Answer":
        """A JSON answer, indented as the provider's."""
        return cls(status, msgspec.json.format(msgspec.json.encode(value), indent=2), "application/json")


async def read(scope: Scope, receive: Receive) -> Request:
    """The request of an ASGI scope; raises `TooLargeError` and `GoneError`."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY:
            raise TooLargeError
    return Request(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"].decode("latin-1"),
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
        body=body,
    )


async def write(send: Send, answer: Answer) -> None:
    """Send an answer."""
    headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body)), **answer.headers}
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": answer.body})
