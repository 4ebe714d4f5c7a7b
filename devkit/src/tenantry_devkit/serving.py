"""Serve ASGI applications on loopback with uvicorn."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Protocol, TypeVar

import uvicorn

from tenantry.server.asgi_types import Receive, Scope, Send

HOST: Final = "127.0.0.1"
_SHUTDOWN_SECONDS: Final = 2


class Servable(Protocol):
    """An application that knows its address."""

    url: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


S = TypeVar("S", bound=Servable)


class _LoopbackServer(uvicorn.Server):
    """Sets ``listening``, and leaves the process's signals alone."""

    listening: asyncio.Event

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(port: int) -> socket.socket:
    """Listen on a port of loopback; 0 is for a free one. Raises `OSError`, or `OverflowError` for a
    bad number.
    """
    with contextlib.ExitStack() as on_error:
        # with the protocol named, asyncio sets TCP_NODELAY: small responses do not wait for
        # acknowledgements
        bound = on_error.enter_context(
            socket.socket(
                socket.AF_INET,
                socket.SOCK_STREAM,
                socket.IPPROTO_TCP,
            )
        )
        bound.setsockopt(
            socket.SOL_SOCKET,
            socket.SO_REUSEADDR,
            1,
        )
        bound.bind((HOST, port))
        bound.listen()  # only now does the port reject a second socket
        on_error.pop_all()
    return bound


def free_port() -> int:
    """Return a port of loopback that was free just now."""
    with bind(0) as bound:
        return int(bound.getsockname()[1])


def url_of(bound: socket.socket) -> str:
    return f"http://{HOST}:{bound.getsockname()[1]}"


@contextlib.asynccontextmanager
async def running(
    application: Any,  # noqa: ANN401  # any ASGI application
    bound: socket.socket,
    *,
    date_header: bool = True,
) -> AsyncIterator[None]:
    """Serve an application on a listening socket within the block."""
    config = uvicorn.Config(
        application,
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=date_header,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = _LoopbackServer(config)
    server.listening = asyncio.Event()
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        await server.listening.wait()
        yield
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def serving(application: S, port: int = 0) -> AsyncIterator[S]:
    """Serve ``application`` within the block, and set its ``url``; raises `OSError` without a
    port.
    """
    with bind(port) as bound:
        application.url = url_of(bound)
        async with running(application, bound, date_header=False):
            yield application
