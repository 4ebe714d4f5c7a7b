"""A running PgBouncer, in front of the tests' PostgreSQL.

With ``TENANTRY_TEST_PGBOUNCER=1`` all tests that run the service in their own process have it in
between.
"""

import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.required import debian_program

EVERYWHERE: Final = "TENANTRY_TEST_PGBOUNCER"
SERVER_CONNECTIONS: Final = 2
"""To one database."""
_PORT: Final = 6432
_START_SECONDS: Final = 20
_SETTINGS: Final = """\
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
unix_socket_dir = {folder}
listen_addr =
listen_port = 6432
auth_type = any
pool_mode = {mode}
default_pool_size = {connections}
log_connections = 0
log_disconnections = 0
{account}
{more}
"""


_running: Final[dict[str, "PgBouncer"]] = {}
"""By the folder of the server's sockets."""


class PgBouncer:
    """A pooler in front of one server, for each of its databases; it runs in ``folder``."""

    def __init__(
        self, program: str, folder: Path, conninfo: str, mode: str, connections: int, more: str
    ) -> None:
        parts = conninfo_to_dict(conninfo)
        self._folder = folder
        self._command = [program, str(folder / "pgbouncer.ini")]
        self._log = folder / "stderr"
        self._process: subprocess.Popen[bytes] | None = None
        account = _account(Path(str(parts["host"])))
        Path(self._command[1]).write_text(
            _SETTINGS.format(
                host=parts["host"],
                port=parts.get("port") or 5432,
                folder=folder,
                user=parts["user"],
                connections=connections,
                mode=mode,
                more=more,
                account=f"user = {account.pw_name}" if account else "",
            )
        )
        if account:
            os.chown(folder, account.pw_uid, account.pw_gid)

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while not (self._folder / f".s.PGSQL.{_PORT}").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                pytest.fail(f"pgbouncer does not start:\n{self._log.read_text()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it at once, with all of its connections."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def conninfo_of(self, direct: str) -> str:
        """The connection string of the same database by way of the pooler."""
        return make_conninfo(direct, host=str(self._folder), port=_PORT)


@contextmanager
def running_pgbouncer(
    conninfo: str,
    *,
    mode: str = "transaction",
    connections: int = SERVER_CONNECTIONS,
    more: str = "",
) -> Iterator[PgBouncer]:
    """A pooler for every database of this server, with ``connections`` to each; ``more`` are lines
    of its settings.

    It is required (`tests.support.required`).
    """
    program = debian_program("pgbouncer")
    with tempfile.TemporaryDirectory(prefix="tenantry-pooler-") as folder:
        pooler = PgBouncer(program, Path(folder), conninfo, mode, connections, more)
        pooler.start()
        try:
            yield pooler
        finally:
            pooler.stop()


@contextmanager
def pooled_everywhere(conninfo: str) -> Iterator[None]:
    """The pooler of `pooler_of`, if the tests use one."""
    if os.environ.get(EVERYWHERE) != "1":
        yield
        return
    host = str(conninfo_to_dict(conninfo)["host"])
    with running_pgbouncer(conninfo) as _running[host]:
        yield
    del _running[host]


def pooler_of(conninfo: str) -> str | None:
    """The way to this database by the pooler, where there is one for all tests."""
    pooler = _running.get(str(conninfo_to_dict(conninfo).get("host")))
    return pooler.conninfo_of(conninfo) if pooler else None


def _account(sockets: Path) -> pwd.struct_passwd | None:
    """The account to run it as, where we are root: the server's own, which may enter the folder of
    its sockets.
    """
    return pwd.getpwuid(sockets.stat().st_uid) if os.geteuid() == 0 else None
