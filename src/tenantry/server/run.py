"""The server of one process, and how it ends without a request that fails."""

import asyncio
import logging
import os
import signal
import socket
from types import FrameType
from typing import Final, cast

import uvicorn

from tenantry.server.accept_loop import Listener
from tenantry.server.protocol import LeanProtocol
from tenantry.server.shutdown import ENDING, Shutdown

REQUEST_SECONDS: Final = 20
"""How long requests under way may take once the process takes no new ones."""

_TICK: Final = 0.1

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """uvicorn's server with a graceful shutdown: a load balancer in front of it loses no request.

    After SIGTERM it drains for ``drain_seconds`` (`Shutdown`); after SIGINT, from a terminal, it does not. Then it
    accepts no new connection, and requests under way have `REQUEST_SECONDS` to end.

    As a single process it ends at once at a second signal. As one of several processes on one socket it gets signals
    from ``supervisor``, a process id, and possibly from others that signal all processes, so it ignores a second one.
    It ends when the supervisor has ended.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float, supervisor: int | None = None) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._supervisor = supervisor
        self._is_hurried = False
        self._is_orphan = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as uvicorn has it
        """Begin to end: a signal has come."""
        self._captured_signals.append(sig)
        if self.should_exit and self._supervisor is None:
            self.force_exit = True
            if self.started:
                self.lifespan.logger.disabled = True  # it is about to be broken off, and would tell where
        self.should_exit = True
        self._is_hurried = self._is_hurried or sig == signal.SIGINT
        if self.started:
            self._ending.is_draining = True  # readiness is denied from now on, not from the next tick

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is time to end."""
        if self._supervisor is not None and os.getppid() != self._supervisor:
            self.should_exit = self._is_hurried = self._is_orphan = True
        return await super().on_tick(counter)

    async def main_loop(self) -> None:
        """Serve until it is time to end, and through the drain."""
        await super().main_loop()
        self._ending.drain()
        for connection in list(self.server_state.connections):
            cast("LeanProtocol", connection).drain()
        seconds = 0 if self._is_hurried else self._drain_seconds
        logger.info("draining: not ready any more, and connections are taken for %g s", seconds)
        loop = asyncio.get_running_loop()
        until, counter = loop.time() + seconds, 0
        while loop.time() < until and not self._is_hurried and not self.force_exit:
            counter += 1
            await asyncio.sleep(_TICK)
            await self.on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take in who waits in the queue and nobody else, and end what is under way."""
        is_last = self._supervisor is None or self._is_orphan
        for listener in cast("list[Listener]", self.servers):
            await listener.drain(is_last=is_last)
        for one in sockets or []:
            one.close()
        self.servers = []
        logger.info("closing: no more connections are taken, requests under way have %d s", REQUEST_SECONDS)
        ending = asyncio.ensure_future(super().shutdown())
        while not ending.done():
            await asyncio.wait({ending}, timeout=_TICK)
            if self.force_exit:
                ending.cancel()
        if not ending.cancelled():
            ending.result()

    @property
    def _ending(self) -> Shutdown:
        ending = self.lifespan.state.get(ENDING)
        return ending if isinstance(ending, Shutdown) else Shutdown()
