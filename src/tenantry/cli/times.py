"""Moments and lengths of time, as people type and read them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART: Final = re.compile(r"(\d{1,9})([smhdw])")
_MOST: Final = timedelta(days=365_000)
_STEPS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Moment(click.ParamType[datetime]):
    """A time such as ``2027-01-31T00:00:00Z``; without a zone it is in UTC."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The moment that a text names."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail("is not a time such as 2027-01-31T00:00:00Z", param, ctx)
        try:
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        except OverflowError:
            self.fail("is too far away", param, ctx)


class Duration(click.ParamType[timedelta]):
    """A length of time such as ``90d``, ``12h`` or ``1h30m``; units are s, m, h, d and w."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """The length that a text names."""
        if isinstance(value, timedelta):
            return value
        parts = _PART.findall(str(value))
        if not parts or "".join(number + unit for number, unit in parts) != str(value):
            self.fail(f"{value!r} is not a length of time such as 90d, 12h or 1h30m", param, ctx)
        seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
        if seconds > _MOST.total_seconds():
            self.fail(f"{value!r} is too long", param, ctx)
        return timedelta(seconds=seconds)


def day(moment: datetime | None) -> str:
    """The day, in UTC; nothing is a dash."""
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d}"


def minute(moment: datetime | None) -> str:
    """Day and minute, in UTC; nothing is a dash."""
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago that was, in its largest unit; nothing is ``never``, and days past a year are a date."""
    if moment is None:
        return "never"
    seconds = int((now - moment).total_seconds())
    if seconds <= 0:
        return "now"
    if seconds > 366 * _UNITS["d"]:
        return day(moment)
    size, unit = next((size, unit) for size, unit in _STEPS if seconds >= size)
    return f"{seconds // size} {unit} ago"
