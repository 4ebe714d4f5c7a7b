"""The process that keeps a test session's PostgreSQL and service, and ends them when the session ends, however it ends.

Run as a file, ``python -P keeper.py FOLDER``, so that it has nothing else of this package to read. It is told what to
do on its standard input: first the service's environment, as a line of JSON; that the input is closed means the end.
The system closes it, too, when the process that started this one was killed. What it has to say goes to standard
output, a line of JSON each: ``{"database": address}``, ``{"ready": address}``, or ``{"failed": why}``. In the end it
removes the folder.
"""

import contextlib
import json
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

from tenantry.db.embedded import EmbeddedServer, EmbeddedServerError

LOG: Final = "service.log"
"""The service's log, in the folder."""
TAIL: Final = 4000
"""How many characters of a log are shown."""
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_ready = re.compile(r"^tenantry is ready at (\S+) ", re.MULTILINE)


def main() -> None:
    """Keep what the folder named by the first argument is for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the session, which then closes the input
    signal.signal(signal.SIGTERM, _end)
    folder = Path(sys.argv[1])
    try:
        _keep(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _keep(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False)
    try:
        server.start()
    except (EmbeddedServerError, OSError) as error:
        _tell(failed=f"The embedded PostgreSQL does not start. {error}")
        return
    try:
        _tell(database=server.url)
        environment = sys.stdin.readline()
        if environment:
            _serve(folder, json.loads(environment))
    finally:
        server.stop()


def _serve(folder: Path, environment: dict[str, str]) -> None:
    """Run the service until the input is closed."""
    path = folder / LOG
    with path.open("ab") as log:
        service = subprocess.Popen(
            [sys.executable, "-P", "-m", "tenantry", "serve"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment,
        )  # fmt: skip
    try:
        _await_start(service, path)
        sys.stdin.read()
    finally:
        service.terminate()
        try:
            service.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()


def _await_start(service: subprocess.Popen[bytes], log: Path) -> None:
    """Tell when the service is ready, or that it will not be; or return as soon as nobody wants to know."""
    deadline = time.monotonic() + _START_SECONDS
    while not (found := _ready.search(log.read_text(errors="replace"))):
        if service.poll() is not None:
            _tell(failed=f"`tenantry serve` ended with code {service.returncode}. The end of its log:\n{tail(log)}")
            return
        if time.monotonic() > deadline:
            _tell(failed=f"It was not ready after {_START_SECONDS:g} s. The end of its log:\n{tail(log)}")
            return
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
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
