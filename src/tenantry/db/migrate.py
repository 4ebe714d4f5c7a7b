"""Bringing a database's schema up to date.

Two histories: our own tables (Alembic, `migrations/`) and the job queue's, whose SQL comes with
procrastinate and is applied file by file as new releases bring new files.
"""

from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_LOCK: Final = 7_310_422_019  # any number, the same in every release: one migration runs at a time

_GRANTS: Final = (
    "GRANT USAGE ON SCHEMA {schema} TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
    "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
    "REVOKE UPDATE, DELETE ON audit_events FROM {role}",
    "REVOKE DELETE ON tenants FROM {role}",
    "GRANT EXECUTE ON FUNCTION purge_audit_events, purge_tenant TO {role}",
    "REVOKE INSERT, UPDATE, DELETE ON alembic_version, queue_migrations FROM {role}",
)


def newest_revision() -> str:
    """The revision that this release of tenantry needs."""
    return max(path.name for path in (MIGRATIONS / "versions").glob("[0-9]*.py")).partition("_")[0]


def current_revision(connection: psycopg.Connection[tuple[str | None, ...]]) -> str | None:
    """The revision that the database is at; None for one that was never migrated."""
    found = connection.execute("SELECT to_regclass('alembic_version')::text").fetchone()
    if found is None or found[0] is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return row[0] if row else None


def migrate(conninfo: str) -> tuple[str | None, str]:
    """Bring the schema to `newest_revision`; returns the revisions before and after.

    Safe to call from several processes at once, and cheap when there is nothing to do.
    Raises `psycopg.OperationalError` when the database is out of reach.
    """
    with psycopg.connect(conninfo, autocommit=True, connect_timeout=5) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        try:
            before, newest = current_revision(connection), newest_revision()
            if before is None or before < newest:
                _upgrade(conninfo)
            _upgrade_queue(connection)
            return before, max(before or newest, newest)
        finally:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def grant(conninfo: str, role: str) -> None:
    """Let an existing role do what the service does, and no more: the audit trail it may add to and read.

    To be repeated after each migration, since new tables are not in it. Raises `psycopg.errors.UndefinedObject`
    where there is no such role, and `psycopg.OperationalError` when the database is out of reach.
    """
    grantee = sql.Identifier(role)
    with psycopg.connect(conninfo, connect_timeout=5) as connection:
        found = connection.execute("SELECT current_schema()").fetchone()
        schema = sql.Identifier(str(found[0]) if found else "public")
        for statement in _GRANTS:
            connection.execute(sql.SQL(statement).format(role=grantee, schema=schema))


def _upgrade(conninfo: str) -> None:
    # Alembic takes longer to import than an up-to-date service takes to start.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from sqlalchemy import create_engine  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo), poolclass=NullPool)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _upgrade_queue(connection: psycopg.Connection[tuple[str | None, ...]]) -> None:
    """Apply procrastinate's schema, or those of its migrations that the database has not had yet."""
    from procrastinate.schema import SchemaManager  # noqa: PLC0415

    files = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    done = {row[0] for row in connection.execute("SELECT name FROM queue_migrations").fetchall()}
    new = [file for file in files if file.name not in done]
    if not new:
        return
    with connection.transaction():
        if done:
            for file in new:
                connection.execute(file.read_bytes())
        else:
            connection.execute(SchemaManager.get_schema().encode())
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO queue_migrations (name) VALUES (%s)", [(file.name,) for file in new])
