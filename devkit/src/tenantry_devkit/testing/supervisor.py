"""The process that runs a test session's PostgreSQL and service, and ends them with the session,
even a killed one.

Run it as a file, ``python -P supervisor.py FOLDER``. Standard input has the service's environment,
as a line of JSON, except for the database. The end of the input, SIGTERM, and the end of the parent
process end it (a forked child may hold the input open). Standard output has a line of JSON:
``{"base_url": address, "database": address}``, or ``{"failed": reason}``. At the end it removes the
folder.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, TextIO

from tenantry_devkit.embedded_postgres import EmbeddedServer, EmbeddedServerError

LOG: Final = "service.log"
_TAIL_LENGTH: Final = 4000
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_WATCH_SECONDS: Final = 0.5
_READY: Final = re.compile(r'^(?:\{.*"message": ")?tenantry is ready at (\S+) ', re.MULTILINE)


class _TestSession:
    """The parent process, as far as this one can observe it."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._signals, write = os.pipe()
        os.set_blocking(write, False)
        # SIGTERM must not interrupt the start of a process
        signal.set_wakeup_fd(write)
        signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
        # Ctrl-C is for the session, which then ends this process
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def is_waiting(self, seconds: float) -> bool:
        """Wait for input, a signal or the parent's end; return False if one of them came in
        time.
        """
        has_input = _has_input(seconds, sys.stdin, self._signals)
        return not has_input and os.getppid() == self._parent

    def wait(self) -> None:
        while self.is_waiting(_WATCH_SECONDS):
            pass

    def read_line(self) -> str:
        """Return the next line of input, or an empty string at the end of the session."""
        self.wait()
        return sys.stdin.readline() if _has_input(0, sys.stdin) else ""


def _has_input(seconds: float, *sources: TextIO | int) -> bool:
    """Wait for one of these sources, at most so long."""
    return bool(select.select(sources, [], [], seconds)[0])


def main() -> None:
    session = _TestSession()
    folder = Path(sys.argv[1])
    try:
        _run(folder, session)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, session: _TestSession) -> None:
    server = EmbeddedServer(folder, durable=False)
    try:
        server.start()
    except (EmbeddedServerError, OSError) as error:
        _report(failed=f"The embedded PostgreSQL does not start. {error}")
        return
    try:
        if environment := session.read_line():
            _serve(
                folder,
                {**json.loads(environment), "DATABASE_URL": server.url},
                session,
            )
    finally:
        server.stop()


def _serve(folder: Path, environment: dict[str, str], session: _TestSession) -> None:
    path = folder / LOG
    with path.open("ab") as log:
        service = subprocess.Popen(
            [sys.executable, "-P", "-m", "tenantry", "serve"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
        )
    try:
        if base_url := _await_start(service, path, session):
            _report(base_url=base_url, database=environment["DATABASE_URL"])
        session.wait()
    finally:
        service.terminate()
        try:
            service.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()


def _await_start(service: subprocess.Popen[bytes], log: Path, session: _TestSession) -> str | None:
    """Return the service's address once it is ready; None after a failure, which it reports, or the
    session's end.
    """
    deadline = time.monotonic() + _START_SECONDS
    while not (found := _READY.search(log.read_text(errors="replace"))):
        has_ended = service.poll() is not None
        if has_ended or time.monotonic() > deadline:
            late = f"It was not ready after {_START_SECONDS:g} s."
            reason = (
                f"`tenantry serve` ended with code {service.returncode}." if has_ended else late
            )
            _report(failed=f"{reason} The end of its log:\n{tail(log)}")
            return None
        if not session.is_waiting(_POLL_SECONDS):
            return None
    return found[1]


def tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-_TAIL_LENGTH:].strip()
    except OSError:
        return ""


def _report(**fields: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the session has ended; so has the input
        sys.stdout.write(f"{json.dumps(fields)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
