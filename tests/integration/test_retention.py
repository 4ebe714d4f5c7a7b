"""Data retention deletes expired data, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tenantry.billing.ledger_queries import OperatorLedger
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database, Lane, for_writes
from tenantry.db.failover_detection import FailoverDetector
from tenantry.domain.billing.state import BillingPolicy
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.retention_store import DELETE_BODIES
from tenantry.jobs.tasks import Work
from tests.support import events
from tests.support.billing import EVENTS, Provider, Subscriber
from tests.support.catalogs import CATALOG
from tests.support.logs import watched
from tests.support.outbox import add_notification
from tests.support.patience import patient_database, patient_queue
from tests.support.service import Service

NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)
DAY: Final = timedelta(days=1)


@pytest.fixture
async def database(emptied: str) -> AsyncIterator[Database]:
    database = patient_database(emptied, pool_size=2)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def connection(emptied: str) -> AsyncIterator[Connection]:
    async with await Connection.connect(emptied, autocommit=True) as connection:
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


async def park(
    connection: Connection, event_id: str, received_at: datetime, outcome: str = "parked"
) -> None:
    await connection.execute(
        "INSERT INTO billing_events (id, arrival, type, created, received_at, org_id, outcome) "
        "VALUES (%s, 1, 'customer.subscription.updated', 1, %s, 'unknown', %s)",
        (event_id, received_at, outcome),
    )


async def add_tenant(connection: Connection, tenant_id: str, deleted_at: datetime | None) -> None:
    """A tenant with one of everything."""
    await add_notification(connection, tenant_id)
    await connection.execute(
        "UPDATE tenants SET deleted_at = %s WHERE id = %s", (deleted_at, tenant_id)
    )
    await connection.execute(
        "INSERT INTO customers (id, tenant_id, linked_by) VALUES ('cus_' || %s, %s, 'operator')",
        (tenant_id, tenant_id),
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
    for table in ("usage_hours", "usage_days"):
        await connection.execute(
            f"INSERT INTO {table} VALUES (%s, 'key_' || %s, %s, 'accepted', 1)",  # noqa: S608  # the tests' own words
            (tenant_id, tenant_id, NOW),
        )
    await keep_profile(connection, tenant_id, "user", NOW)


async def keep_profile(
    connection: Connection, tenant_id: str, user_id: str, seen_at: datetime
) -> None:
    await connection.execute(
        "INSERT INTO user_profiles (org_id, issuer, subject, name, seen_at) "
        "VALUES (%s, 'https://id.example', %s, 'A Name', %s)",
        (tenant_id, user_id, seen_at),
    )


async def keep_bodies(
    connection: Connection, received_at: datetime, first: int = 1, number: int = 1
) -> None:
    """Raw bodies with the arrival numbers from ``first`` on."""
    await connection.execute(
        "INSERT INTO billing_bodies (arrival, received_at, body) "
        "SELECT n, %s, '{}' FROM generate_series(%s::int, %s::int) n",
        (received_at, first, first + number - 1),
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
        "mails": "tenant_id",
        "user_profiles": "org_id",
        "usage_hours": "org_id",
        "usage_days": "org_id",
    }
    return {
        table
        for table, name in columns.items()
        if await number_of(connection, f"{table} WHERE {name} = '{tenant_id}'")
    }


async def test_with_nothing_to_remove_nothing_happens(retention: RetentionService) -> None:
    assert await retention.run() == {}


async def test_idempotency_answers_are_removed_after_a_day(
    retention: RetentionService, connection: Connection
) -> None:
    await keep_answers(connection, NOW - DAY)
    await keep_answers(connection, NOW - DAY + SECOND)
    assert (await retention.run())["idempotency keys"] == 1
    cursor = await connection.execute("SELECT created_at FROM idempotency_keys")
    assert await cursor.fetchall() == [(NOW - DAY + SECOND,)]


async def test_use_is_removed_400_days_after_its_period(
    connection: Connection, retention: RetentionService
) -> None:
    await add_tenant(connection, "acme", None)
    removed_since = int((NOW - 400 * DAY).timestamp())
    for number, end in enumerate((removed_since, removed_since + 1)):
        await connection.execute(
            "INSERT INTO usage_counters (org_id, feature, mode, period_start, period_end, used) "
            "VALUES ('acme', 'exports', 'live', %s, %s, 1)",
            (number, end),
        )
    assert await retention.run() == {"usage counters": 1}
    assert await connection.fetch_value("SELECT period_start FROM usage_counters") == 1


@pytest.mark.parametrize(
    ("table", "time", "days", "kind"),
    [("usage_hours", "hour", 90, "hours of usage"), ("usage_days", "day", 400, "days of usage")],
)
async def test_hours_of_usage_are_removed_after_90_days_and_days_after_400(
    connection: Connection,
    retention: RetentionService,
    table: str,
    time: str,
    days: int,
    kind: str,
) -> None:
    for key, at in (("old", NOW - days * DAY), ("new", NOW - days * DAY + SECOND)):
        await connection.execute(
            f"INSERT INTO {table} (org_id, key_id, {time}, outcome, number) "  # noqa: S608  # the tests' own words
            "VALUES ('acme', %s, %s, 'accepted', 1)",
            (key, at),
        )
    assert await retention.run() == {kind: 1}
    assert await connection.fetch_value(f"SELECT key_id FROM {table}") == "new"  # noqa: S608


async def test_acts_of_the_operator_are_removed_after_three_years(
    connection: Connection, retention: RetentionService
) -> None:
    for name, at in (("old", NOW - 1096 * DAY), ("new", NOW - 1096 * DAY + SECOND)):
        await connection.execute(
            "INSERT INTO operator_acts (id, at, action, target_id, issuer, subject) "
            "VALUES (%s, %s, 'x', 'x', 'x', 'x')",
            (name, at),
        )
    assert await retention.run() == {"operator acts": 1}
    assert await connection.fetch_value("SELECT id FROM operator_acts") == "new"


async def test_a_killed_process_is_forgotten_after_a_day(
    connection: Connection, retention: RetentionService
) -> None:
    for writer, at in (("killed", NOW - DAY), ("running", NOW - DAY + SECOND)):
        await connection.execute("INSERT INTO usage_writers VALUES (%s, 1, %s)", (writer, at))
    assert await retention.run() == {"ended processes": 1}
    assert await connection.fetch_column("SELECT id FROM usage_writers") == ["running"]


async def test_the_newest_hundred_refusals_of_the_provider_are_kept_for_30_days(
    connection: Connection, retention: RetentionService
) -> None:
    for number, last_at in ((1, NOW - 30 * DAY), (2, NOW - 30 * DAY + SECOND), (99, NOW)):
        await connection.execute(
            "INSERT INTO provider_refusals (operation, code, message, number, first_at, last_at) "
            "SELECT 'checkout', %(number)s, n, 1, %(at)s, %(at)s FROM generate_series(1, %(number)s) n",
            {"number": number, "at": last_at},
        )
    assert await retention.run() == {"refusals": 2}
    query = "SELECT last_at FROM provider_refusals ORDER BY last_at LIMIT 2"
    assert await connection.fetch_column(query) == [NOW - 30 * DAY + SECOND, NOW]


async def test_consumption_keys_are_removed_after_a_day(
    connection: Connection, retention: RetentionService
) -> None:
    for key, created_at in (("old", NOW - DAY), ("new", NOW - DAY + SECOND)):
        await connection.execute(
            "INSERT INTO consumption_keys (org_id, feature, mode, key, body_digest, answer, created_at, "
            "taken, period_start) VALUES ('org_1', 'exports', 'live', %s, '', '{}', %s, 1, 0)",
            (key, created_at),
        )
    assert await retention.run() == {"consumption keys": 1}
    assert await connection.fetch_value("SELECT key FROM consumption_keys") == "new"


async def test_one_run_removes_more_rows_than_one_statement(
    retention: RetentionService, connection: Connection
) -> None:
    await keep_answers(connection, NOW - 2 * DAY, number=2500)
    assert (await retention.run())["idempotency keys"] == 2500
    assert await number_of(connection, "idempotency_keys") == 0


async def test_events_parked_for_thirty_days_are_removed(
    retention: RetentionService, connection: Connection
) -> None:
    await park(connection, "evt_old", NOW - 30 * DAY)
    await park(connection, "evt_new", NOW - 30 * DAY + SECOND)
    assert (await retention.run())["parked events"] == 1
    cursor = await connection.execute(
        "SELECT id, outcome, document->>'reason' FROM billing_events ORDER BY id"
    )
    assert await cursor.fetchall() == [
        ("evt_new", "parked", None),
        ("evt_old", "ignored", "its tenant did not become known within 30 days"),
    ]


async def test_events_that_are_not_parked_are_kept(
    retention: RetentionService, connection: Connection
) -> None:
    await park(connection, "evt_old", NOW - 300 * DAY, outcome="applied")
    assert await retention.run() == {}
    assert await number_of(connection, "billing_events WHERE outcome = 'applied'") == 1


async def test_an_event_that_is_being_applied_is_not_removed(
    retention: RetentionService, connection: Connection
) -> None:
    await park(connection, "evt_old", NOW - 30 * DAY)
    async with connection.transaction():
        await connection.execute("UPDATE billing_events SET outcome = 'applied'")
        assert (await retention.run())["parked events"] == 0
    assert await number_of(connection, "billing_events WHERE outcome = 'applied'") == 1


async def test_a_tenant_deleted_thirty_days_ago_is_removed_completely(
    retention: RetentionService, connection: Connection
) -> None:
    await add_tenant(connection, "old", NOW - 30 * DAY)
    assert (await retention.run())["deleted tenants"] == 1
    assert await left_of(connection, "old") == set()


@pytest.mark.parametrize(
    "deleted_at", [None, NOW - 30 * DAY + SECOND], ids=["living", "deleted of late"]
)
async def test_other_tenants_are_kept(
    retention: RetentionService, connection: Connection, deleted_at: datetime | None
) -> None:
    await add_tenant(connection, "old", NOW - 30 * DAY)
    await add_tenant(connection, "other", deleted_at)
    await retention.run()
    assert len(await left_of(connection, "other")) == 10


async def test_a_tenant_with_a_long_history_is_removed_in_one_run(
    retention: RetentionService, connection: Connection
) -> None:
    await add_tenant(connection, "old", NOW - 30 * DAY)
    await connection.execute(
        "INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome) "
        "SELECT 'evt_' || n, n, 'invoice.payment_succeeded', n, %s, 'old', 'applied' "
        "FROM generate_series(1, 2500) n",
        (NOW,),
    )
    assert (await retention.run())["deleted tenants"] == 1
    assert await number_of(connection, "billing_events") == 0


async def test_a_tenants_raw_bodies_are_removed_with_it_and_no_others(
    retention: RetentionService, connection: Connection
) -> None:
    for tenant_id, first, number in (("old", 1001, 2500), ("other", 5001, 3)):
        await add_tenant(connection, tenant_id, NOW - 30 * DAY if tenant_id == "old" else None)
        await connection.execute(
            "INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome) "
            "SELECT 'evt_' || n, n, 'invoice.payment_succeeded', n, %s, %s, 'applied' "
            "FROM generate_series(%s::int, %s::int) n",
            (NOW, tenant_id, first, first + number - 1),
        )
        await keep_bodies(connection, NOW, first, number)
    await keep_bodies(connection, NOW, 9001)
    assert await retention.run() == {"deleted tenants": 1}
    cursor = await connection.execute("SELECT arrival FROM billing_bodies ORDER BY arrival")
    assert [row[0] for row in await cursor.fetchall()] == [5001, 5002, 5003, 9001]


async def test_a_tenant_in_use_is_left_to_the_next_run(
    retention: RetentionService, connection: Connection
) -> None:
    await add_tenant(connection, "old", NOW - 30 * DAY)
    async with connection.transaction():
        await connection.execute("SELECT 1 FROM tenants WHERE id = 'old' FOR NO KEY UPDATE")
        assert (await retention.run())["deleted tenants"] == 0
    assert (await retention.run())["deleted tenants"] == 1


async def test_profiles_are_removed_a_year_after_their_user_was_last_seen(
    retention: RetentionService, connection: Connection
) -> None:
    await add_tenant(connection, "acme", None)
    await keep_profile(connection, "acme", "long gone", NOW - 365 * DAY)
    await keep_profile(connection, "acme", "gone", NOW - 365 * DAY + SECOND)
    assert (await retention.run())["user profiles"] == 1
    assert await number_of(connection, "user_profiles WHERE subject = 'gone'") == 1


async def test_concurrent_runs_do_not_interfere(
    retention: RetentionService, connection: Connection
) -> None:
    await keep_answers(connection, NOW - 2 * DAY, number=2500)
    await add_tenant(connection, "old", NOW - 30 * DAY)
    await asyncio.gather(retention.run(), retention.run())
    await retention.run()
    assert await number_of(connection, "idempotency_keys") == 0
    assert await left_of(connection, "old") == set()


# Raw bodies


async def test_raw_bodies_are_removed_after_their_retention(
    retention: RetentionService, connection: Connection
) -> None:
    await keep_bodies(connection, NOW - 91 * DAY, 1)
    await keep_bodies(connection, NOW - 90 * DAY, 2)
    await keep_bodies(connection, NOW - 90 * DAY + SECOND, 3)
    assert await retention.run() == {"raw bodies": 2}
    cursor = await connection.execute("SELECT arrival FROM billing_bodies")
    assert await cursor.fetchall() == [(3,)]


async def test_how_long_raw_bodies_are_kept_is_a_setting(
    database: Database, connection: Connection
) -> None:
    await keep_bodies(connection, NOW - 7 * DAY, 1)
    await keep_bodies(connection, NOW - 7 * DAY + SECOND, 2)
    assert (await RetentionService(database, timedelta(days=7), lambda: NOW).run())[
        "raw bodies"
    ] == 1


async def test_one_run_removes_more_raw_bodies_than_one_statement(
    retention: RetentionService, connection: Connection
) -> None:
    await keep_bodies(connection, NOW - 90 * DAY, 1, 2500)
    await keep_bodies(connection, NOW, 2501, 10)
    assert (await retention.run())["raw bodies"] == 2500
    assert await number_of(connection, "billing_bodies") == 10
    assert (await retention.run())["raw bodies"] == 0


async def test_concurrent_runs_remove_each_body_once(
    retention: RetentionService, connection: Connection
) -> None:
    await keep_bodies(connection, NOW - 90 * DAY, 1, 2500)
    runs = await asyncio.gather(retention.run(), retention.run())
    assert sum(removed["raw bodies"] for removed in runs) == 2500
    assert await number_of(connection, "billing_bodies") == 0


async def test_only_the_oldest_raw_bodies_are_read(conninfo: str) -> None:
    lane = Lane(FailoverDetector(for_writes(conninfo)))
    async with lane.use() as connection:
        cursor = await connection.execute(
            f"EXPLAIN {DELETE_BODIES}".encode(), {"until": NOW, "most": 1000}
        )
        plan = [row[0].strip() for row in await cursor.fetchall()]
    await lane.close()
    limit = next(number for number, step in enumerate(plan) if "Limit" in step)
    assert plan[limit + 1].startswith("->  Index Scan using billing_bodies_pkey on billing_bodies ")
    assert not any("Seq Scan" in step or "Sort" in step for step in plan)


# The ledger without raw bodies


@pytest.fixture
def provider(emptied_service: Service) -> Provider:
    return Provider(emptied_service)


async def drop_bodies(provider: Provider, database: Database, after: timedelta = 90 * DAY) -> None:
    """Let time pass until every raw body is gone."""
    provider.service.clock.advance(days=after / DAY)
    removed = await RetentionService(database, after, provider.service.clock).run()
    assert removed["raw bodies"] > 0
    async with database.transaction(ACROSS_TENANTS) as connection:
        assert await number_of(connection, "billing_bodies") == 0


async def with_history(provider: Provider) -> tuple[Subscriber, list[str]]:
    """A tenant past due and paid again, with the ids of its events."""
    subscriber = await provider.subscriber()
    history = [
        events.updated(**subscriber.names, status="trialing"),
        events.failed(customer=subscriber.customer, created=events.NOW + 20),
        events.succeeded(customer=subscriber.customer, created=events.NOW + 30),
        events.completed(org=subscriber.id, customer=subscriber.customer, created=events.NOW + 40),
    ]
    await provider.send(*history)
    return subscriber, [event["id"] for event in history]


async def told_of(
    provider: Provider, database: Database, subscriber: Subscriber, ids: list[str]
) -> list[Any]:
    """All that can be learnt of a tenant's events."""
    ledger = OperatorLedger(database, BillingPolicy(catalog=CATALOG), lambda: NOW)
    explanation = await ledger.explain(subscriber.id, 100)
    assert subscriber.organization is not None
    owner = subscriber.organization.owner
    stored = [await provider.stored(event_id) for event_id in ids]
    return [
        explanation,
        (await owner.get(EVENTS)).json(),
        [(await owner.get(f"{EVENTS}/{event_id}")).json() for event_id in ids],
        [{name: fact for name, fact in (row or {}).items() if name != "body"} for row in stored],
        await provider.tenant(subscriber),
    ]


async def test_facts_and_explanation_are_the_same_without_raw_bodies(
    provider: Provider, database: Database
) -> None:
    subscriber, ids = await with_history(provider)
    before = await told_of(provider, database, subscriber, ids)
    await drop_bodies(provider, database)
    assert await told_of(provider, database, subscriber, ids) == before
    assert before[0].differences == ()


async def test_a_late_event_takes_its_place_among_events_without_raw_bodies(
    provider: Provider, database: Database
) -> None:
    subscriber, _ = await with_history(provider)
    assert await provider.state(subscriber) == ("pro", "trialing")
    await drop_bodies(provider, database)
    late = events.updated(**subscriber.names, created=events.NOW + 10, price="price_business")
    await provider.send(late)
    assert await provider.state(subscriber) == ("business", "active")
    assert (await provider.ledger(subscriber))[late["id"]]["reason"].endswith(
        "its place before newer events."
    )


async def test_a_parked_event_takes_its_place_without_its_raw_body(
    provider: Provider, database: Database
) -> None:
    unlinked = provider.unlinked()
    await provider.send(events.updated(**unlinked.names))
    await drop_bodies(provider, database, after=2 * DAY)
    await provider.arrives(unlinked)
    assert await provider.state(unlinked) == ("pro", "active")


async def test_the_worker_runs_it(
    retention: RetentionService, connection: Connection, emptied: str
) -> None:
    await keep_answers(connection, NOW - DAY)
    cursor = await connection.execute(
        "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('maintenance', 'remove_old_data', 0, NULL, NULL, "
        "'{\"timestamp\": 0}', NULL)]::procrastinate_job_to_defer_v1[])"
    )
    [([number],)] = await cursor.fetchall()
    queue = patient_queue(emptied)
    await queue.open()
    with watched("procrastinate") as log:
        worker = asyncio.create_task(queue.run_worker(Work(None, retention), polling_interval=0.02))
        await log.until(f"Job remove_old_data[{number}](timestamp=0) ended with status: Success")
        worker.cancel()
        await asyncio.wait({worker})
    await queue.close()
    assert await number_of(connection, "idempotency_keys") == 0
