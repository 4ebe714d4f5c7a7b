"""Migrations while services run: one at a time, without long locks, and compatible with the release
before.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tenantry.db.migrate import current_revision, migrate, newest_revision
from tests.support.guarded_changes import unguard_changes
from tests.support.guarded_events import unguard_events
from tests.support.migrations import Schema, history, revisions, schema_violations, text_of
from tests.support.postgres import PostgresServer
from tests.support.schema import SNAPSHOT, snapshot

INDEX: Final = """
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS tenants_by_name;
CREATE INDEX CONCURRENTLY tenants_by_name ON tenants (name)
"""
COLUMN: Final = "ALTER TABLE tenants ADD COLUMN colour text"
PATIENCE: Final = 30


@pytest.fixture
def empty(postgres: PostgresServer) -> Iterator[str]:
    """The connection string of a database that was never migrated."""
    with postgres.database(migrated=False) as conninfo:
        yield conninfo


def revision_of(conninfo: str) -> str | None:
    with psycopg.connect(conninfo) as connection:
        return current_revision(connection)


def ask(conninfo: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo, options=f"-c statement_timeout={PATIENCE}s") as connection:
        return connection.execute(query.encode()).fetchall()


@pytest.fixture(scope="module")
def altered(postgres: PostgresServer) -> Iterator[str]:
    """A migrated database that several tests change independently."""
    with postgres.database() as conninfo:
        unguard_changes(conninfo)
        unguard_events(conninfo)
        yield conninfo


def execute(conninfo: str, statement: str) -> None:
    """Run a migration with this text."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(statement.encode())


@asynccontextmanager
async def writing(conninfo: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A writer of tenants, in an open transaction."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("LOCK TABLE tenants IN ROW EXCLUSIVE MODE")
        yield connection


async def until_it_waits(conninfo: str, migrating: "asyncio.Task[tuple[str | None, str]]") -> None:
    """Return once a migration waits for another session's lock. Raises what it fails with."""
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(ask, conninfo, "SELECT FROM pg_locks WHERE NOT granted"):
            assert not migrating.done(), migrating.result()


def test_schema_changes_only_together_with_its_snapshot(postgres: PostgresServer) -> None:
    kept = SNAPSHOT.read_text("utf-8")
    assert snapshot(postgres) == kept, "if you meant this: python -m tests.support.schema"


async def test_concurrent_migrations_run_one_after_another(empty: str) -> None:
    done = await asyncio.gather(*(asyncio.to_thread(migrate, empty) for _ in range(4)))
    newest = newest_revision()
    assert sorted(done, key=str) == [(newest, newest)] * 3 + [(None, newest)]
    assert revision_of(empty) == newest


async def test_index_is_built_concurrently_while_other_migrations_wait(
    conninfo: str, tmp_path: Path
) -> None:
    folder = history(tmp_path / "migrations", newest_revision(), r0099=INDEX)
    async with writing(conninfo) as writer:
        building = asyncio.create_task(asyncio.to_thread(migrate, conninfo, folder))
        await until_it_waits(conninfo, building)  # for the writer, as it must
        waiting = [
            asyncio.create_task(asyncio.to_thread(migrate, conninfo, folder)) for _ in range(3)
        ]
        await writer.rollback()
        done = await asyncio.gather(building, *waiting)
    assert done == [(newest_revision(), "0099")] + [("0099", "0099")] * 3
    assert ask(
        conninfo, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'tenants_by_name'::regclass"
    ) == [(True,)]


@pytest.mark.thorough
async def test_migration_retries_a_locked_table(conninfo: str, tmp_path: Path) -> None:
    folder = history(tmp_path / "migrations", newest_revision(), r0099=COLUMN)
    async with writing(conninfo) as writer:
        migrating = asyncio.create_task(asyncio.to_thread(migrate, conninfo, folder))
        await until_it_waits(conninfo, migrating)
        # behind the migration, which would wait for the writer for ever, and so would this
        assert await asyncio.to_thread(ask, conninfo, "SELECT FROM tenants") == []
        await writer.rollback()
        assert (await migrating)[1] == "0099"
    assert ask(conninfo, "SELECT colour FROM tenants") == []


@pytest.mark.thorough
async def test_row_level_security_retries_a_locked_table(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("COMMENT ON POLICY one_tenant ON tenants IS NULL")
    async with writing(conninfo) as writer:
        building = asyncio.create_task(asyncio.to_thread(migrate, conninfo))
        await until_it_waits(conninfo, building)
        assert await asyncio.to_thread(ask, conninfo, "SELECT FROM tenants") == []
        await writer.rollback()
        await building
    comment = "SELECT obj_description(oid, 'pg_policy') IS NOT NULL FROM pg_policy WHERE polname = 'one_tenant'"
    assert (True,) in ask(conninfo, f"{comment} AND polrelid = 'tenants'::regclass")


def test_earlier_release_survives_each_migration(empty: str, tmp_path: Path) -> None:
    for before, revision in pairwise(revisions()):
        migrate(empty, history(tmp_path / f"before-{revision}", before))
        was = Schema.of(empty)
        migrate(empty, history(tmp_path / revision, revision))
        found = list(schema_violations(was, Schema.of(empty), text_of(revision)))
        assert found == [], revision


@pytest.mark.parametrize(
    ("statement", "breach"),
    [
        ("ALTER TABLE tenants DROP COLUMN owner_id", "tenants.owner_id is gone"),
        ("ALTER TABLE tenants RENAME owner_email TO address", "tenants.owner_email is gone"),
        ("DROP TABLE user_profiles", "user_profiles.name is gone"),
        (
            "ALTER TABLE tenants ALTER plan TYPE varchar(9)",
            "tenants.plan was text and is character varying(9)",
        ),
        (
            "ALTER TABLE tenants ALTER current_period_end SET NOT NULL",
            "current_period_end takes no NULL any more",
        ),
        (
            "ALTER TABLE tenants ADD colour text NOT NULL",
            "tenants.colour is new, and has to be named in every new row",
        ),
        (
            "ALTER TABLE tenants ADD born timestamptz DEFAULT clock_timestamp()",
            "tenants was rewritten",
        ),
        (
            "ALTER TABLE tenants ADD CHECK (name <> '')",
            "tenants has a new rule, tenants_name_check",
        ),
        (
            "CREATE UNIQUE INDEX CONCURRENTLY u ON tenants (name)",
            "tenants has a new unique index, u",
        ),
        (
            "CREATE INDEX tenants_by_name ON tenants (name)",
            "an index on tenants is not built concurrently",
        ),
        ("DROP FUNCTION purge_tenant", "function purge_tenant"),
    ],
)
def test_breach_of_the_rule_is_found(altered: str, statement: str, breach: str) -> None:
    was = Schema.of(altered)
    execute(altered, statement)
    assert breach in "; ".join(schema_violations(was, Schema.of(altered), statement))


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE tenants ADD shade text",
        "ALTER TABLE tenants ADD tone text NOT NULL DEFAULT 'red'",
        "CREATE INDEX CONCURRENTLY tenants_by_suspension ON tenants (suspended_at)",
        "CREATE TABLE colours (name text PRIMARY KEY); CREATE INDEX colours_by_name ON colours (name)",
        "ALTER TABLE tenants ALTER name DROP NOT NULL",
    ],
)
def test_additive_migration_passes_the_rule(altered: str, statement: str) -> None:
    was = Schema.of(altered)
    execute(altered, statement)
    assert list(schema_violations(was, Schema.of(altered), statement)) == []
