"""``tenantry`` in this process: for tests of what a command writes, its exit code and what it does to a database.

`tests.support.commands` runs real processes, for what only a process shows: signals, pipes, terminals, crashes.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from tenantry.cli import main
from tests.support.commands import Done

_KEPT: Final = ("PATH", "LANG", "TMPDIR", "VIRTUAL_ENV")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def invoke(*arguments: str, folder: Path, given: str | bytes | None = None, **values: str) -> Done:
    """Run ``tenantry`` with these arguments to its end.

    It has this working directory, these variables and no others of ours, and ``given`` on standard input. An
    exception that the command does not catch is raised here. Inside a running event loop use `invoked`: most commands
    run a loop themselves.
    """
    own = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    with logging_as_before(), surroundings(folder, {**own, **values}):
        result = CliRunner().invoke(main, arguments, input=given, prog_name="tenantry")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


async def invoked(*arguments: str, folder: Path, given: str | bytes | None = None, **values: str) -> Done:
    """`invoke` in a thread, beside the event loop; a command that handles signals needs the main thread."""
    return await asyncio.to_thread(invoke, *arguments, folder=folder, given=given, **values)


@contextmanager
def surroundings(folder: Path, values: Mapping[str, str]) -> Iterator[None]:
    """Set the working directory and the environment for the block; put these and the signal handlers back."""
    environment, before = dict(os.environ), Path.cwd()
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if in_main_thread else {}
    kept: dict[str, str] = {name: environment[name] for name in _KEPT if name in environment}
    try:
        os.chdir(folder)
        _replace_environment({**kept, **values})
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
    levels = {logger: logger.level for logger in (root, *map(logging.getLogger, list(root.manager.loggerDict)))}
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
