"""The files in which other systems export their keys."""

import json

import pytest

from tenantry.cli.exported_keys import ExportedKey, read_exported_keys
from tenantry_cli.output import CommandError
from tests.support.cases import cases

ROWS = [{"id": "k1", "name": "CI"}, {"id": "k2", "name": 'Zoë, "x"'}]


@cases(
    ("content", "places"),
    [
        (json.dumps(ROWS), ["entry 1", "entry 2"]),
        (json.dumps(ROWS, indent=2), ["entry 1", "entry 2"]),
        (json.dumps({"meta": {}, "data": ROWS}), ["line 1, entry 1", "line 1, entry 2"]),
        (json.dumps({"data": ROWS}, indent=2), ["line 1, entry 1", "line 1, entry 2"]),
        (
            "\n".join(json.dumps({"meta": {}, "data": [row]}) for row in ROWS),
            ["line 1, entry 1", "line 2, entry 1"],
        ),
        ("\ufeff" + "\n".join(map(json.dumps, ROWS)), ["line 1", "line 2"]),
        ("\n".join(map(json.dumps, ROWS)).replace("\n", "\r\n\r\n") + "\n", ["line 1", "line 3"]),
        ('id,name\r\nk1,CI\r\nk2,"Zoë, ""x"""\r\n', ["line 2", "line 3"]),
    ],
)
def test_every_form_gives_the_same_keys(content: str, places: list[str]) -> None:
    expected = [ExportedKey(place, row) for place, row in zip(places, ROWS, strict=True)]
    assert read_exported_keys(content.encode()) == expected


def test_empty_value_of_csv_is_absent() -> None:
    [key] = read_exported_keys(b"id,name,expires\nk1,CI,\n")
    assert key.fields == {"id": "k1", "name": "CI"}


def test_empty_file_has_no_keys() -> None:
    assert read_exported_keys(b" \n") == []


@cases(
    ("content", "message"),
    [
        (b'{"key": "secret"}\n{"key": "secret"', "line 2: is not JSON"),
        (b'{"key": "a"}\n["secret"]\n', "line 2: is not a JSON object"),
        (b'["secret"]', "entry 1: is not a JSON object"),
        (b'[{"key": "secret"', "The file: is not JSON"),
        (b"id,name\nk1,secret,secret\n", "line 2: has not as many values as the first line"),
        (b"id,name\nk1\n", "line 2: has not as many values as the first line"),
        (b'id,name\nk1,"secret"x\n', "after line 1: is not CSV"),
        (b"id,name\nk1,secret\xff\n", "The file is not UTF-8"),
        (b"[" * 100_000, "The file: is not JSON"),
    ],
)
def test_fault_names_the_place_and_no_value(content: bytes, message: str) -> None:
    with pytest.raises(CommandError) as fault:
        read_exported_keys(content)
    assert message in fault.value.message
    assert "secret" not in fault.value.message
