"""The service behind a cache of accepted credentials, as its peers have one: for tests that must
see it fail.

Run as a module it serves in as many processes as ``WORKERS`` says.
"""

import os
import sys
import time
from typing import Any, Final

import uvicorn
from uvicorn.supervisors import Multiprocess

from tenantry.app import build_app
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send
from tenantry.settings import load, read_environment

SECONDS: Final = 10.0
READY: Final = "the caching service listens"


def create_caching_app() -> AsgiApp:
    """The service; what let a credential in is repeated for ten seconds."""
    settings = load(read_environment())
    app = build_app(settings, settings.database_url or "")
    responses: dict[tuple[str, bytes | None], tuple[float, list[Any]]] = {}

    async def cached(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/api/v1/auth/verify/"):
            await app(scope, receive, send)
            return
        request = scope["path"], dict(scope["headers"]).get(b"authorization")
        until, messages = responses.get(request, (0.0, []))
        if time.monotonic() >= until:
            messages = []

            async def keep(message: Any) -> None:
                messages.append(message)

            await app(scope, receive, keep)
            if messages[0]["status"] == 200:
                responses[request] = time.monotonic() + SECONDS, messages
        for message in messages:
            await send(message)

    return cached


def main() -> None:
    """Listen, say so, and serve."""
    config = uvicorn.Config(
        "tests.support.caching_service:create_caching_app",
        factory=True,
        port=int(os.environ["PORT"]),
        workers=int(os.environ.pop("WORKERS")),
        loop="uvloop",
        http="httptools",
        log_level="warning",
    )
    bound = config.bind_socket()
    bound.listen()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    Multiprocess(config, sockets=[bound]).run()


if __name__ == "__main__":
    main()
