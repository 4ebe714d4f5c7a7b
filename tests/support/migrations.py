"""The effect of a migration on a schema that the previous release still uses
(docs/decisions/0031).
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from tenantry.db.migrate import MIGRATIONS

_TABLES: Final = b"""
CREATE TEMPORARY VIEW own_tables AS SELECT oid, relname FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname NOT LIKE 'procrastinate%'"""
_COLUMNS: Final = b"""
SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull,
       attnotnull AND NOT atthasdef AND attidentity = ''
FROM pg_attribute JOIN own_tables ON own_tables.oid = attrelid WHERE attnum > 0 AND NOT attisdropped"""
_FILES: Final = b"SELECT relname, pg_relation_filenode(oid) FROM own_tables"
_CONSTRAINTS: Final = b"""
SELECT relname, conname, pg_get_constraintdef(pg_constraint.oid)
FROM pg_constraint JOIN own_tables ON own_tables.oid = conrelid WHERE contype <> 'n'"""
_UNIQUE: Final = b"""
SELECT relname, indexrelid::regclass::text FROM pg_index JOIN own_tables ON own_tables.oid = indrelid
WHERE indisunique"""
_FUNCTIONS: Final = b"""
SELECT oid::regprocedure::text, prorettype::regtype::text FROM pg_proc
WHERE pronamespace = current_schema()::regnamespace AND proname NOT LIKE 'procrastinate%'"""
_INDEX: Final = re.compile(
    r"CREATE\s+(?:UNIQUE\s+)?INDEX\s+(?!CONCURRENTLY)\S+\s+ON\s+(?:ONLY\s+)?(\w+)", re.IGNORECASE
)

Rows = set[tuple[Any, ...]]


class Schema(NamedTuple):
    """The objects of a database, without those of the job queue, which has other rules."""

    columns: dict[tuple[str, str], tuple[str, bool, bool]]
    """By table and name: the type, whether it takes no NULL, and whether a row must name it."""
    files: dict[str, int]
    """By table, what its rows are in: another one after it was rewritten."""
    constraints: Rows
    unique: Rows
    functions: Rows

    @classmethod
    def of(cls, conninfo: str) -> "Schema":
        with psycopg.connect(conninfo) as connection:

            def ask(query: bytes) -> list[tuple[Any, ...]]:
                return connection.execute(query).fetchall()

            connection.execute(_TABLES)
            return cls(
                {
                    (table, name): (kind, strict, needed)
                    for table, name, kind, strict, needed in ask(_COLUMNS)
                },
                dict(ask(_FILES)),
                set(ask(_CONSTRAINTS)),
                set(ask(_UNIQUE)),
                set(ask(_FUNCTIONS)),
            )


def schema_violations(before: Schema, after: Schema, text: str) -> Iterator[str]:
    """What a migration, with this text, did that the release before does not survive, or that stops
    its requests.
    """
    yield from _removed(before, after)
    yield from _asked_for(before, after)
    for table in before.files.keys() & after.files.keys():
        if before.files[table] != after.files[table]:
            yield f"{table} was rewritten"
    for table in _INDEX.findall(text):
        if table in before.files:
            yield f"an index on {table} is not built concurrently"


def _removed(before: Schema, after: Schema) -> Iterator[str]:
    for (table, name), (kind, strict, _) in before.columns.items():
        now = after.columns.get((table, name))
        if now is None:
            yield f"{table}.{name} is gone"
        elif now[0] != kind:
            yield f"{table}.{name} was {kind} and is {now[0]}"
        elif now[1] > strict:
            yield f"{table}.{name} takes no NULL any more"
    for name, _ in sorted(before.functions - after.functions):
        yield f"function {name} is gone, or gives something else"


def _asked_for(before: Schema, after: Schema) -> Iterator[str]:
    for (table, name), (_, _, needed) in after.columns.items():
        if table in before.files and (table, name) not in before.columns and needed:
            yield f"{table}.{name} is new, and has to be named in every new row"
    for table, name, rule in sorted(after.constraints - before.constraints):
        if table in before.files:
            yield f"{table} has a new rule, {name}: {rule}"
    for table, name in sorted(after.unique - before.unique):
        if table in before.files:
            yield f"{table} has a new unique index, {name}"


def history(folder: Path, until: str, **more: str) -> Path:
    """The migrations up to this revision, in a folder; ``more`` are further ones, as SQL, by
    revision (``r0099``).
    """
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (folder / "versions").glob("[0-9]*.py"):
        if file.name.partition("_")[0] > until:
            file.unlink()
    last = until
    for name, text in more.items():
        revision = name.removeprefix("r")
        (folder / "versions" / f"{revision}_more.py").write_text(
            _MIGRATION.format(revision, last, text)
        )
        last = revision
    return folder


def revisions() -> list[str]:
    """The revisions that there are, the oldest first."""
    return sorted(
        file.name.partition("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*.py")
    )


def text_of(revision: str) -> str:
    """A migration's text."""
    [file] = (MIGRATIONS / "versions").glob(f"{revision}_*.py")
    return file.read_text("utf-8")


_MIGRATION: Final = '''
from alembic import op

revision, down_revision = "{0}", "{1}"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        for statement in """{2}""".split(";"):
            op.execute(statement)
'''
