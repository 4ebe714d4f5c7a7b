"""Files of comma-separated values (RFC 4180), for spreadsheets."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

CSV_TYPE: Final = "text/csv"
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_lines(rows: Iterable[Sequence[Any]]) -> bytes:
    """Return a line for each row. Values that are no text are JSON, None is empty."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _cell(value: Any) -> str:  # noqa: ANN401  # any JSON
    """Return the text of a value. One that a spreadsheet would run as a formula is quoted."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
