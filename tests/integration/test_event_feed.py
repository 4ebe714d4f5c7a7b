"""Watching ledgers: who receives which event, and how many may watch."""

import pytest

from tenantry.billing.event_feed import EventFeed
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError, OverloadedError
from tests.support.patience import patient_database

NOWHERE = "host=/nowhere"
SOON = 20


def feed_of(conninfo: str = NOWHERE, **most: int) -> EventFeed:
    return EventFeed(patient_database(conninfo, pool_size=1), **most)


async def test_a_watcher_without_new_events_times_out() -> None:
    with feed_of().watch("acme", b"1", 7) as watch:
        assert await watch.wait(0) is None


async def test_several_events_are_one_notification() -> None:
    with feed_of().watch("acme", b"1", 7) as watch:
        watch.notify(9)
        watch.notify(8)
        assert await watch.wait(SOON) == 9
        watch.notify(9)
        assert await watch.wait(0) is None


async def test_a_seen_event_is_not_new() -> None:
    with feed_of().watch("acme", b"1", 7) as watch:
        watch.notify(7)
        assert await watch.wait(0) is None


async def test_a_stopping_process_ends_every_watcher_and_accepts_no_more() -> None:
    feed = feed_of()
    with feed.watch("acme", b"1", 7) as watch:
        feed.end()
        assert await watch.wait(SOON) is None
        assert watch.has_ended
    with pytest.raises(OverloadedError):
        feed.check_room(b"1", "acme")


async def test_the_number_of_watchers_in_a_process_is_limited() -> None:
    feed = feed_of(most=2)
    with feed.watch("acme", b"1", 0):
        with feed.watch("acme", b"2", 0), pytest.raises(OverloadedError):
            feed.check_room(b"3", "acme")
        feed.check_room(b"3", "acme")
    assert len(feed) == 0


async def test_the_number_of_watchers_of_a_client_is_limited() -> None:
    feed = feed_of(most_of_one=1)
    with feed.watch("acme", b"1", 0):
        with pytest.raises(OverloadedError):
            feed.check_room(b"1", "acme")
        feed.check_room(b"2", "acme")


async def test_the_number_of_watchers_of_a_tenant_is_limited() -> None:
    feed = feed_of(most_of_tenant=1)
    with feed.watch("acme", b"1", 0):
        with pytest.raises(OverloadedError):
            feed.check_room(b"2", "acme")
        feed.check_room(b"2", "beta")


async def test_an_unavailable_database_ends_no_watcher() -> None:
    database = Database(NOWHERE, pool_size=1)
    await database.open()
    feed = EventFeed(database)
    with feed.watch("acme", b"1", 7) as watch:
        with pytest.raises(DatabaseUnavailableError):
            await feed.poll()
        assert not watch.has_ended
    await database.close()
