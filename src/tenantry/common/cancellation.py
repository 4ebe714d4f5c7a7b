"""The end of asyncio's tasks."""

import asyncio
from typing import Any


async def cancel(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel those of these tasks that there are, and wait until they have ended, whatever they
    raise.
    """
    present = [task for task in tasks if task is not None]
    for task in present:
        task.cancel()
    if present:
        await asyncio.wait(present)
