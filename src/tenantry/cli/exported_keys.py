"""Read the keys of another system from the file that it exported: JSON, JSON lines or CSV."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry_cli.output import USAGE, CommandError

_LISTS: Final = ("data", "keys", "result", "results")
"""The members in which answers of APIs have their list."""


class ExportedKey(NamedTuple):
    """A key as the file has it, and its place there, such as ``line 7``."""

    place: str
    fields: dict[str, Any]


def read_exported_keys(content: bytes) -> list[ExportedKey]:
    """Read a JSON array, a JSON object with a list, JSON lines, or CSV with a header.

    Raises `CommandError` that names the place, and no value.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(f"The file is not UTF-8: {error.reason}.", USAGE) from None
    match text.lstrip()[:1]:
        case "":
            return []
        case "[":
            return list(_entries(_decoded(text, "The file")))
        case "{":
            return list(_objects(text))
        case _:
            return list(_csv_rows(text))


def _objects(text: str) -> Iterator[ExportedKey]:
    """Read one object, or an object on each line: a key, or an answer with a list of keys."""
    try:
        yield from _listed(msgspec.json.decode(text), "line 1")
    except NOT_JSON:
        for number, line in enumerate(text.splitlines(), 1):
            place = f"line {number}"
            if line.strip():
                yield from _listed(_decoded(line, place), place)


def _listed(item: object, place: str) -> Iterator[ExportedKey]:
    found = _object(item, place)
    lists = [found[name] for name in _LISTS if isinstance(found.get(name), list)]
    if lists:
        yield from _entries(lists[0], f"{place}, ")
    else:
        yield ExportedKey(place, found)


def _entries(items: Iterable[Any], before: str = "") -> Iterator[ExportedKey]:
    for number, item in enumerate(items, 1):
        place = f"{before}entry {number}"
        yield ExportedKey(place, _object(item, place))


def _object(item: object, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise CommandError(f"{place}: is not a JSON object", USAGE)
    return item


def _decoded(text: str, place: str) -> Any:  # noqa: ANN401  # any JSON
    try:
        return msgspec.json.decode(text)
    except NOT_JSON as error:
        raise CommandError(f"{place}: is not JSON: {error}", USAGE) from None


def _csv_rows(text: str) -> Iterator[ExportedKey]:
    """Read rows; an empty value is an absent one."""
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in rows:
            place = f"line {rows.line_num}"
            if None in row or None in row.values():
                raise CommandError(f"{place}: has not as many values as the first line", USAGE)
            yield ExportedKey(place, {name: value for name, value in row.items() if value})
    except csv.Error as error:
        raise CommandError(f"after line {rows.line_num}: is not CSV: {error}", USAGE) from None
