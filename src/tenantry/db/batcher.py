"""Batching: requests that wait while a batch is in progress form the next one."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.tracing import Trace, Tracing
from tenantry.domain.errors import DatabaseUnavailableError

BatchObserver = Callable[[int, float, float], None]
"""Called after each batch with its number of items, the wait of the first one and its duration, in
seconds.
"""


class BatchMetrics(msgspec.Struct, frozen=True):
    """The observer of the batches of the lane ``name``. With ``tracing`` they are spans, too."""

    name: str
    observe: BatchObserver = lambda _items, _waited, _took: None
    tracing: Tracing | None = None


NO_BATCH_METRICS: Final = BatchMetrics("")

Item = TypeVar("Item")
Answer = TypeVar("Answer")
_Received_contra = TypeVar("_Received_contra", contravariant=True)


class Receiver(Protocol[_Received_contra]):
    """Takes the answer of an item; a future is one."""

    def done(self) -> bool:
        """Whether it needs no answer any more."""

    def set_result(self, result: _Received_contra, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


MAX_ITEMS: Final = 256
# waiting items from which another batch starts beside those in progress
CONCURRENT_ITEMS: Final = 32
GATHER_SECONDS: Final = 0.001
"""How long a batch waits for items that will probably follow: each batch costs as much processor
time as 20 items do.
"""
_MAX_WAITING: Final = 4096
_GATHERED_SHARE: Final = 0.8
_MAX_GATHERED: Final = 24
_MANY_SUBMITTERS: Final = 48
_CHECKS_PER_TIMEOUT: Final = 4


@dataclass(eq=False)
class Batcher(Generic[Item, Answer]):
    """Calls ``run`` with batches of up to ``max_items`` items, in up to ``max_concurrent`` calls at
    a time.

    A second batch starts beside the first one only if `CONCURRENT_ITEMS` wait: two small ones cost
    more than one. For the same reason a batch that follows another one may wait up to
    ``gather_seconds`` for most of its submitters to send their next items. With ``alternates`` a
    batch takes half of many submitters' items at most, so that PostgreSQL answers one half while
    the process works for the other: for statements that only read, since each commit costs more.

    ``run`` returns an answer for each item, in order. An exception as an answer is raised to the
    item's submitter, one that ``run`` raises to all of them. A future as an answer is a later one:
    the batch ends without it, and it must not fail. An item waits for its batch at most
    ``start_timeout`` seconds, and for its answer at most ``deadline`` seconds, which also bounds a
    batch.
    """

    run: Callable[
        [Sequence[Item]], Awaitable[Sequence[Answer | Exception | asyncio.Future[Answer]]]
    ]
    _: KW_ONLY
    max_concurrent: int = 1
    max_items: int = MAX_ITEMS
    max_waiting: int = _MAX_WAITING
    gather_seconds: float = 0.0
    alternates: bool = False
    start_timeout: float = DEFAULT_TIMEOUTS.batch_start
    deadline: float = DEFAULT_TIMEOUTS.batch
    metrics: BatchMetrics = NO_BATCH_METRICS

    def __post_init__(self) -> None:
        self._tracing = self.metrics.tracing
        self._start_timeout = min(self.start_timeout, self.deadline)
        self._waiting: deque[_QueuedItem[Item, Answer]] = deque()
        self._runs = 0
        self._submitters = 0  # of the last batch, and those that waited at its end
        self._ended_at = -math.inf
        self._gathering: tuple[int, asyncio.Future[None]] | None = None
        self._running: dict[int, list[_QueuedItem[Item, Answer]]] = {}
        self._hanging: set[int] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def submit(self, item: Item) -> Answer:
        """Return the answer for ``item`` within the deadline.

        Raises `DatabaseUnavailableError` on a timeout (the item may still be processed) or if too
        many items wait. If the submitter is canceled before its batch starts, its item is dropped.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.submit_for(future, item)
        return await future

    def submit_for(self, receiver: Receiver[Answer], item: Item) -> None:
        """Give ``receiver`` what `submit` returns or raises, in a later turn of the event loop.

        Raises `DatabaseUnavailableError` if too many items wait.
        """
        if self._hanging or len(self._waiting) >= self.max_waiting:
            raise _busy()
        loop = asyncio.get_running_loop()
        trace = None if self._tracing is None else self._tracing.current()
        self._waiting.append(_QueuedItem(item, receiver, loop.time(), trace))
        self._wake()
        if self._timer is None:
            self._check_again(loop)

    def _wake(self) -> None:
        """Start a worker if one more is needed, or end its wait for submitters."""
        waiting = len(self._waiting)
        if self._gathering is not None and waiting >= self._gathering[0]:
            _resolve(self._gathering[1], None)
        workers = len(self._workers)
        if not workers or (workers < self.max_concurrent and waiting >= CONCURRENT_ITEMS):
            # not in the trace of this submitter
            worker = asyncio.create_task(self._work(), context=Context())
            self._workers.add(worker)
            # also if it is canceled before it starts
            worker.add_done_callback(self._workers.discard)

    def _check_again(self, loop: asyncio.AbstractEventLoop) -> None:
        seconds = self._start_timeout / _CHECKS_PER_TIMEOUT
        self._timer = loop.call_later(seconds, self._refuse_overdue)

    async def close(self) -> None:
        """Wait until all submitted items are answered."""
        while self._workers:
            await asyncio.wait(self._workers)
        await asyncio.sleep(0)  # the last answers are delivered in the next turn
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _work(self) -> None:
        while self._waiting and (len(self._workers) == 1 or len(self._waiting) >= CONCURRENT_ITEMS):
            if self.gather_seconds:
                await self._gather()
            if batch := self._take_batch():
                await self._process(batch)
        # now: the next submitter must start another worker
        self._workers -= {asyncio.current_task()}

    def _take_batch(self) -> list["_QueuedItem[Item, Answer]"]:
        """Return the next items, without those of submitters that no longer wait."""
        number = min(self.max_items, len(self._waiting), self._share())
        taken = [self._waiting.popleft() for _ in range(number)]
        return [queued for queued in taken if not queued.receiver.done()]

    def _share(self) -> int:
        """Return how many items a batch may take from all submitters."""
        submitters = max(self._submitters, len(self._waiting))
        if not self.alternates or submitters < _MANY_SUBMITTERS:
            return self.max_items
        return math.ceil(submitters / 2)

    async def _gather(self) -> None:
        """Wait for `_GATHERED_SHARE` of the last batch's submitters, if it has just ended."""
        loop = asyncio.get_running_loop()
        number = min(_MAX_GATHERED, int(self._submitters * _GATHERED_SHARE))
        if len(self._waiting) >= number or loop.time() - self._ended_at > self.gather_seconds:
            return
        enough: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(self.gather_seconds, _resolve, enough, None)
        self._gathering = number, enough
        try:
            await enough
        finally:
            self._gathering = None
            timer.cancel()

    async def _process(self, batch: list["_QueuedItem[Item, Answer]"]) -> None:
        self._runs += 1
        number = self._runs
        self._running[number] = batch
        loop = asyncio.get_running_loop()
        started = loop.time()
        alarm = loop.call_later(self.deadline, self._refuse_all, number)
        try:
            async with asyncio.timeout(self.deadline):
                answers = await self._answer(batch)
        except Exception as error:  # noqa: BLE001  # the submitters handle it
            answers = [error] * len(batch)
        finally:
            alarm.cancel()
            self._ended_at, self._submitters = loop.time(), len(batch) + len(self._waiting)
            del self._running[number]
            self._hanging.discard(number)
            self.metrics.observe(
                len(batch),
                started - batch[0].queued_at,
                loop.time() - started,
            )
        # later: PostgreSQL answers the next batch while the submitters handle these answers
        loop.call_soon(_deliver, batch, answers, self.deadline)

    async def _answer(
        self, batch: Sequence["_QueuedItem[Item, Answer]"]
    ) -> Sequence[Answer | Exception | asyncio.Future[Answer]]:
        items = [queued.item for queued in batch]
        if self._tracing is None:
            answers = await self.run(items)
        else:
            with self._tracing.batch(self.metrics.name, [queued.trace for queued in batch]):
                answers = await self.run(items)
        if len(answers) != len(items):
            raise RuntimeError(f"{len(answers)} answers for {len(items)} items")
        return answers

    def _refuse_all(self, number: int) -> None:
        """Refuse all items until the hanging batch releases its connection."""
        self._hanging.add(number)
        for queued in (*self._running[number], *self._waiting):
            _resolve(queued.receiver, _busy())
        self._waiting.clear()

    def _refuse_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        running = [(batch, self.deadline) for batch in self._running.values()]
        for batch, seconds in (*running, ([*self._waiting], self._start_timeout)):
            for queued in batch:
                if queued.queued_at + seconds > now:
                    break  # the others were queued later
                _resolve(queued.receiver, _busy())
        self._timer = None
        if self._running or self._waiting:
            self._check_again(loop)


class _QueuedItem(msgspec.Struct, Generic[Item, Answer], frozen=True):
    """An item, with its submitter's trace; ``queued_at`` is on the event loop's clock."""

    item: Item
    receiver: Receiver[Answer]
    queued_at: float
    trace: Trace | None = None


def _deliver(
    batch: Sequence[_QueuedItem[Item, Answer]],
    answers: Sequence[Answer | Exception | asyncio.Future[Answer]],
    deadline: float,
) -> None:
    for queued, answer in zip(batch, answers, strict=True):
        if isinstance(answer, asyncio.Future):
            _deliver_later(queued, answer, deadline)
        else:
            _resolve(queued.receiver, answer)


def _deliver_later(
    queued: _QueuedItem[Item, Answer], answer: asyncio.Future[Answer], deadline: float
) -> None:
    """Deliver an answer that comes after its batch, or an error at the item's deadline."""
    loop = asyncio.get_running_loop()
    alarm = loop.call_at(queued.queued_at + deadline, _resolve, queued.receiver, _busy())
    answer.add_done_callback(partial(_resolve_by, queued.receiver, alarm))


def _resolve(receiver: Receiver[Answer], answer: Answer | BaseException) -> None:
    if receiver.done():
        return
    if isinstance(answer, BaseException):
        receiver.set_exception(answer)
    else:
        receiver.set_result(answer)


def _resolve_by(
    receiver: Receiver[Answer], alarm: asyncio.TimerHandle, answer: asyncio.Future[Answer]
) -> None:
    alarm.cancel()
    _resolve(receiver, _busy() if answer.cancelled() else answer.result())


def _busy() -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        "The database does not keep up or does not answer. Try again shortly."
    )
