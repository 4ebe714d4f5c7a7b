"""Time: the clock as an argument, retry delays, pacing, and the service's timeouts."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

Clock = Callable[[], datetime]
"""Returns the present moment in UTC."""

EPOCH_MAX = 253_402_300_799
"""The last second of the year 9999: the latest moment that datetime can hold."""


def system_clock() -> datetime:
    """The machine's clock."""
    return datetime.now(UTC)


def from_epoch(seconds: int | None) -> datetime | None:
    """The moment ``seconds`` after the Unix epoch, in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Microseconds since the Unix epoch, exactly."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The moment so many microseconds after the Unix epoch; raises `OverflowError` past year 9999."""
    return _EPOCH + micros * _MICROSECOND


# Waiting longer after each failure


def exponential(attempt: int, *, first: float, factor: float, ceiling: float) -> float:
    """Seconds to wait after failed attempt number ``attempt`` (1 is the first)."""
    return min(ceiling, first * factor ** (attempt - 1))


# Letting things happen at a steady rate at most


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


# How long the service waits for what it depends on


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long the service waits for PostgreSQL, the identity provider and the payment provider, in seconds.

    Production uses the defaults. With them, a request that needs a database that is away is answered within 5 s
    (CONTRACT section 4). Tests pass shorter values in the same order. The limits of SMTP, of a replay and of an idle
    transaction are constants where they are used.
    """

    request: float = 4.8
    """A whole request, from the end of its body to the answer; then the answer is 503."""
    batch: float = 4.5
    """One batch of queries, and each request in it."""
    batch_start: float = 2.0
    """How long a request waits for its batch to start."""
    rate_limits: float = 2.0
    """The query that reserves requests of a plan's rate limit."""
    connect: float = 3.0
    """A connection to PostgreSQL, new or from the pool. The driver itself gives up after 2 s at the earliest."""
    statement: float = 4.0
    """One SQL statement: PostgreSQL's ``statement_timeout``."""
    identity_provider: float = 3.0
    """Fetching the identity provider's metadata and keys, or an answer of its userinfo endpoint."""
    token_endpoint: float = 4.0
    """The identity provider's answer to an authorization code."""
    payment_provider: float = 10.0
    """One attempt at a call of the payment provider's API."""


DEFAULT_TIMEOUTS: Final = Timeouts()
