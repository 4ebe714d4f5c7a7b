"""The throttles of rejected requests: how many rejections a process sends in a second.

A client that sends the next bad request upon each rejection could otherwise keep the process busy.
A throttle needs no client addresses, of which an attacker may have many.
"""

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from typing import Final

from tenantry.domain import errors

CREDENTIALS_PER_SECOND: Final = 500
"""Rejections of credentials that a process sends in a second."""
ANONYMOUS_PER_SECOND: Final = 200
"""Rejections of requests without a credential that a process sends in a second."""
BURST: Final = 50
_LONGEST_DELAY: Final = 2.0
"""The longest delay of a rejection, in seconds."""
THROTTLED: Final = (
    errors.MissingCredentialError,
    errors.InvalidCredentialError,
    *errors.KEY_REFUSALS,
    errors.TokenExpiredError,
)
"""The rejections of credentials."""


class Throttle:
    """Lets ``per_second`` callers continue a second, in bursts of ``burst``; none waits over
    ``longest`` s.
    """

    def __init__(
        self, per_second: float, *, burst: int, longest: float, now: Callable[[], float] = monotonic
    ) -> None:
        self._interval = 1 / per_second
        self._burst = burst / per_second
        self._longest = longest
        self._now = now
        self._next = float("-inf")
        self.waiting = 0  # callers that wait now

    def reserve(self, now: float) -> float:
        """Reserve the next turn; return the seconds until then."""
        earliest = max(self._next, now - self._burst) + self._interval
        self._next = min(earliest, now + self._longest)
        return max(0.0, self._next - now)

    async def wait(self) -> None:
        if seconds := self.reserve(self._now()):
            self.waiting += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self.waiting -= 1


def credential_throttle() -> Throttle:
    return Throttle(CREDENTIALS_PER_SECOND, burst=BURST, longest=_LONGEST_DELAY)


def no_throttle() -> Throttle:
    """Return a throttle that delays nothing."""
    return Throttle(math.inf, burst=0, longest=0.0)


def anonymous_throttle() -> Throttle:
    return Throttle(ANONYMOUS_PER_SECOND, burst=BURST, longest=_LONGEST_DELAY)
