"""A real browser, and the service at an address that it can open."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal

import uvicorn
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

from tenantry.http.raw import AsgiApp
from tests.support.required import debian_program

LOOPBACK: Final = "127.0.0.1"
_ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """The system's chromium, which is required (`tests.support.required`)."""
    path = debian_program("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def served(
    app: AsgiApp, http: "type[asyncio.Protocol] | Literal['auto']" = "auto", keep_alive: int = 5, port: int = 0
) -> AsyncIterator[str]:
    """The address of the application, which listens on a port of the loopback interface during the block: a free one.

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
) -> AsyncIterator[uvicorn.Server]:
    """The same for an application that has to know its address, which is that of the socket, before it is made.

    At the end what is under way has ``grace`` seconds.
    """
    config = uvicorn.Config(
        app, http=http, lifespan="on", log_config=None, timeout_graceful_shutdown=grace, timeout_keep_alive=keep_alive
    )
    server = uvicorn.Server(config)
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


class Watched:
    """What a page asked for, and what it complained of: console errors, which policy violations are too."""

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", self._on_request)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)
