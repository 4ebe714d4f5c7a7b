"""Supervise processes as an init system does: restart each one that ends."""

import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from tests.support.database_server import DatabaseServer, ServerStartError

_RESTART_PAUSE: Final = 0.2
_STOP_TIMEOUT: Final = 40.0


class _Supervisor(threading.Thread, ABC):
    """Runs something, and again whenever it has ended, until it is abandoned."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._is_over = threading.Event()

    @abstractmethod
    def _run_once(self) -> None:
        """Run it, and return when it has ended."""

    def run(self) -> None:
        """Restart until it is over."""
        while not self._is_over.is_set():
            self._run_once()
            self._is_over.wait(_RESTART_PAUSE)

    def abandon(self) -> None:
        """Leave it running, without restarts."""
        self._is_over.set()


class ProcessSupervisor(_Supervisor):
    """Keeps a command running until `stop`; its output goes to ``log``."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        super().__init__()
        self._command = command
        self._variables = {**os.environ, **variables}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

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
        self.abandon()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        self.join(_STOP_TIMEOUT)

    def _run_once(self) -> None:
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


class DatabaseSupervisor(_Supervisor):
    """Restarts a PostgreSQL that is already running, and retries a failed start."""

    def __init__(self, server: DatabaseServer) -> None:
        super().__init__()
        self._server = server
        self._is_started = True

    def _run_once(self) -> None:
        if not self._is_started:
            try:
                self._server.start()
            except ServerStartError:
                return
        self._is_started = False
        if self._server.process is not None:
            self._server.process.wait()
