"""A program that is started beside a relay, and ends it by its own end."""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Self

_OURS = "tenantry"
_PATIENCE = 3
"""How many signals a program may leave unheeded before it is killed."""


def command_line(text: str) -> list[str]:
    """The words of a command; ``tenantry`` itself is the one that is running. Raises `ValueError`."""
    words = shlex.split(text)
    if not words:
        raise ValueError("names no program")
    # -P: the folder that this is run in is not one to import from
    return [sys.executable, "-P", "-m", _OURS, *words[1:]] if words[0] == _OURS else words


class Child:
    """A program in a process group of its own, so that a signal from the terminal reaches it once, through us."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._signals = 0

    @classmethod
    async def start(cls, words: Sequence[str], environment: Mapping[str, str], out: IO[str] | None = None) -> Self:
        """Start it, with its output where ours goes, or what it prints to ``out``; raises `OSError`."""
        return cls(
            await asyncio.create_subprocess_exec(
                *words, env=dict(environment), stdin=asyncio.subprocess.DEVNULL, stdout=out, start_new_session=True
            )
        )

    @property
    def is_running(self) -> bool:
        """Whether the program itself has not ended."""
        return self._process.returncode is None

    def send(self, number: int) -> None:
        """Pass a signal on to the program and what it has started; the fourth one kills them."""
        self._signals += 1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number if self._signals <= _PATIENCE else signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code; 128 and the signal's number where a signal ended it, as shells say."""
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)  # what it has started and left behind
        return code if code >= 0 else 128 - code
