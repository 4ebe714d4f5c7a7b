"""The general settings in a real browser: the organization's time zone."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from playwright.async_api import Browser, expect

from tests.support.dashboard import ACME, AT_ACME, OLIVIA, Dashboard, running_dashboard

CREATED: Final = "2026-01-15T03:00:00Z"


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_dashboard(conninfo, people) as dashboard:
        yield dashboard


async def test_times_are_in_the_zone_of_the_organization(
    browser: Browser, dashboard: Dashboard
) -> None:
    project = await dashboard.call("POST", "/projects", {"name": "Shop"})
    async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as connection:
        await connection.execute("UPDATE projects SET created_at = %s", (CREATED,))
    context = await browser.new_context(
        base_url=dashboard.url, timezone_id="America/New_York", locale="en-US"
    )
    page = await context.new_page()
    address = f"{AT_ACME}/projects/{project['id']}"
    await page.goto(dashboard.start_of(OLIVIA, address))
    created = page.locator(f'main time[datetime^="{CREATED[:19]}"]').first
    await expect(created).to_contain_text("Jan 14, 2026, 10:00")
    await page.goto(f"{AT_ACME}/settings/general")
    await expect(page.locator('#zones option[value="Asia/Tokyo"]')).to_have_count(1)
    await page.get_by_label("Time zone").fill("Asia/Tokyo")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_role("status")).to_contain_text("Organization saved.")
    await page.goto(address)
    await expect(created).to_contain_text("Jan 15, 2026, 12:00")
    assert (await dashboard.call("GET", f"/tenants/{ACME}"))["timeZone"] == "Asia/Tokyo"
    await context.close()
