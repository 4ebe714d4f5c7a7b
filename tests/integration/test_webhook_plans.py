"""How the webhook's statements find their rows, however few there are when their plans are made."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenantry.db.database import Database, Lane
from tenantry.domain.billing.timeline import Reach
from tenantry.store import billing

STATEMENTS: list[tuple[str, Any]] = [
    (billing.LOCK_ACCOUNTS, {"tenants": ["a"], "customers": ["c"]}),
    (billing.TENANTS_OF_CUSTOMERS, (["c"],)),
    (billing.SEEN_EVENTS, (["evt"],)),
    (billing.UPDATE_ACCOUNTS, {"accounts": '[{"tenant_id": "a"}]', "now": None}),
    (billing.SETTLE_PARKED, ('[{"id": "evt"}]',)),
    (billing.READ_EVENTS, {"tenants": ["a"], "seconds": [5], "late": [True], "telling": ["t"]}),
    (billing.DELETE_ENTRIES, {"ids": ["evt"], "drift": "drift"}),
]


@pytest.fixture
async def lane(conninfo: str) -> AsyncIterator[Lane]:
    database = Database(conninfo, pool_size=1)
    yield database.lane()
    await database.close()


@pytest.mark.parametrize(("statement", "parameters"), STATEMENTS)
async def test_rows_are_found_by_index(lane: Lane, statement: str, parameters: Any) -> None:
    async with lane.use() as connection:
        cursor = await connection.execute(f"EXPLAIN {statement}".encode(), parameters)
        plan = "\n".join(row[0] for row in await cursor.fetchall())
    assert "Seq Scan" not in plan
    assert "Index" in plan


async def test_a_history_of_nobody_is_empty(lane: Lane) -> None:
    async with lane.use() as connection:
        assert await billing.read_events(connection, {"nobody": (Reach.BEGINNING, 5)}, ()) == {"nobody": []}
