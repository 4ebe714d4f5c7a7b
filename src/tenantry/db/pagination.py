"""Cutting what the store gave into pages."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, TypeVar

from tenantry.common import cursor
from tenantry.common.clock import from_micros, to_micros
from tenantry.common.cursor import Position
from tenantry.domain.errors import InvalidCursorError
from tenantry.domain.pages import Page, SoughtPage

Row = TypeVar("Row")


def parse_cursor(text: str | None) -> Position | None:
    """The position in a cursor; raises `InvalidCursorError` for one that we did not make."""
    if text is None:
        return None
    try:
        return cursor.decode(text)
    except cursor.BadCursorError as error:
        raise InvalidCursorError("The cursor is not one that this API gave.") from error


def parse_time_cursor(text: str | None) -> tuple[datetime | None, str | None]:
    """The moment and id in a cursor whose key is a time in microseconds."""
    position = parse_cursor(text)
    if position is None:
        return None, None
    try:
        return from_micros(position.key), position.id
    except OverflowError as error:
        raise InvalidCursorError("The cursor is not one that this API gave.") from error


def to_page(rows: list[Row], limit: int, position: Callable[[Row], Position]) -> Page[Row]:
    """The page of up to ``limit`` rows, of a list that holds one more if there is a next page."""
    if len(rows) <= limit:
        return Page(rows, None)
    return Page(rows[:limit], cursor.encode(position(rows[limit - 1])))


def to_sought_page(
    rows: list[Row],
    limit: int,
    position: Callable[[Row], Position],
    end: "End | None",
) -> SoughtPage[Row]:
    """The same of a list for which only so many rows were looked at; ``end`` is the last of these."""
    page = to_page(rows, limit, position)
    if page.next_cursor is None and end is not None:
        return SoughtPage(page.data, cursor.encode(end.position), end.looked_at, end.moment)
    return SoughtPage(page.data, page.next_cursor)


class End(NamedTuple):
    """Where a look at rows ended: the position and moment of the last of them, and how many these were."""

    position: Position
    moment: datetime
    looked_at: int


def time_end(end: tuple[datetime, str] | None, looked_at: int) -> End | None:
    """The end of a look at so many rows whose key is a time."""
    return None if end is None else End(Position(to_micros(end[0]), end[1]), end[0], looked_at)
