"""Times and durations that options take."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Final

import click
import msgspec

Clock = Callable[[], datetime]
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST: Final = timedelta(days=365_000)
_DURATION: Final = re.compile("([0-9]{1,9}[smhdw])+")
_DATE: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ZONE: Final = "Z|[+-][0-9]{2}:[0-9]{2}"
_MOMENT: Final = re.compile(
    rf"({_DATE})(?:[T ]([0-9]{{2}}:[0-9]{{2}})(:[0-9]{{2}}(?:\.[0-9]+)?)?({_ZONE})?)?",
    re.IGNORECASE,
)


def utc_now() -> datetime:
    """Return the time of this machine."""
    return datetime.now(timezone.utc)


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as ``90d``, ``12h`` or ``1h30m``, at most 365,000 days. Raises
    `click.BadParameter`.
    """
    if not _DURATION.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a duration such as 90s, 15m, 1h, 2d or 1w")
    parts = re.findall("([0-9]+)(.)", text)
    seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _LONGEST.total_seconds():
        raise click.BadParameter(f"{text!r} is too long")
    return timedelta(seconds=seconds)


def past(text: str, clock: Clock = utc_now) -> datetime:
    """Parse what ``--since`` and ``--until`` take: a time, or a duration before now. Raises
    `click.BadParameter`.
    """
    now = clock()
    moment = _moment(text, now, sign=-1)
    if moment > now:
        raise click.BadParameter(f"{text} is in the future")
    return moment


def future(text: str, clock: Clock = utc_now) -> datetime:
    """Parse what ``--expires-at`` takes: a time, or a duration after now. Raises
    `click.BadParameter`.
    """
    now = clock()
    moment = _moment(text, now, sign=1)
    if moment <= now:
        raise click.BadParameter(f"{text} is in the past")
    return moment


def _moment(text: str, now: datetime, sign: int) -> datetime:
    """Parse an RFC 3339 time or a date, in UTC if it names no zone, or a duration, which ``sign``
    adds to now.
    """
    if _DURATION.fullmatch(text):
        return now + sign * parse_duration(text)
    message = f"{text!r} is neither a duration such as 90s, 15m, 1h, 2d or 1w nor an RFC 3339 time"
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise click.BadParameter(message)
    date, minute, seconds, zone = found.groups()
    moment = f"{date}T{minute or '00:00'}{seconds or ':00'}{zone or 'Z'}"
    try:
        return msgspec.convert(moment, datetime).astimezone(timezone.utc)
    except (msgspec.ValidationError, OverflowError):
        raise click.BadParameter(message) from None
