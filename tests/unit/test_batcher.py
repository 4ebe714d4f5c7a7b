"""Grouping requests."""

import asyncio
from collections.abc import Sequence

import pytest
import uvloop

from tenantry.db.batcher import CONCURRENT_ITEMS, Batcher
from tenantry.domain.errors import DatabaseUnavailableError

Answers = Sequence[int | Exception]


class Doubler:
    """Doubles numbers in batches; each batch waits for its release."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.started = asyncio.Event()
        self.under_way = 0
        self.most_at_once = 0

    async def run(self, items: Sequence[int]) -> Answers:
        self.batches.append(list(items))
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        self.started.set()
        await self.gate.wait()
        self.under_way -= 1
        return [item * 2 for item in items]


async def held(batcher: Batcher[int, int], doubler: Doubler, first: int) -> asyncio.Task[int]:
    """Return a submitted item whose batch is in progress."""
    task = asyncio.create_task(batcher.submit(first))
    await doubler.started.wait()
    return task


async def submitted(batcher: Batcher[int, int], *items: int) -> list[asyncio.Task[int]]:
    """Further items that wait in the batcher."""
    tasks = [asyncio.create_task(batcher.submit(item)) for item in items]
    await asyncio.sleep(0)
    return tasks


async def test_single_item_starts_a_batch_immediately() -> None:
    doubler = Doubler()
    doubler.gate.set()
    assert await Batcher(doubler.run).submit(1) == 2
    assert doubler.batches == [[1]]


async def test_second_batch_starts_when_many_items_wait() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run, max_concurrent=2)
    first = await held(batcher, doubler, 0)
    few = await submitted(batcher, *range(1, CONCURRENT_ITEMS))
    assert doubler.batches == [[0]]
    doubler.started.clear()
    many = await submitted(batcher, CONCURRENT_ITEMS)
    await doubler.started.wait()
    assert doubler.batches == [[0], [*range(1, CONCURRENT_ITEMS + 1)]]
    third = await submitted(batcher, *range(100, 100 + CONCURRENT_ITEMS))
    doubler.gate.set()
    answers = await asyncio.gather(first, *few, *many, *third)
    assert answers == [
        2 * item for item in (*range(CONCURRENT_ITEMS + 1), *range(100, 100 + CONCURRENT_ITEMS))
    ]
    assert doubler.most_at_once == 2


async def test_closing_waits_for_all_batches() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run, max_concurrent=2)
    tasks = await submitted(batcher, *range(2 * CONCURRENT_ITEMS))
    closing = asyncio.create_task(batcher.close())
    doubler.gate.set()
    await closing
    assert all(task.done() for task in tasks)


async def test_worker_canceled_before_it_starts_blocks_no_item() -> None:
    doubler = Doubler()
    doubler.gate.set()
    batcher = Batcher(doubler.run)
    others = asyncio.all_tasks()
    [lost] = await submitted(batcher, 1)
    [worker] = asyncio.all_tasks() - others - {lost}
    worker.cancel()
    await asyncio.wait([worker])
    assert await batcher.submit(2) == 4
    assert await lost == 2
    await batcher.close()


async def test_waiting_items_form_the_next_batch() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run)
    first = await held(batcher, doubler, 1)
    others = await submitted(batcher, 2, 3, 4)
    assert doubler.batches == [[1]]
    doubler.gate.set()
    assert await asyncio.gather(first, *others) == [2, 4, 6, 8]
    assert doubler.batches == [[1], [2, 3, 4]]


async def test_a_batch_has_a_bound() -> None:
    doubler = Doubler()
    doubler.gate.set()
    batcher = Batcher(doubler.run, max_items=2)
    await asyncio.gather(*(batcher.submit(number) for number in range(5)))
    assert doubler.batches == [[0, 1], [2, 3], [4]]


async def test_error_of_one_item_is_raised_to_its_submitter() -> None:
    async def run(items: Sequence[int]) -> Answers:
        return [ValueError("two") if item == 2 else item for item in items]

    batcher = Batcher(run)
    answers = await asyncio.gather(
        *(batcher.submit(number) for number in (1, 2, 3)), return_exceptions=True
    )
    assert [repr(answer) for answer in answers] == ["1", "ValueError('two')", "3"]


async def test_error_of_a_batch_is_raised_to_all_its_submitters() -> None:
    async def run(items: Sequence[int]) -> Answers:
        if 2 in items:
            raise ValueError("two")
        return list(items)

    batcher = Batcher(run, max_items=2)
    answers = await asyncio.gather(
        *(batcher.submit(number) for number in range(1, 5)), return_exceptions=True
    )
    assert [repr(answer) for answer in answers] == [
        "ValueError('two')",
        "ValueError('two')",
        "3",
        "4",
    ]


async def test_too_few_answers_are_a_failure_of_the_run() -> None:
    async def run(_items: Sequence[int]) -> Answers:
        return [1]

    batcher = Batcher(run)
    answers = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)
    assert [type(answer) for answer in answers] == [RuntimeError, RuntimeError]


async def test_hanging_batch_refuses_all_waiting_items() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run, deadline=0.05)
    first = await held(batcher, doubler, 1)
    others = await submitted(batcher, 2, 3)
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DatabaseUnavailableError] * 3


async def test_batches_continue_after_a_hanging_one() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run, deadline=0.05)
    with pytest.raises(DatabaseUnavailableError):
        await batcher.submit(1)
    await batcher.close()
    doubler.gate.set()
    assert await batcher.submit(2) == 4


async def test_items_are_refused_while_a_batch_hangs() -> None:
    release = asyncio.Event()

    async def run(_items: Sequence[int]) -> Answers:
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
        return []

    batcher: Batcher[int, int] = Batcher(run, deadline=0.01)
    with pytest.raises(DatabaseUnavailableError):
        await batcher.submit(1)
    with pytest.raises(DatabaseUnavailableError):
        await batcher.submit(2)
    release.set()
    await batcher.close()


async def test_an_item_does_not_wait_longer_than_its_own_deadline() -> None:
    """However many sound runs come before it."""
    turns = 0

    async def run(items: Sequence[int]) -> Answers:
        nonlocal turns
        turns += 1
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.04)
        return list(items)

    batcher: Batcher[int, int] = Batcher(run, max_items=1, deadline=0.05)
    answers = await asyncio.gather(
        *(batcher.submit(number) for number in range(20)), return_exceptions=True
    )
    assert isinstance(answers[-1], DatabaseUnavailableError)
    await batcher.close()
    assert turns < 20


async def test_receiver_gets_what_a_submitter_would() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run, max_waiting=1)
    first = await held(batcher, doubler, 1)
    loop = asyncio.get_running_loop()
    second, third = loop.create_future(), loop.create_future()
    batcher.submit_for(second, 2)
    with pytest.raises(DatabaseUnavailableError):
        batcher.submit_for(third, 3)
    doubler.gate.set()
    assert [await first, await second, third.done()] == [2, 4, False]


async def test_next_batch_starts_before_the_answers_are_delivered() -> None:
    doubler = Doubler()
    doubler.gate.set()
    batcher = Batcher(doubler.run, max_items=1)
    batches_at_answer: list[int] = []
    first, second = [asyncio.get_running_loop().create_future() for _ in range(2)]
    first.add_done_callback(lambda _: batches_at_answer.append(len(doubler.batches)))
    batcher.submit_for(first, 1)
    batcher.submit_for(second, 2)
    await batcher.close()
    assert batches_at_answer == [2]


async def test_the_queue_has_a_bound() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run, max_waiting=2)
    first = await held(batcher, doubler, 1)
    others = await submitted(batcher, 2, 3)
    with pytest.raises(DatabaseUnavailableError):
        await batcher.submit(4)
    doubler.gate.set()
    assert await asyncio.gather(first, *others) == [2, 4, 6]


async def test_item_of_a_canceled_waiting_submitter_is_dropped() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run)
    first = await held(batcher, doubler, 1)
    second, third = await submitted(batcher, 2, 3)
    second.cancel()
    doubler.gate.set()
    assert [await first, await third] == [2, 6]
    assert doubler.batches == [[1], [3]]


async def test_canceled_submitter_does_not_affect_its_batch() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run)
    first = await held(batcher, doubler, 1)
    (second,) = await submitted(batcher, 2)
    first.cancel()
    doubler.gate.set()
    assert await second == 4


async def test_closing_waits_for_submitted_work() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run)
    first = await held(batcher, doubler, 1)
    doubler.gate.set()
    await batcher.close()
    assert await first == 2


async def test_start_timeout_is_shorter_than_the_deadline() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run, start_timeout=0.02)
    first = await held(batcher, doubler, 1)
    others = await submitted(batcher, 2, 3)
    refused = await asyncio.gather(*others, return_exceptions=True)
    assert [type(answer) for answer in refused] == [DatabaseUnavailableError] * 2
    doubler.gate.set()
    assert await first == 2
    assert doubler.batches == [[1]]


async def test_start_timeout_applies_to_each_batch() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run, start_timeout=0.02)
    first = await held(batcher, doubler, 1)
    for number in range(2, 5):
        [other] = await submitted(batcher, number)
        with pytest.raises(DatabaseUnavailableError):
            await other
    doubler.gate.set()
    assert await first == 2


async def test_alternating_batches_take_half_of_many_submitters_items() -> None:
    doubler = Doubler()
    doubler.gate.set()
    batcher = Batcher(doubler.run, alternates=True)
    await asyncio.gather(*map(batcher.submit, range(64)))
    assert [len(batch) for batch in doubler.batches] == [32, 32]


async def test_alternating_batches_do_not_divide_few_items() -> None:
    doubler = Doubler()
    doubler.gate.set()
    batcher = Batcher(doubler.run, alternates=True)
    await asyncio.gather(*map(batcher.submit, range(47)))
    assert [len(batch) for batch in doubler.batches] == [47]


async def test_batch_that_follows_another_waits_for_most_of_its_submitters() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.run, gather_seconds=60)
    first = await held(batcher, doubler, 0)
    second = await submitted(batcher, *range(1, 10))
    doubler.gate.set()
    await asyncio.gather(first, *second)
    few = await submitted(batcher, *range(6))
    for _ in range(5):
        await asyncio.sleep(0)
    assert doubler.batches == [[0], [*range(1, 10)]]
    await asyncio.gather(*few, batcher.submit(6))
    assert doubler.batches[2:] == [[*range(7)]]


async def test_batch_waits_for_no_more_submitters_than_there_were() -> None:
    doubler = Doubler()
    doubler.gate.set()
    batcher = Batcher(doubler.run, gather_seconds=60)
    for number in range(3):
        await batcher.submit(number)
    assert doubler.batches == [[0], [1], [2]]


async def test_batch_starts_without_submitters_that_do_not_return() -> None:
    doubler = Doubler()
    doubler.gate.set()
    batcher = Batcher(doubler.run, gather_seconds=0.001)
    await asyncio.gather(*map(batcher.submit, range(10)))
    await batcher.submit(10)
    await batcher.close()
    assert doubler.batches == [[*range(10)], [10]]


def test_batch_that_gathers_no_submitters_starts_as_soon_as_the_last_one_ends() -> None:
    async def run() -> list[list[int]]:
        doubler = Doubler()
        batcher = Batcher(doubler.run)

        async def submit_twice(item: int) -> None:
            await batcher.submit(item)
            await batcher.submit(item)

        twice = [asyncio.create_task(submit_twice(item)) for item in range(10)]
        await doubler.started.wait()
        [once] = await submitted(batcher, 10)
        doubler.gate.set()
        await asyncio.gather(*twice, once)
        return doubler.batches

    # on the service's event loop, whose clock stands still during a turn
    assert uvloop.run(run()) == [[*range(10)], [10], [*range(10)]]


async def test_answer_that_comes_later_holds_up_no_other() -> None:
    later = asyncio.get_running_loop().create_future()

    async def run(items: Sequence[int]) -> Sequence[int | asyncio.Future[int]]:
        return [later if item == 1 else item for item in items]

    batcher = Batcher(run)
    first = asyncio.create_task(batcher.submit(1))
    assert await batcher.submit(2) == 2
    assert not first.done()
    later.set_result(10)
    assert await first == 10


async def test_answer_that_comes_too_late_is_refused_at_the_deadline() -> None:
    never = asyncio.get_running_loop().create_future()

    async def run(_items: Sequence[int]) -> Sequence[int | asyncio.Future[int]]:
        return [never]

    with pytest.raises(DatabaseUnavailableError):
        async with asyncio.timeout(5):
            await Batcher(run, deadline=0.05).submit(1)
