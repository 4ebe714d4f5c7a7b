"""The messages of an event stream, and its end."""

from collections.abc import AsyncIterator

import pytest

from tenantry.billing.event_feed import FeedWatcher
from tenantry.dashboard.events import stream_messages
from tenantry.dashboard.guards import SessionState
from tenantry.domain.errors import DatabaseUnavailableError

LONG = 60.0
LIVE = "event: live\ndata: 60\n\n"
OVER = "event: bye\ndata: over\n\n"
RENEW = "event: bye\ndata: renew\n\n"


class Guest:
    """A user who is authorized for some checks and not afterwards."""

    def __init__(self, looks: int, then: SessionState = SessionState.ENDED) -> None:
        self.looks = looks
        self.then = then

    async def standing(self) -> SessionState:
        self.looks -= 1
        return SessionState.ACTIVE if self.looks >= 0 else self.then


async def all_of(messages: AsyncIterator[str]) -> list[str]:
    return [message async for message in messages]


async def test_it_says_that_it_goes_on_without_news_and_ends_without_news_too() -> None:
    said = await all_of(stream_messages(FeedWatcher("acme", 0), Guest(3).standing, heartbeat=0))
    assert said == ["event: live\ndata: 0\n\n"] * 3 + [OVER]


async def test_news_are_told_with_how_far_they_go() -> None:
    watch = FeedWatcher("acme", 3)
    watch.notify(7)
    said = stream_messages(watch, Guest(2).standing, LONG)
    assert [await anext(said), await anext(said)] == [LIVE, "event: news\ndata: 7\n\n"]


@pytest.mark.parametrize(("standing", "bye"), [(SessionState.ENDED, OVER), (SessionState.STALE, RENEW)])
async def test_who_is_not_welcome_any_more_hears_no_news_but_whether_to_come_again(
    standing: SessionState, bye: str
) -> None:
    watch = FeedWatcher("acme", 3)
    watch.notify(7)
    assert await all_of(stream_messages(watch, Guest(1, standing).standing, LONG)) == [LIVE, bye]
    assert await all_of(stream_messages(FeedWatcher("acme", 3), Guest(0, standing).standing, LONG)) == [bye]


async def test_a_stop_ends_it_without_a_farewell_so_that_the_page_comes_again() -> None:
    watch = FeedWatcher("acme", 3)
    said = stream_messages(watch, Guest(9).standing, LONG)
    assert await anext(said) == LIVE
    watch.end()
    assert await all_of(said) == []


async def test_where_nobody_can_tell_whether_one_is_welcome_it_ends() -> None:
    async def nobody_knows() -> SessionState:
        raise DatabaseUnavailableError("away")

    assert await all_of(stream_messages(FeedWatcher("acme", 3), nobody_knows, heartbeat=0)) == []
