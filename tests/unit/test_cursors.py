"""Opaque cursors, and the rejection of others."""

import base64
from datetime import UTC, datetime

import msgspec
import pytest

from tenantry.common.clock import to_micros
from tenantry.db.pagination import (
    Position,
    Window,
    decode_cursor,
    encode_cursor,
    to_page,
    window_after,
)
from tenantry.domain.errors import InvalidCursorError
from tests.support.cases import cases

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)


def packed(content: object) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(content)).rstrip(b"=").decode()


@cases("position", [Position(0, ""), Position(-1, "é"), Position(2**62 - 1, "proj_1")])
def test_position_comes_back(position: Position) -> None:
    assert decode_cursor(encode_cursor(position)) == position


def test_cursor_needs_no_escaping_in_an_address() -> None:
    assert encode_cursor(Position(2**61, "?>?>?>")).replace("-", "").replace("_", "").isalnum()


FOREIGN = {
    "empty": "",
    "one character": "a",
    "not base64": "!!!!",
    "not ASCII": "é",
    "spaces": "kg Ch YQ",
    "NUL": "\x00",
    "not msgpack": base64.urlsafe_b64encode(b"\xc1").decode(),
    "a number": packed(1),
    "too short": packed([1]),
    "too long": packed([1, "a", 2]),
    "text for a number": packed(["1", "a"]),
    "number for a text": packed([1, 2]),
    "an object": packed({"key": 1, "id": "a"}),
    "huge": packed([2**62, "a"]),
    "far below": packed([-(2**62), "a"]),
    "NUL in the id": packed([1, "a\x00"]),
    "surrogate in the id": base64.urlsafe_b64encode(b"\x92\x01\xa3\xed\xa0\x80").decode(),
    "more behind": base64.urlsafe_b64encode(msgspec.msgpack.encode([1, "a"]) + b"x").decode(),
}


@cases("text", FOREIGN.values(), ids=FOREIGN)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursorError):
        decode_cursor(text)


def test_time_comes_back_to_the_microsecond() -> None:
    assert window_after(5, encode_cursor(Position(to_micros(MOMENT), "x"))) == Window(
        5, MOMENT, "x"
    )


def test_no_cursor_is_no_position() -> None:
    assert window_after(5, None) == Window(5, None, None)


@pytest.mark.parametrize("micros", [2**61, -(2**61)])
def test_time_that_no_calendar_has_is_refused(micros: int) -> None:
    with pytest.raises(InvalidCursorError):
        window_after(5, encode_cursor(Position(micros, "x")))


@cases(("rows", "shown", "more"), [(0, 0, False), (2, 2, False), (3, 2, True)])
def test_page_has_a_cursor_only_if_more_follows(rows: int, shown: int, more: bool) -> None:
    page = to_page(list(range(rows)), 2, lambda row: Position(row, "x"))
    assert len(page.data) == shown
    assert (page.next_cursor is not None) is more
    if page.next_cursor:
        assert decode_cursor(page.next_cursor) == Position(1, "x")
