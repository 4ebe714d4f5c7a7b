"""Emptying a database between tests that share a service."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

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
    async with connected(conninfo) as connection:
        statement = _unchecked(_deletion(await _empty_tables(connection)))

        async def empty() -> None:
            await connection.execute(statement)

        yield empty


def refilling(
    connection: psycopg.AsyncConnection[TupleRow], fill: Callable[[], Awaitable[None]]
) -> Empty:
    """Return a function that deletes all rows as `emptying` does, and then fills the tables.

    ``fill`` does so at the first call. Later calls insert copies of its rows, which are as old by
    the database's clock as those were: a service whose own clock was moved meanwhile sees them as
    younger or older.
    """
    tables: list[sql.Identifier] = []
    statement: sql.Composed | None = None

    async def refill() -> None:
        nonlocal tables, statement
        if statement is not None:
            await connection.execute(statement)
            return
        tables = tables or await _empty_tables(connection)
        await connection.execute(_unchecked(_deletion(tables)))  # what a failed call has left
        await fill()
        copies = [
            await _copy(connection, table)
            for table in tables
            if not await _is_empty(connection, table)
        ]
        statement = _unchecked(_deletion(tables), *copies)

    return refill


@asynccontextmanager
async def connected(conninfo: str) -> AsyncIterator[psycopg.AsyncConnection[TupleRow]]:
    """Connect with a transaction for each call of ``execute``."""
    # Several statements at once cannot be prepared.
    async with await psycopg.AsyncConnection.connect(
        conninfo, autocommit=True, prepare_threshold=None
    ) as connection:
        yield connection


def _unchecked(*statements: sql.Composable) -> sql.Composed:
    # As a replica, PostgreSQL checks no foreign keys, so the order of the tables does not matter.
    return sql.SQL("; ").join(
        [
            sql.SQL("SET session_replication_role = replica"),
            *statements,
            sql.SQL("RESET session_replication_role"),
        ]
    )


def _deletion(tables: list[sql.Identifier]) -> sql.Composed:
    return sql.SQL("; ").join(sql.SQL("DELETE FROM {}").format(table) for table in tables)


async def _empty_tables(connection: psycopg.AsyncConnection[TupleRow]) -> list[sql.Identifier]:
    cursor = await connection.execute(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    tables = [sql.Identifier(*names) for names in await cursor.fetchall()]
    return [table for table in tables if await _is_empty(connection, table)]


async def _is_empty(connection: psycopg.AsyncConnection[TupleRow], table: sql.Identifier) -> bool:
    found = await connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(table))
    return found.rowcount == 0


async def _copy(
    connection: psycopg.AsyncConnection[TupleRow], table: sql.Identifier
) -> sql.Composed:
    """Return the statement that inserts the rows of a table again, with times moved to its own."""
    found = await connection.execute(
        sql.SQL("SELECT json_agg(t)::text, now()::text FROM {} t").format(table)
    )
    [(rows, moment)] = await found.fetchall()
    names = await connection.execute(
        "SELECT attname, atttypid = 'timestamptz'::regtype FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
        (table.as_string(connection),),
    )
    columns = [(sql.Identifier(name), is_time) for name, is_time in await names.fetchall()]
    return sql.SQL(
        "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} "
        "FROM json_populate_recordset(NULL::{table}, {rows})"
    ).format(
        table=table,
        columns=sql.SQL(", ").join(name for name, _ in columns),
        values=sql.SQL(", ").join(
            sql.SQL("{} + (now() - {}::timestamptz)").format(name, moment) if is_time else name
            for name, is_time in columns
        ),
        rows=rows,
    )
