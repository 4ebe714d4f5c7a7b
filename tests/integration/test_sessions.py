"""The settings that every session of the service has."""

import psycopg
import pytest

from tenantry.common.clock import Timeouts
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError

SHOWN = (
    "SELECT current_setting('statement_timeout'), current_setting('TimeZone'),"
    " current_setting('idle_in_transaction_session_timeout')"
)


async def limited(connection: Connection) -> list[tuple[object, ...]]:
    return await connection.fetch(SHOWN)


async def test_ordinary_and_grouped_statements_have_the_settings(conninfo: str) -> None:
    async with Database(conninfo, 2) as database:
        async with database.transaction(ACROSS_TENANTS) as connection:
            assert await limited(connection) == [("4s", "UTC", "10s")]
        async with database.lane({"work_mem": "5MB"}).use() as connection:
            assert await limited(connection) == [("4s", "UTC", "10s")]
            own = "SELECT current_setting('work_mem'), current_setting('enable_seqscan')"
            assert await connection.fetch(own) == [("5MB", "off")]


async def test_settings_of_a_session_outlast_a_rollback(conninfo: str) -> None:
    async with Database(conninfo, 1) as database:
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with database.transaction(ACROSS_TENANTS) as connection:
                await connection.execute("SELECT 1 / 0")
        async with database.transaction(ACROSS_TENANTS) as connection:
            assert await limited(connection) == [("4s", "UTC", "10s")]


async def test_statement_over_the_limit_ends(conninfo: str) -> None:
    async with Database(conninfo, 1, timeouts=Timeouts(statement=0.1)) as database:
        with pytest.raises(DatabaseUnavailableError) as caught:
            async with database.lane().use() as connection:
                await connection.execute("SELECT pg_sleep(60)")
    assert isinstance(caught.value.__cause__, psycopg.errors.QueryCanceled)
