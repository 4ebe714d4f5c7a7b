"""The scripts of examples/partitioning, on the database of a running service.

`make test-system` runs the tests of the ledger on partitions.
"""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
import pytest

from tenantry.domain.billing.events import Outcome
from tests.integration.test_webhook_invalid import waiting_inserts
from tests.integration.test_webhook_races import held_back, instance
from tests.support import events
from tests.support.billing import Provider, rows, until_blocked
from tests.support.events import NOW
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


@pytest.fixture
def provider(fresh_service: Service) -> Provider:
    return Provider(fresh_service)


async def partitions(provider: Provider) -> list[tuple[str, int, int]]:
    """Each partition's name, and the numbers of events and of ids in it."""
    return [(*row.values(),) for row in await rows(provider.service.conninfo, PARTITIONS)]


async def test_the_ledger_is_partitioned_while_events_arrive(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    partitioning = asyncio.create_task(asyncio.to_thread(partition_ledger, conninfo, first=FIRST, until=UNTIL))
    sent = []
    for number in itertools.count():
        sent.append(events.updated(**subscriber.names, event_id=f"evt_{number}", created=NOW + number % 7200))
        await provider.send(sent[-1])
        if partitioning.done():
            break
    await partitioning
    second = int(FIRST.timestamp())
    later = events.updated(**subscriber.names, event_id="evt_later", created=second, price="price_business")
    await provider.send(later, sent[0], sent[-1], later)
    assert await partitions(provider) == [
        ("billing_events_2026_02", 1, 1),
        ("billing_events_before", len(sent), len(sent)),
    ]
    assert await provider.state(subscriber) == ("business", "active")


async def test_an_event_that_two_processes_receive_at_once_is_stored_once(provider: Provider) -> None:
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


async def test_an_event_beyond_the_last_partition_is_stored(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    beyond = events.updated(**subscriber.names, created=int(UNTIL.timestamp()))
    await provider.send(beyond, beyond)
    assert await partitions(provider) == [("billing_events_default", 1, 1)]


async def test_more_months_are_added_after_the_last_one(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    for _ in range(2):
        run_script(conninfo, "add-partitions.sql", until=UNTIL + timedelta(days=61))
    await provider.send(events.updated(**subscriber.names, created=int(UNTIL.timestamp())))
    assert await partitions(provider) == [("billing_events_2026_04", 1, 1)]
    found = await rows(conninfo, "SELECT relid::regclass::text AS name FROM pg_partition_tree('billing_events')")
    months = {f"billing_events_2026_0{month}" for month in (2, 3, 4, 5)}
    assert {row["name"] for row in found} == months | {
        "billing_events", "billing_events_before", "billing_events_default",
    }  # fmt: skip


async def test_months_are_added_after_one_that_has_events_already(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    april, may, june = (int(UNTIL.timestamp()) + days * 86400 for days in (0, 30, 61))
    await provider.send(events.updated(**subscriber.names, created=april))
    until = datetime.fromtimestamp(june, UTC)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="would be violated by some row"):
            run_script(conninfo, "add-partitions.sql", until=until)
    run_script(conninfo, "add-partitions.sql", first=datetime.fromtimestamp(may, UTC), until=until)
    await provider.send(events.updated(**subscriber.names, created=may))
    assert await partitions(provider) == [("billing_events_2026_05", 1, 1), ("billing_events_default", 1, 1)]


async def test_the_script_changes_nothing_if_an_event_is_too_late(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    await provider.send(events.updated(**subscriber.names, created=int(FIRST.timestamp())))
    with pytest.raises(RuntimeError, match='the ledger has an event created at "first" or later'):
        partition_ledger(conninfo, first=FIRST, until=UNTIL)
    await provider.send(events.updated(**subscriber.names, created=int(FIRST.timestamp()) + 1))
    assert await partitions(provider) == [("billing_events", 2, 2)]
    partition_ledger(conninfo, first=UNTIL, until=UNTIL + timedelta(days=30))
    assert await partitions(provider) == [("billing_events_before", 2, 2)]


async def test_the_script_changes_nothing_if_a_transaction_holds_the_ledger(provider: Provider) -> None:
    subscriber, conninfo = await provider.subscriber(), provider.service.conninfo
    await provider.send(events.updated(**subscriber.names))
    with psycopg.connect(conninfo) as reader:
        reader.execute("SELECT FROM billing_events")  # as a backup does
        with pytest.raises(RuntimeError, match="lock timeout"):
            partition_ledger(conninfo, first=FIRST, until=UNTIL)
    await provider.send(events.updated(**subscriber.names, created=int(FIRST.timestamp())))
    assert await partitions(provider) == [("billing_events", 2, 2)]


async def test_a_partitioned_ledger_stays_as_it_is(provider: Provider) -> None:
    conninfo = provider.service.conninfo
    partition_ledger(conninfo, first=FIRST, until=UNTIL)
    assert "is partitioned already" in run_script(conninfo, "partition-ledger.sql", first=FIRST, until=UNTIL)
