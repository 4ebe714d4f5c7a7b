"""Parameters in PostgreSQL's binary format, byte for byte."""

from datetime import UTC, datetime

import pytest

from tenantry.db import statements
from tenantry.db.statements import ParameterType, Statement
from tests.support.cases import cases


@cases(
    ("kind", "values", "dumped"),
    [
        (statements.TEXTS, [], "00000000 00000000 00000019"),
        (
            statements.TEXTS,
            ["ä", None],
            "00000001 00000001 00000019 00000002 00000001 00000002 c3a4 ffffffff",
        ),
        (
            statements.TEXTS,
            [None, None],
            "00000001 00000001 00000019 00000002 00000001 ffffffff ffffffff",
        ),
        (
            statements.BIGINTS,
            [-1],
            "00000001 00000001 00000014 00000001 00000001 00000008 ffffffffffffffff",
        ),
        (statements.BIGINTS, [None], "00000001 00000001 00000014 00000001 00000001 ffffffff"),
        (
            statements.BOOLEANS,
            [True, False, None],
            "00000001 00000001 00000010 00000003 00000001 00000001 01 00000001 00 ffffffff",
        ),
        (
            statements.MOMENTS,
            [datetime(2000, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
            "00000001 00000001 000004a0 00000001 00000001 00000008 0000000000000001",
        ),
    ],
)
def test_a_column(kind: ParameterType[object], values: object, dumped: str) -> None:
    assert kind.dump(values).hex() == dumped.replace(" ", "")


@cases("length", [0, 8191, 8192, 100_000])
def test_an_item_of_any_length(length: int) -> None:
    assert statements.BLOBS.dump([b"x" * length])[20:24] == length.to_bytes(4, "big")


def test_a_statement_refuses_another_number_of_parameters() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Statement("SELECT $1, $2", statements.TEXT, statements.TEXT)("one")


def test_unencodable_text_is_rejected_before_sending() -> None:
    with pytest.raises(UnicodeEncodeError):
        Statement("SELECT $1", statements.TEXTS)(["\ud800"])
