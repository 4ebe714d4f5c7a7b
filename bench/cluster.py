"""The PostgreSQL of a comparison: one from the wheel, with its usual durability, and a database for each contestant."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import psycopg
from psycopg import sql

from tenantry_devkit.embedded_postgres import EmbeddedServer

OPTIONS: Final = ("shared_buffers=512MB", "max_connections=400")
"""What differs from PostgreSQL's own settings, for everybody."""
_DURABLE: Final = ("fsync", "synchronous_commit", "full_page_writes")
_SHOWN: Final = ("server_version", *_DURABLE, "shared_buffers", "max_connections", "max_wal_size", "checkpoint_timeout")


class Cluster(NamedTuple):
    """A running PostgreSQL."""

    conninfo: str
    """Of its first database, whose superuser may do anything."""
    sockets: str
    """The folder of its socket."""
    pid: int

    def url(self, database: str) -> str:
        """The address of a database, as most drivers take it."""
        return f"postgresql://postgres@/{database}?host={quote(self.sockets, safe='/')}"

    def create(self, database: str) -> str:
        """Make a database; returns its address."""
        self._run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        return self.url(database)

    def drop(self, database: str) -> None:
        """Drop a database, whoever is still connected."""
        self._run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))

    def checkpoint(self) -> None:
        """Write out what is dirty, so that nobody pays for what was written before."""
        self._run(sql.SQL("CHECKPOINT"))

    def settings(self) -> dict[str, str]:
        """The settings that count here, as they are."""
        with psycopg.connect(self.conninfo) as connection:
            return {name: _setting(connection, name) for name in _SHOWN}

    def _run(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(statement)


@contextlib.contextmanager
def cluster(folder: Path, options: Sequence[str] = OPTIONS) -> Iterator[Cluster]:
    """Start a PostgreSQL in a folder. Raises `RuntimeError` where it does not keep what it has committed."""
    server = EmbeddedServer(folder, options=options)
    server.start()
    try:
        pid = int((folder.resolve() / "postgres" / "postmaster.pid").read_text().split()[0])
        sockets = psycopg.conninfo.conninfo_to_dict(server.conninfo)["host"]
        running = Cluster(server.conninfo, str(sockets), pid)
        settings = running.settings()
        if not all(settings[name] == "on" for name in _DURABLE):
            raise RuntimeError(f"PostgreSQL is not durable: {settings}")
        yield running
    finally:
        server.stop()


def _setting(connection: psycopg.Connection[tuple[str]], name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    return row[0] if row else ""
