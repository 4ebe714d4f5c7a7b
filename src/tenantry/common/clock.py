"""Time: the clock as an argument, retry delays, and the service's timeouts."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, overload

import msgspec

Clock = Callable[[], datetime]  # returns the current time in UTC

EPOCH_MAX = 253_402_300_799  # the last second of the year 9999, the maximum of datetime
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Linux alone has it; the monotonic clock of macOS continues too
_LEASE_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def system_clock() -> datetime:
    return datetime.now(UTC)


def lease_clock() -> float:
    """Return the seconds of a monotonic clock that continues while the machine is suspended."""
    return time.clock_gettime(_LEASE_CLOCK)


@overload
def from_epoch(seconds: int) -> datetime: ...
@overload
def from_epoch(seconds: int | None) -> datetime | None: ...
def from_epoch(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def to_micros(moment: datetime) -> int:
    """Convert to microseconds since the Unix epoch, exactly."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Convert microseconds since the Unix epoch. Raises `OverflowError` after year 9999."""
    return _EPOCH + micros * _MICROSECOND


def exponential(
    attempt: int,
    *,
    first: float,
    factor: float,
    ceiling: float,
) -> float:
    """Return the seconds to wait after failed attempt number ``attempt``, from 1, however many."""
    try:
        return min(ceiling, first * factor ** (attempt - 1))
    except OverflowError:
        return ceiling


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long the service waits for PostgreSQL, the identity provider and the payment provider, in
    seconds.

    With the defaults a request gets its response within 5 s while the database is down (CONTRACT
    section 4). Tests pass shorter values in the same order.
    """

    # a request, from the end of its body to the response; then the response is 503
    request: float = 4.8
    batch: float = 4.5  # a batch of queries, and each request in it
    batch_start: float = 2.0  # how long a request waits for its batch to start
    rate_limits: float = 2.0  # the query that reserves requests of a plan's rate limit
    # A connection to PostgreSQL, new or from the pool. The driver waits at least 2 s.
    connect: float = 3.0
    statement: float = 4.0  # one SQL statement: PostgreSQL's `statement_timeout`
    # the identity provider's metadata and keys, or its userinfo endpoint
    identity_provider: float = 3.0
    token_endpoint: float = 4.0  # the identity provider's response to an authorization code
    payment_provider: float = 10.0  # one attempt at a call of the payment provider's API
    billing_page: float = 2.0  # how long pages wait for the payment provider
    metrics: float = 1.0  # from one rendering of the metrics to the next
    usage: float = 0.5  # from one look for requests after an idle minute to the next


DEFAULT_TIMEOUTS: Final = Timeouts()
