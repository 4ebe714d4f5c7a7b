"""Tables of other programs in the schema that has tenantry's tables (docs/decisions/0001)."""

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from tenantry.common.encoding import shortened
from tenantry.db.roles import privileges

VERSION_TABLE: Final = "tenantry_version"
"""Alembic's table of this schema. With its usual name it would be that of another program that uses
Alembic.
"""
_ALEMBIC_TABLE: Final = "alembic_version"
MOST_LISTED: Final = 5

# PostgreSQL creates tables in the current schema: the schemas that managed databases have beside it
# do not matter. Everybody may read these catalogs, whatever the privileges on the tables.
FOREIGN_TABLES: Final = """
SELECT relname::text
  FROM pg_class
 WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
   AND relkind IN ('r', 'p', 'f')
   AND NOT relispartition
   AND relname <> ALL(%(own)s)
   AND NOT EXISTS (SELECT FROM pg_depend
                    WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid
                      AND refclassid = 'pg_extension'::regclass AND deptype = 'e')
 ORDER BY relname <> 'alembic_version', relname
"""
"""The tables of the current schema without partitions, those of extensions, and those named
``own``.
"""
_IS_INSTALLED: Final = "SELECT to_regclass(%s) IS NOT NULL"
_ALEMBIC_REVISION: Final = "SELECT string_agg(version_num, ', ') FROM alembic_version"

Connection = psycopg.Connection[Any]


class ForeignTablesError(Exception):
    """tenantry is not installed in the database, and others have tables in it. ``found`` describes
    them.
    """

    def __init__(self, found: str) -> None:
        super().__init__(f"the database has tables of others: {found}")
        self.found = found


def own_tables() -> list[str]:
    """Return the names of the tables and views of tenantry and of its job queue."""
    return list(privileges().tables)


def check_database_is_own(connection: Connection) -> None:
    """Raise `ForeignTablesError` for a database of others. ``connection`` is in autocommit mode.

    Once tenantry is installed, further tables do not keep it from starting: `doctor` reports them.
    """
    if connection.execute(_IS_INSTALLED, [VERSION_TABLE]).fetchone() == (True,):
        return
    names = [row[0] for row in connection.execute(FOREIGN_TABLES, {"own": []})]
    if names:
        raise ForeignTablesError(_described(connection, names))


def _described(connection: Connection, names: Sequence[str]) -> str:
    revision = _alembic_revision(connection) if _ALEMBIC_TABLE in names else None
    if revision:
        names = [f"{_ALEMBIC_TABLE} (revision {revision})", *names[1:]]
    return shortened(names, MOST_LISTED)


def _alembic_revision(connection: Connection) -> str | None:
    """Return the revision of a program that uses Alembic; None if this login may not read it."""
    try:
        row = connection.execute(_ALEMBIC_REVISION).fetchone()
    except psycopg.errors.ProgrammingError:
        return None
    return None if row is None else row[0]
