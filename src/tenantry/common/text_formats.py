"""Counts, times and untrusted names in texts. The client's commands have this file too, by a
link.
"""

from datetime import datetime, timezone
from typing import Final

_STEPS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def minute(moment: datetime | None, missing: str = "-") -> str:
    """Format day and minute in UTC."""
    if moment is None:
        return missing
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M}"


def largest_unit(seconds: int) -> str:
    """Format a number of seconds in its largest unit: ``0 s``, ``59 s``, ``3 h``."""
    size, unit = next(((size, unit) for size, unit in _STEPS if seconds >= size), (1, "s"))
    return f"{seconds // size} {unit}"


def printable(text: str) -> str:
    """Replace control characters, which a terminal would obey."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def counted(number: int, what: str) -> str:
    """Format a count: ``1 event``, ``2 events``, ``12,000 events``."""
    if number == 1:
        return f"{number:,} {what}"
    return f"{number:,} {what}s"
