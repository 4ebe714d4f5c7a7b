"""How commands write values and what comes from outside."""

import contextlib
import os
import re
import shlex
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

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
