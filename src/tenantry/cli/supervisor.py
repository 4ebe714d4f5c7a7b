"""Runs several server processes on one socket: starts, restarts and ends them."""

import logging
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from time import monotonic
from types import FrameType
from typing import Final

from uvicorn.config import STARTUP_FAILURE

from tenantry.server.accept_loop import HANDSHAKE_SECONDS, reject_new_connections

_spawning: Final = multiprocessing.get_context("spawn")

logger = logging.getLogger(__name__)


class Supervisor:
    """Runs ``serve(socket, own process id)`` in ``count`` processes until SIGTERM or SIGINT, which it passes on.

    Restarts a process that ends unexpectedly, unless it could not start. Processes accept connections for
    ``drain_seconds`` after SIGTERM; then the supervisor, which knows that all of them end, makes the kernel refuse
    new ones. A second signal kills the remaining processes.
    """

    def __init__(
        self, serve: Callable[[socket.socket, int], None], bound: socket.socket, count: int, drain_seconds: float
    ) -> None:
        self._serve = serve
        self._bound = bound
        self._count = count
        self._drain_seconds = drain_seconds
        self._processes: list[SpawnProcess] = []
        self._signals: list[int] = []
        self._is_ending = False
        self._is_signaled = False
        self._refuses_at: float | None = None

    def run(self) -> bool:
        """Run until all processes have ended; return false if one could not start."""
        all_started = True
        woken, waker = socket.socketpair()
        woken.setblocking(False)  # noqa: FBT003  # the standard library's own
        waker.setblocking(False)  # noqa: FBT003  # the same
        with woken, waker:
            signal.set_wakeup_fd(waker.fileno())
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._note)
            for _ in range(self._count):
                self._start()
            while self._processes:
                sentinels = [process.sentinel for process in self._processes]
                if woken in wait([*sentinels, woken], self._seconds_left()):
                    woken.recv(64)
                while self._signals:
                    self._handle(self._signals.pop(0))
                if self._seconds_left() == 0:
                    self._refuse()
                all_started = self._replace_ended() and all_started
            signal.set_wakeup_fd(-1)
        return all_started

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _start(self) -> None:
        process = _spawning.Process(target=self._serve, args=(self._bound, os.getpid()))
        process.start()
        self._processes.append(process)

    def _handle(self, number: int) -> None:
        if self._is_signaled:
            for process in self._processes:
                process.kill()
        elif self._is_ending:  # because a process could not start
            logger.info("received a signal to end; is ending already")
        else:
            self._end(number)
        self._is_signaled = True

    def _end(self, number: int) -> None:
        self._is_ending = True
        seconds = self._drain_seconds - HANDSHAKE_SECONDS if number == signal.SIGTERM else 0
        self._refuses_at = monotonic() + max(0, seconds)
        if seconds <= 0:
            self._refuse()
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    def _seconds_left(self) -> float | None:
        """Return the seconds until the kernel must refuse new connections; None if it need not or already does."""
        return None if self._refuses_at is None else max(0, self._refuses_at - monotonic())

    def _refuse(self) -> None:
        self._refuses_at = None
        reject_new_connections(self._bound)
        self._bound.close()

    def _replace_ended(self) -> bool:
        """Join ended processes, and replace them unless all end; return false if one could not start."""
        all_started = True
        for process in [process for process in self._processes if not process.is_alive()]:
            process.join()
            self._processes.remove(process)
            if self._is_ending:
                continue
            if process.exitcode == STARTUP_FAILURE:
                logger.error("server process %s could not start; the others end", process.pid)
                all_started = False
                self._end(signal.SIGTERM)
            else:
                logger.error("server process %s ended with %s; starting another", process.pid, process.exitcode)
                self._start()
        return all_started
