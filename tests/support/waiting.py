"""Where the tasks of an event loop wait."""

import asyncio
import gc
import linecache
from collections.abc import Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, TracebackType
from typing import Any, Final

TITLE: Final = "Where tasks wait"


def tasks_of_interrupted_loop(traceback: TracebackType | None) -> str:
    """Return the stack of each task that has not ended, of the event loop that an exception with
    this traceback has left; empty if there is none.
    """
    while traceback is not None:
        loop = traceback.tb_frame.f_locals.get("self")
        if isinstance(loop, asyncio.AbstractEventLoop):
            return "\n\n".join(described(task) for task in asyncio.all_tasks(loop))
        traceback = traceback.tb_next
    return ""


def described(task: asyncio.Task[Any]) -> str:
    """Return the name of the task, and a line for each call that waits, the innermost last.

    The standard library shows the outermost one only.
    """
    lines = [
        f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}: "
        f"{linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()}"
        for frame in _frames(task.get_coro())
    ]
    return "\n".join([task.get_name(), *lines])


def _frames(waiting: object) -> Iterator[FrameType]:
    while waiting is not None:
        frame, waiting = _frame_and_awaited(waiting)
        if frame is not None:
            yield frame


def _frame_and_awaited(waiting: object) -> tuple[FrameType | None, object]:
    match waiting:
        case CoroutineType():
            return waiting.cr_frame, waiting.cr_await
        case AsyncGeneratorType():
            return waiting.ag_frame, waiting.ag_await
        case GeneratorType():
            return waiting.gi_frame, waiting.gi_yieldfrom
        case asyncio.Future():
            return None, None
    # `asend` of an asynchronous generator names it only to the garbage collector
    generators = [one for one in gc.get_referents(waiting) if isinstance(one, AsyncGeneratorType)]
    return None, next(iter(generators), None)
