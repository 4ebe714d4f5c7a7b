"""The audit trail as a file of comma-separated values (RFC 4180), for spreadsheets."""

import csv
import io
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

import msgspec

from tenantry.domain.audit import AuditEvent

CSV_TYPE: Final = "text/csv"
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
_COLUMNS: Final = tuple(field.encode_name for field in msgspec.structs.fields(AuditEvent))


async def csv_lines(
    first: Sequence[AuditEvent], rest: AsyncIterator[list[AuditEvent]]
) -> AsyncIterator[bytes]:
    """Entries as one line each, below a line with the API's names of the fields.

    ``before`` and ``after`` are JSON.
    """
    yield _lines([_COLUMNS, *map(_cells, first)])
    async for page in rest:
        yield _lines(map(_cells, page))


def _lines(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cells(event: AuditEvent) -> list[str]:
    record = msgspec.to_builtins(event)
    return [_cell(record[name]) for name in _COLUMNS]


def _cell(value: Any) -> str:  # noqa: ANN401  # any JSON
    """Return the text of a value. One that a spreadsheet would run as a formula is quoted."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
