"""Letting things happen at a steady rate at most."""


class Pace:
    """Says how long each of many should wait, so that no more than ``per_second`` go in a second.

    After a quiet time ``at_once`` go without waiting. Nobody waits longer than ``longest`` seconds: past that more go.
    """

    def __init__(self, per_second: float, *, at_once: int, longest: float) -> None:
        self._gap = 1 / per_second
        self._lead = at_once / per_second
        self._longest = longest
        self._next = float("-inf")

    def wait(self, now: float) -> float:
        """Seconds that the one who comes ``now``, on a clock that never goes back, should wait."""
        earliest = max(self._next, now - self._lead) + self._gap
        self._next = min(earliest, now + self._longest)
        return max(0.0, self._next - now)
