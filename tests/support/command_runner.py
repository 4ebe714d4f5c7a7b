"""``tenantry`` in this process, through click's runner: for tests of what a command writes, returns
and does.

`tests.support.commands` starts real processes, for what only a process shows: signals, pipes,
terminals, crashes.
"""

import asyncio
import importlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from click.testing import BytesIOCopy, CliRunner

from tenantry_cli.client_configuration import WaitTimes
from tenantry_cli.commands import main
from tenantry_sdk import Backoff
from tests.support.authorities import one_authority
from tests.support.commands import Done

QUICK: Final = WaitTimes(
    backoff=Backoff(first=0.002, longest=0.02, in_flight=0.02), poll=0.02, settling=0
)
"""WaitTimes that must pass are short; timeouts, which must not, are those of the commands."""
_LONGEST: Final = 60.0
"""Seconds after which a command that has not ended fails its test."""
_INHERITED_VARIABLES: Final = ("PATH", "LANG", "TMPDIR", "VIRTUAL_ENV")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONLY_COMMAND: Final = threading.Lock()
"""Held by the command that runs: it has the streams, the variables and the folder of the whole
process.
"""


class Command:
    """A command that runs in a thread; the event loop of the test goes on, and the service in
    it.
    """

    def __init__(self, runner: "_Runner", arguments: Sequence[str]) -> None:
        """Start it; there must be a running event loop."""
        loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._runner = runner
        runner.call_on_flush(lambda: loop.call_soon_threadsafe(self._changed.set))
        self._task = asyncio.create_task(asyncio.to_thread(runner.exit_code, arguments))
        self._task.add_done_callback(lambda _: self._changed.set())

    @property
    def text(self) -> dict[str, str]:
        """What the command has written on each stream."""
        return self._runner.written

    async def until(self, text: str, stream: str) -> None:
        """Return once the command has written this text; fail if it ends without it."""
        async with asyncio.timeout(_LONGEST):
            while True:
                self._changed.clear()
                if text in self.text[stream]:
                    return
                assert not self._task.done(), f"it ended: {self.text}"
                await self._changed.wait()

    async def wait(self) -> int:
        """Wait for the end; returns the exit code. Raises what the command does not catch."""
        async with asyncio.timeout(_LONGEST):
            return await asyncio.shield(self._task)

    async def done(self) -> Done:
        """Wait for the end; returns all that the command came to."""
        code = await self.wait()
        return Done(code, self.text["out"], self.text["err"])


@asynccontextmanager
async def running(
    *arguments: str, folder: Path, waits: WaitTimes = QUICK, **values: str
) -> AsyncIterator[Command]:
    """``tenantry`` with these arguments, beside the event loop, while the test goes on.

    It has this working directory and home, these variables and no others of the test. It has to end
    within the block, or soon after it: a thread cannot be killed. A command that handles signals
    needs the main thread: see `invoke`.
    """
    command = Command(_Runner(folder, values, waits), arguments)
    try:
        yield command
    finally:
        await command.wait()


async def invoke_async(
    *arguments: str,
    folder: Path,
    given: str | bytes | None = None,
    typed: str | None = None,
    **values: str,
) -> Done:
    """The same for a command that ends by itself; ``given`` is its standard input.

    With ``typed`` it takes its three streams for a terminal, at which a user types that; its width
    is ``COLUMNS``.
    """
    return await Command(_Runner(folder, values, QUICK, given, typed), arguments).done()


def invoke(*arguments: str, folder: Path, **values: str) -> Done:
    """The same in this thread, which must have no running event loop: most commands run one
    themselves.
    """
    runner = _Runner(folder, values, QUICK)
    code = runner.exit_code(arguments)
    return Done(code, runner.written["out"], runner.written["err"])


class _Runner(CliRunner):
    """Runs one command; an exception that it does not catch is raised, and is no exit code."""

    def __init__(
        self,
        folder: Path,
        values: Mapping[str, str],
        waits: WaitTimes,
        given: str | bytes | None = None,
        typed: str | None = None,
    ) -> None:
        super().__init__(catch_exceptions=False)
        self._folder = folder
        self._values = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), **values}
        self._waits = waits
        self._given = given if typed is None else _Keyboard(typed.encode())
        self._is_terminal = typed is not None
        self._flushed: Callable[[], object] = lambda: None
        self._streams: tuple[io.BytesIO, io.BytesIO] | None = None

    def call_on_flush(self, flushed: Callable[[], object]) -> None:
        """Call this, in the command's thread, when it has written a line."""
        self._flushed = flushed

    def exit_code(self, arguments: Sequence[str]) -> int:
        """Run the command to its end."""
        if not _ONLY_COMMAND.acquire(blocking=False):
            raise RuntimeError("another command runs in this process: only one can")
        try:
            with (
                logging_as_before(),
                _environment(self._folder, self._values),
                self._module_path(),
            ):
                return self.invoke(
                    main, arguments, self._given, prog_name="tenantry", obj=self._waits
                ).exit_code
        finally:
            _ONLY_COMMAND.release()

    @property
    def written(self) -> dict[str, str]:
        """What there is on each stream so far."""
        out, err = (
            ("", "")
            if self._streams is None
            else (one.getvalue().decode() for one in self._streams)
        )
        return {"out": out, "err": err}

    @contextmanager
    def _module_path(self) -> Iterator[None]:
        """Find modules in the folders of ``PYTHONPATH`` too, and forget those that were found there
        after the block.
        """
        path = self._values.get("PYTHONPATH", "").split(os.pathsep)
        folders = [folder for folder in path if folder and folder not in sys.path]
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

    @contextmanager
    def isolation(
        self,
        input: str | bytes | IO[Any] | None = None,  # noqa: A002  # click's name
        env: Mapping[str, str | None] | None = None,
        color: bool = False,
    ) -> Iterator[tuple[io.BytesIO, io.BytesIO, io.BytesIO]]:
        with super().isolation(input, env, color) as (out, err, both):
            for stream in (out, err):
                assert isinstance(stream, BytesIOCopy)
                stream.copy_to = _Flushes(self._flushed)
                if self._is_terminal:
                    stream.isatty = lambda: True  # type: ignore[method-assign]
            self._streams = out, err
            yield out, err, both


class _Keyboard(io.BytesIO):
    """What is typed at a terminal."""

    def isatty(self) -> bool:
        return True


class _Flushes(io.BytesIO):
    """Calls a function when the stream is flushed, which commands do after each line."""

    def __init__(self, flushed: Callable[[], object]) -> None:
        super().__init__()
        self._flushed = flushed

    def flush(self) -> None:
        self._flushed()


@contextmanager
def _environment(folder: Path, values: Mapping[str, str]) -> Iterator[None]:
    """Set the working directory and the environment for the block; put these and the signal
    handlers back.
    """
    environment, before = dict(os.environ), Path.cwd()
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if in_main_thread else {}
    inherited: dict[str, str] = {
        name: environment[name] for name in _INHERITED_VARIABLES if name in environment
    }
    try:
        os.chdir(folder)
        _replace_environment({**inherited, **one_authority(), **values})
        yield
    finally:
        _replace_environment(environment)
        os.chdir(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Put the root logger's handlers and the level of each logger back after the block."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    levels = {
        logger: logger.level
        for logger in (root, *map(logging.getLogger, list(root.manager.loggerDict)))
    }
    try:
        yield
    finally:
        root.handlers[:] = handlers
        for logger, level in levels.items():
            logger.setLevel(level)


def _replace_environment(values: Mapping[str, str]) -> None:
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)
