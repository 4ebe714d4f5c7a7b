"""Watching ledgers: who receives which event, and how many may watch."""

import pytest

from tenantry.billing.event_feed import EventFeed
from tenantry.db.database import Database
from tenantry.domain.errors import OverloadedError

NOWHERE = "host=/nowhere"
SOON = 20


def news_of(conninfo: str = NOWHERE, **most: int) -> EventFeed:
    return EventFeed(Database(conninfo, pool_size=1), **most)


async def test_a_watch_without_news_has_none() -> None:
    with news_of().watch("acme", b"1", 7) as watch:
        assert await watch.wait(0) is None


async def test_several_events_are_told_as_one_and_once() -> None:
    with news_of().watch("acme", b"1", 7) as watch:
        watch.notify(9)
        watch.notify(8)
        assert await watch.wait(SOON) == 9
        watch.notify(9)
        assert await watch.wait(0) is None


async def test_what_was_seen_is_no_news() -> None:
    with news_of().watch("acme", b"1", 7) as watch:
        watch.notify(7)
        assert await watch.wait(0) is None


async def test_a_process_that_stops_ends_every_watch_and_takes_no_more() -> None:
    news = news_of()
    with news.watch("acme", b"1", 7) as watch:
        news.end()
        assert await watch.wait(SOON) is None
        assert watch.has_ended
    with pytest.raises(OverloadedError):
        news.check_room(b"1", "acme")


async def test_a_process_has_room_for_so_many_and_again_when_one_leaves() -> None:
    news = news_of(most=2)
    with news.watch("acme", b"1", 0):
        with news.watch("acme", b"2", 0), pytest.raises(OverloadedError):
            news.check_room(b"3", "acme")
        news.check_room(b"3", "acme")
    assert len(news) == 0


async def test_one_watcher_leaves_room_for_others() -> None:
    news = news_of(most_of_one=1)
    with news.watch("acme", b"1", 0):
        with pytest.raises(OverloadedError):
            news.check_room(b"1", "acme")
        news.check_room(b"2", "acme")


async def test_one_tenant_leaves_room_for_others() -> None:
    news = news_of(most_of_tenant=1)
    with news.watch("acme", b"1", 0):
        with pytest.raises(OverloadedError):
            news.check_room(b"2", "acme")
        news.check_room(b"2", "beta")


async def test_a_database_that_is_away_ends_no_watch() -> None:
    database = Database(NOWHERE, pool_size=1)
    await database.open()
    news = EventFeed(database)
    with news.watch("acme", b"1", 7) as watch:
        await news.poll()
        assert not watch.has_ended
    await database.close()
