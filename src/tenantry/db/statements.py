"""Statements for batches, in PostgreSQL's binary format (``array_send``); encoding takes one call a
column.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from tenantry.common.clock import to_micros

Value = TypeVar("Value")

_NULL: Final = b"\xff\xff\xff\xff"
_KNOWN_LENGTHS: Final = 8192
_LENGTHS: Final = tuple(struct.pack(">i", length) for length in range(_KNOWN_LENGTHS))
_FLAGS: Final = {
    True: struct.pack(">ib", 1, 1),
    False: struct.pack(">ib", 1, 0),
    None: _NULL,
}
_pack_int: Final = struct.Struct(">i").pack
_pack_bigint: Final = struct.Struct(">q").pack
_pack_item: Final = struct.Struct(">iq").pack
_pack_header: Final = struct.Struct(">iiIii").pack
_EPOCH_2000: Final = 946_684_800_000_000


class ParameterType(NamedTuple, Generic[Value]):
    """A PostgreSQL type and its encoder."""

    oid: int
    dump: Callable[[Value], bytes]


class BoundStatement(NamedTuple):
    """A statement with encoded parameters."""

    statement: "Statement"
    parameters: list[bytes | None]


class Statement:
    """A statement for `Connection.run_batch`, with parameters ``$1``, ``$2`` ... of these types."""

    __slots__ = ("_dumps", "formats", "sql", "types")

    def __init__(self, sql: str, *types: ParameterType[Any]) -> None:
        self.sql = sql.encode()
        self.types = [kind.oid for kind in types]
        self.formats = [1] * len(types)
        self._dumps = [kind.dump for kind in types]

    def __call__(self, *values: Any) -> BoundStatement:  # noqa: ANN401  # as its types say
        """Bind parameters; None is NULL. Raises the error of a value that its type cannot
        encode.
        """
        parameters = [
            None if value is None else dump(value)
            for dump, value in zip(self._dumps, values, strict=True)
        ]
        return BoundStatement(self, parameters)

    def for_rows(self, rows: Sequence[Sequence[Any]], *others: Any) -> list["BoundStatement"]:  # noqa: ANN401
        """Bind the columns of rows, and then ``others``; without rows there is nothing to run."""
        return [self(*zip(*rows, strict=True), *others)] if rows else []


def _dump_moment(moment: datetime) -> bytes:
    return _pack_bigint(to_micros(moment) - _EPOCH_2000)


def _array(element: int, number: int, items: Iterable[bytes]) -> bytes:
    head = _pack_header(1, 1, element, number, 1) if number else struct.pack(">iiI", 0, 0, element)
    return b"".join(chain((head,), items))


def _dump_blobs(element: int) -> Callable[[Sequence[bytes | None]], bytes]:
    def dump(values: Sequence[bytes | None]) -> bytes:
        number = len(values)
        if None in values:
            items = [_NULL if value is None else _length(len(value)) + value for value in values]
            return _array(element, number, items)
        present = cast("Sequence[bytes]", values)
        lengths = map(_length, map(len, present))
        return _array(element, number, chain.from_iterable(zip(lengths, present, strict=True)))

    return dump


def _length(length: int) -> bytes:
    return _LENGTHS[length] if length < _KNOWN_LENGTHS else _pack_int(length)


def _dump_texts(values: Sequence[str | None]) -> bytes:
    if None in values:
        return _dump_text_items([None if value is None else value.encode() for value in values])
    return _dump_text_items([*map(str.encode, cast("Sequence[str]", values))])


def _numbers(element: int, values: Sequence[int | None]) -> bytes:
    number = len(values)
    if None in values:
        return _array(
            element, number, [_NULL if value is None else _pack_item(8, value) for value in values]
        )
    return _array(
        element,
        number,
        (struct.pack(">" + "iq" * number, *chain.from_iterable(zip(repeat(8), values))),),
    )


def _dump_moments(values: Sequence[datetime | None]) -> bytes:
    return _numbers(
        1184, [None if value is None else to_micros(value) - _EPOCH_2000 for value in values]
    )


def _dump_booleans(values: Sequence[bool | None]) -> bytes:
    return _array(16, len(values), [_FLAGS[value] for value in values])


_dump_text_items: Final = _dump_blobs(25)

TEXT: Final = ParameterType(25, str.encode)
BIGINT: Final = ParameterType(20, _pack_bigint)
MOMENT: Final = ParameterType(1184, _dump_moment)
TEXTS: Final = ParameterType(1009, _dump_texts)
BIGINTS: Final = ParameterType(1016, partial(_numbers, 20))
BOOLEANS: Final = ParameterType(1000, _dump_booleans)
MOMENTS: Final = ParameterType(1185, _dump_moments)
BLOBS: Final = ParameterType(1001, _dump_blobs(17))
JSONS: Final = ParameterType(199, _dump_blobs(114))  # for values that are encoded JSON
