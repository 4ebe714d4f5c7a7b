"""Identifiers, the errors of decoding JSON, and the names and descriptions of fields."""

import secrets
import time
from collections.abc import Sequence
from typing import Final

import msgspec

NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""msgspec's errors for invalid or too deeply nested JSON, or JSON of another type."""
_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000
_NONE: Final = object()


def new_id(prefix: str) -> str:
    """Return ``prefix_`` and 32 hex digits that sort by time: 48 bits of milliseconds, 20 of
    nanoseconds, 60 random.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), _NANOSECONDS_PER_MILLISECOND)
    return f"{prefix}_{milliseconds:012x}{nanoseconds:05x}{secrets.randbits(60):015x}"


def doc(description: str | None = None, example: object = _NONE) -> msgspec.Meta:
    """Describe a field of a struct: ``Annotated[str, doc("The key's id.", "key_0197...")]``."""
    return msgspec.Meta(description=description, examples=None if example is _NONE else [example])


def one_line(text: str) -> str:
    """Return a text as one line, without characters that cannot be printed."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def with_full_stop(text: str) -> str:
    """Return a text that ends like a sentence."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def shortened(names: Sequence[str], most: int) -> str:
    """Join the first names by commas, and say how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def camel_case(name: str) -> str:
    """Return the name of a Python attribute as in JSON."""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
