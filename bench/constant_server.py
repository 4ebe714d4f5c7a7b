"""A constant from the service's own server: ``python -m bench.constant_server PORT``. What HTTP alone costs."""

import sys

from bench.asgi import serve
from tenantry.server.asgi_types import Receive, Scope, Send

_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"2")],
}
_BODY = {"type": "http.response.body", "body": b"OK"}


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, if there is one, and answer."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["method"] == "POST":
        while (await receive()).get("more_body", False):
            pass
    await send(_START)
    await send(_BODY)


if __name__ == "__main__":
    serve(answer, int(sys.argv[1]))
