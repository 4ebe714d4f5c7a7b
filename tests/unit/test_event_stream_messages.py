"""The messages of an event stream, and its end."""

from collections.abc import AsyncIterator

import pytest

from tenantry.billing.event_feed import FeedWatcher
from tenantry.dashboard.events import stream_messages
from tenantry.domain.errors import DatabaseUnavailableError

LONG = 60.0
LIVE = "event: live\ndata: 60\n\n"
OVER = "event: bye\ndata: over\n\n"
RENEW = "event: bye\ndata: renew\n\n"


class FakeUser:
    """A user who is authorized for some checks and not afterwards."""

    def __init__(self, checks: int, reason: str = "over") -> None:
        self.checks = checks
        self.reason = reason

    async def end_of_stream(self) -> str:
        self.checks -= 1
        return "" if self.checks >= 0 else self.reason


async def all_of(messages: AsyncIterator[str]) -> list[str]:
    return [message async for message in messages]


async def test_stream_sends_heartbeats_and_ends_without_news() -> None:
    messages = await all_of(
        stream_messages(FeedWatcher("acme", 0), FakeUser(3).end_of_stream, heartbeat=0)
    )
    assert messages == ["event: live\ndata: 0\n\n"] * 3 + [OVER]


async def test_news_names_the_newest_arrival() -> None:
    watch = FeedWatcher("acme", 3)
    watch.notify(7)
    messages = stream_messages(watch, FakeUser(2).end_of_stream, LONG)
    assert [await anext(messages), await anext(messages)] == [
        LIVE,
        "event: new-events\ndata: 7\n\n",
    ]


@pytest.mark.parametrize(("reason", "bye"), [("over", OVER), ("renew", RENEW)])
async def test_stream_without_authorization_ends_without_news(reason: str, bye: str) -> None:
    watch = FeedWatcher("acme", 3)
    watch.notify(7)
    assert await all_of(stream_messages(watch, FakeUser(1, reason).end_of_stream, LONG)) == [
        LIVE,
        bye,
    ]
    assert await all_of(
        stream_messages(FeedWatcher("acme", 3), FakeUser(0, reason).end_of_stream, LONG)
    ) == [bye]


async def test_shutdown_ends_the_stream_without_bye_so_that_the_page_reconnects() -> None:
    watch = FeedWatcher("acme", 3)
    messages = stream_messages(watch, FakeUser(9).end_of_stream, LONG)
    assert await anext(messages) == LIVE
    watch.end()
    assert await all_of(messages) == []


async def test_unavailable_database_ends_the_stream() -> None:
    async def unavailable() -> str:
        raise DatabaseUnavailableError("away")

    assert await all_of(stream_messages(FeedWatcher("acme", 3), unavailable, heartbeat=0)) == []
