"""An application served by uvicorn in the test's event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

import uvicorn

from tenantry.server.asgi_types import AsgiApp

LOOPBACK: Final = "127.0.0.1"
_TICK: Final = 0.01


class _Server(uvicorn.Server):
    """uvicorn's server, but that it ends at once: uvicorn looks every 100 ms whether it may, three
    times at least.
    """

    async def main_loop(self) -> None:
        await self.on_tick(0)  # sets the headers that every answer has
        while not self.should_exit:  # noqa: ASYNC110  # a plain attribute of uvicorn's
            await asyncio.sleep(_TICK)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(_TICK)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def served(
    app: AsgiApp,
    http: "type[asyncio.Protocol] | Literal['auto']" = "auto",
    keep_alive: int = 5,
    port: int = 0,
) -> AsyncIterator[str]:
    """The address of the application, which listens on a port of the loopback interface during the
    block: a free one.

    A connection that is idle for ``keep_alive`` seconds is closed.
    """
    with socket.create_server((LOOPBACK, port)) as listener:
        async with serving(app, listener, http, keep_alive):
            yield url_of(listener)


@asynccontextmanager
async def serving(
    app: AsgiApp,
    listener: socket.socket,
    http: "type[asyncio.Protocol] | Literal['auto']" = "auto",
    keep_alive: int = 5,
    grace: int = 1,
    proxies: Sequence[str] = (LOOPBACK,),
) -> AsyncIterator[uvicorn.Server]:
    """The same for an application that has to know its address, which is that of the socket, before
    it is made.

    At the end what is under way has ``grace`` seconds. ``proxies`` are those whose
    ``X-Forwarded-For`` uvicorn trusts.
    """
    config = uvicorn.Config(
        app,
        http=http,
        lifespan="on",
        log_config=None,
        timeout_graceful_shutdown=grace,
        timeout_keep_alive=keep_alive,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield server
    finally:
        server.should_exit = True
        await running


def url_of(listener: socket.socket) -> str:
    """The address of a server that listens on a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"
