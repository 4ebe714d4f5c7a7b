"""Overload detection: whether a process has more requests than it can answer in time."""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from tenantry.server.metrics import Metrics

OVERLOAD_DETECTOR: Final = "tenantry.overload_detector"
"""Key of the process's `OverloadDetector` in the ASGI lifespan state."""
MAX_WAIT: Final = 0.2  # expected seconds of waiting from which a request is shed
MIN_CONCURRENT: Final = 256  # concurrent requests that are always accepted: as many as share one transaction
INITIAL_CONCURRENT: Final = 1024  # concurrent requests that are accepted before the throughput is known

_INTERVAL: Final = 0.25
_STALE: Final = 1.0
_LOG_INTERVAL: Final = 60.0

logger = logging.getLogger(__name__)


class OverloadDetector:
    """Decides from the measured throughput whether one more request would wait too long.

    ``excluded`` returns how many concurrent requests wait for something other than the process's own work; ``now`` is
    a monotonic clock, in seconds.
    """

    def __init__(
        self,
        metrics: Metrics,
        excluded: Callable[[], int] = lambda: 0,
        *,
        now: Callable[[], float] = monotonic,
        minimum: int = MIN_CONCURRENT,
        initial: int = INITIAL_CONCURRENT,
    ) -> None:
        self.arriving = 0  # concurrent requests that wait for more input from their clients
        self._metrics = metrics
        self._excluded = excluded
        self._now = now
        self._minimum = minimum
        self._limit = self._initial = initial
        self._measured_at = 0.0
        self._answered = 0
        self._logged_at = -_LOG_INTERVAL

    def is_overloaded(self, concurrent: int, answered: int) -> bool:
        """Decide from the number of concurrent requests and of those answered so far."""
        if concurrent < self._minimum:
            return False
        now = self._now()
        elapsed = now - self._measured_at
        if elapsed >= _INTERVAL:
            if elapsed < _STALE:
                throughput = (answered - self._answered) / elapsed
                self._limit = max(self._minimum, int((self._limit + throughput * MAX_WAIT) / 2))
            else:  # after a quiet period the old measurement says nothing about the present
                self._limit = max(self._limit, self._initial)
            self._measured_at, self._answered = now, answered
        return concurrent - self.arriving - self._excluded() >= self._limit

    def count(self) -> None:
        self._metrics.shed.inc()
        if self._measured_at - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = self._measured_at
            logger.warning("overloaded: requests are rejected while more than %d are in progress", self._limit)
