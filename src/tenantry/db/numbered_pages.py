"""Pages of lists for people: with a number, in both directions, and with jumps.

A page is found from its first or last row by the index of the list's order, so that the page of
row 1,000 costs what the first one does. Only a jump to a number counts the rows before it.
Counts and searches examine `Listing.most` rows at most (docs/decisions/0074-numbered-pages.md).
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.pagination import Listing, Position, Values, encode_cursor
from tenantry.domain.plans import Count

Row = TypeVar("Row")
_Row = tuple[Any, ...]
EVERY_ROW: Final = "true"
"""The filter of a list without one, which has no rows to look for."""


class PageRequest(msgspec.Struct, frozen=True):
    """Which page of a list, newest first, to read: at most one field beside ``size`` is given."""

    size: int
    after: Position | None = None
    """The rows older than this one."""
    before: Position | None = None
    """The rows newer than this one."""
    until: datetime | None = None
    """The rows older than this moment."""
    number: int = 1
    is_last: bool = False


class NumberedPage(msgspec.Struct, Generic[Row], frozen=True):
    """A page of a list, and its place in it."""

    data: list[Row]
    size: int
    total: Count
    """The rows that match; of a longer list, those among the newest `Listing.most` and one."""
    first: int | None
    """The number of the first row, from 1; None where it was not counted, or there is no row."""
    newer: str | None
    """The cursor of the page before: the rows newer than its position."""
    older: str | None
    """The cursor of the page after: the rows older than its position."""
    looked_at: int = 0
    """The number of rows examined by a search that ended before it had a page, else 0."""
    looked_back_to: datetime | None = None
    """The time of the last of these."""

    @property
    def last(self) -> int | None:
        """The number of the last row."""
        return None if self.first is None else self.first + len(self.data) - 1

    @property
    def number(self) -> int | None:
        """The number of this page, from 1."""
        return None if self.first is None else -(-self.first // self.size)

    @property
    def pages(self) -> int:
        """How many pages have a number."""
        return -(-self.total.number // self.size)


def only_page(rows: list[Row]) -> NumberedPage[Row]:
    """Return the page of a list that has these rows alone, at least one."""
    return NumberedPage(rows, len(rows), Count(len(rows)), 1, None, None)


class _Direction(NamedTuple):
    """The way from a row through a list: the comparison with that row, and the order."""

    comparison: str
    order: str


_OLDER: Final = _Direction("<", "DESC")
_NEWER: Final = _Direction(">", "ASC")


class _Part(NamedTuple):
    """Consecutive rows of a list, newest first, and where the pages beside them begin."""

    rows: list[_Row]
    newer: Position | None
    older: Position | None
    looked_back_to: Position | None = None


class _Counts(NamedTuple):
    """Numbers of rows that match among the newest ones: all, and those newer than a row."""

    total: Count
    newer: int


class NumberedListing(NamedTuple):
    """The rows that match ``condition``, which an index must support, and ``filtered``, which is
    checked row by row; ``values`` are the parameters of both.
    """

    listing: Listing
    condition: str
    values: Values
    filtered: str = EVERY_ROW

    async def read(
        self,
        connection: Connection,
        wanted: PageRequest,
        row_of: Callable[[Sequence[Any]], Row],
    ) -> NumberedPage[Row]:
        """Read a page. A page beyond the last one is the last. Raises `InvalidCursorError`."""
        part = await self._find(connection, wanted)
        counts = await self._count(connection, part.rows)
        is_counted = bool(part.rows) and counts.newer < counts.total.number
        is_first = is_counted and counts.newer == 0
        looked_back_to = part.looked_back_to
        return NumberedPage(
            data=[row_of(row[2:]) for row in part.rows],
            size=wanted.size,
            total=counts.total,
            first=counts.newer + 1 if is_counted else None,
            newer=_cursor(None if is_first else part.newer),
            older=_cursor(part.older),
            looked_at=self.listing.most if looked_back_to else 0,
            looked_back_to=None
            if looked_back_to is None
            else self.listing.order.moment(looked_back_to),
        )

    async def _find(self, connection: Connection, wanted: PageRequest) -> _Part:
        size = wanted.size
        if wanted.is_last:
            return await self._read(connection, _NEWER, None, size)
        if wanted.before is not None:
            part = await self._read(connection, _NEWER, wanted.before, size)
            # the newest rows: as many as a page has
            return part if part.newer else await self._read(connection, _OLDER, None, size)
        after = wanted.after if wanted.until is None else self.listing.order.at(wanted.until)
        part = await self._read(connection, _OLDER, after, size, (wanted.number - 1) * size)
        if wanted.number > 1 and not part.rows:
            return await self._read(connection, _NEWER, None, size)
        return part

    async def _read(
        self,
        connection: Connection,
        direction: _Direction,
        start: Position | None,
        size: int,
        skipped: int = 0,
    ) -> _Part:
        """Read the rows after ``start`` in this direction, or all in this direction without one."""
        rows = await self._select(connection, direction, start, size, skipped)
        end = None
        if len(rows) <= size:
            end = await self._end_of_search(connection, direction, start)
        behind = self._position(rows[0]) if rows and (start or skipped) else start
        ahead = self._position(rows[size - 1]) if len(rows) > size else end
        if direction is _OLDER:
            return _Part(rows[:size], behind, ahead, end)
        return _Part(rows[:size][::-1], ahead, behind)

    async def _select(
        self,
        connection: Connection,
        direction: _Direction,
        start: Position | None,
        size: int,
        skipped: int,
    ) -> list[_Row]:
        """Return up to ``size`` + 1 rows, in this direction."""
        listing = self.listing
        statement = (
            f"SELECT {listing.key}, {listing.tie}, {listing.columns} "  # noqa: S608  # our own
            f"FROM ({self._examined(direction, start)} LIMIT {listing.most}) AS k "
            f"WHERE {self.filtered} {self._sorted(direction)} "
            "LIMIT %(size)s OFFSET %(skipped)s"
        )
        values = {**self._values(start), "size": size + 1, "skipped": skipped}
        return await connection.fetch(statement, values)

    async def _end_of_search(
        self, connection: Connection, direction: _Direction, start: Position | None
    ) -> Position | None:
        """Return the position of the last row that a search examines; None if it examines all."""
        if self.filtered == EVERY_ROW:
            return None
        listing = self.listing
        rows = await connection.fetch(
            f"SELECT {listing.key}, {listing.tie} "  # noqa: S608  # our own
            f"FROM ({self._examined(direction, start)}) AS k {self._sorted(direction)} "
            f"OFFSET {listing.most - 1} LIMIT 2",
            self._values(start),
        )
        return self._position(rows[0]) if len(rows) > 1 else None

    async def _count(self, connection: Connection, rows: list[_Row]) -> _Counts:
        """Count the rows that match, and those that are newer than the first of ``rows``."""
        listing = self.listing
        first_key, first_tie = rows[0][:2] if rows else (None, None)
        condition = (
            f"({listing.key}, {listing.tie}) > (%(first_key)s, %(first_tie)s)" if rows else "false"
        )
        # the filter last, which costs more and need not be checked for older rows
        [(examined, matching, newer)] = await connection.fetch(
            f"SELECT count(*), count(*) FILTER (WHERE {self.filtered}), "  # noqa: S608  # our own
            f"count(*) FILTER (WHERE {condition} AND {self.filtered}) "
            f"FROM ({self._examined(_OLDER, None)} LIMIT {listing.most + 1}) AS k",
            {**self.values, "first_key": first_key, "first_tie": first_tie},
        )
        total = Count(min(matching, listing.most), examined > listing.most)
        return _Counts(total, newer)

    def _examined(self, direction: _Direction, start: Position | None) -> str:
        """Return the query of all rows in this direction."""
        listing = self.listing
        condition = self.condition
        if start is not None:
            condition += (
                f" AND ({listing.key}, {listing.tie}) {direction.comparison} "
                "(%(start_key)s, %(start_tie)s)"
            )
        return (
            f"SELECT {listing.source_columns} FROM {listing.table} AS k "  # noqa: S608  # our own
            f"WHERE {condition} {self._sorted(direction)}"
        )

    def _sorted(self, direction: _Direction) -> str:
        order = direction.order
        return f"ORDER BY {self.listing.key} {order}, {self.listing.tie} {order}"

    def _values(self, start: Position | None) -> dict[str, object]:
        if start is None:
            return {**self.values}
        key, tie = self.listing.order.values(start)
        return {**self.values, "start_key": key, "start_tie": tie}

    def _position(self, row: _Row) -> Position:
        return self.listing.order.position(row[0], row[1])


def _cursor(position: Position | None) -> str | None:
    return None if position is None else encode_cursor(position)
