"""Time as an argument."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

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
