"""However a session of pytest ends, neither processes nor files of the plugin outlive it.

`tests/system/test_plugin_suites.py` kills sessions, and has tests that leave a child.
"""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

from tests.support.commands import Running, running, still_running
from tests.support.suites import OWN_PLUGINS, Suite


def left_in(place: Path) -> list[Path]:
    """The files that are left there."""
    return list(place.iterdir())


WAITING = """
import os, signal

def test_waiting(tenantry):
    assert tenantry.tenant().plan == "free"
    os.write(2, b"it waits\\n")
    signal.pause()
"""


@asynccontextmanager
async def waiting(suite: Suite, place: Path) -> AsyncIterator[tuple[Running, list[psutil.Process]]]:
    """A suite in the midst of its test, and all processes that it has started, whose files are in
    ``place``.
    """
    suite.write("test_waiting.py", WAITING)
    arguments = (*OWN_PLUGINS, "-p", "no:cacheprovider", "-s", "test_waiting.py")
    async with running(
        *arguments, folder=suite.folder, module="pytest", TMPDIR=str(place)
    ) as command:
        await command.until("it waits", "err")
        started = command.family()[1:]
        assert len(started) > 2
        yield command, started


async def check_ended_session(suite: Suite, place: Path, how: signal.Signals, code: int) -> None:
    """Assert that nothing is left of a session that ends with this signal, and its exit code."""
    async with waiting(suite, place) as (command, started):
        assert await command.end(how) == code
        assert await still_running(started) == []
        assert left_in(place) == []


async def test_nothing_is_left_of_a_session_that_is_interrupted(suite: Suite, place: Path) -> None:
    await check_ended_session(suite, place, signal.SIGINT, 2)


async def test_nothing_is_left_of_a_start_that_is_broken_off(suite: Suite, place: Path) -> None:
    suite.write(
        "conftest.py",
        """
        import os
        import pytest

        @pytest.fixture(scope="session")
        def tenantry_settings():
            os.write(2, b"it begins\\n")
            return {}
        """,
    )
    suite.write("test_waiting.py", WAITING)
    arguments = (*OWN_PLUGINS, "-p", "no:cacheprovider", "-s", "test_waiting.py")
    async with running(
        *arguments, folder=suite.folder, module="pytest", TMPDIR=str(place)
    ) as command:
        await command.until("it begins", "err")
        assert await command.end(signal.SIGINT) == 2
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(place) in str(process.info["cmdline"])
    ]
    assert await still_running(left) == []
    assert left_in(place) == []


FORKING = """
import multiprocessing, os, signal, threading

def test_forking(tenantry):
    child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    child.start()
    goes_on = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: goes_on.set())
    os.write(2, f"it has forked {child.pid}.\\n".encode())
    goes_on.wait()
"""


async def check_forked_child(suite: Suite, place: Path, how: signal.Signals, code: int) -> None:
    """Assert that nothing is left but the child of a session that ends with this signal, and its
    exit code.
    """
    suite.write("test_forking.py", FORKING)
    arguments = (*OWN_PLUGINS, "-p", "no:cacheprovider", "-s", "test_forking.py")
    async with running(
        *arguments, folder=suite.folder, module="pytest", TMPDIR=str(place)
    ) as command:
        await command.until(".\n", "err")
        child = psutil.Process(
            int(command.text["err"].partition("it has forked ")[2].partition(".")[0])
        )
        started = [process for process in command.family()[1:] if process != child]
        assert len(started) > 2
        try:
            os.kill(command.pid, how)
            assert await still_running(started) == []
            assert left_in(place) == []
        finally:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        assert await command.wait() == code
