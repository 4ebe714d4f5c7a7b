"""Pagination: pages of lists, their cursors and their statements."""

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from tenantry.common.clock import from_epoch, from_micros, to_micros
from tenantry.common.encoding import doc
from tenantry.db.connection import Connection
from tenantry.domain.errors import InvalidCursorError

Row = TypeVar("Row")
Values = Mapping[str, object]


class Page(msgspec.Struct, Generic[Row], frozen=True, rename="camel"):
    """One page of a list; ``next_cursor`` is null on the last."""

    data: Annotated[list[Row], doc("The objects, at most `limit`.")]
    next_cursor: Annotated[str | None, doc("For the next page; null on the last.")]


class Window(NamedTuple):
    """The place of a page in a list, newest first: up to ``limit`` rows after a time and id."""

    limit: int
    after_at: datetime | None = None
    after_id: str | None = None


# entries of a ledger or audit trail that one page of a filtered list reads
MAX_SCANNED_ROWS: Final = 5000
MAX_SCANNED_RECORDS: Final = 10_000  # the same of keys or members, which are fewer and smaller
_MAX_KEY: Final = 2**62
_LONGEST_ARRIVAL: Final = 20
"""In digits: `int` raises an error for thousands of them."""
INVALID_CURSOR: Final = "The cursor is invalid. Use a nextCursor of this API."


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The end of a page: the last row's sort key, and its id to distinguish equal keys."""

    key: int
    id: str


_decoder = msgspec.msgpack.Decoder(Position)


def encode_cursor(position: Position) -> str:
    """Return the cursor of the page after this row."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).rstrip(b"=").decode()


def decode_cursor(cursor: str) -> Position:
    """Return the position in a cursor. Raises `InvalidCursorError`."""
    try:
        raw = base64.b64decode(
            cursor + "=" * (-len(cursor) % 4),
            altchars=b"-_",
            validate=True,
        )
        position = _decoder.decode(raw)
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidCursorError(INVALID_CURSOR) from error
    if not -_MAX_KEY < position.key < _MAX_KEY or "\x00" in position.id:
        raise InvalidCursorError(INVALID_CURSOR)
    return position


class RowOrder:
    """How the key and tie of a list's rows are written into cursors: by a time, and an id where
    times are equal.
    """

    def position(self, key: Any, tie: Any) -> Position:  # noqa: ANN401
        """Return the position of the row with this key and tie."""
        return Position(to_micros(key), tie)

    def values(self, position: Position) -> tuple[Any, Any]:
        """Return the key and tie of a position. Raises `InvalidCursorError`."""
        try:
            return from_micros(position.key), position.id
        except OverflowError as error:
            raise InvalidCursorError(INVALID_CURSOR) from error

    def at(self, moment: datetime) -> Position:
        """Return the position before the first row that is older than this moment."""
        return Position(to_micros(moment), "")

    def moment(self, position: Position) -> datetime:
        """Return the time of a position."""
        return from_micros(position.key)


class _ByArrival(RowOrder):
    """By the second of an event, and its arrival number."""

    def position(self, key: int, tie: int) -> Position:
        return Position(key, str(tie))

    def values(self, position: Position) -> tuple[int, int]:
        if not position.id.isdecimal() or len(position.id) > _LONGEST_ARRIVAL:
            raise InvalidCursorError(INVALID_CURSOR)
        return position.key, min(int(position.id), _MAX_KEY)

    def at(self, moment: datetime) -> Position:
        return Position(int(moment.timestamp()), "0")

    def moment(self, position: Position) -> datetime:
        return from_epoch(position.key)


BY_TIME: Final = RowOrder()
BY_ARRIVAL: Final = _ByArrival()


def window_after(limit: int, cursor: str | None) -> Window:
    """Return the window of ``limit`` rows after a cursor whose key is a time. Raises
    `InvalidCursorError`.
    """
    if cursor is None:
        return Window(limit)
    return Window(limit, *BY_TIME.values(decode_cursor(cursor)))


def to_page(rows: list[Row], limit: int, position: Callable[[Row], Position]) -> Page[Row]:
    """Make a page of up to ``limit`` rows; one more row means that there is a next page."""
    if len(rows) > limit:
        return Page(rows[:limit], encode_cursor(position(rows[limit - 1])))
    return Page(rows, None)


class Listing(NamedTuple):
    """A list of a table's rows in the descending order of an index on ``key`` and ``tie``.

    ``most`` bounds the rows that a numbered page examines (`NumberedListing`), and
    ``source_columns`` names those columns, if the role may not read all of them.
    """

    columns: str
    table: str
    key: str
    tie: str = "id"
    most: int = MAX_SCANNED_ROWS
    source_columns: str = "*"
    order: RowOrder = BY_TIME

    async def page(
        self,
        connection: Connection,
        condition: str,
        values: Values,
        window: Window,
        row_of: Callable[[Sequence[Any]], Row],
        *,
        filtered: str = "true",
    ) -> Page[Row]:
        """Return a page of the rows that match both conditions, by a time ``key``."""
        statement = (
            f"SELECT {self.key}, {self.tie}, {self.columns} FROM {self.table} AS k "  # noqa: S608  # our own
            f"WHERE {condition} AND ({filtered}) AND ({self.key}, {self.tie})"
            " < (coalesce(%(after_at)s::timestamptz, 'infinity'), coalesce(%(after_id)s::text, '')) "
            f"ORDER BY {self.key} DESC, {self.tie} DESC LIMIT %(limit)s + 1"
        )
        rows = await connection.fetch(statement, {**values, **window._asdict()})
        page = to_page(rows, window.limit, lambda row: self.order.position(*row[:2]))
        return Page([row_of(row[2:]) for row in page.data], page.next_cursor)
