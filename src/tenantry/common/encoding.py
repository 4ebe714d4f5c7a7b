"""Identifiers, cursors, the errors of decoding JSON, and the descriptions of fields in the OpenAPI document."""

import base64
import binascii
import secrets
import time
from typing import Final

import msgspec

NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""msgspec's errors for invalid or too deeply nested JSON, or JSON of another type."""
_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000
_MAX_KEY: Final = 2**62
_NONE: Final = object()


def new_id(prefix: str) -> str:
    """Return ``prefix_`` and 32 hex digits that sort by time: 48 bits of milliseconds, 20 of nanoseconds, 60 random."""
    milliseconds, nanoseconds = divmod(time.time_ns(), _NANOSECONDS_PER_MILLISECOND)
    return f"{prefix}_{milliseconds:012x}{nanoseconds:05x}{secrets.randbits(60):015x}"


def doc(description: str | None = None, example: object = _NONE) -> msgspec.Meta:
    """Describe a field of a struct: ``Annotated[str, doc("The key's id.", "key_0197...")]``."""
    return msgspec.Meta(description=description, examples=None if example is _NONE else [example])


class BadCursorError(ValueError):
    """The text is not a cursor that `encode` made."""


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The end of a page: the last row's sort key, and its id to distinguish equal keys."""

    key: int
    id: str


_decoder = msgspec.msgpack.Decoder(Position)


def encode(position: Position) -> str:
    """Return the cursor of the page after this row."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).rstrip(b"=").decode()


def decode(cursor: str) -> Position:
    """Return the position in a cursor. Raises `BadCursorError`."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        position = _decoder.decode(raw)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise BadCursorError(cursor) from error
    if not -_MAX_KEY < position.key < _MAX_KEY or "\x00" in position.id:
        raise BadCursorError(cursor)
    return position
