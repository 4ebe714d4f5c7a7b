"""The operator's pages of a ledger in a real browser: accessible, and updated by the script."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import pytest
from playwright.async_api import BrowserContext, expect

from tests.support import events
from tests.support.accessibility import axe
from tests.support.browser import Browsers, Watched
from tests.support.dashboard import ACME, AT_ACME, OLGA, Dashboard, running_dashboard
from tests.support.events import failed, updated
from tests.support.postgres import PostgresServer
from tests.support.provider_api import KEY, running_provider
from tests.support.tenant_runs import Operators, operators
from tests.system.test_accessibility_browser import enter, judge, judge_address

LEDGER: Final = f"/operator{AT_ACME}/events"
CHECK: Final = f"{LEDGER}/check"


@pytest.fixture(scope="module")
def source() -> str:
    return axe()


@pytest.fixture(scope="module")
async def dashboard(
    source: str, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Dashboard]:
    assert source  # before anything is started that only this needs
    async with AsyncExitStack() as stack:
        conninfo = stack.enter_context(postgres.database())
        provider = await stack.enter_async_context(running_provider())
        values = {"PROVIDER_SECRET_KEY": KEY, "PROVIDER_API_BASE": provider.url}
        folder = tmp_path_factory.mktemp("people")
        dashboard = await stack.enter_async_context(running_dashboard(conninfo, folder, **values))
        now = events.NOW
        await dashboard.deliver(updated(event_id="evt_odd", price="price_unknown", created=now))
        await dashboard.deliver(updated(event_id="evt_1", created=now + 1))
        await dashboard.deliver(failed(event_id="evt_failed", created=now + 2))
        yield dashboard


@pytest.fixture(scope="module")
async def worker(dashboard: Dashboard) -> AsyncIterator[Operators]:
    async with operators(dashboard.conninfo) as worker:
        yield worker


@pytest.fixture(scope="module")
async def olga(browsers: Browsers, dashboard: Dashboard) -> AsyncIterator[BrowserContext]:
    context = await enter(await browsers.connected(), dashboard, OLGA)
    yield context
    await context.close()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "?search=nothing",
        "?outcome=applied",
        "/evt_odd",
        "/evt_1",
        "/evt_failed",
        "/check",
    ],
)
async def test_a_page_of_the_ledger(olga: BrowserContext, source: str, path: str) -> None:
    await judge_address(olga, source, LEDGER + path)


async def test_the_page_of_a_run_follows_it(
    olga: BrowserContext, dashboard: Dashboard, worker: Operators, source: str
) -> None:
    await dashboard.execute("UPDATE tenants SET plan = 'free' WHERE id = %s", (ACME,))
    page = await olga.new_page()
    watched = Watched(page)
    await page.goto(CHECK)
    await page.get_by_role("button", name="Start dry run of a replay").click()
    await expect(page.get_by_text("It waits for a worker.")).to_be_visible()
    await judge(page, source, watched)
    await dashboard.execute("UPDATE ledger_runs SET started_at = now(), seen = 3")
    await expect(page.get_by_text("3 events to replay.")).to_be_visible(timeout=30_000)
    async with worker.working():
        await expect(page.get_by_text("differs from what its 3 events give")).to_be_visible(
            timeout=30_000
        )
        await expect(page.get_by_role("button", name="Start dry run of a replay")).to_be_visible()
        await judge(page, source, watched)
        await page.get_by_label("Reason").fill("Ticket 7")
        await page.get_by_role("button", name="Repair for real").click()
        await expect(page.get_by_text("1 field was repaired")).to_be_visible(timeout=30_000)
    await judge(page, source, watched)
    await page.close()
