"""What commands share: where settings come from, which database is meant, how failures are shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import psycopg
from dotenv import dotenv_values
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.cli.demo_folder import DEMO_FILE, data_dir
from tenantry.cli.exit_codes import FAILED, USAGE, fail
from tenantry.db.embedded import EmbeddedServer, EmbeddedServerError
from tenantry.kit.logs import redact
from tenantry.settings import DEMO_FLAG, SettingsError, load_database_url, read_environment
from tenantry.variables import DATABASE_URL


def fail_on_settings(error: SettingsError) -> NoReturn:
    """Name every faulty setting in one message and exit: with 2 where no database is named."""
    lines = "\n".join(f"  {fault}" for fault in error.faults)
    code = USAGE if lacks_database(error) else FAILED
    fail(f"tenantry cannot start: {len(error.faults)} setting(s) are missing or faulty.\n{lines}", code)


def lacks_database(error: SettingsError) -> bool:
    """Whether `DATABASE_URL` is among what is missing."""
    return any(fault.startswith(f"{DATABASE_URL.name}: is missing") for fault in error.faults)


def command_values() -> tuple[dict[str, str], bool]:
    """The settings of a command that works on an existing set-up, and whether they are the demo's.

    Where no DATABASE_URL is set and the demo has run in the data folder, its settings fill what is missing.
    """
    values = read_environment()
    file = data_dir(values) / DEMO_FILE
    if values.get(DATABASE_URL.name) or values.get(DATABASE_URL.file_name) or not file.exists():
        return values, False
    demo = {name: value for name, value in dotenv_values(file).items() if value is not None}
    return {**demo, **values, DEMO_FLAG: "true"}, True


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
    server = EmbeddedServer(data_dir(values))
    try:
        server.start()
    except (EmbeddedServerError, OSError) as error:
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
