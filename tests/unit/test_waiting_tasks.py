"""Where the tasks of an event loop wait, which the report of a test shows that has had its time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.waiting import tasks_of_interrupted_loop


@asynccontextmanager
async def entered() -> AsyncIterator[None]:
    yield
    await asyncio.Event().wait()  # never set


async def waiting() -> None:
    asyncio.get_running_loop().call_soon(interrupt)
    async with entered():
        pass


def interrupt() -> None:
    raise KeyboardInterrupt


def test_each_line_that_waits_is_named_the_innermost_last() -> None:
    with asyncio.Runner() as runner:
        with pytest.raises(KeyboardInterrupt) as raised:
            runner.get_loop().run_until_complete(waiting())
        _, first, _, second, _ = tasks_of_interrupted_loop(raised.tb).splitlines()
    assert first.endswith("in waiting: async with entered():")
    assert second.endswith("in entered: await asyncio.Event().wait()  # never set")


def test_exception_of_a_test_without_a_loop_has_no_tasks() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        interrupt()
    assert tasks_of_interrupted_loop(raised.tb) == ""
