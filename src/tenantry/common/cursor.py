"""Opaque cursors for keyset pagination."""

import base64
import binascii
from typing import Final

import msgspec

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
