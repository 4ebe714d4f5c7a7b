"""How commands read and write values, times and durations."""

import contextlib
import os
import re
import shlex
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
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


_UNSEEN: Final = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_NAME: Final = "tenantry"
Value = str | int | bool | datetime | None


def shown(value: Value) -> str:
    """A value as people read it; nothing is a dash."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """The text without what a terminal would obey instead of showing it."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def json_text(encoded: bytes) -> str:
    """JSON as text that commands no terminal: what is no ASCII and not to be seen is escaped."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded.decode())


def counted(number: int, what: str) -> str:
    """``1 event``, ``2 events``, ``12,000 events``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def own_command(folder: Path | None = None) -> str:
    """What to type to run this command again: its name where the shell finds it by that, else the path to it.

    A path is relative where it leads below ``folder``, the current one by default, in which people are to type it.
    """
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m tenantry"
    if script.name != _NAME:  # another program that calls us
        return _NAME
    found = shutil.which(_NAME)
    path = Path(os.path.abspath(script if os.sep in sys.argv[0] else found or script))  # noqa: PTH100  # links stay
    if found is not None and os.path.abspath(found) == str(path):  # noqa: PTH100
        return _NAME
    with contextlib.suppress(ValueError, OSError):  # it is not below the folder
        path = path.relative_to(folder or Path.cwd())
    return shlex.quote(str(path))
