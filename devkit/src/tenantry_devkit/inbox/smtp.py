"""An SMTP server that delivers everything to the inbox."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import Final

from aiosmtpd.smtp import SMTP, Envelope, Session

from tenantry_devkit.inbox.inbox import Inbox

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = 10 * 1024 * 1024


@contextlib.asynccontextmanager
async def serving_smtp(inbox: Inbox, listening: socket.socket) -> AsyncIterator[None]:
    """Take mail on ``listening``, without sign-in or TLS, until the context ends; then every connection is closed."""
    loop = asyncio.get_running_loop()
    connections: set[_Connection] = set()
    server = await loop.create_server(lambda: _Connection(inbox, connections, loop), sock=listening)
    try:
        yield
    finally:
        server.close()
        for connection in tuple(connections):
            connection.close()
        await server.wait_closed()


class _Connection(SMTP):
    def __init__(self, inbox: Inbox, connections: "set[_Connection]", loop: asyncio.AbstractEventLoop) -> None:
        # The host name is given because the library would else look it up, which may take long.
        super().__init__(
            _Delivery(inbox),
            data_size_limit=MAX_MESSAGE_BYTES,
            enable_SMTPUTF8=True,
            hostname="localhost",
            ident="tenantry inbox",
            loop=loop,
        )
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(error)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class _Delivery:
    """The hooks that the server calls, by name."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.content
        if not isinstance(content, bytes):
            raise TypeError("the server was told not to decode messages")
        try:
            self._inbox.keep(content, sender=envelope.mail_from or "", recipients=envelope.rcpt_tos)
        except OSError as error:
            _log.warning("a message could not be kept: %s", error)
            return "452 4.3.1 The message could not be kept"
        return "250 2.0.0 Kept"
