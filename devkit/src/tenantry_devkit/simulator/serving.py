"""Serving an application on loopback, within the running event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Final, Protocol, TypeVar

import uvicorn

from tenantry_devkit.simulator.asgi import Receive, Scope, Send

_HOST: Final = "127.0.0.1"
_SHUTDOWN_SECONDS: Final = 2


class _Servable(Protocol):
    url: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


S = TypeVar("S", bound=_Servable)


@contextlib.asynccontextmanager
async def serving(application: S, port: int = 0) -> AsyncIterator[S]:
    """Within the block ``application`` answers on 127.0.0.1, and knows its ``url``; raises `OSError` without a port."""
    # with its protocol named, or asyncio would let small answers wait for the client's acknowledgements
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_HOST, port))
        listening.listen()
        application.url = f"http://{_HOST}:{listening.getsockname()[1]}"
        server = _Server(server_config(application))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await server.listening.wait()
            yield application
        finally:
            server.should_exit = True
            await running


def server_config(application: _Servable) -> uvicorn.Config:
    """How the application is to be served, wherever that is."""
    return uvicorn.Config(
        application,
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,  # the application says what its own clock says
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )


class _Server(uvicorn.Server):
    """Says when it listens, and leaves the process's signals to others."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
