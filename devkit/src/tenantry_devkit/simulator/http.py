"""HTTP requests and responses over ASGI."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tenantry.server.asgi_types import MAX_BODY, Receive, Scope, Send
from tenantry_devkit.simulator.api_requests import ApiError

FORM: Final = "application/x-www-form-urlencoded"


class BodyTooLargeError(Exception):
    """The body is larger than 1 MiB."""


class ClientDisconnectedError(Exception):
    """The client disconnected before the end of its request."""


@dataclass(frozen=True)
class HttpRequest:
    """Header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass
class HttpResponse:
    status: int
    body: bytes
    content_type: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: object, status: int = 200) -> "HttpResponse":
        """Return JSON, indented like the provider's."""
        return cls(status, msgspec.json.format(msgspec.json.encode(value), indent=2), "application/json")

    @classmethod
    def of_error(cls, error: ApiError) -> "HttpResponse":
        return cls.json({"error": error.error}, error.status)


async def read_request(scope: Scope, receive: Receive) -> HttpRequest:
    """Read a request; raises `BodyTooLargeError` and `ClientDisconnectedError`."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY:
            raise BodyTooLargeError
    return HttpRequest(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"].decode("latin-1"),
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
        body=body,
    )


async def send_response(send: Send, response: HttpResponse) -> None:
    headers = {"Content-Type": response.content_type, "Content-Length": str(len(response.body)), **response.headers}
    encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": response.body})
