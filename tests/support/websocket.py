"""The opening of a websocket, without a server."""

from collections.abc import MutableMapping
from typing import Any

from tenantry.server.asgi_types import AsgiApp

Message = MutableMapping[str, Any]


async def open_websocket(
    app: AsgiApp, path: str, headers: list[tuple[bytes, bytes]], *, can_deny: bool = True
) -> list[Message]:
    """What the application sends to a client that opens a websocket and leaves at once.

    ``can_deny`` is whether the server can answer with an HTTP response (ASGI's extension
    ``websocket.http.response``).
    """
    extensions: dict[str, dict[str, str]] = {"websocket.http.response": {}} if can_deny else {}
    scope = {
        "type": "websocket",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("203.0.113.9", 1),
        "subprotocols": [],
        "extensions": extensions,
    }
    received: list[Message] = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "hello"},
        {"type": "websocket.disconnect", "code": 1000},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return received.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent
