"""Simulated time: a clock that is moved, what is due when, and the calendar of billing periods.

Moments are whole seconds since the Unix epoch, as everywhere in the provider's API.
"""

import heapq
import itertools
from calendar import monthrange
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from tenantry.common.clock import Clock

_DAYS: Final = {"day": 1, "week": 7}
_MONTHS: Final = {"month": 1, "year": 12}
_DECEMBER: Final = 12
INTERVALS: Final = frozenset({*_DAYS, *_MONTHS})
"""What a price may recur by."""


class SimulatedClock:
    """Stands still until it is moved; ``running`` makes it also go on with another clock."""

    def __init__(self, start: int, *, running: Clock | None = None) -> None:
        self._moment = start
        self._running = running
        self._since = running() if running else None

    def now(self) -> int:
        """The simulated moment."""
        if self._running is None or self._since is None:
            return self._moment
        return self._moment + int((self._running() - self._since).total_seconds())

    def move_to(self, moment: int) -> None:
        """Go forward to ``moment``; it never goes back."""
        missing = moment - self.now()
        if missing > 0:
            self._moment += missing


class Task(NamedTuple):
    """What is to be done at a moment: the name of an action and its arguments."""

    moment: int
    action: str
    arguments: tuple[str | int, ...]


class Agenda:
    """What is to be done at which moment, in the order of moments, then in the order in which it was put down."""

    def __init__(self) -> None:
        self._actions: dict[str, Callable[..., None]] = {}
        self._entries: list[tuple[int, int, Task]] = []
        self._numbers = itertools.count()

    def register(self, **actions: Callable[..., None]) -> None:
        """Say what the names of actions stand for."""
        self._actions |= actions

    def add(self, moment: int, action: str, *arguments: str | int) -> None:
        """Do ``action`` at ``moment``. Nothing is ever taken off: an action looks whether it still applies."""
        heapq.heappush(self._entries, (moment, next(self._numbers), Task(moment, action, arguments)))

    def tasks(self) -> list[Task]:
        """What is still to be done, in order."""
        return [task for _, _, task in sorted(self._entries)]

    def restore(self, tasks: Iterable[Task]) -> None:
        """Put down what another agenda's `tasks` gave."""
        for task in tasks:
            self.add(task.moment, task.action, *task.arguments)

    def next_moment(self) -> int | None:
        """When the next action is due."""
        return self._entries[0][0] if self._entries else None

    def run_due(self, now: int) -> None:
        """Do whatever is due by ``now``, also what that puts down for the same moment."""
        while self._entries and self._entries[0][0] <= now:
            task = heapq.heappop(self._entries)[2]
            self._actions[task.action](*task.arguments)


def period_end(anchor: int, interval: str, count: int, after: int) -> int:
    """The first end of a billing period later than ``after``; periods are counted from ``anchor``.

    Months keep the anchor's day where they have it, else they end on their last day.
    """
    if interval in _DAYS:
        length = _DAYS[interval] * count * 86_400
        return anchor + ((after - anchor) // length + 1) * length
    start = datetime.fromtimestamp(anchor, UTC)
    step = _MONTHS[interval] * count
    elapsed = timedelta(seconds=after - anchor) // timedelta(days=31 * step)
    for number in itertools.count(max(1, elapsed)):
        end = int(_later(start, number * step).timestamp())
        if end > after:
            return end
    raise AssertionError("unreachable: months go on for ever")


def _later(start: datetime, months: int) -> datetime:
    year, month = divmod(start.month - 1 + months, _DECEMBER)
    year, month = start.year + year, month + 1
    return start.replace(year=year, month=month, day=min(start.day, monthrange(year, month)[1]))
