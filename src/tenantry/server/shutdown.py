"""Graceful shutdown of a server process, in two steps: drain, then close."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, MutableSequence
from types import FrameType
from typing import Any, Final, NamedTuple, cast

import uvicorn

from tenantry.server.accept_loop import AcceptLoop, ListeningSocket
from tenantry.server.connection_balance import ConnectionBalance

SHUTDOWN: Final = "tenantry.shutdown"  # key of the process's `Shutdown` in the ASGI lifespan state
# how long pending requests may take once the process accepts no new ones
REQUEST_SECONDS: Final = 20

_TICK: Final = 0.1
_TICKS_PER_SECOND: Final = 10

logger = logging.getLogger(__name__)


class Shutdown:
    """The state of a process's shutdown; ``on_drain`` and ``on_close`` are called once each.

    While it drains, the process reports not ready and makes each response the last one of its
    connection, so that load balancers stop using it before connections close. When it closes, it
    accepts no connections and ends streams.
    """

    def __init__(
        self,
        on_drain: Callable[[], None] = lambda: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_draining = False
        """Whether the shutdown has begun. A signal handler may set it before `drain` is called."""
        self._callbacks = [on_close, on_drain]  # those not called yet, the next one last

    def drain(self) -> None:
        self.is_draining = True
        if len(self._callbacks) > 1:
            self._callbacks.pop()()

    def close(self) -> None:
        """Begin to close; drain first if that has not begun."""
        self.drain()
        if self._callbacks:
            self._callbacks.pop()()


class Siblings(NamedTuple):
    """The other server processes on the same socket, as one of them sees them."""

    supervisor: int
    """Its process id."""
    connections: MutableSequence[int]
    """The number of connections of each process, in memory that they share
    (`ConnectionBalance`).
    """
    own: int
    """The index of this process."""


class GracefulServer(uvicorn.Server):
    """uvicorn's server with a graceful shutdown, during which a load balancer loses no request.

    After SIGTERM it drains for ``drain_seconds`` (`Shutdown`); after SIGINT, from a terminal, it
    does not. Then it accepts no new connection, and pending requests have `REQUEST_SECONDS` to
    complete.

    A single process exits immediately at a second signal. One of several processes on one socket
    ignores it, since both the supervisor and others may signal it. It exits when the supervisor has
    ended, and shares connections with its ``siblings``.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain_seconds: float,
        siblings: Siblings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._supervisor: int | None = None
        self._balance: ConnectionBalance | None = None
        if siblings is not None:
            self._supervisor = siblings.supervisor
            self._balance = ConnectionBalance(
                siblings.connections, siblings.own, lambda: len(self.server_state.connections)
            )
        self._skip_drain = False
        self._is_orphan = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # uvicorn's own
        self._captured_signals.append(sig)
        if self.should_exit and self._supervisor is None:
            self.force_exit = True
            if self.started:
                self.lifespan.logger.disabled = True  # it would log that it was interrupted
        self.should_exit = True
        self._skip_drain = self._skip_drain or sig == signal.SIGINT
        if self.started:
            self._shutdown.is_draining = True  # readiness fails from now on, not from the next tick

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        cast("AcceptLoop", asyncio.get_running_loop()).balance = self._balance
        await super().startup(sockets)
        if self.should_exit:  # since a signal that came during the start
            self._shutdown.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        if self._supervisor is not None and os.getppid() != self._supervisor:
            self.should_exit = self._skip_drain = self._is_orphan = True
        if self._balance is not None and counter % _TICKS_PER_SECOND == 0 and not self.should_exit:
            self._close_surplus(self._balance.surplus(self._clock()))
        return await super().on_tick(counter)

    def _close_surplus(self, number: int) -> None:
        """Make pending responses the last ones of so many connections, so that clients connect to
        other processes.
        """
        for connection in list(self.server_state.connections):
            if number > 0 and cast("Any", connection).drain():
                number -= 1

    async def main_loop(self) -> None:
        await super().main_loop()
        self._shutdown.drain()
        for listener in cast("list[ListeningSocket]", self.servers):
            listener.leave_balance()  # a process that closes connections would soon have the fewest
        for connection in list(self.server_state.connections):
            cast("Any", connection).drain()
        seconds = 0 if self._skip_drain else self._drain_seconds
        logger.info("draining: not ready; accepting connections for %g s", seconds)
        await self._accept_for(seconds)

    async def _accept_for(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        counter = 0
        while loop.time() < until and not self._skip_drain and not self.force_exit:
            counter += 1
            await asyncio.sleep(_TICK)
            await self.on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept queued connections only, and complete pending requests."""
        is_last = self._supervisor is None or self._is_orphan
        for listener in cast("list[ListeningSocket]", self.servers):
            await listener.drain(is_last=is_last)
        for one in sockets or []:
            one.close()
        self.servers = []
        logger.info(
            "closing: accepting no connections; pending requests have %d s", REQUEST_SECONDS
        )
        closing = asyncio.ensure_future(super().shutdown())
        while not closing.done():
            await asyncio.wait({closing}, timeout=_TICK)
            if self.force_exit:
                closing.cancel()
        if not closing.cancelled():
            closing.result()

    @property
    def _shutdown(self) -> Shutdown:
        found = self.lifespan.state.get(SHUTDOWN)
        return found if isinstance(found, Shutdown) else Shutdown()
