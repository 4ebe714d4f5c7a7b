"""Simulated time: a clock, an agenda of actions, and billing periods, in seconds since the Unix epoch."""

import heapq
import itertools
from calendar import monthrange
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from tenantry.common.clock import Clock

_DAYS: Final = {"day": 1, "week": 7}
_MONTHS: Final = {"month": 1, "year": 12}
INTERVALS: Final = (*_DAYS, *_MONTHS)


class SimulatedClock:
    """Stands still until it is moved, or follows ``running`` if that is given."""

    def __init__(self, start: int, *, running: Clock | None = None) -> None:
        self._moment = start
        self._running = running
        self._since = running() if running else None

    def now(self) -> int:
        if self._running is None or self._since is None:
            return self._moment
        return self._moment + int((self._running() - self._since).total_seconds())

    def move_to(self, moment: int) -> None:
        """Advance to ``moment``; ignore an earlier one."""
        self._moment += max(0, moment - self.now())


class Task(NamedTuple):
    """An action by name, with its arguments."""

    moment: int
    action: str
    arguments: tuple[str | int, ...]


class Agenda:
    """Future tasks, ordered by moment, then in the order in which they were added."""

    def __init__(self) -> None:
        self._actions: dict[str, Callable[..., None]] = {}
        self._entries: list[tuple[int, int, Task]] = []
        self._numbers = itertools.count()

    def register(self, **actions: Callable[..., None]) -> None:
        self._actions |= actions

    def add(self, moment: int, action: str, *arguments: str | int) -> None:
        """Schedule an action, which must check whether it still applies: tasks are never removed."""
        heapq.heappush(self._entries, (moment, next(self._numbers), Task(moment, action, arguments)))

    def tasks(self) -> list[Task]:
        return [task for _, _, task in sorted(self._entries)]

    def restore(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self.add(task.moment, task.action, *task.arguments)

    def next_moment(self) -> int | None:
        return self._entries[0][0] if self._entries else None

    def run_due(self, now: int) -> None:
        """Run the tasks due by ``now``, including those that they schedule for the same moment."""
        while self._entries and self._entries[0][0] <= now:
            task = heapq.heappop(self._entries)[2]
            self._actions[task.action](*task.arguments)


def period_end(anchor: int, interval: str, count: int, after: int) -> int:
    """Return the first end of a billing period later than ``after``; periods are counted from ``anchor``.

    Monthly periods end on the anchor's day, or on the last day of a shorter month.
    """
    if interval in _DAYS:
        length = _DAYS[interval] * count * 86_400
        return anchor + ((after - anchor) // length + 1) * length
    start = datetime.fromtimestamp(anchor, UTC)
    step = _MONTHS[interval] * count
    number = max(1, timedelta(seconds=after - anchor) // timedelta(days=31 * step))
    while (end := int(_months_later(start, number * step).timestamp())) <= after:
        number += 1
    return end


def _months_later(start: datetime, months: int) -> datetime:
    years, month = divmod(start.month - 1 + months, 12)
    year, month = start.year + years, month + 1
    return start.replace(year=year, month=month, day=min(start.day, monthrange(year, month)[1]))
