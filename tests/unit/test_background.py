"""Background work: loops that outlast failures, and the order in which everything ends."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from tenantry.db.background import BackgroundGroup, stop
from tenantry.domain.errors import DatabaseUnavailableError


class Pauses:
    """The pauses of a loop, each of which ends when the test asks for the next one."""

    def __init__(self) -> None:
        self._begun: asyncio.Queue[float] = asyncio.Queue()
        self._ended = asyncio.Semaphore(0)

    async def sleep(self, seconds: float) -> None:
        self._begun.put_nowait(seconds)
        await self._ended.acquire()

    async def next(self) -> float:
        """Wait for a pass, end the pause after it, and return its seconds."""
        seconds = await self._begun.get()
        self._ended.release()
        return seconds


class Ledger:
    """Work whose passes end as listed, and then well."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = [*outcomes]
        self.done: list[str] = []

    async def write(self) -> None:
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        self.done.append("write")

    async def close(self) -> None:
        self.done.append("close")


def unavailable(reason: str = "the server closed the connection") -> DatabaseUnavailableError:
    error = DatabaseUnavailableError("The database is unreachable.")
    error.__cause__ = psycopg.OperationalError(reason)
    return error


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[int, str]]]:
    caplog.set_level(logging.INFO, "tenantry.db.background")
    return lambda: [(record.levelno, record.getMessage()) for record in caplog.records]


async def test_a_loop_passes_at_once_and_after_each_pause() -> None:
    pauses, ledger = Pauses(), Ledger()
    async with BackgroundGroup(pauses.sleep) as group:
        group.repeat("writes", ledger.write, every=lambda: 7.0 - len(ledger.done))
        assert [await pauses.next(), await pauses.next()] == [6.0, 5.0]


async def test_an_interruption_and_its_end_are_logged_once(
    logged: Callable[[], list[tuple[int, str]]],
) -> None:
    pauses, ledger = Pauses(), Ledger(None, unavailable(), unavailable("again"), None, None)
    async with BackgroundGroup(pauses.sleep) as group:
        group.repeat("writes", ledger.write, every=1.0)
        for _ in range(6):
            await pauses.next()
    assert logged() == [
        (logging.INFO, "writes are interrupted: the server closed the connection"),
        (logging.INFO, "writes continue"),
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (psycopg.errors.UniqueViolation("Key (email)=(ada@acme.example)"), "UniqueViolation"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError"),
    ],
)
async def test_a_defect_is_logged_as_an_error_and_the_loop_continues(
    logged: Callable[[], list[tuple[int, str]]], error: Exception, reason: str
) -> None:
    pauses, ledger = Pauses(), Ledger(error)
    async with BackgroundGroup(pauses.sleep) as group:
        group.repeat("writes", ledger.write, every=1.0)
        await pauses.next()
        await pauses.next()
    assert logged()[0] == (logging.ERROR, f"writes are interrupted: {reason}")
    assert ledger.done == ["write"]


async def test_the_last_pass_follows_the_end_of_the_loop_and_precedes_what_it_uses() -> None:
    pauses, ledger = Pauses(), Ledger()

    async def disconnect() -> None:
        ledger.done.append("disconnect")

    async with BackgroundGroup(pauses.sleep) as group:
        group.push_async_callback(disconnect)
        group.repeat("writes", ledger.write, every=1.0, last=ledger.close)
        await pauses.next()
    assert ledger.done == ["write", "close", "disconnect"]


async def test_a_last_pass_that_fails_does_not_keep_the_rest_from_closing() -> None:
    pauses, ledger = Pauses(), Ledger(None, unavailable())
    async with BackgroundGroup(pauses.sleep) as group:
        group.push_async_callback(ledger.close)
        group.repeat("writes", ledger.write, every=1.0, last=ledger.write)
        await pauses.next()
    assert ledger.done == ["write", "close"]


async def test_a_task_whose_cancellation_gets_lost_is_ended_all_the_same() -> None:
    started = asyncio.Event()

    async def goes_on() -> None:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(goes_on())
    await started.wait()
    await stop(task)
    assert task.cancelled()
