"""The identity provider, the inbox and the simulated payment provider of one machine, in a thread of this process."""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import uvicorn
from litestar import Litestar, Response, get

from tenantry.common.clock import Clock, system_clock
from tenantry.common.secret import Secret
from tenantry_devkit.demo.html import Pages
from tenantry_devkit.identity_provider import DemoUser, SigningKey, create_identity_provider, load_or_create_signing_key
from tenantry_devkit.inbox import Inbox, inbox_routes, serving_smtp
from tenantry_devkit.simulator.http import Receive, Scope, Send
from tenantry_devkit.simulator.server import server_config

_log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
SHUTDOWN_SECONDS: Final = 2
_SIGNING_KEY_FILE: Final = "identity-provider.pem"
INBOX_DIRECTORY: Final = "inbox"


def signing_key_path(directory: Path) -> Path:
    """Where a companion that keeps its files in ``directory`` has its signing key."""
    return directory / _SIGNING_KEY_FILE


class Provider(Protocol):
    """A payment provider to serve: a `Simulator`, or what stands for one."""

    url: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def run(self) -> None:
        """Whatever it does besides answering, until it is cancelled."""


class Companion:
    """Serves the identity provider and the inbox over HTTP, and takes mail over SMTP, on loopback.

    The signing key and the messages are kept in ``directory`` and survive a restart; messages go to ``inbox`` instead
    where one is given. A ``provider`` is served on a port of its own. A port that is taken, or
    0, is replaced by a free one; the issuer's address follows the port. The other arguments are those of
    `create_identity_provider`. Use it as a context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        users: Sequence[DemoUser],
        audience: str,
        client_id: str,
        client_secret: Secret | None = None,
        provider: Provider | None = None,
        inbox: Inbox | None = None,
        http_port: int = 0,
        smtp_port: int = 0,
        provider_port: int = 0,
        clock: Clock = system_clock,
    ) -> None:
        self._directory = directory
        self._users = users
        self._audience = audience
        self._client_id = client_id
        self._client_secret = client_secret
        self._clock = clock
        self._provider = provider
        self._inbox = inbox
        self._servers: list[uvicorn.Server] = []
        self._thread: threading.Thread | None = None
        self.http_url = ""
        """``http://127.0.0.1:<port>``, without a slash at the end; known once started."""
        self.http_port = http_port
        """The port that is asked for; once started, the port that is used."""
        self.smtp_port = smtp_port
        """The port that is asked for; once started, the port that is used."""
        self.provider_port = provider_port
        """The port that is asked for; once started, the port that is used."""

    @property
    def issuer(self) -> str:
        """The identity provider's issuer identifier: `http_url`."""
        return self.http_url

    @property
    def signing_key(self) -> SigningKey:
        """The identity provider's key, from its file, which is made if need be; raises `ValueError` if it is broken."""
        return load_or_create_signing_key(signing_key_path(self._directory))

    def start(self) -> None:
        """Return once both servers listen.

        Raises `OSError` when the directory cannot be written or no port is free, and `ValueError` when the signing
        key's file is broken.
        """
        if self._thread is not None:
            raise RuntimeError("the companion is running already")
        inbox = self._inbox or Inbox(self._directory / INBOX_DIRECTORY, clock=self._clock)
        signing_key = self.signing_key
        with contextlib.ExitStack() as sockets:
            http = sockets.enter_context(_listen(self.http_port))
            smtp = sockets.enter_context(_listen(self.smtp_port))
            # The issuer is in every token and page, so its port is bound before anything is made.
            self.http_port, self.smtp_port = http.getsockname()[1], smtp.getsockname()[1]
            self.http_url = f"http://{HOST}:{self.http_port}"
            listening: Future[None] = Future()
            server = _HttpServer(_server_config(self._app(inbox, signing_key)), lambda: listening.set_result(None))
            servers: list[tuple[uvicorn.Server, socket.socket]] = [(server, http)]
            if self._provider is not None:
                bound = sockets.enter_context(_listen(self.provider_port))
                self.provider_port = bound.getsockname()[1]
                self._provider.url = f"http://{HOST}:{self.provider_port}"
                servers.insert(0, (uvicorn.Server(server_config(self._provider)), bound))
            thread = threading.Thread(
                target=_run, args=(servers, inbox, smtp, self._provider, listening), name="companion", daemon=True
            )
            thread.start()
            sockets.callback(_end, [server for server, _ in servers], thread)
            listening.result()
            sockets.pop_all()
        self._servers, self._thread = [server for server, _ in servers], thread

    def stop(self) -> None:
        """Close all connections and end the thread; nothing happens when it is not running."""
        if self._thread is None:
            return
        _end(self._servers, self._thread)
        self._servers, self._thread = [], None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _app(self, inbox: Inbox, signing_key: SigningKey) -> Litestar:
        @get("/")
        async def home() -> Response[str]:
            return Response("", status_code=303, headers={"Location": "/inbox"})

        return create_identity_provider(
            self.issuer,
            signing_key,
            self._users,
            self._audience,
            self._client_id,
            client_secret=self._client_secret,
            clock=self._clock,
            more_routes=[home, *inbox_routes(inbox, Pages())],
        )


class _HttpServer(uvicorn.Server):
    """Tells when it listens. Outside the main thread, where this one runs, uvicorn leaves signals alone."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()


def _server_config(app: Litestar) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        workers=1,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def _listen(port: int) -> socket.socket:
    """A socket that listens on ``port`` of loopback, or on a free port where that one cannot be had."""
    try:
        return _bound(port)
    except (OSError, OverflowError):
        if port == 0:
            raise
        return _bound(0)


def _bound(port: int) -> socket.socket:
    with contextlib.ExitStack() as on_error:
        # with its protocol named, or asyncio would let small answers wait for the client's acknowledgements
        bound = on_error.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        if os.name == "posix":
            # A port that was in use a moment ago, by the run before this one, can be had again at once.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
        # Not before here would a second socket on the same port be refused.
        bound.listen()
        on_error.pop_all()
    return bound


def _end(servers: Sequence[uvicorn.Server], thread: threading.Thread) -> None:
    for server in servers:
        server.should_exit = True
    thread.join()


def _run(
    servers: Sequence[tuple[uvicorn.Server, socket.socket]],
    inbox: Inbox,
    smtp: socket.socket,
    provider: Provider | None,
    listening: Future[None],
) -> None:
    async def serve() -> None:
        async with serving_smtp(inbox, smtp):
            going_on = asyncio.create_task(provider.run()) if provider else None
            try:
                await asyncio.gather(*(server.serve(sockets=[bound]) for server, bound in servers))
            finally:
                if going_on is not None:
                    going_on.cancel()
                    await asyncio.wait({going_on})

    try:
        asyncio.run(serve())
    except BaseException as error:  # noqa: BLE001  # whatever it is, `start` raises it
        if listening.done():
            _log.exception("the identity provider and the inbox have stopped")
        else:
            listening.set_exception(error)
    finally:
        smtp.close()
        for _, bound in servers:
            bound.close()
