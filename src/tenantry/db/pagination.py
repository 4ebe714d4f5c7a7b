"""Lists, page by page: the statements of a page and its cursor."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from tenantry.common import encoding as cursor
from tenantry.common.clock import from_micros, to_micros
from tenantry.common.encoding import Position
from tenantry.db.connection import Connection
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
    rows: list[Row], limit: int, position: Callable[[Row], Position], end: "End | None"
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


# Lists by an index, newest first, and the bound on what a filter that no index helps with may cost


MOST_LOOKED_AT: Final = 5000
"""So many entries of a ledger or a trail are looked at for one page of a filtered list, where that is bounded."""
MOST_RECORDS_LOOKED_AT: Final = 10_000
"""So many keys or members, which are fewer and closer together."""


class Listing(NamedTuple):
    """What is read of a table, and the two columns of the index that it is sorted by, each from high to low.

    ``most`` is how many rows `seek` looks at, and ``made_of`` which columns it needs for what is read and filtered,
    where the reader may not read all of them.
    """

    columns: str
    table: str
    key: str
    tie: str = "id"
    most: int = MOST_LOOKED_AT
    made_of: str = "*"

    @property
    def _order(self) -> str:
        return f"ORDER BY {self.key} DESC, {self.tie} DESC"

    async def read(
        self, connection: Connection, condition: str, filtered: str, values: Mapping[str, object], limit: int
    ) -> list[tuple[Any, ...]]:
        """The rows that fit both conditions; one more than ``limit`` if there are more."""
        cursor = await connection.execute(
            f"SELECT {self.columns} FROM {self.table} AS k WHERE {condition} AND ({filtered}) "  # noqa: S608  # our own
            f"{self._order} LIMIT %(limit)s",
            {**values, "limit": limit + 1},
        )
        return await cursor.fetchall()

    async def seek(
        self, connection: Connection, condition: str, filtered: str, values: Mapping[str, object], limit: int
    ) -> "Sought":
        """The same, of the first ``most`` rows that fit ``condition``, for which there must be an index.

        How many these are is a part of the statement, for a plan that is kept would not count with a parameter.
        """
        source = f"FROM {self.table} WHERE {condition} {self._order}"
        cursor = await connection.execute(
            f"SELECT {self.columns} FROM (SELECT {self.made_of} {source} LIMIT {self.most}) AS k "  # noqa: S608  # our own
            f"WHERE {filtered} {self._order} LIMIT %(limit)s",
            {**values, "limit": limit + 1},
        )
        rows = await cursor.fetchall()
        if len(rows) > limit:
            return Sought(rows, None)
        cursor = await connection.execute(
            f"SELECT {self.key}, {self.tie} {source} OFFSET {self.most - 1} LIMIT 2", values
        )
        last = await cursor.fetchall()
        return Sought(rows, last[0] if len(last) > 1 else None)


class Sought(NamedTuple):
    """The rows that were found, and the position of the last row that was looked at, if there are more after it."""

    rows: list[tuple[Any, ...]]
    end: tuple[Any, ...] | None
