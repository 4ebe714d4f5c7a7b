"""A host of the service that freezes or disappears delays other hosts only briefly."""

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tests.support.database_link import database_link
from tests.support.tenants import add_acme

END_THE_IDLE = """
SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle' AND query = 'COMMIT'
"""
WAYS = {"host": "", "port": 5432}
LOCK = "SELECT id FROM tenants FOR UPDATE"
"""Of an account that others wait for."""


async def freeze_between_statements(
    transaction: AbstractAsyncContextManager[Connection], conninfo: str
) -> None:
    """Hold a tenant's lock until another process has it."""
    async with transaction as stopped:
        await stopped.execute(LOCK)
        async with await Connection.connect(conninfo) as other:
            assert await (await other.execute(LOCK)).fetchall() == [("acme",)]
        await stopped.execute("SELECT 1")


@pytest.mark.parametrize("way", ["pool", "pooler", "lane"])
async def test_the_locks_of_a_frozen_host_are_released(conninfo: str, way: str) -> None:
    async with await Connection.connect(conninfo) as connection:
        await add_acme(connection, datetime.now(UTC))
    database = Database(conninfo, pool_size=1, pooler=conninfo if way == "pooler" else None)
    await database.open()
    try:
        with pytest.raises(DatabaseUnavailableError):
            await freeze_between_statements(
                database.lane().use() if way == "lane" else database.transaction(ACROSS_TENANTS),
                conninfo,
            )
    finally:
        await database.close()


async def test_a_late_connection_is_not_used_after_it_was_lost(conninfo: str) -> None:
    async with (
        database_link(conninfo) as link,
        await Connection.connect(conninfo, autocommit=True) as other,
    ):
        link.block()
        lane = Database(after(link.conninfo, conninfo), pool_size=1).lane()
        with pytest.raises(DatabaseUnavailableError):
            async with lane.use():
                pass
        [connecting] = [task for task in asyncio.all_tasks() if "Lane._connect" in repr(task)]
        await asyncio.wait_for(connecting, 30)
        assert await (await other.execute(END_THE_IDLE)).fetchall()
        async with lane.use() as connection:
            assert await (await connection.execute("SELECT 1")).fetchall() == [(1,)]
        await lane.close()


def after(first: str, second: str) -> str:
    """Both hosts, of which the second one is asked when the first has not answered in time."""
    both = [conninfo_to_dict(conninfo) for conninfo in (first, second)]
    ways = {
        name: ",".join(str(each.get(name, default)) for each in both)
        for name, default in WAYS.items()
    }
    return make_conninfo(second, **ways)
