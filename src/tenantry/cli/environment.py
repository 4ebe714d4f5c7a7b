"""What commands share: where settings come from, which database is meant, how failures are shown."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final, NoReturn, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.cli.demo_folder import data_dir, demo_values, env_file_of, find_demo
from tenantry.cli.exit_codes import FAILED, USAGE, fail
from tenantry.cli.lazy_group import INSTALL_DEVKIT
from tenantry.common.logs import redact
from tenantry.settings import DEMO_FLAG, EMBEDDED, SettingsError, load_database_url, read_environment

_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104  # not bound here: asked through loopback
_OF_DEMO: Final[tuple[str, ...]] = ("HOST", "PORT", "TENANTRY_DATA_DIR")
"""What the demo knows better than the environment of the shell beside it."""


def fail_on_settings(error: SettingsError) -> NoReturn:
    """Name every faulty setting in one message and exit: with 2 where no database is named."""
    lines = "\n".join(f"  {fault}" for fault in error.faults)
    code = USAGE if lacks_database(error) else FAILED
    fail(f"tenantry cannot start: {len(error.faults)} setting(s) are missing or faulty.\n{lines}", code)


def lacks_database(error: SettingsError) -> bool:
    """Whether `DATABASE_URL` is among what is missing."""
    return any(fault.startswith("DATABASE_URL: is missing") for fault in error.faults)


def command_values() -> tuple[dict[str, str], bool]:
    """The settings of a command that works on an existing set-up, and whether they are the demo's.

    Where `find_demo` finds one, its settings and the ``.env`` file that it runs with fill what is missing, and its
    address is where the service is.
    """
    values = read_environment()
    folder = find_demo(values)
    if folder is None:
        return values, False
    demo = demo_values(folder)
    fixed = {name: demo[name] for name in _OF_DEMO if name in demo}
    return {**demo, **env_file_of(folder), **values, **fixed, DEMO_FLAG: "true"}, True


def service_base(values: Mapping[str, str]) -> str:
    """Where the service is: TENANTRY_BASE_URL, else HOST and PORT on this machine."""
    if base := values.get("TENANTRY_BASE_URL", "").strip():
        return base.rstrip("/")
    host = values.get("HOST", "").strip()
    host = "127.0.0.1" if host in _ANY_ADDRESS else host
    return f"http://{f'[{host}]' if ':' in host else host}:{values.get('PORT', '').strip() or 3001}"


class DatabaseServer(Protocol):
    """A PostgreSQL that a command starts and stops: the development kit's."""

    @property
    def conninfo(self) -> str:
        """The connection string."""

    def start(self) -> None:
        """Start the server. Raises `RuntimeError` or `OSError` with a message for the user."""

    def stop(self) -> None:
        """Stop the server if this process started it."""


def embedded_server(folder: Path) -> DatabaseServer:
    """The PostgreSQL of the development kit, with its data in ``folder``; exits where the kit is not installed."""
    found = list(entry_points(group="tenantry.databases", name=EMBEDDED))
    if not found:
        fail(f"DATABASE_URL=embedded needs the development kit: {INSTALL_DEVKIT}", USAGE)
    server: DatabaseServer = found[0].load()(folder)
    return server


@contextmanager
def database(values: dict[str, str]) -> Iterator[str]:
    """The connection string of DATABASE_URL, or of the embedded server, which runs for the length of the block."""
    try:
        url = load_database_url(values)
    except SettingsError as error:
        fail_on_settings(error)
    if url is not None:
        yield url
        return
    server = embedded_server(data_dir(values))
    try:
        server.start()
    except (RuntimeError, OSError) as error:
        fail(f"The embedded PostgreSQL does not start. {error}")
    try:
        yield server.conninfo
    finally:
        server.stop()


def without_password(url: str) -> str:
    """Which database an address means, as people may see it. Of an address that is none: that."""
    try:
        parts = conninfo_to_dict(url)
    except (psycopg.ProgrammingError, UnicodeDecodeError):
        return "of DATABASE_URL"
    return make_conninfo("", **{name: parts[name] for name in ("user", "host", "port", "dbname") if name in parts})


def migrated(conninfo: str, *, out_of_reach: int = FAILED) -> tuple[str | None, str]:
    """Bring the schema up to date, or exit with a message; returns the revisions before and after.

    ``out_of_reach`` is the exit code where there is no connection.
    """
    from tenantry.db.migrate import migrate  # noqa: PLC0415  # slow to import, and not every command needs it

    try:
        return migrate(conninfo)
    except psycopg.errors.InsufficientPrivilege as error:
        fail(
            f"DATABASE_URL: its role may not bring the schema up to date: {error.diag.message_primary}. "
            "Run `tenantry migrate` with a DATABASE_URL whose role owns the tables, or, where there are none yet, may "
            "create them in the schema."
        )
    except psycopg.Error as error:
        code = out_of_reach if isinstance(error, psycopg.OperationalError) else FAILED
        fail(f"DATABASE_URL: the database cannot be used: {redact(str(error).strip())}", code)
