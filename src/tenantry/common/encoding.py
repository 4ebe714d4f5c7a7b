"""Identifiers, cursors, and the errors of decoding JSON."""

import base64
import binascii
import secrets
import time
from typing import Final

import msgspec

_NANOSECONDS_IN_ONE = 1_000_000


def new_id(prefix: str) -> str:
    """Return ``prefix_`` and 32 hex digits: 48 bits of Unix milliseconds, 20 of nanoseconds in one, 60 random ones.

    Ids made later sort later, also those of one process in one transaction, and an index over them grows at its end.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), _NANOSECONDS_IN_ONE)
    return f"{prefix}_{milliseconds:012x}{nanoseconds:05x}{secrets.randbits(60):015x}"


# JSON that others wrote


NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no JSON, that are nested too deep, or that are not of the type asked for."""


# Opaque cursors for keyset pagination


_LARGEST_KEY: Final = 2**62


class BadCursorError(ValueError):
    """The text is not a cursor that `encode` made."""


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a page ended: the last row's sort key and its id, which tells equal keys apart."""

    key: int
    id: str


_decoder = msgspec.msgpack.Decoder(Position)


def encode(position: Position) -> str:
    """Return the cursor of the page that starts after this row."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).rstrip(b"=").decode()


def decode(cursor: str) -> Position:
    """Return the position in a cursor made by `encode`; raises `BadCursorError` for any other text."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        position = _decoder.decode(raw)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise BadCursorError(cursor) from error
    if not -_LARGEST_KEY < position.key < _LARGEST_KEY or "\x00" in position.id:
        raise BadCursorError(cursor)
    return position
