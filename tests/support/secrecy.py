"""Search a run's output for secrets, in every encoding."""

import base64
import json
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import quote, quote_plus

import psycopg
from psycopg import sql

TABLES: Final = """
SELECT schemaname, tablename FROM pg_tables
 WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY schemaname, tablename
"""


class Trace(NamedTuple):
    """A secret that was found: which, written how, and where."""

    secret: str
    form: str
    place: str


class Secrets:
    """The secrets of a run, by names that may be shown, and the places where they must not be."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.places: dict[str, bytes] = {}
        self.searches = 0

    def add(self, name: str, secret: str) -> str:
        """Look for this secret too; a token's signature is looked for by itself as well."""
        self.known[name] = secret
        if secret.count(".") == 2 and len(secret.rpartition(".")[2]) > 20:
            self.known[f"signature of {name}"] = secret.rpartition(".")[2]
        return secret

    def keep(self, place: str, left: bytes | str) -> None:
        """Look here too."""
        self.places[place] = (
            self.places.get(place, b"")
            + (left if isinstance(left, bytes) else left.encode())
            + b"\n"
        )

    def traces(self) -> list[Trace]:
        """Every secret that is anywhere."""
        found = []
        for place, left in self.places.items():
            lowered = left.lower()
            for name, secret in self.known.items():
                for form, written in forms(secret):
                    self.searches += 1
                    if written in (lowered if form == "hexadecimal" else left):
                        found.append(Trace(name, form, place))
        return found


def forms(secret: str) -> Iterator[tuple[str, bytes]]:
    """How a secret may be written."""
    raw = secret.encode()
    yield "as it is", raw
    yield "hexadecimal", raw.hex().encode()
    yield "percent-encoded", quote(secret, safe="").encode()
    yield "as a form", quote_plus(secret).encode()
    yield "percent-encoded to the last letter", "".join(f"%{byte:02X}" for byte in raw).encode()
    yield "in JSON", json.dumps(secret)[1:-1].encode()
    yield "in UTF-16", secret.encode("utf-16-le")
    yield "backwards", raw[::-1]
    # within a longer text: without the letters that depend on neighboring text
    for shift in range(3):
        inner = base64.b64encode(b"\0" * shift + raw)[4 if shift else 0 : -4]
        yield f"base64, shifted by {shift}", inner
        yield f"base64url, shifted by {shift}", inner.replace(b"+", b"-").replace(b"/", b"_")


async def dump(conninfo: str) -> dict[str, bytes]:
    """Every table of the database as text, by name."""
    tables = {}
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute(TABLES)
        for names in await cursor.fetchall():
            statement = sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(*names))
            async with connection.cursor() as reader, reader.copy(statement) as copy:
                tables[".".join(names)] = b"".join([bytes(block) async for block in copy])
    return tables
