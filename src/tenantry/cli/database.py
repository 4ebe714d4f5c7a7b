"""Settings and database of operator commands; ``tenantry migrate``."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, TypeVar

import click
import psycopg

from tenantry.cli.command_group import INSTALL_DEVKIT
from tenantry.cli.demo_folder import data_dir, demo_values, env_file_of, find_demo
from tenantry.cli.output import FAILED, NOT_AUTHENTICATED, NOT_FOUND, OUT_OF_REACH, USAGE, CommandError
from tenantry.common.logs import redact
from tenantry.db.database import Database
from tenantry.domain import errors
from tenantry.domain.errors import DomainError, ValidationError
from tenantry.settings import DEMO_FLAG, EMBEDDED, Settings, SettingsError, load_for_admin, read_environment

if TYPE_CHECKING:
    from tenantry.jobs.queue import JobQueue

Result = TypeVar("Result")
Action = Callable[[Settings, Database], Awaitable[Result]]

_EXIT_CODES: Final[dict[type[DomainError], int]] = {
    errors.NotFoundError: NOT_FOUND,
    errors.ValidationError: USAGE,
    errors.ProviderUnavailableError: OUT_OF_REACH,
    errors.DatabaseUnavailableError: OUT_OF_REACH,
}


def exit_code(error: DomainError) -> int:
    if isinstance(error, errors.ProviderRefusedError) and error.of_key:
        return NOT_AUTHENTICATED
    return _EXIT_CODES.get(type(error), FAILED)


@contextmanager
def settings_errors() -> Iterator[None]:
    """Raise a `SettingsError` as a `CommandError` that names every faulty setting; exit code 2 without a database."""
    try:
        yield
    except SettingsError as error:
        lines = "\n".join(f"  {fault}" for fault in error.faults)
        message = f"tenantry cannot start: {len(error.faults)} setting(s) are missing or faulty.\n{lines}"
        raise CommandError(message, USAGE if lacks_database(error) else FAILED) from None


def admin_settings(values: dict[str, str], *, needs_pepper: bool = False) -> Settings:
    """Load the settings of a command that runs beside the service. Raises `CommandError`."""
    with settings_errors():
        return load_for_admin(values, needs_pepper=needs_pepper)


def lacks_database(error: SettingsError) -> bool:
    return any(fault.startswith("DATABASE_URL: is missing") for fault in error.faults)


def command_values() -> tuple[dict[str, str], bool]:
    """Return the settings of a command that works on an existing set-up, and whether a demo provides them.

    A demo that `find_demo` finds, and its ``.env`` file, provide the settings that the environment lacks.
    """
    values = read_environment()
    folder = find_demo(values)
    if folder is None:
        return values, False
    demo = demo_values(folder)
    # the running demo decides these, whatever the environment says
    fixed: dict[str, str] = {name: demo[name] for name in ("HOST", "PORT", "TENANTRY_DATA_DIR") if name in demo}
    return {**demo, **env_file_of(folder), **values, **fixed, DEMO_FLAG: "true"}, True


@contextmanager
def database(values: dict[str, str]) -> Iterator[str]:
    """Give the connection string of DATABASE_URL, or start the embedded server for the block. Raises `CommandError`."""
    with settings_errors():
        url = Settings(values).check(["own_database"]).database_url
    if url is not None:
        yield url
        return
    found = list(entry_points(group="tenantry.databases", name=EMBEDDED))
    if not found:
        raise CommandError(f"DATABASE_URL=embedded needs the development kit: {INSTALL_DEVKIT}", USAGE)
    server = found[0].load()(data_dir(values))
    try:
        server.start()
    except (RuntimeError, OSError) as error:
        raise CommandError(f"The embedded PostgreSQL does not start. {error}") from None
    try:
        yield server.conninfo
    finally:
        server.stop()


def migrated(conninfo: str, *, unreachable: int = FAILED) -> tuple[str | None, str]:
    """Bring the schema up to date; return the revisions before and after. Raises `CommandError`.

    ``unreachable`` is the exit code without a connection.
    """
    from tenantry.db.migrate import migrate  # noqa: PLC0415  # slow to import, and not every command needs it

    try:
        return migrate(conninfo)
    except psycopg.errors.InsufficientPrivilege as error:
        raise CommandError(
            f"DATABASE_URL: its role may not bring the schema up to date: {error.diag.message_primary}. "
            "Run `tenantry migrate` with a DATABASE_URL whose role owns the tables, or may create them."
        ) from None
    except psycopg.Error as error:
        code = unreachable if isinstance(error, psycopg.OperationalError) else FAILED
        raise CommandError(f"DATABASE_URL: the database cannot be used: {redact(str(error).strip())}", code) from None


def on_database(
    action: Action[Result], *, pool_size: int = 1, needs_pepper: bool = False, unreachable: int = OUT_OF_REACH
) -> Result:
    """Run an action on the migrated database. Raises `CommandError` if it fails."""
    values, _ = command_values()
    settings = admin_settings(values, needs_pepper=needs_pepper)
    with database(values) as conninfo:
        migrated(conninfo, unreachable=unreachable)
        try:
            return asyncio.run(_connected(conninfo, settings, action, pool_size))
        except DomainError as error:
            faults = error.faults if isinstance(error, ValidationError) else ()
            detail = "; ".join(f"{where}: {message}" for where, message in faults) or error.detail
            raise CommandError(detail, exit_code(error)) from None


async def _connected(conninfo: str, settings: Settings, action: Action[Result], pool_size: int) -> Result:
    async with Database(conninfo, pool_size) as connected:
        return await action(settings, connected)


def outbox(*, asks_provider: bool) -> "JobQueue":
    """Return a queue of jobs for the service's workers; it uses the connections of its callers."""
    from tenantry.jobs.queue import JobQueue  # noqa: PLC0415  # slow to import

    return JobQueue("", asks_provider=asks_provider)


@click.command("migrate")
@click.option("--grant-to", "login", metavar="LOGIN", help="Then let this database role run the service.")
def migrate(login: str | None) -> None:
    """Bring the schema of DATABASE_URL up to date.

    With --grant-to the service can run as a login without direct privileges: it takes roles that have only the
    privileges needed, and the role for requests sees one tenant's rows at a time. The command creates missing roles. If
    DATABASE_URL's role may not do that, it prints the statements, for a role that may.

    \b
      tenantry migrate --grant-to tenantry_service
    """
    values, _ = command_values()
    with database(values) as conninfo:
        before, after = migrated(conninfo)
        if login is not None:
            _grant(conninfo, login)
    click.echo(f"schema: {after}, up to date" if before == after else f"schema: {before or 'none'} -> {after}")
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
