"""Requests of hot routes without a task of the server, as its protocol answers them."""

import asyncio

from tenantry.server.asgi_types import (
    AsgiApp,
    DirectRequest,
    Receive,
    Scope,
    Send,
    header_of,
    send_response,
)
from tenantry.server.dispatch import Dispatcher

_METHODS = frozenset({"GET", "POST"})
_LONGEST_BODY = 99_999


class _AwaitedRequest(DirectRequest):
    """A request whose answer can be awaited."""

    __slots__ = ("answered",)

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope)
        self.full_body = body
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_answer(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)


def answering_directly(app: Dispatcher) -> AsgiApp:
    """The application, which answers usual requests of its hot routes by `DirectHandler`."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        route = app.find(scope["method"], scope["path"]) if _is_usual(scope) else None
        if route is None or route.direct is None:
            await app(scope, receive, send)
            return
        request = _AwaitedRequest(scope, await _body(receive))
        response = None
        if app.begin(route, request):
            await request.answered
            response = app.finish(route, request)
        await send_response(send, response or await app.answer(route, request))

    return answer


def _is_usual(scope: Scope) -> bool:
    """Whether the server's protocol takes a request without ASGI."""
    if scope["type"] != "http" or scope["method"] not in _METHODS:
        return False
    length = header_of(scope, b"content-length")
    is_chunked = header_of(scope, b"transfer-encoding") is not None
    return not is_chunked and (length is None or int(length) <= _LONGEST_BODY)


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body
