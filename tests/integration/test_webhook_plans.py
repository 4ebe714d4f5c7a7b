"""Query plans of the webhook's statements: they use indexes even if planned on empty tables."""

from collections.abc import AsyncIterator, Sequence
from copy import copy

import pytest

from tenantry.billing import batch_store
from tenantry.billing import ledger_store as billing
from tenantry.db.database import Lane
from tenantry.db.statements import BoundStatement
from tenantry.domain.billing.ledger import FoldId, ReplayNeed
from tenantry.domain.billing.state import WHOLE_TENANT
from tests.support.facts import ANY
from tests.support.patience import patient_database

CALLS: list[BoundStatement] = [
    batch_store.LOCK_ACCOUNTS(["a"], ["c"], ["s"]),
    batch_store.HOLDERS(["s"]),
    batch_store.TENANTS_OF_CUSTOMERS(["c"]),
    batch_store.SEEN_EVENTS(["evt"]),
    batch_store.UPDATE_ACCOUNTS(["a"], *[[None]] * 13, None),
    batch_store.UPDATE_PARKED(["evt"], *[[None]] * 4),
    batch_store.DELETE_ENTRIES(["evt"], "drift"),
]


@pytest.fixture
async def lane(emptied: str) -> AsyncIterator[Lane]:
    database = patient_database(emptied, pool_size=1)
    yield database.lane()
    await database.close()


@pytest.mark.parametrize("call", CALLS)
async def test_rows_of_batches_are_found_by_index(lane: Lane, call: BoundStatement) -> None:
    explained = copy(call.statement)
    explained.sql = b"EXPLAIN " + call.statement.sql
    async with lane.use() as connection:
        [rows] = await connection.run_batch(BoundStatement(explained, call.parameters))
    assert_by_index(rows)


async def test_histories_are_found_by_index(lane: Lane) -> None:
    parameters = {
        **billing.FOLD_TYPES,
        "tenants": ["a"],
        "folds": ["sub_1"],
        "seconds": [5],
        "late": [True],
        "until": [5],
    }
    async with lane.use() as connection:
        cursor = await connection.execute(f"EXPLAIN {billing.READ_EVENTS}".encode(), parameters)
        rows = await cursor.fetchall()
    assert_by_index(rows)
    plan = "\n".join(row[0] for row in rows)
    assert plan.count("Index Scan") == 3
    assert (plan.count("Sort Key"), "Bitmap" in plan) == (1, False)  # of the result only


async def test_tenants_of_invoices_without_a_customer_are_found_by_index(lane: Lane) -> None:
    async with lane.use() as connection:
        await connection.execute("SET enable_seqscan = off", ())
        cursor = await connection.execute(
            f"EXPLAIN {billing.TENANTS_OF_CURRENT}".encode(), (["sub_1"],)
        )
        assert_by_index(await cursor.fetchall())


def assert_by_index(rows: Sequence[tuple[str]]) -> None:
    plan = "\n".join(row[0] for row in rows)
    assert "Index Cond" in plan
    assert not any(way in plan for way in ("Seq Scan", "Hash Join", "Merge Join")), plan


async def test_an_unknown_tenants_history_is_empty(lane: Lane) -> None:
    async with lane.use() as connection:
        missing: FoldId = "missing", WHOLE_TENANT
        needs = {missing: ReplayNeed(5, late=True)}
        assert await billing.read_events(connection, needs, ANY) == {missing: []}
