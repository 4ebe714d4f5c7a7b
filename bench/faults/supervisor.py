"""Supervise processes as an init system does: restart each one that ends."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from tests.support.database_server import DatabaseServer, ServerStartError

_RESTART_PAUSE: Final = 0.2
_STOP_TIMEOUT: Final = 40.0


class ProcessSupervisor:
    """Keeps a command running until `stop`; its output goes to ``log``."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._variables = {**os.environ, **variables}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._loop = _RestartLoop(self._run)

    def start(self) -> None:
        """Start the command and supervise it."""
        self._loop.start()

    def processes(self) -> list[psutil.Process]:
        """Return the command's process and then its server processes; nothing while it is down."""
        process = self._process
        if process is None or process.poll() is not None:
            return []
        try:
            first = psutil.Process(process.pid)
            return [first, *first.children()]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """Stop the command."""
        self._loop.over.set()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        self._loop.join(_STOP_TIMEOUT)

    def abandon(self) -> None:
        """Leave the command running, without restarts."""
        self._loop.over.set()

    def _run(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._process.wait()


class DatabaseSupervisor:
    """Restarts a PostgreSQL that is already running, and retries a failed start."""

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._is_started = True
        self._loop = _RestartLoop(self._run)

    def start(self) -> None:
        """Supervise the server."""
        self._loop.start()

    def abandon(self) -> None:
        """Leave the server as it is, without restarts."""
        self._loop.over.set()

    def _run(self) -> None:
        if not self._is_started:
            try:
                self._server.start()
            except ServerStartError:
                return
        self._is_started = False
        if self._server.process is not None:
            self._server.process.wait()


class _RestartLoop(threading.Thread):
    """Calls ``run``, which returns when a process has ended, again and again until it is
    ``over``.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._run_once = run

    def run(self) -> None:
        """Restart until it is over."""
        while not self.over.is_set():
            self._run_once()
            self.over.wait(_RESTART_PAUSE)
