"""Run a contestant's server."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx2

from bench.contestant import Server

_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 30


class StartError(RuntimeError):
    """A contestant's program failed; the message has what it wrote."""


@contextlib.contextmanager
def serving(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], server: Server, log: Path
) -> Iterator[Server]:
    """Run a server in ``folder``; yield it with its process id once it answers, and stop it
    afterwards.

    Its output goes to ``log``. Raises `StartError` if it ends early, or gives no answer below 500
    within a minute.
    """
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _await(process, server, log)
        yield replace(server, pid=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await(process: subprocess.Popen[bytes], server: Server, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(httpx2.TransportError):
            if httpx2.get(server.url).status_code < 500:
                return
        time.sleep(0.05)
    raise StartError(
        f"no good answer from {server.url}:\n{log.read_text(errors='replace')[-4000:]}"
    )
