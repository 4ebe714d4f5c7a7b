"""What a stream of events says, and when it ends."""

from collections.abc import AsyncIterator

from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.http.dashboard.event_stream import messages_of
from tenantry.services.news import Watch

LONG = 60.0
BEGINNING = "retry: 3000\n\n"
BYE = "event: bye\ndata: sign in again\n\n"


class Guest:
    """Somebody who is welcome for so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    async def is_welcome(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


async def all_of(messages: AsyncIterator[str]) -> list[str]:
    return [message async for message in messages]


async def test_it_is_still_there_without_news_and_ends_without_news_too() -> None:
    said = await all_of(messages_of(Watch("acme", 0), Guest(2).is_welcome, heartbeat=0))
    assert said == [BEGINNING, ":\n\n", ":\n\n", BYE]


async def test_news_are_told_with_how_far_they_go() -> None:
    watch = Watch("acme", 3)
    watch.tell(7)
    said = messages_of(watch, Guest(1).is_welcome, LONG)
    assert [await anext(said), await anext(said)] == [BEGINNING, "id: 7\nevent: news\ndata: 7\n\n"]


async def test_who_is_not_welcome_any_more_hears_no_news() -> None:
    watch = Watch("acme", 3)
    watch.tell(7)
    assert await all_of(messages_of(watch, Guest(0).is_welcome, LONG)) == [BEGINNING, BYE]


async def test_a_stop_ends_it_without_a_farewell_so_that_the_browser_comes_again() -> None:
    watch = Watch("acme", 3)
    watch.end()
    assert await all_of(messages_of(watch, Guest(9).is_welcome, LONG)) == [BEGINNING]


async def test_where_nobody_can_tell_whether_one_is_welcome_it_ends() -> None:
    async def nobody_knows() -> bool:
        raise DatabaseUnavailableError("away")

    assert await all_of(messages_of(Watch("acme", 3), nobody_knows, heartbeat=0)) == [BEGINNING]
