"""The event stream of open pages."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final

import httpx2
import psycopg
import pytest
from psycopg import sql

from tenantry.billing.event_feed import MOST_OF_ONE
from tenantry.billing.ledger_queries_store import arrivals_after
from tenantry.db.connection import Connection
from tenantry.domain.roles import BuiltInRole
from tenantry.server.load_shedding import OVERLOAD_DETECTOR
from tenantry.server.shutdown import SHUTDOWN
from tests.support.dashboard import ACME, AT_ACME, MIA, Dashboard, Person
from tests.support.events import NOW, updated

STREAM: Final = f"{AT_ACME}/events/stream"
SCRIPT: Final = {"sec-fetch-mode": "cors"}
OVER: Final = ["event: bye", "data: over"]
RENEW: Final = ["event: bye", "data: renew"]
DAY: Final = 86_400
_PATIENCE: Final = 20


class StreamedEvents:
    """The messages of a stream."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.status = answer.status_code
        self._lines = answer.aiter_lines()

    async def until(self, line: str) -> None:
        """Wait for this line."""
        async with asyncio.timeout(_PATIENCE):
            async for heard in self._lines:
                if heard == line:
                    return
        raise AssertionError(f"the stream ended without {line!r}")

    async def rest(self) -> list[str]:
        """Return everything until the stream ends."""
        async with asyncio.timeout(_PATIENCE):
            return [line async for line in self._lines if line]


@asynccontextmanager
async def listening(
    user: Person, after: int | None = None, headers: Mapping[str, str] = SCRIPT
) -> AsyncIterator[StreamedEvents]:
    """Open the stream as a page's script does, and wait for its start."""
    query = "" if after is None else f"?after={after}"
    async with user.client.stream("GET", STREAM + query, headers=headers) as answer:
        heard = StreamedEvents(answer)
        await heard.until("event: live")
        await heard.until("data: 15")
        yield heard


async def age(conninfo: str, column: str, **by: int) -> None:
    """Make all sessions older."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        statement = sql.SQL("UPDATE dashboard_sessions SET {0} = {0} - %s").format(
            sql.Identifier(column)
        )
        await connection.execute(statement, (timedelta(**by),))


async def add_as_member(conninfo: str) -> None:
    """Give the member by claim a membership row."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(
            "INSERT INTO memberships (issuer, subject, tenant_id, role) "
            "SELECT issuer, %s, tenant_id, %s FROM memberships WHERE tenant_id = %s LIMIT 1",
            (MIA.sub, BuiltInRole.MEMBER.value, ACME),
        )


async def test_event_reaches_every_stream_of_its_tenant(dashboard: Dashboard) -> None:
    async with (
        listening(await dashboard.sign_in()) as one,
        listening(await dashboard.sign_in(MIA)) as other,
    ):
        await dashboard.deliver(updated())
        await one.until("event: new-events")
        await other.until("event: new-events")


async def test_missed_event_is_sent_immediately(dashboard: Dashboard) -> None:
    await dashboard.deliver(updated())
    async with listening(await dashboard.sign_in(), after=0) as heard:
        await heard.until("event: new-events")


async def test_news_names_the_newest_arrival(dashboard: Dashboard) -> None:
    async def newest() -> int:
        async with await Connection.connect(dashboard.conninfo) as connection:
            return (await arrivals_after(connection, {ACME: 0})).get(ACME, 0)

    await dashboard.deliver(updated(event_id="evt_now", created=NOW))
    first = await newest()
    assert first > 0
    await dashboard.deliver(updated(event_id="evt_of_long_ago", created=NOW - 10 * DAY))
    assert await newest() == first
    await dashboard.deliver(updated(event_id="evt_late", created=NOW - DAY))
    assert await newest() > first


async def test_stream_has_the_headers_of_pages(dashboard: Dashboard) -> None:
    owner = await dashboard.sign_in()
    async with owner.client.stream("GET", STREAM, headers=SCRIPT) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"


async def test_stream_of_a_removed_member_ends(dashboard: Dashboard) -> None:
    await add_as_member(dashboard.conninfo)
    async with listening(await dashboard.sign_in(MIA)) as heard:
        await dashboard.execute(
            "UPDATE memberships SET removed_at = now() WHERE subject = %s", (MIA.sub,)
        )
        await dashboard.deliver(updated())
        assert await heard.rest() == OVER


async def test_stream_of_an_ended_session_ends(dashboard: Dashboard) -> None:
    owner = await dashboard.sign_in()
    async with listening(owner) as heard:
        await owner.force("/sign-out")
        await dashboard.deliver(updated())
        assert await heard.rest() == OVER


async def test_stream_of_a_stale_sign_in_ends(dashboard: Dashboard) -> None:
    async with listening(await dashboard.sign_in()) as heard:
        await age(dashboard.conninfo, "proved_at", hours=2)
        await dashboard.deliver(updated())
        assert await heard.rest() == RENEW


async def test_stream_continues_after_a_renewed_sign_in(dashboard: Dashboard) -> None:
    owner = await dashboard.sign_in()
    await age(dashboard.conninfo, "proved_at", hours=2)
    answer = await owner.client.get(STREAM, headers=SCRIPT)
    assert (answer.status_code, answer.text.split("\n")) == (200, [*RENEW, "", ""])
    await owner.open(f"{AT_ACME}/events")  # redirects to the provider and back
    async with listening(owner):
        pass


@pytest.mark.parametrize("headers", [SCRIPT, {}, {"sec-fetch-mode": "navidetector"}])
async def test_stream_without_a_session_is_rejected_without_a_redirect(
    dashboard: Dashboard, headers: dict[str, str]
) -> None:
    for method in ("GET", "HEAD"):
        assert (await dashboard.api.request(method, STREAM, headers=headers)).status_code == 401


async def test_session_has_a_bounded_number_of_streams(dashboard: Dashboard) -> None:
    owner, member = await dashboard.sign_in(), await dashboard.sign_in(MIA)
    async with AsyncExitStack() as held:
        for _ in range(MOST_OF_ONE):
            await held.enter_async_context(listening(owner))
        assert (await owner.client.get(STREAM, headers=SCRIPT)).status_code == 503
        await held.enter_async_context(listening(member))


async def test_streams_do_not_count_as_waiting_requests(own_dashboard: Dashboard) -> None:
    async with listening(await own_dashboard.sign_in()):
        detector = own_dashboard.server.lifespan.state[OVERLOAD_DETECTOR]
        assert len(own_dashboard.server.server_state.tasks) == 1
        assert detector._excluded() == 1


async def test_stream_does_not_extend_the_session(dashboard: Dashboard) -> None:
    owner = await dashboard.sign_in()

    async def used_at() -> object:
        async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as connection:
            cursor = await connection.execute("SELECT used_at FROM dashboard_sessions")
            return await cursor.fetchone()

    await age(dashboard.conninfo, "used_at", minutes=10)
    before = await used_at()
    for headers in (SCRIPT, {}, {"sec-fetch-mode": "navidetector"}):
        async with listening(owner, headers=headers):
            pass
    for headers in (SCRIPT, {"x-requested-with": "fetch"}):
        await owner.client.get(f"{AT_ACME}/events", headers=headers)
    assert await used_at() == before
    await owner.get(f"{AT_ACME}/events")
    assert await used_at() != before


async def test_shutdown_does_not_wait_for_streams(own_dashboard: Dashboard) -> None:
    async with listening(await own_dashboard.sign_in()) as heard:
        own_dashboard.server.should_exit = True
        assert await heard.rest() == []


async def test_stream_continues_while_the_process_drains(own_dashboard: Dashboard) -> None:
    async with listening(await own_dashboard.sign_in()) as heard:
        own_dashboard.server.lifespan.state[SHUTDOWN].drain()
        await own_dashboard.deliver(updated())
        await heard.until("event: new-events")
        async with listening(await own_dashboard.sign_in(MIA)) as another:
            own_dashboard.server.should_exit = True
            assert await another.rest() == []
        assert (await heard.rest())[-1] != "event: bye"
