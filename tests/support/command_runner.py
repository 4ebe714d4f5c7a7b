"""``tenantry`` in this process while the test goes on: for commands that use a service, which runs in the test's loop.

It gives commands short waits, lets a test see what a command writes before it ends, and can look like a terminal.
`tests.support.in_process_command` is the plainer one; `tests.support.commands` starts real processes.
"""

import asyncio
import importlib
import io
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from click.testing import CliRunner

from tenantry.cli import main
from tenantry.cli.api.waits import Waits
from tenantry_sdk._retry import Backoff
from tests.support.commands import Done
from tests.support.in_process_command import logging_as_before, surroundings

QUICK: Final = Waits(backoff=Backoff(first=0.002, longest=0.02, in_flight=0.02), poll=0.02)
"""Waits that must pass are short; timeouts, which must not, are those of the commands."""
_PATIENCE: Final = 60.0
_ALONE: Final = threading.Lock()
"""A command has the streams, the variables and the folder of the whole process: there is one at a time."""


class Command:
    """A command that runs in a thread; the event loop of the test goes on, and the service in it."""

    def __init__(
        self, arguments: tuple[str, ...], folder: Path, values: Mapping[str, str], waits: Waits, typed: str | None
    ) -> None:
        """``values`` are the variables that the command sees; ``waits`` and ``typed`` are as in `run`."""
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._runner = _Runner(self._notify, typed)
        self._task = asyncio.create_task(asyncio.to_thread(self._run, arguments, folder, values, waits))
        self._task.add_done_callback(lambda _: self._changed.set())

    @property
    def text(self) -> dict[str, str]:
        """What the command has written on each stream."""
        return self._runner.written()

    async def until(self, text: str, stream: str) -> None:
        """Return once the command has written this text; fail if it ends without it."""
        async with asyncio.timeout(_PATIENCE):
            while True:
                self._changed.clear()
                if text in self.text[stream]:
                    return
                assert not self._task.done(), f"it ended: {self.text}"
                await self._changed.wait()

    async def wait(self) -> int:
        """Wait for the end; returns the exit code. Raises what the command does not catch."""
        async with asyncio.timeout(_PATIENCE):
            return await asyncio.shield(self._task)

    async def done(self) -> Done:
        """Wait for the end; returns all that the command came to."""
        code = await self.wait()
        return Done(code, self.text["out"], self.text["err"])

    def _run(self, arguments: tuple[str, ...], folder: Path, values: Mapping[str, str], waits: Waits) -> int:
        if not _ALONE.acquire(blocking=False):
            raise RuntimeError("another command runs in this process: only one can")
        try:
            with logging_as_before(), surroundings(folder, values), _module_path(values.get("PYTHONPATH", "")):
                return self._runner.exit_code(arguments, waits)
        finally:
            _ALONE.release()

    def _notify(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)


@asynccontextmanager
async def running(*arguments: str, folder: Path, waits: Waits = QUICK, **values: str) -> AsyncIterator[Command]:
    """``tenantry`` with these arguments, in this folder, with these variables and no others of ours.

    It has to end within the block, or soon after it: a thread cannot be killed.
    """
    command = Command(arguments, folder, values, waits, None)
    try:
        yield command
    finally:
        await command.wait()


async def run(*arguments: str, folder: Path, waits: Waits = QUICK, typed: str | None = None, **values: str) -> Done:
    """The same for a command that ends by itself.

    With ``typed`` it takes its three streams for a terminal, at which somebody types that; its width is ``COLUMNS``.
    """
    return await Command(arguments, folder, values, waits, typed).done()


class _Runner(CliRunner):
    """Calls ``heard`` when the command has written something; an uncaught exception is no exit code here."""

    def __init__(self, heard: Callable[[], None], typed: str | None) -> None:
        super().__init__(catch_exceptions=False)
        self._heard = heard
        self._typed = typed
        self._streams: tuple[io.BytesIO, io.BytesIO] | None = None

    def exit_code(self, arguments: Sequence[str], waits: Waits) -> int:
        """What a command ends with."""
        typed = None if self._typed is None else _Keyboard(self._typed.encode())
        return self.invoke(main, arguments, typed, prog_name="tenantry", obj=waits).exit_code

    def written(self) -> dict[str, str]:
        """What there is on each stream so far."""
        out, err = ("", "") if self._streams is None else (one.getvalue().decode() for one in self._streams)
        return {"out": out, "err": err}

    @contextmanager
    def isolation(
        self,
        input: str | bytes | IO[Any] | None = None,  # noqa: A002  # click's name
        env: Mapping[str, str | None] | None = None,
        color: bool = False,
    ) -> Iterator[tuple[io.BytesIO, io.BytesIO, io.BytesIO]]:
        with super().isolation(input, env, color) as (out, err, both):
            for stream in (out, err):
                stream.copy_to = _Ear(self._heard)  # type: ignore[attr-defined]  # each is a `BytesIOCopy`
                if self._typed is not None:
                    stream.isatty = lambda: True  # type: ignore[method-assign]
            self._streams = out, err
            yield out, err, both


class _Keyboard(io.BytesIO):
    """What is typed at a terminal."""

    def isatty(self) -> bool:
        return True


class _Ear(io.BytesIO):
    """Hears that a stream was flushed, which commands do after each line."""

    def __init__(self, heard: Callable[[], None]) -> None:
        super().__init__()
        self._heard = heard

    def flush(self) -> None:
        self._heard()


@contextmanager
def _module_path(path: str) -> Iterator[None]:
    """Find modules in these folders too, as ``PYTHONPATH`` says; those that were found there are forgotten after it."""
    folders = [folder for folder in path.split(os.pathsep) if folder and folder not in sys.path]
    if not folders:
        yield
        return
    before = set(sys.modules)
    sys.path[:0] = folders
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = [folder for folder in sys.path if folder not in folders]
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(tuple(folders)):
                del sys.modules[name]
