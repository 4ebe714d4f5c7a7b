"""The stream that tells open pages of events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import httpx2
import psycopg

from tenantry.db.connection import Connection
from tenantry.domain.access import Role
from tenantry.http.gate import GATE
from tenantry.services.news import MOST_OF_ONE
from tenantry.store.news import arrivals_after
from tests.support.dashboard import ACME, AT_ACME, MIA, Dashboard, Person
from tests.support.events import NOW, updated

STREAM: Final = f"{AT_ACME}/events/stream"
SCRIPT: Final = {"sec-fetch-mode": "cors"}
DAY: Final = 86_400
_PATIENCE: Final = 20


class Heard:
    """What comes over a stream, message by message."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.status = answer.status_code
        self._lines = answer.aiter_lines()

    async def until(self, line: str) -> None:
        """Wait until this line has come."""
        async with asyncio.timeout(_PATIENCE):
            async for heard in self._lines:
                if heard == line:
                    return
        raise AssertionError(f"the stream ended without {line!r}")

    async def rest(self) -> list[str]:
        """What comes until the stream ends."""
        async with asyncio.timeout(_PATIENCE):
            return [line async for line in self._lines if line]


@asynccontextmanager
async def listening(visitor: Person, **headers: str) -> AsyncIterator[Heard]:
    """The stream as a page's script opens it, once it has begun."""
    async with visitor.client.stream("GET", STREAM, headers={**SCRIPT, **headers}) as answer:
        heard = Heard(answer)
        await heard.until("retry: 3000")
        yield heard


async def add_as_member(conninfo: str, dashboard: Dashboard) -> None:
    """Give the member, whom the provider's token alone makes one, a seat of their own."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(
            "INSERT INTO memberships (issuer, subject, tenant_id, role) "
            "SELECT issuer, %s, tenant_id, %s FROM memberships WHERE tenant_id = %s LIMIT 1",
            (MIA.sub, Role.MEMBER.value, ACME),
        )


async def test_an_event_is_told_to_everybody_who_watches_its_tenant(dashboard: Dashboard) -> None:
    async with listening(await dashboard.sign_in()) as one, listening(await dashboard.sign_in(MIA)) as other:
        await dashboard.deliver(updated())
        await one.until("event: news")
        await other.until("event: news")


async def test_an_event_that_the_page_has_missed_is_told_at_once(dashboard: Dashboard) -> None:
    await dashboard.deliver(updated())
    async with listening(await dashboard.sign_in(), last_event_id="0") as heard:
        await heard.until("event: news")


async def test_news_are_of_the_days_before_the_newest_event(dashboard: Dashboard, conninfo: str) -> None:
    async def newest() -> int:
        async with await Connection.connect(conninfo) as connection:
            return (await arrivals_after(connection, {ACME: 0})).get(ACME, 0)

    await dashboard.deliver(updated(event_id="evt_now", created=NOW))
    first = await newest()
    assert first > 0
    await dashboard.deliver(updated(event_id="evt_of_long_ago", created=NOW - 10 * DAY))
    assert await newest() == first
    await dashboard.deliver(updated(event_id="evt_late", created=NOW - DAY))
    assert await newest() > first


async def test_a_stream_is_no_page_to_be_kept_or_framed(dashboard: Dashboard) -> None:
    owner = await dashboard.sign_in()
    async with owner.client.stream("GET", STREAM, headers=SCRIPT) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"


async def test_a_member_who_was_removed_hears_nothing_more(dashboard: Dashboard, conninfo: str) -> None:
    await add_as_member(conninfo, dashboard)
    async with listening(await dashboard.sign_in(MIA)) as heard:
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            await connection.execute("UPDATE memberships SET removed_at = now() WHERE subject = %s", (MIA.sub,))
        await dashboard.deliver(updated())
        assert await heard.rest() == ["event: bye", "data: sign in again"]


async def test_a_session_that_was_ended_hears_nothing_more(dashboard: Dashboard) -> None:
    owner = await dashboard.sign_in()
    async with listening(owner) as heard:
        await owner.force("/sign-out")
        await dashboard.deliver(updated())
        assert await heard.rest() == ["event: bye", "data: sign in again"]


async def test_a_session_that_the_provider_has_to_vouch_for_again_hears_nothing_more(
    dashboard: Dashboard, conninfo: str
) -> None:
    async with listening(await dashboard.sign_in()) as heard:
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            await connection.execute("UPDATE dashboard_sessions SET proved_at = proved_at - interval '2 hours'")
        await dashboard.deliver(updated())
        assert await heard.rest() == ["event: bye", "data: sign in again"]


async def test_without_a_session_there_is_no_stream(dashboard: Dashboard) -> None:
    assert (await dashboard.api.get(STREAM, headers=SCRIPT)).status_code == 401


async def test_one_session_has_a_bounded_number_of_streams(dashboard: Dashboard) -> None:
    owner, member = await dashboard.sign_in(), await dashboard.sign_in(MIA)
    async with AsyncExitStack() as held:
        for _ in range(MOST_OF_ONE):
            await held.enter_async_context(listening(owner))
        assert (await owner.client.get(STREAM, headers=SCRIPT)).status_code == 503
        await held.enter_async_context(listening(member))


async def test_streams_are_not_counted_as_requests_that_wait(dashboard: Dashboard) -> None:
    async with listening(await dashboard.sign_in()):
        gate = dashboard.server.lifespan.state[GATE]
        assert len(dashboard.server.server_state.tasks) == 1
        assert gate._aside() == 1


async def test_watching_does_not_keep_a_session_alive(dashboard: Dashboard, conninfo: str) -> None:
    owner = await dashboard.sign_in()

    async def used_at() -> object:
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            cursor = await connection.execute("SELECT used_at FROM dashboard_sessions")
            return await cursor.fetchone()

    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("UPDATE dashboard_sessions SET used_at = used_at - interval '10 minutes'")
    before = await used_at()
    async with listening(owner):
        pass
    await owner.get(f"{AT_ACME}/events", **SCRIPT)
    assert await used_at() == before
    await owner.get(f"{AT_ACME}/events")
    assert await used_at() != before


async def test_a_stop_waits_for_no_stream(dashboard: Dashboard) -> None:
    async with listening(await dashboard.sign_in()) as heard:
        dashboard.server.should_exit = True
        assert await heard.rest() == []
