"""The background work of a process: loops that outlast failures, and the order in which all of it
ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final

import psycopg

from tenantry.db.database import UNAVAILABLE
from tenantry.domain.errors import DomainError

_RECANCEL_AFTER: Final = 1.0
"""Seconds."""

Work = Callable[[], Awaitable[None]]
"""One pass of a loop."""

logger = logging.getLogger(__name__)


class BackgroundGroup(AsyncExitStack):
    """An exit stack that also runs loops and tasks, until its block ends.

    Everything ends in reverse order, so a loop may use what was entered before it. An
    `asyncio.TaskGroup` would end its tasks in any order, and all of them after the failure of one.
    ``sleep`` waits so many seconds between two passes of a loop.
    """

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        super().__init__()
        self._sleep = sleep

    def repeat(
        self,
        name: str,
        work: Work,
        *,
        every: float | Callable[[], float],
        last: Work | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Run ``work`` now, and again each time after so many seconds. Once the loop has ended,
        run ``last``.

        A pass that fails is logged, and the next one runs at its time. Only the first of several
        failures is logged, and the first success after them: ``name`` is a plural, such as
        "webhooks". The ``level`` is that of a failure for which another service is the reason.
        """
        passes = _Passes(name, level)
        if last is not None:
            # whatever the passes logged: what the last one does not write is lost
            self.push_async_callback(_Passes(name, level).attempt, last)
        self.start(self._repeat(passes, work, every))

    def start(
        self, work: Coroutine[None, None, None], recancel_after: float = _RECANCEL_AFTER
    ) -> "asyncio.Task[None]":
        """Start a task, and `stop` it at the end."""
        task = asyncio.create_task(work)
        self.push_async_callback(stop, task, recancel_after)
        return task

    async def _repeat(
        self, passes: "_Passes", work: Work, every: float | Callable[[], float]
    ) -> None:
        while True:
            await passes.attempt(work)
            await self._sleep(every() if callable(every) else every)


@dataclass(eq=False)
class _Passes:
    """The passes of one loop."""

    name: str
    level: int
    is_interrupted: bool = False

    async def attempt(self, work: Work) -> None:
        """Run one pass. Log its failure, unless the one before failed too."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # the next pass may succeed after any error
            if not self.is_interrupted:
                self._log_failure(error)
            self.is_interrupted = True
        else:
            if self.is_interrupted:
                logger.info("%s continue", self.name)
            self.is_interrupted = False

    def _log_failure(self, error: Exception) -> None:
        text = "%s are interrupted: %s"
        cause = error.__cause__ or error
        if isinstance(cause, psycopg.Error) and not isinstance(cause, UNAVAILABLE):
            # its text may contain personal data
            logger.error(text, self.name, type(cause).__name__)
        elif isinstance(error, DomainError) or isinstance(cause, UNAVAILABLE):
            logger.log(self.level, text, self.name, str(cause) or type(cause).__name__)
        else:
            logger.error(text, self.name, type(error).__name__, exc_info=error)


async def stop(task: "asyncio.Task[None]", recancel_after: float = _RECANCEL_AFTER) -> None:
    """Cancel a task unless that has begun, and wait for its end; cancel it again after
    ``recancel_after`` seconds.
    """
    if not task.cancelling():
        task.cancel()
    _, late = await asyncio.wait([task], timeout=recancel_after)
    # a pool may lose the cancellation (until Python 3.12), and the end of a task may be shielded
    while late:
        task.cancel()
        _, late = await asyncio.wait([task], timeout=_RECANCEL_AFTER)
    with suppress(asyncio.CancelledError):
        await task
