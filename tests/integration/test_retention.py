"""Letting go of data that is past its time, and of nothing else."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
import pytest

from tenantry.db.database import Connection, Database
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.tasks import Work
from tenantry.services.retention import Removed, RetentionService
from tests.support.logs import watched
from tests.support.outbox import add_notification

NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)
DAY: Final = timedelta(days=1)


@pytest.fixture
async def database(conninfo: str) -> AsyncIterator[Database]:
    database = Database(conninfo, pool_size=2)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def connection(conninfo: str) -> AsyncIterator[Connection]:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        yield connection


@pytest.fixture
def retention(database: Database) -> RetentionService:
    return RetentionService(database, timedelta(days=90), lambda: NOW)


async def keep_answers(connection: Connection, created_at: datetime, number: int = 1) -> None:
    await connection.execute(
        "INSERT INTO idempotency_keys (principal, route, key, body_digest, answer, created_at) "
        "SELECT 'key_1', 'route', %s || n::text, '', '{}', %s FROM generate_series(1, %s) n",
        (created_at.isoformat(), created_at, number),
    )


async def park(connection: Connection, event_id: str, received_at: datetime, outcome: str = "parked") -> None:
    await connection.execute(
        "INSERT INTO billing_events (id, arrival, type, created, received_at, org_id, outcome, reason) "
        "VALUES (%s, 1, 'customer.subscription.updated', 1, %s, 'unknown', %s, 'waits for its tenant')",
        (event_id, received_at, outcome),
    )


async def add_tenant(connection: Connection, tenant_id: str, deleted_at: datetime | None) -> None:
    """A tenant with one of everything."""
    await add_notification(connection, tenant_id)
    await connection.execute("UPDATE tenants SET deleted_at = %s WHERE id = %s", (deleted_at, tenant_id))
    await connection.execute(
        "INSERT INTO customers (id, tenant_id, linked_by) VALUES ('cus_' || %s, %s, 'operator')", (tenant_id, tenant_id)
    )
    await connection.execute(
        "INSERT INTO memberships (issuer, subject, tenant_id, role) VALUES ('https://id.example', 'user', %s, 'owner')",
        (tenant_id,),
    )
    await connection.execute(
        "INSERT INTO projects (id, org_id, mode, name, created_at, updated_at) "
        "VALUES ('prj_' || %s, %s, 'live', 'One', %s, %s)",
        (tenant_id, tenant_id, NOW, NOW),
    )
    await connection.execute(
        "INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, "
        "created_by) VALUES ('key_' || %s, %s, %s, 'One', '{}', 'SCOPED', 'live', 'svc_live_abcd', 'wxyz', %s, 'user')",
        (tenant_id, tenant_id, tenant_id.encode(), NOW),
    )


async def number_of(connection: Connection, what: str) -> int:
    cursor = await connection.execute(f"SELECT count(*) FROM {what}".encode())  # noqa: S608  # the tests' own words
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def left_of(connection: Connection, tenant_id: str) -> set[str]:
    """The tables that still name a tenant."""
    columns = {
        "tenants": "id",
        "customers": "tenant_id",
        "memberships": "tenant_id",
        "api_keys": "org_id",
        "projects": "org_id",
        "billing_events": "tenant_id",
        "notifications": "tenant_id",
    }
    return {
        table for table, name in columns.items() if await number_of(connection, f"{table} WHERE {name} = '{tenant_id}'")
    }


async def test_with_nothing_to_remove_nothing_happens(retention: RetentionService) -> None:
    assert await retention.run() == Removed(0, 0, 0)


async def test_answers_go_after_a_day(retention: RetentionService, connection: Connection) -> None:
    await keep_answers(connection, NOW - DAY)
    await keep_answers(connection, NOW - DAY + SECOND)
    assert (await retention.run()).idempotency_keys == 1
    cursor = await connection.execute("SELECT created_at FROM idempotency_keys")
    assert await cursor.fetchall() == [(NOW - DAY + SECOND,)]


async def test_more_than_one_statement_s_worth_goes_in_one_run(
    retention: RetentionService, connection: Connection
) -> None:
    await keep_answers(connection, NOW - 2 * DAY, number=2500)
    assert (await retention.run()).idempotency_keys == 2500
    assert await number_of(connection, "idempotency_keys") == 0


async def test_events_parked_for_thirty_days_are_let_go(retention: RetentionService, connection: Connection) -> None:
    await park(connection, "evt_old", NOW - 30 * DAY)
    await park(connection, "evt_new", NOW - 30 * DAY + SECOND)
    assert (await retention.run()).parked_events == 1
    cursor = await connection.execute("SELECT id, outcome, reason FROM billing_events ORDER BY id")
    assert await cursor.fetchall() == [
        ("evt_new", "parked", "waits for its tenant"),
        ("evt_old", "ignored", "its tenant did not become known within 30 days"),
    ]


async def test_events_that_are_not_parked_are_kept_as_they_are(
    retention: RetentionService, connection: Connection
) -> None:
    await park(connection, "evt_old", NOW - 300 * DAY, outcome="applied")
    assert await retention.run() == Removed(0, 0, 0)
    assert await number_of(connection, "billing_events WHERE outcome = 'applied'") == 1


async def test_an_event_that_is_being_settled_is_left_to_the_settler(
    retention: RetentionService, connection: Connection
) -> None:
    await park(connection, "evt_old", NOW - 30 * DAY)
    async with connection.transaction():
        await connection.execute("UPDATE billing_events SET outcome = 'applied'")
        assert (await retention.run()).parked_events == 0
    assert await number_of(connection, "billing_events WHERE outcome = 'applied'") == 1


async def test_a_tenant_deleted_thirty_days_ago_is_gone_wholly(
    retention: RetentionService, connection: Connection
) -> None:
    await add_tenant(connection, "old", NOW - 30 * DAY)
    assert (await retention.run()).tenants == 1
    assert await left_of(connection, "old") == set()


@pytest.mark.parametrize("deleted_at", [None, NOW - 30 * DAY + SECOND], ids=["living", "deleted of late"])
async def test_other_tenants_are_kept(
    retention: RetentionService, connection: Connection, deleted_at: datetime | None
) -> None:
    await add_tenant(connection, "old", NOW - 30 * DAY)
    await add_tenant(connection, "other", deleted_at)
    await retention.run()
    assert len(await left_of(connection, "other")) == 7


async def test_a_tenant_with_a_long_history_is_gone_in_one_run(
    retention: RetentionService, connection: Connection
) -> None:
    await add_tenant(connection, "old", NOW - 30 * DAY)
    await connection.execute(
        "INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome, reason) "
        "SELECT 'evt_' || n, n, 'invoice.payment_succeeded', n, %s, 'old', 'applied', '' "
        "FROM generate_series(1, 2500) n",
        (NOW,),
    )
    assert (await retention.run()).tenants == 1
    assert await number_of(connection, "billing_events") == 0


async def test_a_tenant_in_use_is_left_to_the_next_run(retention: RetentionService, connection: Connection) -> None:
    await add_tenant(connection, "old", NOW - 30 * DAY)
    async with connection.transaction():
        await connection.execute("SELECT 1 FROM tenants WHERE id = 'old' FOR NO KEY UPDATE")
        assert (await retention.run()).tenants == 0
    assert (await retention.run()).tenants == 1


async def test_two_runs_at_once_do_not_disturb_each_other(retention: RetentionService, connection: Connection) -> None:
    await keep_answers(connection, NOW - 2 * DAY, number=2500)
    await add_tenant(connection, "old", NOW - 30 * DAY)
    await asyncio.gather(retention.run(), retention.run())
    await retention.run()
    assert await number_of(connection, "idempotency_keys") == 0
    assert await left_of(connection, "old") == set()


async def test_the_worker_runs_it(retention: RetentionService, connection: Connection, conninfo: str) -> None:
    await keep_answers(connection, NOW - DAY)
    await connection.execute(
        "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('maintenance', 'remove_old_data', 0, NULL, NULL, "
        "'{\"timestamp\": 0}', NULL)]::procrastinate_job_to_defer_v1[])"
    )
    queue = JobQueue(conninfo)
    await queue.open()
    with watched("procrastinate") as log:
        worker = asyncio.create_task(queue.run_worker(Work(None, retention), polling_interval=0.02))
        await log.until("Job remove_old_data[1](timestamp=0) ended with status: Success")
        worker.cancel()
        await asyncio.wait({worker})
    await queue.close()
    assert await number_of(connection, "idempotency_keys") == 0
