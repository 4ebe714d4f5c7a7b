"""Processes of the baselines: one that prepares something, one that serves."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 30


class BaselineError(RuntimeError):
    """A baseline's process failed; the message has what it wrote."""


def run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Run a command in ``folder`` to its end; returns what it printed. Raises `BaselineError`."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BaselineError(
            f"{command[2]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


@contextlib.contextmanager
def serving(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], *, url: str, log: Path
) -> Iterator[int]:
    """Run a server in ``folder``; yields its process id once ``url`` answers, and stops it
    afterwards.

    What it writes goes to ``log``. Raises `BaselineError` where it ends early, or answers with a
    5xx or not at all within a minute.
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
        _await(process, url, log)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError as answer:
            if answer.code < 500:
                return
            break
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise BaselineError(f"no good answer from {url}:\n{log.read_text(errors='replace')[-4000:]}")
