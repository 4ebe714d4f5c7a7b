"""Migration of a database's schema."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from tenantry.db import roles
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database, for_writes
from tenantry.db.foreign_tables import VERSION_TABLE, check_database_is_own
from tenantry.db.sessions import open_session

MIGRATIONS: Final = Path(__file__).parent / "migrations"
# arbitrary, and the same in every release: one migration runs at a time
_LOCK: Final = 7_310_422_019
_POLL: Final = 0.2
_REVISION: Final = "SELECT version_num FROM tenantry_version"
# statements of other users queue behind one that waits for a lock
_SET_LOCK_TIMEOUT: Final = "SET lock_timeout = '2s'"
_LOCK_ATTEMPTS: Final = 100  # enough to outlast a transaction of some minutes, such as a backup
_LOCK_PAUSE: Final = 3.0

logger = logging.getLogger(__name__)

Connection = psycopg.Connection[tuple[str | None, ...]]


def newest_revision(migrations: Path = MIGRATIONS) -> str:
    """Return the revision that this release needs, or the last one of other ``migrations``."""
    return max(path.name for path in (migrations / "versions").glob("[0-9]*.py")).partition("_")[0]


def current_revision(connection: Connection) -> str | None:
    """Return the database's revision, or None if it was never migrated."""
    found = connection.execute("SELECT to_regclass(%s)::text", [VERSION_TABLE]).fetchone()
    if found is None or found[0] is None:
        return None
    row = connection.execute(_REVISION).fetchone()
    return row[0] if row else None


async def schema_revision(database: Database) -> str | None:
    """Return the revision of the database's schema. Raises `DatabaseUnavailableError`.

    None for a database without tables, or one whose tables this login may not read.
    """
    try:
        async with database.transaction(ACROSS_TENANTS) as connection:
            row = await connection.fetch_row(_REVISION)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
        return None
    return row[0] if row else None


def is_current(revision: str | None) -> bool:
    """Whether a schema at this revision is complete for this release."""
    return revision is not None and revision >= newest_revision()


def migrate(conninfo: str, migrations: Path = MIGRATIONS) -> tuple[str | None, str]:
    """Migrate the schema to `newest_revision`; return the revisions before and after.

    If the server has the roles of `tenantry.db.roles`, also grant their privileges and enable
    row-level security. Safe in several processes at once and while services run. Retries locks for
    some minutes. Raises `ForeignTablesError` for a database of others, `TransactionPoolerError`,
    `UnusableEncodingError`, and `psycopg.OperationalError` if the database is unreachable or a
    table stays locked.
    """
    conninfo = for_writes(conninfo)
    with open_session(conninfo) as connection:
        _lock(connection)
        try:
            check_database_is_own(connection)
            before = current_revision(connection)
            newest = newest_revision(migrations)
            if before is None or before < newest:
                retry_on_lock_timeout(lambda: _upgrade(conninfo, migrations))
            retry_on_lock_timeout(lambda: _upgrade_queue(connection))
            after = max(before or newest, newest)
            if after == newest_revision() and _may_grant(connection):
                _grant_privileges(connection)
            return before, after
        finally:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def _may_grant(connection: Connection) -> bool:
    return not roles.missing_roles(connection) and roles.owns_tables(connection)


def _lock(connection: Connection) -> None:
    # Poll: building an index concurrently waits for every running statement, also for one that
    # waits for this lock.
    while not any(connection.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone() or ()):
        time.sleep(_POLL)


def grant(conninfo: str, login: str) -> None:
    """Let an existing login run the service. Raises `RolesMissingError` and
    `psycopg.errors.UndefinedObject`.
    """
    with open_session(for_writes(conninfo)) as connection:
        _lock(connection)  # until the connection closes
        roles.grant_membership(connection, login)
        _grant_privileges(connection)
        roles.grant_schema_access(connection, login)


def _grant_privileges(connection: Connection) -> None:
    connection.execute(_SET_LOCK_TIMEOUT)
    for statements in roles.privilege_changes(connection):

        def change(statements: Sequence[sql.Composed] = statements) -> None:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement)

        retry_on_lock_timeout(change)


def retry_on_lock_timeout(change: Callable[[], None], *, pause: float = _LOCK_PAUSE) -> None:
    """Call ``change``, and again ``pause`` seconds after each lock timeout or deadlock. A failed
    call must roll back.

    Raises `psycopg.errors.LockNotAvailable` or `DeadlockDetected` after 100 attempts.
    """
    for left in reversed(range(_LOCK_ATTEMPTS)):
        try:
            change()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if not left:
                raise
            logger.warning(
                "a migration waits for a table that is in use; it retries in %g s", pause
            )
            time.sleep(pause)
        else:
            return


def _upgrade(conninfo: str, migrations: Path) -> None:
    # Alembic takes longer to import than an up-to-date service takes to start.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from sqlalchemy import create_engine  # noqa: PLC0415
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    def connect() -> psycopg.Connection:
        connection = open_session(conninfo)
        connection.execute(_SET_LOCK_TIMEOUT)
        connection.autocommit = False
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


def _upgrade_queue(connection: Connection) -> None:
    from procrastinate.schema import SchemaManager  # noqa: PLC0415

    files = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    done = {name for [name] in connection.execute("SELECT name FROM queue_migrations")}
    new = [file for file in files if file.name not in done]
    if not new:
        return
    script = b"\n".join(map(Path.read_bytes, new)) if done else SchemaManager.get_schema().encode()
    with connection.transaction():
        connection.execute(_SET_LOCK_TIMEOUT)
        connection.execute(script)
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO queue_migrations (name) VALUES (%s)", [(file.name,) for file in new]
            )
