"""The balance of connections between server processes that accept from one listening socket."""

from collections.abc import Callable, MutableSequence
from typing import Final

NOT_ACCEPTING: Final = -1
"""The count of a process that has not started or has ended."""
SECONDS_AHEAD: Final = 6
"""How long a process must have too many connections before it closes some: longer than idle
connections are kept.
"""
_MOST_ABOVE_MEAN: Final = 0.1
_CONNECTIONS_PER_STEP: Final = 8


class ConnectionBalance:
    """The numbers of connections of all processes, in ``counts``, memory that they share; ``own``
    is this one's index.

    ``connections`` returns the number of this process. Another process sees it as of the last call
    of a method here.
    """

    def __init__(
        self, counts: MutableSequence[int], own: int, connections: Callable[[], int]
    ) -> None:
        self._counts = counts
        self._own = own
        self._connections = connections
        self._ahead_since: float | None = None

    def is_ahead(self, connecting: int) -> bool:
        """Return whether another process has fewer connections; ``connecting`` ones of this process
        are new.
        """
        number = self._connections() + connecting
        self._counts[self._own] = number
        return any(NOT_ACCEPTING < other < number for other in self._counts)

    def step(self) -> int:
        """Return how many connections to accept at once while another process with fewer does
        not.
        """
        return 1 + self._connections() // _CONNECTIONS_PER_STEP

    def surplus(self, now: float) -> int:
        """Return how many connections to close so that clients connect to other processes. Call it
        about once a second; ``now`` are seconds of a monotonic clock.

        0 unless the process has exceeded the mean by a tenth of its number, and by at least one, at
        each call for `SECONDS_AHEAD`. Then the surplus at each call: connections without a request
        cannot be closed yet.
        """
        number = self._connections()
        self._counts[self._own] = number
        accepting = [count for count in self._counts if count > NOT_ACCEPTING]
        surplus = number - sum(accepting) / len(accepting)
        if surplus < max(1, number * _MOST_ABOVE_MEAN):
            self._ahead_since = None
            return 0
        if self._ahead_since is None:
            self._ahead_since = now
        if now - self._ahead_since < SECONDS_AHEAD:
            return 0
        return int(surplus)

    def leave(self) -> None:
        """Record that this process accepts no more connections."""
        self._counts[self._own] = NOT_ACCEPTING
