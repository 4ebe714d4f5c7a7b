"""Pipelined statements."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, LiteralString

import psycopg
import pytest
import uvloop
from psycopg import pq

from tenantry.db import statements as kinds
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.statements import ParameterType, Statement
from tests.support.patience import patient_database

ONE = Statement("SELECT 1")
NUMBERS = Statement("SELECT n FROM unnest($1) AS n", kinds.BIGINTS)
FAULTY = Statement("SELECT 1 / (n - 1) FROM unnest($1) AS n", kinds.BIGINTS)
SLEEP = Statement("SELECT pg_sleep(10)")


@pytest.fixture(params=[0, None], ids=["prepared", "unprepared"])
async def connection(conninfo: str, request: pytest.FixtureRequest) -> AsyncIterator[Connection]:
    """A connection that prepares, or one that must not."""
    async with await Connection.connect(conninfo, prepare_threshold=request.param) as connection:
        await connection.execute("CREATE TABLE kept (n bigint PRIMARY KEY)")
        await connection.commit()
        yield connection


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (kinds.TEXTS, ["", "ä", None, "x" * 100_000]),
        (kinds.BIGINTS, [-(2**63), 2**63 - 1, None]),
        (kinds.BOOLEANS, [True, None, False]),
        (
            kinds.MOMENTS,
            [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), None],
        ),
        (kinds.BLOBS, [b"", b"\x00\xff" * 50_000, None]),
        (kinds.TEXTS, []),
    ],
)
async def test_columns_arrive_as_they_were_sent(
    connection: Connection, kind: ParameterType[Any], values: list[Any]
) -> None:
    [rows] = await connection.run_batch(Statement("SELECT * FROM unnest($1)", kind)(values))
    assert [value for (value,) in rows] == values


async def test_single_values_arrive_as_they_were_sent(connection: Connection) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    statement = Statement(
        "SELECT $1, $2, $3, $4", kinds.TEXT, kinds.BIGINT, kinds.MOMENT, kinds.TEXT
    )
    assert await connection.run_batch(statement("a", 5, moment, None)) == [[("a", 5, moment, None)]]


async def test_each_statement_has_its_rows(connection: Connection) -> None:
    assert await connection.run_batch(ONE(), NUMBERS([]), NUMBERS([7, 8])) == [
        [(1,)],
        [],
        [(7,), (8,)],
    ]
    assert await connection.run_batch(NUMBERS([9]), ONE()) == [[(9,)], [(1,)]]


@pytest.mark.thorough
async def test_more_than_the_socket_takes_at_once(connection: Connection) -> None:
    blobs = [b"x" * 2**20] * 64
    [rows] = await connection.run_batch(
        Statement("SELECT n FROM unnest($1) AS n", kinds.BLOBS)(blobs)
    )
    assert [len(blob) for (blob,) in rows] == [2**20] * 64


async def test_statements_are_one_transaction_that_the_caller_ends(
    connection: Connection, conninfo: str
) -> None:
    insert = Statement("INSERT INTO kept SELECT unnest($1)", kinds.BIGINTS)
    await connection.run_batch(insert([1]))
    await connection.run_batch(insert([2]))
    await connection.rollback()
    await connection.run_batch(insert([3]), commit=True)
    assert connection.info.transaction_status == pq.TransactionStatus.IDLE
    async with await Connection.connect(conninfo) as other:
        assert await (await other.execute("SELECT n FROM kept")).fetchall() == [(3,)]


async def test_no_statement_runs_after_a_failed_one(connection: Connection) -> None:
    insert = Statement("INSERT INTO kept SELECT unnest($1)", kinds.BIGINTS)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await connection.run_batch(insert([1]), FAULTY([1]), insert([2]), commit=True)
    assert connection.info.transaction_status == pq.TransactionStatus.INERROR
    await connection.rollback()
    assert await connection.run_batch(
        Statement("SELECT n FROM kept")(), FAULTY([2]), insert([2])
    ) == [[], [(1,)], []]


async def test_statements_mix_with_psycopg_s_own(connection: Connection) -> None:
    await connection.run_batch(Statement("INSERT INTO kept SELECT unnest($1)", kinds.BIGINTS)([1]))
    cursor = await connection.execute("SELECT n FROM kept WHERE n = %s", (1,))
    assert await cursor.fetchall() == [(1,)]
    await connection.rollback()
    assert await connection.run_batch(ONE()) == [[(1,)]]


async def test_a_wait_that_is_cancelled_closes_the_connection(connection: Connection) -> None:
    waiting = asyncio.create_task(connection.run_batch(SLEEP()))
    await asyncio.sleep(0)  # it is sent
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert connection.closed


async def test_lost_server_is_an_operational_error(connection: Connection, conninfo: str) -> None:
    waiting = asyncio.create_task(connection.run_batch(SLEEP()))
    async with await Connection.connect(conninfo) as other:
        await other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        await waiting
    assert connection.closed


def test_lost_connections_are_replaced_in_uvloop(conninfo: str) -> None:
    uvloop.run(lose_connections(conninfo, times=30))


async def lose_connections(conninfo: str, times: int) -> None:
    """End all connections of several clients again and again; each of them is served in between."""
    served = [asyncio.Event() for _ in range(12)]
    async with (
        asyncio.TaskGroup() as clients,
        await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as own,
    ):
        going_on = [clients.create_task(ask_for_ever(conninfo, event)) for event in served]
        for _ in range(times):
            await asyncio.gather(*(event.wait() for event in served))
            for event in served:
                event.clear()
            await own.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        for client in going_on:
            client.cancel()


async def ask_for_ever(conninfo: str, served: asyncio.Event) -> None:
    while True:
        with suppress(psycopg.OperationalError):
            async with await Connection.connect(conninfo) as connection:
                while True:
                    assert await connection.run_batch(ONE(), commit=True) == [[(1,)]]
                    served.set()


async def announcing(database: Database, announced: list[str], statement: LiteralString) -> None:
    async with database.transaction(ACROSS_TENANTS) as connection:
        connection.after_commit(lambda: announced.append(statement))
        await connection.execute(statement)
        assert announced == []


async def test_what_was_done_is_announced_once_it_is_committed(emptied: str) -> None:
    announced: list[str] = []
    async with patient_database(emptied, pool_size=1) as database:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await announcing(database, announced, "SELECT 1 / 0")
        await announcing(database, announced, "SELECT 1")
    assert announced == ["SELECT 1"]
