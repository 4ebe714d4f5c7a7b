"""What can be seen of a lane's work from outside."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.tracing import Trace, Tracing
from tenantry.domain.errors import DatabaseUnavailableError

Observe = Callable[[int, float, float], None]
"""Told of each batch: how many items it has, how long the first of them waited, and how long it took; in seconds."""


def _noop_observer(_items: int, _waited: float, _took: float) -> None:
    """Nobody wants to know."""


class LaneMetrics(msgspec.Struct, frozen=True):
    """Who is told of a lane's batches; ``name`` is the lane's. With ``tracing`` they are spans, too."""

    name: str
    observe: Observe = _noop_observer
    tracing: Tracing | None = None


NO_METRICS: Final = LaneMetrics("")


# Grouping: requests that wait while a batch is in flight form the next one


Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_BATCH: Final = 256
CROWD: Final = 32
"""Items that must wait for another run to begin beside those under way."""
_MAX_WAITING: Final = 4096
_LOOKS: Final = 4
"""In the time of one's patience."""


class Batcher(Generic[Item, Answer]):
    """Runs ``run`` over groups of items, up to ``at_once`` groups at a time.

    A second group is begun beside the first only where a crowd waits: two small ones cost more than one.
    ``run`` gets up to ``most`` items and returns an answer for each, in their order; an exception
    as an answer is raised to that item's submitter alone, one raised by ``run`` to all of them.
    ``deadline`` is in seconds, for each item as for each run; an item waits for its run no longer than ``patience``.
    ``watch`` is told of each run.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        at_once: int = 1,
        most: int = MAX_BATCH,
        most_waiting: int = _MAX_WAITING,
        patience: float = DEFAULT_TIMEOUTS.batch_start,
        deadline: float = DEFAULT_TIMEOUTS.batch,
        watch: LaneMetrics = NO_METRICS,
    ) -> None:
        self._run = run
        self._lane = watch.name
        self._observe = watch.observe
        self._tracing = watch.tracing
        self._at_once = at_once
        self._most = most
        self._most_waiting = most_waiting
        self._patience = min(patience, deadline)
        self._deadline = deadline
        self._waiting: deque[_Entry[Item, Answer]] = deque()
        self._runs = 0
        self._running: dict[int, list[_Entry[Item, Answer]]] = {}
        self._hanging: set[int] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._watch: asyncio.TimerHandle | None = None

    async def submit(self, item: Item) -> Answer:
        """The answer for ``item``, within the deadline.

        Raises `DatabaseUnavailableError` when there is none by then (the item may still be served), when its run has
        not begun in time, or when too many wait already. A submitter that is cancelled before its batch has begun takes
        its item along.
        """
        if self._hanging or len(self._waiting) >= self._most_waiting:
            raise _busy()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        came = loop.time()
        trace = None if self._tracing is None else self._tracing.current()
        self._waiting.append(_Entry(item, future, came, trace))
        workers = len(self._workers)
        if not workers or (workers < self._at_once and len(self._waiting) >= CROWD):
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)  # also where it is cancelled before it begins
        if self._watch is None:  # one timer for all
            self._watch = loop.call_later(self._patience / _LOOKS, self._refuse_overdue)
        return await future

    async def close(self) -> None:
        """Wait until everything that was submitted has been answered."""
        while self._workers:
            await asyncio.wait(self._workers)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _work(self) -> None:
        while self._waiting and (len(self._workers) == 1 or len(self._waiting) >= CROWD):
            if batch := self._next_batch():
                await self._serve(batch)
        self._workers -= {asyncio.current_task()}  # at once: whoever submits now must begin another

    def _next_batch(self) -> list["_Entry[Item, Answer]"]:
        batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
        return [entry for entry in batch if not entry.future.done()]

    async def _serve(self, batch: list["_Entry[Item, Answer]"]) -> None:
        self._runs += 1
        number = self._runs
        self._running[number] = batch
        loop = asyncio.get_running_loop()
        began = loop.time()
        alarm = loop.call_later(self._deadline, self._give_up, number)
        try:
            async with asyncio.timeout(self._deadline):
                answers = await self._answer(batch)
        except Exception as error:  # noqa: BLE001  # theirs who submitted
            for entry in batch:
                _settle(entry.future, error)
        else:
            for entry, answer in zip(batch, answers, strict=True):
                _settle(entry.future, answer)
        finally:
            alarm.cancel()
            del self._running[number]
            self._hanging.discard(number)
            self._observe(len(batch), began - batch[0].came, loop.time() - began)

    async def _answer(self, batch: Sequence["_Entry[Item, Answer]"]) -> Sequence[Answer | Exception]:
        items = [entry.item for entry in batch]
        if self._tracing is None:
            answers = await self._run(items)
        else:
            with self._tracing.batch(self._lane, [entry.trace for entry in batch]):
                answers = await self._run(items)
        if len(answers) != len(items):
            raise RuntimeError(f"{len(answers)} answers for {len(items)} items")
        return answers

    def _give_up(self, number: int) -> None:
        """Refuse everybody until the hanging run has let go of its connection."""
        self._hanging.add(number)
        for entry in (*self._running[number], *self._waiting):
            _refuse(entry.future)
        self._waiting.clear()

    def _refuse_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        running = [(batch, self._deadline) for batch in self._running.values()]
        for entries, seconds in (*running, (self._waiting, self._patience)):
            for entry in entries:
                if entry.came + seconds > now:
                    break  # who came first is due first
                _refuse(entry.future)
        is_idle = not self._running and not self._waiting
        self._watch = None if is_idle else loop.call_later(self._patience / _LOOKS, self._refuse_overdue)


class _Entry(msgspec.Struct, Generic[Item, Answer], frozen=True):
    """An item that waits for its answer, when it came, on the event loop's clock, and what it is part of."""

    item: Item
    future: "asyncio.Future[Answer]"
    came: float
    trace: Trace | None = None


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
