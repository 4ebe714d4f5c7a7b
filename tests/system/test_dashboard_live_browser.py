"""Live pages after a lost connection, in a real browser: reconnection, and a message when it is
given up.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, LiteralString

import psycopg
import pytest
from playwright.async_api import Browser, BrowserContext, Locator, Page, expect

from tests.support import events
from tests.support.browser import Watched
from tests.support.dashboard import AT_ACME, OLIVIA, Dashboard, running_dashboard
from tests.support.events import failed, updated

EVENTS: Final = f"{AT_ACME}/events"
PROOF_IS_OLD: Final = "UPDATE dashboard_sessions SET proved_at = proved_at - interval '2 hours'"
END_ALL_SESSIONS: Final = "DELETE FROM dashboard_sessions"
STOPPED: Final = "Live updates stopped"
PATIENCE: Final = 20_000
A_MINUTE: Final = 60_000


def sign_of(page: Page) -> Locator:
    """What the page says of being live."""
    return page.locator("[data-live-state]")


def entry_of(page: Page, event_id: str) -> Locator:
    return page.locator(f'[data-event="{event_id}"]')


async def change(conninfo: str, statement: LiteralString) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(statement)


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_dashboard(conninfo, people) as dashboard:
        yield dashboard


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context(reduced_motion="reduce")
    yield context
    await context.close()


@pytest.fixture
async def page(context: BrowserContext, dashboard: Dashboard) -> Page:
    """A live page of the ledger, whose clock can be moved on."""
    page = await context.new_page()
    await page.clock.install()
    await page.goto(dashboard.start_of(OLIVIA, EVENTS))
    await expect(sign_of(page)).to_have_text("Live")
    return page


async def test_page_updates_again_after_a_renewal_in_another_tab(
    page: Page, context: BrowserContext, dashboard: Dashboard, conninfo: str
) -> None:
    await change(conninfo, PROOF_IS_OLD)
    await dashboard.deliver(updated(event_id="evt_1"))
    await expect(sign_of(page)).to_have_text(STOPPED)
    await expect(page.get_by_role("link", name="Reload")).to_be_visible()
    await expect(entry_of(page, "evt_1")).to_have_count(0)
    other = await context.new_page()
    await other.goto(dashboard.url + EVENTS)
    await expect(entry_of(other, "evt_1")).to_be_visible()
    await page.clock.fast_forward(A_MINUTE)
    await expect(sign_of(page)).to_have_text("Live", timeout=PATIENCE)
    await expect(entry_of(page, "evt_1")).to_be_visible()
    await expect(page.get_by_role("link", name="Reload")).to_be_hidden()


async def test_page_of_an_ended_session_says_so_and_stops_polling(
    page: Page, dashboard: Dashboard, conninfo: str
) -> None:
    watched = Watched(page)
    await change(conninfo, END_ALL_SESSIONS)
    await dashboard.deliver(updated(event_id="evt_1"))
    await expect(sign_of(page)).to_have_text(STOPPED)
    for _ in range(5):
        await page.clock.fast_forward(A_MINUTE)
    await expect(sign_of(page)).to_have_text(STOPPED)
    assert watched.requests == []
    await page.get_by_role("link", name="Reload").click()
    await page.wait_for_url("**/sign-in?**")


async def test_page_updates_again_after_a_restart(page: Page, dashboard: Dashboard) -> None:
    async with dashboard.away():
        await expect(sign_of(page)).to_have_text("Reconnecting")
        await expect(page.get_by_role("link", name="Reload")).to_be_visible()
    await dashboard.deliver(updated(event_id="evt_1"))
    await expect(sign_of(page)).to_have_text("Live", timeout=PATIENCE)
    await expect(entry_of(page, "evt_1")).to_be_visible()


async def test_page_says_that_the_session_ended_during_an_outage(
    page: Page, dashboard: Dashboard, conninfo: str
) -> None:
    async with dashboard.away():
        await change(conninfo, END_ALL_SESSIONS)
        await expect(sign_of(page)).to_have_text("Reconnecting")
    await expect(sign_of(page)).to_have_text(STOPPED, timeout=PATIENCE)


async def test_page_opens_a_new_stream_after_a_sleep(page: Page, dashboard: Dashboard) -> None:
    await dashboard.deliver(updated(event_id="evt_1", created=events.NOW))
    await expect(entry_of(page, "evt_1")).to_be_visible()
    watched = Watched(page)
    async with page.expect_request("**/events/stream?*"):
        await page.clock.fast_forward(60 * A_MINUTE)
    await expect(sign_of(page)).to_have_text("Live")
    await dashboard.deliver(failed(event_id="evt_2", created=events.NOW + 1))
    await expect(entry_of(page, "evt_2")).to_be_visible()
    assert watched.complaints == []
