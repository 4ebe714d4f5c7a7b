"""What an init system does: a program that has ended is begun anew."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from tests.support.database_server import DatabaseServer, ServerStartError

PAUSE: Final = 0.2
"""Seconds between an end and the next beginning."""
_PATIENCE: Final = 40.0


class Keeper:
    """Keeps a command running until `stop`; what it writes goes to ``log``."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._variables = {**os.environ, **variables}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = _Watch(self._begin, self._wait)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def family(self) -> list[psutil.Process]:
        """The command's process, and after it those that it has started to serve; none while it is down."""
        process = self._process
        if process is None or process.poll() is not None:
            return []
        try:
            own = psutil.Process(process.pid)
            return [own, *(child for child in own.children() if "spawn_main" in " ".join(child.cmdline()))]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """End it, as an init system does at the end of the day."""
        self._thread.over.set()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        self._thread.join(_PATIENCE)

    def leave(self) -> None:
        """Begin it no more, and leave it alone."""
        self._thread.over.set()

    def _begin(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait()


class DatabaseKeeper:
    """The same for a PostgreSQL, which is running; one that does not come up is tried again."""

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._thread = _Watch(self._begin, self._wait, is_begun=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Let it go; the server goes on."""
        self._thread.over.set()

    def _begin(self) -> None:
        try:
            self._server.start()
        except ServerStartError:
            return

    def _wait(self) -> None:
        process = self._server.process
        if process is not None:
            process.wait()


class _Watch(threading.Thread):
    """Begins, waits for the end, and begins again, until it is ``over``."""

    def __init__(self, begin: Callable[[], None], wait: Callable[[], None], *, is_begun: bool = False) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._is_begun = is_begun
        self._begin = begin
        self._wait = wait

    def run(self) -> None:
        """Watch."""
        while not self.over.is_set():
            if not self._is_begun:
                self._begin()
            self._is_begun = False
            self._wait()
            self.over.wait(PAUSE)
