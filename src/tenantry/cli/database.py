"""Settings and database of operator commands; ``tenantry migrate``."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final, TypeVar

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.cli.operator import TOKEN, OperatorError
from tenantry.common.redaction import redact
from tenantry.db.database import Database
from tenantry.db.foreign_tables import ForeignTablesError
from tenantry.db.pooler_detection import TransactionPoolerError
from tenantry.db.sessions import UnusableEncodingError
from tenantry.domain import errors
from tenantry.domain.errors import DomainError, ValidationError
from tenantry.settings import (
    DEMO_FLAG,
    EMBEDDED,
    VARIABLES,
    Settings,
    SettingsError,
    inherited,
    load_for_admin,
    read_environment,
)
from tenantry_cli.command_group import INSTALL_DEVKIT
from tenantry_cli.demo_folder import data_dir, demo_values, find_demo
from tenantry_cli.output import (
    FAILED,
    NOT_AUTHENTICATED,
    NOT_FOUND,
    OUT_OF_REACH,
    USAGE,
    CommandError,
    say,
)

_OWN_DATABASE: Final = "create a database for tenantry alone, and name that one"
"""What to do about tables of others."""
_NO_SESSIONS: Final = (
    "it leads to a pooler in transaction mode, which does not keep sessions. Set DATABASE_POOLER_URL to that address, "
    "and DATABASE_URL to the server itself, or to a pooler in session mode."
)

_ON_THE_HOST: Final = (
    f"This command works on the database, on the service's host. {TOKEN} is for commands over HTTP: "
    "tenantry admin --help"
)

_SHOWN_PARTS: Final = ("service", "user", "host", "hostaddr", "port", "dbname")

Result = TypeVar("Result")
Action = Callable[[Settings, Database], Awaitable[Result]]

_EXIT_CODES: Final[dict[type[DomainError], int]] = {
    errors.NotFoundError: NOT_FOUND,
    errors.ValidationError: USAGE,
    errors.InvalidCursorError: USAGE,
    errors.ProviderUnavailableError: OUT_OF_REACH,
    errors.DatabaseUnavailableError: OUT_OF_REACH,
}


def exit_code(error: DomainError) -> int:
    if isinstance(error, errors.ProviderRefusedError) and error.of_key:
        return NOT_AUTHENTICATED
    return _EXIT_CODES.get(type(error), FAILED)


@contextmanager
def settings_errors(what: str = "The command cannot run") -> Iterator[None]:
    """Raise a `SettingsError` as a `CommandError` that says ``what`` fails, and names every faulty
    setting; exit code 2 without a database.
    """
    try:
        yield
    except SettingsError as error:
        lines = "\n".join(f"  {fault}" for fault in error.faults)
        message = f"{what}: {len(error.faults)} setting(s) are missing or faulty.\n{lines}"
        if lacks_database(error) and os.environ.get(TOKEN):
            message = f"{message}\n{_ON_THE_HOST}"
        raise CommandError(message, USAGE if lacks_database(error) else FAILED) from None


def admin_settings(values: dict[str, str], *, needs_pepper: bool = False) -> Settings:
    """Load the settings of a command that runs beside the service. Raises `CommandError`."""
    with settings_errors():
        return load_for_admin(values, needs_pepper=needs_pepper)


def lacks_database(error: SettingsError) -> bool:
    return any(fault.startswith("DATABASE_URL: is missing") for fault in error.faults)


def local_values() -> tuple[dict[str, str], bool]:
    """Return the settings of a command for local testing, and whether they are a demo's.

    They are those of the demo that `find_demo` finds, whatever `DATABASE_URL` says; else those of
    the environment.
    """
    values = read_environment()
    folder = find_demo(values)
    if folder is None:
        return (values, False)
    return (_values_of_demo(folder, values), True)


def operator_values() -> tuple[dict[str, str], bool]:
    """Return the settings of a command that uses the database, and whether they are a demo's.

    If `DATABASE_URL` is set, they are those of the environment, and a note on stderr says so where
    there is a demo too.
    """
    values = read_environment()
    folder = find_demo(values)
    if folder is None:
        return values, False
    setting = Settings.database_url
    for url in (values.get(setting.name, ""), values.get(setting.file_name, "")):
        if url.strip():
            say(_note_on_database(url, folder))
            return values, False
    return _values_of_demo(folder, values), True


def _values_of_demo(folder: Path, values: Mapping[str, str]) -> dict[str, str]:
    """Return what the demo runs with: the settings of the environment may be those of another
    program.
    """
    others = {name: value for name, value in values.items() if name not in VARIABLES}
    return {**others, **demo_values(folder), DEMO_FLAG: "true"}


def _note_on_database(url: str, folder: Path) -> str:
    setting = Settings.database_url
    if is_set := inherited([setting.name, setting.file_name]):
        source = "the environment"
        remedy = f"unset {next(iter(is_set))}"
    else:
        source = ".env"
        remedy = f"{setting.name}= {click.get_current_context().command_path}"
    described = without_password(url)
    where = f" ({described})" if described else ""
    used = f"Using {setting.name} of {source}{where}, not the demo in {folder.resolve()}."
    return f"{used} For the demo: {remedy}"


def without_password(url: str) -> str:
    """Describe the database of an address; empty if it is no address of PostgreSQL."""
    try:
        parts = conninfo_to_dict(url)
    except (psycopg.ProgrammingError, UnicodeDecodeError):
        return ""
    return make_conninfo("", **{name: parts[name] for name in _SHOWN_PARTS if name in parts})


@contextmanager
def database(values: dict[str, str]) -> Iterator[str]:
    """Give the connection string of DATABASE_URL, or start the embedded server for the block.
    Raises `CommandError`.
    """
    with settings_errors():
        url = Settings(values).check(["own_database"]).database_url
    if url is not None:
        yield url
        return
    found = list(entry_points(group="tenantry.databases", name=EMBEDDED))
    if not found:
        raise CommandError(
            f"DATABASE_URL=embedded needs the development kit: {INSTALL_DEVKIT}", USAGE
        )
    server = found[0].load()(data_dir(values))
    try:
        server.start()
    except (RuntimeError, OSError) as error:
        raise CommandError(f"The embedded PostgreSQL does not start. {error}") from None
    try:
        yield server.conninfo
    finally:
        server.stop()


def migrated(
    conninfo: str,
    *,
    unreachable: int = FAILED,
    setting: str = Settings.database_url.name,
    remedy: str = _OWN_DATABASE,
) -> tuple[str | None, str]:
    """Bring the schema up to date; return the revisions before and after. Raises `CommandError`.

    ``unreachable`` is the exit code without a connection. For messages, ``setting`` is what names
    the database, and ``remedy`` what to do about tables of others.
    """
    from tenantry.db.migrate import migrate  # noqa: PLC0415  # slow to import, and not every command needs it

    try:
        with database_errors(conninfo, setting, remedy):
            return migrate(conninfo)
    except psycopg.errors.InsufficientPrivilege as error:
        raise CommandError(
            f"{setting}: its role may not bring the schema up to date: {error.diag.message_primary}. "
            "Run `tenantry migrate` with a DATABASE_URL whose role owns the tables, or may create them."
        ) from None
    except psycopg.Error as error:
        code = unreachable if isinstance(error, psycopg.OperationalError) else FAILED
        raise CommandError(
            f"{setting}: the database cannot be used: {redact(str(error).strip())}", code
        ) from None


@contextmanager
def database_errors(
    conninfo: str, setting: str = Settings.database_url.name, remedy: str = _OWN_DATABASE
) -> Iterator[None]:
    """Raise the errors of a database that tenantry cannot have as a `CommandError`: one with tables
    of others, behind a pooler in transaction mode, or not in UTF8.
    """
    try:
        yield
    except ForeignTablesError as error:
        message = (
            f"tenantry wants a database of its own, and this one ({without_password(conninfo)}) has tables of "
            f"others, {error.found}: {remedy}."
        )
    except TransactionPoolerError:
        message = _NO_SESSIONS
    except UnusableEncodingError as error:
        message = f"{error}: create another (CREATE DATABASE tenantry ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0)."
    else:
        return
    raise CommandError(f"{setting}: {message}")


def on_database(
    action: Action[Result],
    *,
    pool_size: int = 1,
    needs_pepper: bool = False,
) -> Result:
    """Run an action on the migrated database. Raises `CommandError` if it fails."""
    values, _ = operator_values()
    settings = admin_settings(values, needs_pepper=needs_pepper)
    with database(values) as conninfo:
        migrated(conninfo, unreachable=OUT_OF_REACH)
        with domain_errors():
            return asyncio.run(
                _connected(
                    conninfo,
                    settings,
                    action,
                    pool_size,
                )
            )


@contextmanager
def domain_errors() -> Iterator[None]:
    """Raise the errors of use cases as `OperatorError`."""
    try:
        yield
    except DomainError as error:
        faults = error.faults if isinstance(error, ValidationError) else ()
        raise OperatorError(str(error), exit_code(error), error.code, faults) from None


async def _connected(
    conninfo: str,
    settings: Settings,
    action: Action[Result],
    pool_size: int,
) -> Result:
    async with Database(conninfo, pool_size) as connected:
        return await action(settings, connected)


@click.command("migrate")
@click.option(
    "--grant-to",
    "login",
    metavar="LOGIN",
    help="Then let this database role run the service.",
)
def migrate(login: str | None) -> None:
    """Bring the schema of DATABASE_URL up to date.

    With --grant-to the service can run as a login without direct privileges: it takes roles that
    have only the privileges needed, and the role for requests sees one tenant's rows at a time. The
    command creates missing roles. If DATABASE_URL's role may not do that, it prints the statements,
    for a role that may.

    \b
      tenantry migrate --grant-to tenantry_service
    """
    values, _ = operator_values()
    with database(values) as conninfo:
        before, after = migrated(conninfo)
        if login is not None:
            _grant(conninfo, login)
    click.echo(
        f"schema: {after}, up to date"
        if before == after
        else f"schema: {before or 'none'} -> {after}"
    )
    if login is not None:
        click.echo(f"role: {login} may run the service")


def _grant(conninfo: str, login: str) -> None:
    from tenantry.db.migrate import grant  # noqa: PLC0415  # slow to import
    from tenantry.db.roles import RolesMissingError  # noqa: PLC0415

    try:
        grant(conninfo, login)
    except RolesMissingError as missing:
        click.echo("\n".join(missing.statements))
        raise CommandError(
            "--grant-to: DATABASE_URL's role may not create or grant roles. Run these statements, then try again."
        ) from None
    except psycopg.errors.UndefinedObject:
        message = f"--grant-to: there is no role {login}. Create it first: the service logs in as this role."
        raise CommandError(message) from None
    except psycopg.Error as error:
        raise CommandError(f"--grant-to: {str(error).strip()}") from None
