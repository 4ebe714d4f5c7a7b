"""The server of one process, with graceful shutdown."""

import asyncio
import logging
import os
import signal
import socket
from types import FrameType
from typing import Final, cast

import uvicorn

from tenantry.server.accept_loop import ListeningSocket
from tenantry.server.protocol import HttpProtocol
from tenantry.server.shutdown import SHUTDOWN, Shutdown

REQUEST_SECONDS: Final = 20  # how long pending requests may take once the process accepts no new ones

_TICK: Final = 0.1

logger = logging.getLogger(__name__)


class GracefulServer(uvicorn.Server):
    """uvicorn's server with a graceful shutdown, during which a load balancer loses no request.

    After SIGTERM it drains for ``drain_seconds`` (`Shutdown`); after SIGINT, from a terminal, it does not. Then it
    accepts no new connection, and pending requests have `REQUEST_SECONDS` to complete.

    A single process exits immediately at a second signal. One of several processes on one socket ignores it, since
    both ``supervisor``, a process id, and others may signal it. It exits when the supervisor has ended.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float, supervisor: int | None = None) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._supervisor = supervisor
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

    async def on_tick(self, counter: int) -> bool:
        if self._supervisor is not None and os.getppid() != self._supervisor:
            self.should_exit = self._skip_drain = self._is_orphan = True
        return await super().on_tick(counter)

    async def main_loop(self) -> None:
        await super().main_loop()
        self._shutdown.drain()
        for connection in list(self.server_state.connections):
            cast("HttpProtocol", connection).drain()
        seconds = 0 if self._skip_drain else self._drain_seconds
        logger.info("draining: not ready; accepting connections for %g s", seconds)
        loop = asyncio.get_running_loop()
        until, counter = loop.time() + seconds, 0
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
        logger.info("closing: accepting no connections; pending requests have %d s", REQUEST_SECONDS)
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
