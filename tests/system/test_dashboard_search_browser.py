"""The search box and the way to pay, in a real browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, Page, expect

from tests.support.dashboard import AT_ACME, OLIVIA, Dashboard, running_dashboard
from tests.support.events import INVOICE_URL, failed, updated

PHONE: Final = (390, 844)
DESKTOP: Final = (1280, 900)


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_dashboard(conninfo, people) as dashboard:
        yield dashboard


@asynccontextmanager
async def visiting(
    browser: Browser, dashboard: Dashboard, size: tuple[int, int], *, script: bool = True
) -> AsyncIterator[Page]:
    """The overview as the tenant's owner sees it."""
    width, height = size
    context = await browser.new_context(
        base_url=dashboard.url,
        viewport={"width": width, "height": height},
        java_script_enabled=script,
    )
    page = await context.new_page()
    await page.goto(dashboard.start_of(OLIVIA, f"{AT_ACME}/"))
    yield page
    await context.close()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("keys", ["Control+k", "Meta+k"])
async def test_shortcut_leads_to_the_search(
    browser: Browser, dashboard: Dashboard, size: tuple[int, int], keys: str
) -> None:
    await dashboard.call("POST", "/projects", {"name": "Storefront"})
    async with visiting(browser, dashboard, size) as page:
        await page.keyboard.press(keys)
        await expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
        await page.keyboard.type("store")
        await page.keyboard.press("Enter")
        await page.get_by_role("main").get_by_role("link", name="Storefront").click()
        await expect(page.get_by_role("heading", name="Storefront", level=1)).to_be_visible()


async def test_box_works_without_javascript(browser: Browser, dashboard: Dashboard) -> None:
    await dashboard.call("POST", "/projects", {"name": "Storefront"})
    async with visiting(browser, dashboard, DESKTOP, script=False) as page:
        await page.get_by_role("searchbox", name="Search").fill("store")
        await page.keyboard.press("Enter")
        await expect(
            page.get_by_role("main").get_by_role("link", name="Storefront")
        ).to_be_visible()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_failed_invoice_is_one_click_from_the_overview(
    browser: Browser, dashboard: Dashboard, size: tuple[int, int]
) -> None:
    await dashboard.deliver(updated())
    await dashboard.deliver(failed())
    async with visiting(browser, dashboard, size) as page:
        alert = page.get_by_role("region", name="Payment")
        await expect(alert).to_contain_text("A payment failed. The subscription is past due.")
        pay = alert.get_by_role("link", name="Pay the invoice")
        await expect(pay).to_have_attribute("href", INVOICE_URL)
        await expect(pay).to_be_in_viewport()
