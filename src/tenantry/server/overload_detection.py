"""Whether a process has more to do than it can."""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from tenantry.server.metrics import Metrics

GATE: Final = "tenantry.gate"
"""Where the state of the ASGI lifespan holds the process's `OverloadDetector`."""
WAIT: Final = 0.2
"""Seconds that a request may be expected to wait.

Answers with 503 take capacity, too: requests accepted before they begin may wait several times as long.
"""
ALWAYS: Final = 256
"""Requests that may be under way however slow they are: as many as share one transaction."""
AT_FIRST: Final = 1024
"""The same before it is known how many are answered in a second."""

_LOOK: Final = 0.25
_BUSY: Final = 1.0
_QUIET: Final = 60.0

logger = logging.getLogger(__name__)


class OverloadDetector:
    """Tells when one more request would have to wait too long, from how many are answered in a second.

    ``aside`` returns how many of the requests under way wait for something other than the process's own work; ``now``
    is a monotonic clock, in seconds.
    """

    def __init__(
        self,
        metrics: Metrics,
        aside: Callable[[], int] = lambda: 0,
        *,
        now: Callable[[], float] = monotonic,
        always: int = ALWAYS,
        at_first: int = AT_FIRST,
    ) -> None:
        self.arriving = 0
        """Requests under way of which more is to come: they wait for their senders."""
        self._metrics = metrics
        self._aside = aside
        self._now = now
        self._always = always
        self._most = self._at_first = at_first
        self._looked = 0.0
        self._answered = 0
        self._told = -_QUIET

    def is_full(self, under_way: int, answered: int) -> bool:
        """Whether one more would wait too long, from how many are under way and were answered so far."""
        if under_way < self._always:
            return False
        now = self._now()
        passed = now - self._looked
        if passed >= _LOOK:
            if passed < _BUSY:
                self._most = max(self._always, int((self._most + (answered - self._answered) / passed * WAIT) / 2))
            else:  # there was little to do for a while, so what could not be done before says nothing about now
                self._most = max(self._most, self._at_first)
            self._looked, self._answered = now, answered
        return under_way - self.arriving - self._aside() >= self._most

    def count(self) -> None:
        """Note a request that was refused."""
        self._metrics.shed.inc()
        if self._looked - self._told >= _QUIET:
            self._told = self._looked
            logger.warning("overloaded: requests are refused while more than %d are under way", self._most)
