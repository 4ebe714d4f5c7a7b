"""The accept loop: an event loop that accepts many new connections in one turn, and leaves their
share to others.
"""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import uvloop

from tenantry.server.connection_balance import ConnectionBalance

MAX_ACCEPTS_PER_TURN: Final = 64
HANDSHAKE_SECONDS: Final = 0.1  # how long a TCP handshake that has begun may take
YIELD_SECONDS: Final = 0.001
"""How long a process with more connections than another one leaves new connections to it."""

_PAUSE: Final = 1.0
_SO_BINDTOIFINDEX: Final = 62
_NO_INTERFACE: Final = 2**31 - 1

logger = logging.getLogger(__name__)


class AcceptLoop(uvloop.Loop):
    """uvloop's event loop with `ListeningSocket`.

    libuv accepts one connection a turn. Turns are long under load, so a burst of clients would wait
    for seconds.
    """

    balance: ConnectionBalance | None = None
    """With other server processes on the same socket."""

    async def create_server(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # asyncio's own
        """Use a `ListeningSocket` for a given socket without TLS."""
        sock = options.get("sock")
        ssl = options.get("ssl")
        backlog = options.get("backlog", 100)
        if sock is None or ssl is not None:
            return await super().create_server(*args, **options)
        return ListeningSocket(
            self,
            args[0],
            sock,
            backlog,
            self.balance,
        )


def reject_new_connections(listening: socket.socket) -> None:
    """Make the kernel refuse new connections, and keep those that are queued.

    Closing a socket resets its queued connections, and no call closes and drains the queue
    atomically. Binding the socket to an interface that does not exist stops new connections only.
    Linux 5.7 and later; elsewhere a no-op.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_INTERFACE)


class ListeningSocket:
    """A server on one listening socket.

    With a ``balance`` it accepts only while no other process has fewer connections. Otherwise it
    leaves new connections to the others for ``yield_seconds``. If they do not accept them by then,
    they are busy, and it accepts some.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol_factory: Callable[[], asyncio.Protocol],
        sock: socket.socket,
        backlog: int,
        balance: ConnectionBalance | None = None,
        yield_seconds: float = YIELD_SECONDS,
    ) -> None:
        self._loop = loop
        self._protocol_factory = protocol_factory
        self._socket = sock
        self._balance = balance
        self._yield_seconds = yield_seconds
        self._accepts_left = 0
        """How many connections to accept although another process has fewer."""
        self._connecting: set[asyncio.Task[Any]] = set()
        self._is_open = True
        sock.setblocking(False)  # noqa: FBT003  # the standard library's own
        sock.listen(backlog)
        self._listen()

    def close(self) -> None:
        self._is_open = False
        self._loop.remove_reader(self._socket)

    async def drain(self, *, is_last: bool) -> None:
        """Accept all queued connections, then close.

        ``is_last`` says that no other process listens on the socket, so the kernel rejects new
        connections meanwhile.
        """
        if is_last:
            reject_new_connections(self._socket)
        await asyncio.sleep(HANDSHAKE_SECONDS)
        while self._is_open and self._accept():
            pass
        self.close()
        await self.wait_closed()

    def leave_balance(self) -> None:
        """Accept connections from now on whatever other processes have."""
        if self._balance is not None:
            self._balance.leave()
            self._balance = None

    async def wait_closed(self) -> None:
        """Wait for accepted connections to get their protocols."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _listen(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> bool:
        """Accept up to `MAX_ACCEPTS_PER_TURN` connections; return whether there may be more."""
        for _ in range(MAX_ACCEPTS_PER_TURN):
            if self._yields():
                self._pause(self._yield_seconds, self._accept_after_yielding)
                return False
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return False
            except ConnectionAbortedError:
                continue
            except OSError:  # no file descriptors or memory
                logger.exception("accepting connections failed; it resumes in %g s", _PAUSE)
                self._pause(_PAUSE, self._listen)
                return False
            task = self._loop.create_task(self._connect(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        return True

    def _yields(self) -> bool:
        """Return whether to leave the next connection to another process."""
        if self._balance is None or not self._balance.is_ahead(len(self._connecting)):
            return False
        self._accepts_left -= 1
        return self._accepts_left < 0

    def _accept_after_yielding(self) -> None:
        if self._is_open:
            self._listen()
            self._accepts_left = self._balance.step() if self._balance is not None else 0
            self._accept()
        self._accepts_left = 0

    def _pause(self, seconds: float, resume: Callable[[], None]) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.call_later(seconds, resume)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol_factory, connection)
        except OSError:  # the client has disconnected
            connection.close()
