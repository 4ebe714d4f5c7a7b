"""The scripts of examples/partitioning, on the database of a running service.

`make test-system` runs the tests of the ledger on partitions.
"""

import asyncio
import itertools
import re
from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tenantry.billing import batch_store
from tenantry.billing import ledger_store as billing
from tenantry.db.statements import BoundStatement
from tenantry.domain.billing.events import Outcome
from tests.integration.test_webhook_invalid import waiting_inserts
from tests.integration.test_webhook_races import held_back, instance
from tests.support import events
from tests.support.billing import Provider, rows, until_blocked
from tests.support.events import NOW
from tests.support.patience import patient_database
from tests.support.postgres import partition_ledger, run_script
from tests.support.service import Service

FIRST: Final = datetime.fromtimestamp(NOW, UTC).replace(day=1, hour=0) + timedelta(days=31)
"""The beginning of the month after the events' present."""
UNTIL: Final = FIRST + timedelta(days=59)
PARTITIONS: Final = """
SELECT tableoid::regclass::text AS partition, count(*) AS number, count(DISTINCT id) AS ids
  FROM billing_events
 GROUP BY 1
 ORDER BY 1
"""

WAIT_AFTER_PROOF: Final = """
CREATE FUNCTION wait_after_proof() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_constraint WHERE conname = 'billing_events_before_first' AND NOT convalidated) THEN
        PERFORM set_config('lock_timeout', '0', true);
        PERFORM pg_advisory_xact_lock_shared(1);
    END IF;
END $$
"""
FILL: Final = """
INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome)
SELECT 'evt_' || n, n, 'customer.subscription.updated', %s + n, now(), 't' || n / 20, 'applied'
  FROM generate_series(1, 2000) AS n
"""
OWNERS: Final = """
SELECT relnamespace::regnamespace::text, relowner::regrole::text,
       EXISTS (SELECT FROM aclexplode(relacl) WHERE grantee = 0) AS is_public
  FROM pg_class
 WHERE oid IN (SELECT relid FROM pg_partition_tree('billing_events')) AND relispartition
"""


@pytest.fixture
def provider(fresh_service: Service) -> Provider:
    return Provider(fresh_service)


async def partitions(provider: Provider) -> list[tuple[str, int, int]]:
    """Each partition's name, and the numbers of events and of ids in it."""
    return [(*row.values(),) for row in await rows(provider.service.conninfo, PARTITIONS)]


async def until_session(conninfo: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Return as soon as a session of the database meets the condition."""
    statement = "SELECT wait_event, query FROM pg_stat_activity WHERE datname = current_database()"
    async with asyncio.timeout(30):
        while not any(condition(session) for session in await rows(conninfo, statement)):
            pass


async def test_the_ledger_is_partitioned_while_events_arrive(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    partitioning = asyncio.create_task(
        asyncio.to_thread(partition_ledger, conninfo, first=FIRST, until=UNTIL)
    )
    sent = []
    for number in itertools.count():
        sent.append(
            events.updated(
                **subscriber.names, event_id=f"evt_{number}", created=NOW + number % 7200
            )
        )
        await provider.send(sent[-1])
        if partitioning.done():
            break
    await partitioning
    second = int(FIRST.timestamp())
    later = events.updated(
        **subscriber.names, event_id="evt_later", created=second, price="price_business"
    )
    await provider.send(later, sent[0], sent[-1], later)
    assert await partitions(provider) == [
        ("billing_events_2026_02", 1, 1),
        ("billing_events_before", len(sent), len(sent)),
    ]
    assert await provider.state(subscriber) == ("business", "active")


async def test_an_event_that_two_processes_receive_at_once_is_stored_once(
    provider: Provider,
) -> None:
    conninfo = provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    await waiting_inserts(conninfo)
    event = events.updated(org="unknown", created=int(FIRST.timestamp()))
    async with instance(conninfo) as one, instance(conninfo) as two:
        async with held_back(conninfo, "billing_events"):
            received = [asyncio.create_task(each.receive(event)) for each in (one, two)]
            await until_blocked(conninfo, 2)
        assert {await each for each in received} == {Outcome.PARKED, None}
    assert await partitions(provider) == [("billing_events_2026_02", 1, 1)]


async def test_rows_of_batches_are_found_by_the_index_of_each_partition(provider: Provider) -> None:
    conninfo = provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    await rows(conninfo, FILL, int(FIRST.timestamp()) - 1000)
    await rows(conninfo, "ANALYZE billing_events")
    database = patient_database(conninfo, pool_size=1)
    plans = []
    async with database.lane().use() as connection:
        for call in (
            batch_store.SEEN_EVENTS(["e"]),
            batch_store.UPDATE_PARKED(["e"], *[[None]] * 4),
            batch_store.DELETE_ENTRIES(["e"], "drift"),
        ):
            explained = copy(call.statement)
            explained.sql = b"EXPLAIN " + call.statement.sql
            [plan] = await connection.run_batch(BoundStatement(explained, call.parameters))
            plans.append(plan)
        history = {
            **billing.FOLD_TYPES,
            "tenants": ["a"],
            "folds": [None],
            "seconds": [5],
            "late": [True],
            "until": [5],
        }
        plans.append(await connection.fetch(f"EXPLAIN {billing.READ_EVENTS}", history))
    await database.close()
    for plan in plans:
        lines = [line for [line] in plan]
        scans = [
            number
            for number, line in enumerate(lines)
            if re.search(r"Scan .*on billing_events_(before|2026_02)", line)
        ]
        assert len(scans) >= 2, plan
        assert all("Index Cond" in lines[number + 1] for number in scans), plan


async def test_an_event_beyond_the_last_partition_is_stored(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    beyond = events.updated(**subscriber.names, created=int(UNTIL.timestamp()))
    await provider.send(beyond, beyond)
    assert await partitions(provider) == [("billing_events_default", 1, 1)]


async def test_more_months_are_added_after_the_last_one(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    until = UNTIL + timedelta(days=61)
    run_script(conninfo, "add-partitions.sql", until=until)
    with pytest.raises(RuntimeError, match="There is no month to add"):
        run_script(conninfo, "add-partitions.sql", until=until)
    await provider.send(events.updated(**subscriber.names, created=int(UNTIL.timestamp())))
    assert await partitions(provider) == [("billing_events_2026_04", 1, 1)]
    found = await rows(
        conninfo, "SELECT relid::regclass::text AS name FROM pg_partition_tree('billing_events')"
    )
    months = {f"billing_events_2026_0{month}" for month in (2, 3, 4, 5)}
    assert {row["name"] for row in found} == months | {
        "billing_events",
        "billing_events_before",
        "billing_events_default",
    }


async def test_months_are_added_after_one_that_has_events_already(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    april, may, june = (int(UNTIL.timestamp()) + days * 86400 for days in (0, 30, 61))
    await provider.send(events.updated(**subscriber.names, created=april))
    until = datetime.fromtimestamp(june, UTC)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="is violated by some row"):
            run_script(conninfo, "add-partitions.sql", until=until)
    run_script(conninfo, "add-partitions.sql", first=datetime.fromtimestamp(may, UTC), until=until)
    await provider.send(events.updated(**subscriber.names, created=may))
    assert await partitions(provider) == [
        ("billing_events_2026_05", 1, 1),
        ("billing_events_default", 1, 1),
    ]


async def test_the_script_changes_nothing_if_an_event_is_too_late(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    await provider.send(events.updated(**subscriber.names, created=int(FIRST.timestamp())))
    with pytest.raises(RuntimeError, match="is violated by some row"):
        partition_ledger(conninfo, first=FIRST, until=UNTIL)
    await provider.send(events.updated(**subscriber.names, created=int(FIRST.timestamp()) + 1))
    assert await partitions(provider) == [("billing_events", 2, 2)]
    partition_ledger(conninfo, first=UNTIL, until=UNTIL + timedelta(days=30))
    assert await partitions(provider) == [("billing_events_before", 2, 2)]


async def test_the_script_changes_nothing_if_a_transaction_holds_the_ledger(
    provider: Provider,
) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    await provider.send(events.updated(**subscriber.names))
    with psycopg.connect(conninfo) as reader:
        reader.execute("SELECT FROM billing_events")
        with pytest.raises(RuntimeError, match="Another transaction holds billing_events"):
            run_script(conninfo, "partition-ledger.sql", first=FIRST, until=UNTIL, attempts=1)
    await provider.send(events.updated(**subscriber.names, created=int(FIRST.timestamp())))
    assert await partitions(provider) == [("billing_events", 2, 2)]


async def test_the_script_drops_its_proof_if_it_cannot_exchange_the_tables(
    provider: Provider,
) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    await rows(conninfo, WAIT_AFTER_PROOF)
    await rows(
        conninfo, "CREATE EVENT TRIGGER wait ON ddl_command_end EXECUTE FUNCTION wait_after_proof()"
    )
    with psycopg.connect(conninfo) as holder, psycopg.connect(conninfo) as reader:
        holder.execute("SELECT pg_advisory_xact_lock(1)")
        arguments: dict[str, datetime | int] = {"first": FIRST, "until": UNTIL, "attempts": 1}
        script = asyncio.create_task(
            asyncio.to_thread(run_script, conninfo, "partition-ledger.sql", **arguments)
        )
        await until_session(
            conninfo, lambda each: each["wait_event"] == "advisory"
        )  # the script: with its proof, and the ledger locked
        reading = asyncio.create_task(
            asyncio.to_thread(reader.execute, "SELECT FROM billing_events")
        )
        await until_session(
            conninfo,
            lambda each: (
                (each["wait_event"], each["query"]) == ("relation", "SELECT FROM billing_events")
            ),
        )
        holder.rollback()
        await reading
        await until_session(conninfo, lambda each: "10 * 1" in each["query"])  # to drop the proof
        reader.rollback()
        with pytest.raises(RuntimeError, match="The ledger is not partitioned"):
            await script
    await provider.send(events.updated(**subscriber.names, created=int(FIRST.timestamp())))
    assert await partitions(provider) == [("billing_events", 1, 1)]


async def test_the_script_names_what_it_would_leave_at_the_first_partition(
    provider: Provider,
) -> None:
    conninfo = provider.service.conninfo
    for statement in (
        "CREATE VIEW mine AS SELECT id FROM billing_events",
        "CREATE INDEX mine_too ON billing_events (type)",
        "CREATE PUBLICATION feed FOR TABLE billing_events",
        "ALTER TABLE billing_events SET (fillfactor = 90)",
        "GRANT SELECT ON billing_events TO PUBLIC",
    ):
        await rows(conninfo, statement)
    with pytest.raises(RuntimeError) as raised:
        partition_ledger(conninfo, first=FIRST, until=UNTIL)
    named = (
        "view mine",
        "index mine_too",
        "publication feed",
        "setting fillfactor=90",
        "grant to PUBLIC",
    )
    assert [each for each in named if each not in str(raised.value)] == []
    assert await partitions(provider) == []


async def test_partitions_belong_to_the_owner_of_the_ledger_and_to_its_schema(
    provider: Provider,
) -> None:
    conninfo = provider.service.conninfo
    owner = f"owner_{conninfo_to_dict(conninfo)['dbname']}"
    for statement in (
        f"CREATE ROLE {owner}",
        f"GRANT CREATE, USAGE ON SCHEMA public TO {owner}",
        f"ALTER TABLE billing_events OWNER TO {owner}",
        "CREATE SCHEMA postgres",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON TABLES TO PUBLIC",
    ):
        await rows(conninfo, statement)
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    found = await rows(conninfo, OWNERS)
    assert {(*row.values(),) for row in found} == {("public", owner, False)}


async def test_a_partitioned_ledger_stays_as_it_is(provider: Provider) -> None:
    conninfo = provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    assert "is partitioned already" in run_script(
        conninfo, "partition-ledger.sql", first=FIRST, until=UNTIL
    )
