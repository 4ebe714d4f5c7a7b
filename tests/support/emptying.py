"""Emptying a database between tests that share a service."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import psycopg
from psycopg import sql

Empty = Callable[[], Awaitable[None]]


class SharedDatabase(NamedTuple):
    """A migrated database that several tests share; ``empty`` deletes the rows of earlier tests."""

    conninfo: str
    empty: Empty


@asynccontextmanager
async def emptying(conninfo: str) -> AsyncIterator[Empty]:
    """Give a function that deletes all rows from the tables that are empty when the block begins.

    The rows of a migrated database stay. The service reads keys, tenants, members, and sessions
    from the database for each request, so a test cannot see those of the test before it.
    """
    # Several statements at once cannot be prepared.
    async with await psycopg.AsyncConnection.connect(
        conninfo, autocommit=True, prepare_threshold=None
    ) as connection:
        tables = [table async for table in _empty_tables(connection)]
        statement = sql.SQL("; ").join(
            sql.SQL("DELETE FROM {}").format(sql.Identifier(*table)) for table in tables
        )
        # As a replica, PostgreSQL checks no foreign keys, so the order of the tables does not
        # matter.
        await connection.execute("SET session_replication_role = replica")

        async def empty() -> None:
            await connection.execute(statement)

        yield empty


async def _empty_tables(connection: psycopg.AsyncConnection) -> AsyncIterator[tuple[str, str]]:
    cursor = await connection.execute(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    for schema, table in await cursor.fetchall():
        found = await connection.execute(
            sql.SQL("SELECT FROM {} LIMIT 1").format(sql.Identifier(schema, table))
        )
        if found.rowcount == 0:
            yield schema, table
