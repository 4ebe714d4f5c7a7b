"""Grouping: requests that wait while a batch is in flight form the next one.

No timer: a lone request goes at once. An item only ever joins a batch that has not begun, so whatever
was committed before the item came in is seen by the statements that serve it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from tenantry.domain.errors import DatabaseUnavailableError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_BATCH: Final = 256
_MAX_WAITING: Final = 4096
_DEADLINE: Final = 4.5


class Batcher(Generic[Item, Answer]):
    """Runs ``run`` over groups of items, one group at a time.

    ``run`` gets up to ``most`` items and returns an answer for each, in their order; an exception
    as an answer is raised to that item's submitter alone, one raised by ``run`` to all of them.
    ``deadline`` is in seconds, for each item as for each run.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        most: int = MAX_BATCH,
        most_waiting: int = _MAX_WAITING,
        deadline: float = _DEADLINE,
    ) -> None:
        self._run = run
        self._most = most
        self._most_waiting = most_waiting
        self._deadline = deadline
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._stuck = False

    async def submit(self, item: Item) -> Answer:
        """The answer for ``item``, within the deadline.

        Raises `DatabaseUnavailableError` when there is none by then (the item may still be served), or when too
        many wait already. A submitter that is cancelled before its batch has begun takes its item along.
        """
        if self._stuck or len(self._waiting) >= self._most_waiting:
            raise _busy()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        timer = loop.call_later(self._deadline, _refuse, future)
        try:
            return await future
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Wait until everything that was submitted has been answered."""
        if self._worker is not None:
            await self._worker

    async def _work(self) -> None:
        try:
            while self._waiting:
                if batch := self._next_batch():
                    await self._serve(batch)
        finally:
            self._worker = None

    def _next_batch(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
        return [(item, future) for item, future in batch if not future.done()]

    async def _serve(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        run = asyncio.create_task(self._answer([item for item, _ in batch]))  # noqa: RUF006  # waited for
        done, _ = await asyncio.wait({run}, timeout=self._deadline)
        if not done:
            await self._give_up(batch, run)
        elif error := run.exception():
            for _, future in batch:
                _settle(future, error)
        else:
            for (_, future), answer in zip(batch, run.result(), strict=True):
                _settle(future, answer)

    async def _answer(self, items: Sequence[Item]) -> Sequence[Answer | Exception]:
        answers = await self._run(items)
        if len(answers) != len(items):
            raise RuntimeError(f"{len(answers)} answers for {len(items)} items")
        return answers

    async def _give_up(
        self, batch: list[tuple[Item, asyncio.Future[Answer]]], run: asyncio.Task[Sequence[Answer | Exception]]
    ) -> None:
        """Refuse everybody until the hanging run has let go of its connection."""
        self._stuck = True
        for _, future in [*batch, *self._waiting]:
            _refuse(future)
        self._waiting.clear()
        run.cancel()
        await asyncio.wait({run})
        if not run.cancelled():
            run.exception()
        self._stuck = False


def _settle(future: asyncio.Future[Answer], answer: Answer | BaseException) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _refuse(future: asyncio.Future[Answer]) -> None:
    _settle(future, _busy())


def _busy() -> DatabaseUnavailableError:
    return DatabaseUnavailableError("The database does not keep up or does not answer. Try again shortly.")
