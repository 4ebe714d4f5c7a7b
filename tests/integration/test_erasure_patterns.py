"""Where stored text has an address or an id of a person, as PostgreSQL finds it."""

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import psycopg
import pytest

from tenantry.domain.erasure_patterns import address_pattern, id_pattern
from tests.support.cases import cases
from tests.support.postgres import PostgresServer

ADA: Final = "ada.l@x.example"
MUELLER: Final = "jörg@müller.example"
ID: Final = "auth0|ada_1"


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.conninfo) as connection:
        yield connection


def replaced(connection: psycopg.Connection[Any], pattern: str, text: str) -> str:
    row = connection.execute("SELECT regexp_replace(%s, %s, '#', 'g')", (text, pattern)).fetchone()
    assert row is not None
    return str(row[0])


@cases(
    ("text", "left"),
    [
        (ADA, "#"),
        ("Ada.L@X.Example", "#"),
        (f"<{ADA}>, {ADA}.", "<#>, #."),
        (f'{{"email":"{ADA}"}}', '{"email":"#"}'),
        ('{"email":"ada.l\\u0040x.example"}', '{"email":"#"}'),
        ('{"a":"\\u0061da.l@x.example"}', '{"a":"#"}'),
        (f'{{"a":"to\\n{ADA}\\nend"}}', '{"a":"to\\n#\\nend"}'),
        (f'{{"a":"\\u003c{ADA}\\u003e"}}', '{"a":"\\u003c#\\u003e"}'),
        (f"q={quote(ADA, safe='')}&b", "q=#&b"),
        (f"q=%3C{quote(ADA, safe='')}%3E", "q=%3C#%3E"),
        (f"\N{LEFT DOUBLE QUOTATION MARK}{ADA}", "\N{LEFT DOUBLE QUOTATION MARK}#"),
        (f"地址{ADA}", "地址#"),
    ],
)
def test_an_address_is_found(connection: psycopg.Connection[Any], text: str, left: str) -> None:
    assert replaced(connection, address_pattern(ADA), text) == left


@cases(
    "text",
    [
        f"n{ADA}",
        f"\\\\n{ADA}",
        f"a.{ADA}",
        f"a+{ADA}",
        f"%61{ADA}",
        f"\\u0061{ADA}",
        f"ä{ADA}",
        f"{ADA}.org",
        f"{ADA}s",
        f"{ADA}-s.example",
        f"{ADA}%2Eorg",
        f"{ADA}\\u002eorg",
        "ada-l@x.example",
        "ada.l@xyexample",
    ],
)
def test_a_part_of_a_longer_address_stays(connection: psycopg.Connection[Any], text: str) -> None:
    assert replaced(connection, address_pattern(ADA), text) == text


@cases(
    "text",
    [
        MUELLER,
        MUELLER.upper(),
        json.dumps(MUELLER)[1:-1],
        quote(MUELLER, safe=""),
        MUELLER.encode().decode("latin-1"),
    ],
)
def test_letters_outside_of_ascii_are_found(connection: psycopg.Connection[Any], text: str) -> None:
    assert replaced(connection, address_pattern(MUELLER), text) == "#"


@cases(
    ("text", "left"),
    [
        (ID, "#"),
        (f'{{"sub":"{ID}"}}', '{"sub":"#"}'),
        (f"user:https://id.example:{ID}", "user:https://id.example:#"),
        (f"/members/{quote(ID, safe='')}/keys", "/members/#/keys"),
        (f"{ID}, removed {ID}.", "#, removed #."),
    ],
)
def test_an_id_is_found(connection: psycopg.Connection[Any], text: str, left: str) -> None:
    assert replaced(connection, id_pattern(ID), text) == left


@cases(
    "text",
    ["AUTH0|ada_1", f"{ID}2", f"{ID}|b", f"{ID}%7Cb", f"x{ID}", f"{ID}@x.example", f"saml|{ID}"],
)
def test_a_part_of_a_longer_id_stays(connection: psycopg.Connection[Any], text: str) -> None:
    assert replaced(connection, id_pattern(ID), text) == text


@cases(
    ("user_id", "text", "left"),
    [
        ("42", '{"userId":"42","amount":42,"unit_amount_decimal":"42"}', None),
        ("42", '{"user_id": "42"}', '{"user_id": "#"}'),
        ("owner", '{"role":"owner","ownerId":"owner"}', '{"role":"owner","ownerId":"#"}'),
        ("42", '{"client_reference_id":"42"}', '{"client_reference_id":"#"}'),
        ("42", '{"sub":"42","subtotal":"42"}', '{"sub":"#","subtotal":"42"}'),
        ("42", "order 42", "order 42"),
    ],
)
def test_a_short_id_or_number_is_found_only_where_a_field_is_a_user_s(
    connection: psycopg.Connection[Any], user_id: str, text: str, left: str | None
) -> None:
    expected = left or text.replace('"userId":"42"', '"userId":"#"')
    assert replaced(connection, id_pattern(user_id), text) == expected
