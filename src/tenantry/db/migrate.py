"""Bringing a database's schema up to date."""

import time
from pathlib import Path
from typing import Final

import psycopg

from tenantry.db import roles
from tenantry.db.database import for_writes
from tenantry.db.lock_retry import SET_LOCK_TIMEOUT, retry_on_lock_timeout

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_LOCK: Final = 7_310_422_019  # any number, the same in every release: one migration runs at a time
_LOOK: Final = 0.2


def newest_revision(migrations: Path = MIGRATIONS) -> str:
    """The revision that this release of tenantry needs, or the last one of other ``migrations``."""
    return max(path.name for path in (migrations / "versions").glob("[0-9]*.py")).partition("_")[0]


def current_revision(connection: psycopg.Connection[tuple[str | None, ...]]) -> str | None:
    """The revision that the database is at; None for one that was never migrated."""
    found = connection.execute("SELECT to_regclass('alembic_version')::text").fetchone()
    if found is None or found[0] is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return row[0] if row else None


def migrate(conninfo: str, migrations: Path = MIGRATIONS) -> tuple[str | None, str]:
    """Bring the schema to `newest_revision`; returns the revisions before and after.

    Where the server has the roles of `tenantry.db.roles`, they get what they may, and the wall between tenants is up.
    Safe to call from several processes at once, while services run, and cheap when there is nothing to do. It waits for
    a table's lock for 2 seconds, then lets others through and tries again, for some minutes.
    Raises `psycopg.OperationalError` when the database is out of reach, or a lock cannot be had.
    """
    conninfo = for_writes(conninfo)
    with psycopg.connect(conninfo, autocommit=True, connect_timeout=5) as connection:
        _take_turns(connection)
        try:
            before, newest = current_revision(connection), newest_revision(migrations)
            if before is None or before < newest:
                retry_on_lock_timeout(lambda: _upgrade(conninfo, migrations))
            retry_on_lock_timeout(lambda: _upgrade_queue(connection))
            after = max(before or newest, newest)
            if after == newest_revision() and roles.are_made(connection) and roles.may_build(connection):
                roles.build(connection)
            return before, after
        finally:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def _take_turns(connection: psycopg.Connection[tuple[str | None, ...]]) -> None:
    # asked again and again: an index that is built concurrently waits for every statement under way, also for one
    # that would wait here for the end of that very migration
    while connection.execute("SELECT pg_try_advisory_lock(%s)::text", (_LOCK,)).fetchone() != ("true",):
        time.sleep(_LOOK)


def grant(conninfo: str, login: str) -> None:
    """Let an existing role that logs in run the service: make the roles, put up the wall, and let it take them.

    Raises `RolesMissingError` where whoever is connected may not make or give roles, `psycopg.errors.UndefinedObject`
    where there is no such role, and `psycopg.OperationalError` when the database is out of reach.
    """
    with psycopg.connect(for_writes(conninfo), autocommit=True, connect_timeout=5) as connection:
        _take_turns(connection)  # ends with the connection
        roles.let_in(connection, login)
        roles.build(connection)
        roles.let_see_schema(connection, login)


def _upgrade(conninfo: str, migrations: Path) -> None:
    # Alembic takes longer to import than an up-to-date service takes to start.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from sqlalchemy import create_engine  # noqa: PLC0415
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    def connect() -> psycopg.Connection:
        connection = psycopg.connect(conninfo)
        connection.execute(SET_LOCK_TIMEOUT)
        connection.commit()
        return connection

    engine = create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)
    with engine.connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(migrations))
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except DBAPIError as error:
            raise error.orig or error from error


def _upgrade_queue(connection: psycopg.Connection[tuple[str | None, ...]]) -> None:
    """Apply procrastinate's schema, or those of its migrations that the database has not had yet."""
    from procrastinate.schema import SchemaManager  # noqa: PLC0415

    files = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    done = {row[0] for row in connection.execute("SELECT name FROM queue_migrations").fetchall()}
    new = [file for file in files if file.name not in done]
    if not new:
        return
    with connection.transaction():
        connection.execute(SET_LOCK_TIMEOUT)
        if done:
            for file in new:
                connection.execute(file.read_bytes())
        else:
            connection.execute(SchemaManager.get_schema().encode())
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO queue_migrations (name) VALUES (%s)", [(file.name,) for file in new])
