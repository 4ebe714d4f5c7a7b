"""Outbound events are kept for 30 days; a cursor expires with an event that it has not seen."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from tenantry.jobs.retention import RetentionService
from tests.support.patience import patient_database
from tests.support.published_events import EVENTS, events_of, page
from tests.support.service import Service, refusal

DAYS = 30
EXPIRED = (410, "cursor_expired")
KIND = "outbound events"
EVERYTHING = "tenant.*,member.*,api_key.*,audit.*"


@pytest.fixture
async def retention(emptied_service: Service) -> AsyncIterator[RetentionService]:
    database = patient_database(emptied_service.conninfo, pool_size=2)
    await database.open()
    yield RetentionService(database, timedelta(days=90), emptied_service.clock)
    await database.close()


async def cursor(service: Service, **parameters: object) -> str:
    return str((await page(service, **parameters))["nextCursor"])


async def removed(retention: RetentionService) -> int:
    """How many events a run removes."""
    return (await retention.run())[KIND]


async def test_events_are_removed_after_thirty_days(
    emptied_service: Service, retention: RetentionService
) -> None:
    service = emptied_service
    old = await service.organization()
    service.clock.advance(seconds=10)
    young = await service.organization()
    service.clock.advance(days=DAYS, seconds=-5)
    number = len(await events_of(service, old)) + len(await events_of(service, old, "audit.*"))
    assert await removed(retention) == number
    assert await removed(retention) == 0
    assert [event["orgId"] for event in (await page(service, limit=1))["data"]] == [young.id]
    assert await events_of(service, old) == []


async def test_a_cursor_before_a_removed_event_has_expired(
    emptied_service: Service, retention: RetentionService
) -> None:
    service = emptied_service
    beginning = await cursor(service, after="now")
    await service.organization()
    middle = await cursor(service, after=beginning, limit=1)
    service.clock.advance(days=DAYS)
    for after in (beginning, middle):
        assert (await page(service, after=after))["data"]
    assert await removed(retention) > 0
    for after in (beginning, middle):
        assert refusal(await service.operator.get(EVENTS, after=after)) == EXPIRED
    assert (await page(service))["data"] == []


async def test_a_cursor_that_has_seen_all_removed_events_is_valid(
    emptied_service: Service, retention: RetentionService
) -> None:
    service = emptied_service
    await service.organization()
    seen = await cursor(service)
    last = await _cursor_of_the_last_event(service)
    last_id = (await page(service, types=EVERYTHING))["data"][-1]["id"]
    service.clock.advance(days=DAYS)
    assert await removed(retention) > 0
    org = await service.organization()
    for after in (seen, last, last_id):
        found = (await page(service, after=after))["data"]
        assert [event["orgId"] for event in found] == [org.id, org.id]


async def _cursor_of_the_last_event(service: Service) -> str:
    """The cursor of a reader whose page ends with the last event of all."""
    number = len((await page(service, types=EVERYTHING))["data"])
    return await cursor(service, types=EVERYTHING, limit=number)


async def test_a_follower_that_finds_nothing_keeps_a_valid_cursor(
    emptied_service: Service, retention: RetentionService
) -> None:
    """It polls all the time; what it leaves out by its filter is removed."""
    service = emptied_service
    after = await cursor(service, types="grant.*")
    for _ in range(3):
        await service.organization()
        after = await cursor(service, types="grant.*", after=after)
        service.clock.advance(days=DAYS)
        assert await removed(retention) > 0
        assert (await service.operator.get(EVENTS, after=after)).status_code == 200


async def test_all_are_removed_by_two_workers_at_once(
    emptied_service: Service, retention: RetentionService
) -> None:
    service = emptied_service
    after = await cursor(service, after="now")
    await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data) "
            "SELECT e.epoch, e.type, e.org_id, e.at, e.recorded_at, e.data "
            "FROM (SELECT * FROM outbound_events LIMIT 1) e, generate_series(1, 2500)"
        )
        [total] = (
            await (await connection.execute("SELECT count(*) FROM outbound_events")).fetchone()
        ) or (0,)
    service.clock.advance(days=DAYS)
    done = await asyncio.gather(retention.run(), retention.run())
    assert sum(each[KIND] for each in done) + await removed(retention) == total
    assert refusal(await service.operator.get(EVENTS, after=after)) == EXPIRED


async def test_a_reader_that_begins_after_all_was_removed_gets_a_valid_cursor(
    emptied_service: Service, retention: RetentionService
) -> None:
    service = emptied_service
    await service.organization()
    service.clock.advance(days=DAYS)
    assert await removed(retention) > 0
    after = await cursor(service)
    assert await cursor(service, after=after)
    org = await service.organization()
    assert {event["orgId"] for event in (await page(service, after=after))["data"]} == {org.id}
