"""Taking in new connections: as many in a turn of the event loop as a burst brings."""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import uvloop

MOST_IN_A_TURN: Final = 64
HANDSHAKE: Final = 0.1
"""Seconds within which a connection is made whose making has begun."""

_PAUSE: Final = 1.0
_SO_BINDTOIFINDEX: Final = 62
_NO_INTERFACE: Final = 2**31 - 1

logger = logging.getLogger(__name__)


class Loop(uvloop.Loop):
    """uvloop's event loop, but that it takes in more than one new connection in a turn.

    A turn is long where there is much to do. One connection in each (libuv's way) leaves a burst of clients in the
    kernel's queue for seconds, and then unheard.
    """

    async def create_server(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as asyncio has it
        """Listen: on a given socket as said above, else as uvloop does."""
        sock, ssl, backlog = options.get("sock"), options.get("ssl"), options.get("backlog", 100)
        if sock is None or ssl is not None:
            return await super().create_server(*args, **options)
        return Listener(self, args[0], sock, backlog)


def refuse_newcomers(listening: socket.socket) -> None:
    """Let the kernel refuse whoever begins to connect from now on; who has begun still gets into the socket's queue.

    Whoever is in the queue of a socket that is closed has a connection that breaks, and nobody can look into the queue
    and close in one. So the socket is tied to a network interface that does not exist: it is not found any more for a
    new connection, and what is there stays as it is. Linux 5.7 and later; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_INTERFACE)


class Listener:
    """A socket that is listened on, until it is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol_factory: Callable[[], asyncio.Protocol],
        sock: socket.socket,
        backlog: int,
    ) -> None:
        self._loop = loop
        self._protocol_factory = protocol_factory
        self._socket = sock
        self._beginning: set[asyncio.Task[Any]] = set()
        self._is_open = True
        sock.setblocking(False)  # noqa: FBT003  # the standard library's own
        sock.listen(backlog)
        self._listen()

    def close(self) -> None:
        """Take in no more."""
        self._is_open = False
        self._loop.remove_reader(self._socket)

    async def drain(self, *, is_last: bool) -> None:
        """Take in everybody who has begun to connect, then no more.

        ``is_last`` says that no other process goes on listening on the socket; then newcomers are refused meanwhile.
        """
        if is_last:
            refuse_newcomers(self._socket)
        await asyncio.sleep(HANDSHAKE)
        while self._is_open and self._accept():
            pass
        self.close()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        """Wait for the connections that are being taken in."""
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _listen(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> bool:
        """Take in who waits, up to so many; returns whether there may be more."""
        for _ in range(MOST_IN_A_TURN):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return False
            except ConnectionAbortedError:
                continue
            except OSError:  # no descriptor or memory left: the next turn would find the same
                logger.exception("no connection can be taken in for %g s", _PAUSE)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(_PAUSE, self._listen)
                return False
            task = self._loop.create_task(self._begin(connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
        return True

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol_factory, connection)
        except OSError:  # it is gone already
            connection.close()
