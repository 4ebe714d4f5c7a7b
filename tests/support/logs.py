"""Waiting for something to be logged."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PATIENCE: Final = 20.0


class LogWatch(logging.Handler):
    """Keeps what is logged, and wakes those who wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
        self.lines: list[str] = []
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.lines.append(line)
        for text, future in self._waiting:
            if text in line and not future.done():
                future.set_result(None)

    def count(self, text: str) -> int:
        """How many lines so far hold ``text``."""
        return sum(text in line for line in self.lines)

    async def until(self, text: str) -> None:
        """Return as soon as a line with ``text`` has been logged since the watch began."""
        if self.count(text):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((text, future))
        async with asyncio.timeout(_PATIENCE):
            await future


@contextmanager
def watched(name: str = "", level: int = logging.INFO) -> Iterator[LogWatch]:
    """A watch on the logger ``name`` and those below it, for the time of the block."""
    logger, watch = logging.getLogger(name), LogWatch()
    before = logger.level
    logger.addHandler(watch)
    logger.setLevel(level)
    try:
        yield watch
    finally:
        logger.setLevel(before)
        logger.removeHandler(watch)
