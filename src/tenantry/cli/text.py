"""How commands write values and what comes from outside."""

import re
from datetime import UTC, datetime
from typing import Final

_UNSEEN: Final = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
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
