"""The process that keeps a test session's PostgreSQL and service, and ends them when the session ends, however it ends.

Run as a file, ``python -P keeper.py FOLDER``, so that it has nothing else of this package to read. It is told what to
do on its standard input: first the service's environment, as a line of JSON; that the input is closed means the end, as
do SIGTERM and the end of the process that started this one: a child that this one has forked may hold the input open.
What it has to say goes to standard output, a line of JSON each: ``{"database": address}``, ``{"ready": address}``, or
``{"failed": why}``. In the end it removes the folder.
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
from typing import Final

from tenantry_devkit.embedded_postgres import EmbeddedServer, EmbeddedServerError

LOG: Final = "service.log"
"""The service's log, in the folder."""
TAIL: Final = 4000
"""How many characters of a log are shown."""
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_WATCH_SECONDS: Final = 0.5
_ready = re.compile(r'^(?:\{.*"message": ")?tenantry is ready at (\S+) ', re.MULTILINE)


class _Session:
    """The test session that this process is for, as far as one can tell from here."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._signals, write = os.pipe()
        os.set_blocking(write, False)
        # SIGTERM breaks nothing off, or it could come between the start of a process and the note of it
        signal.set_wakeup_fd(write)
        signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the session, which then ends this one

    def has_news(self, seconds: float) -> bool:
        """Wait for so long until it says something or is over; False if neither has happened."""
        return bool(select.select([sys.stdin, self._signals], [], [], seconds)[0]) or os.getppid() != self._parent

    def wait(self) -> None:
        """Wait until it says something or is over."""
        while not self.has_news(_WATCH_SECONDS):
            pass

    def line(self) -> str:
        """What it says next, an empty text if it is over."""
        self.wait()
        return sys.stdin.readline() if select.select([sys.stdin], [], [], 0)[0] else ""


def main() -> None:
    """Keep what the folder named by the first argument is for."""
    session = _Session()
    folder = Path(sys.argv[1])
    try:
        _keep(folder, session)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep(folder: Path, session: _Session) -> None:
    server = EmbeddedServer(folder, durable=False)
    try:
        server.start()
    except (EmbeddedServerError, OSError) as error:
        _tell(failed=f"The embedded PostgreSQL does not start. {error}")
        return
    try:
        _tell(database=server.url)
        environment = session.line()
        if environment:
            _serve(folder, json.loads(environment), session)
    finally:
        server.stop()


def _serve(folder: Path, environment: dict[str, str], session: _Session) -> None:
    """Run the service until the session is over."""
    path = folder / LOG
    with path.open("ab") as log:
        service = subprocess.Popen(
            [sys.executable, "-P", "-m", "tenantry", "serve"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment,
        )  # fmt: skip
    try:
        _await_start(service, path, session)
        session.wait()
    finally:
        service.terminate()
        try:
            service.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()


def _await_start(service: subprocess.Popen[bytes], log: Path, session: _Session) -> None:
    """Tell when the service is ready, or that it will not be; or return as soon as nobody wants to know."""
    deadline = time.monotonic() + _START_SECONDS
    while not (found := _ready.search(log.read_text(errors="replace"))):
        if service.poll() is not None:
            _tell(failed=f"`tenantry serve` ended with code {service.returncode}. The end of its log:\n{tail(log)}")
            return
        if time.monotonic() > deadline:
            _tell(failed=f"It was not ready after {_START_SECONDS:g} s. The end of its log:\n{tail(log)}")
            return
        if session.has_news(_POLL_SECONDS):
            return
    _tell(ready=found[1])


def tail(log: Path) -> str:
    """The end of a log."""
    try:
        return log.read_text(errors="replace")[-TAIL:].strip()
    except OSError:
        return ""


def _tell(**news: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody is there any more: the input is closed as well
        sys.stdout.write(f"{json.dumps(news)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
