"""Ending what runs in the background."""

import asyncio
from contextlib import suppress

from tenantry.auth.admission import stop


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
