"""Taking in new connections: as many in a turn of the event loop as a burst brings."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import uvloop

MOST_IN_A_TURN: Final = 64
_PAUSE: Final = 1.0

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

    async def wait_closed(self) -> None:
        """Wait for the connections that are being taken in."""
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _listen(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_IN_A_TURN):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:  # no descriptor or memory left: the next turn would find the same
                logger.exception("no connection can be taken in for %g s", _PAUSE)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(_PAUSE, self._listen)
                return
            task = self._loop.create_task(self._begin(connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol_factory, connection)
        except OSError:  # it is gone already
            connection.close()
