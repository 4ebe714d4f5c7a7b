"""A host of the service that stands still, or is gone without a word, holds nobody up for long."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import pytest

from tenantry.db.connection import Connection
from tenantry.db.database import Database
from tenantry.db.scope import ACROSS_TENANTS
from tenantry.domain.errors import DatabaseUnavailableError
from tests.support.tenants import add_acme

LOCK = "SELECT id FROM tenants FOR UPDATE"
"""Of an account that others wait for."""


async def stand_still_between_statements(transaction: AbstractAsyncContextManager[Connection], conninfo: str) -> None:
    """Hold a tenant's lock until somebody else has it."""
    async with transaction as stopped:
        await stopped.execute(LOCK)
        async with await Connection.connect(conninfo) as other:
            assert await (await other.execute(LOCK)).fetchall() == [("acme",)]
        await stopped.execute("SELECT 1")


@pytest.mark.parametrize("way", ["pool", "pooler", "lane"])
async def test_the_locks_of_a_host_that_stands_still_are_let_go(conninfo: str, way: str) -> None:
    async with await Connection.connect(conninfo) as connection:
        await add_acme(connection, datetime.now(UTC))
    database = Database(conninfo, pool_size=1, pooler=conninfo if way == "pooler" else None)
    await database.open()
    try:
        with pytest.raises(DatabaseUnavailableError):
            await stand_still_between_statements(
                database.lane().use() if way == "lane" else database.transaction(ACROSS_TENANTS), conninfo
            )
    finally:
        await database.close()
