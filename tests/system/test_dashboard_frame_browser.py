"""The frame of pages in a real browser: rail, drawer, switcher, and the buttons of forms."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, Page, expect

from tests.support.dashboard import ACME, AT_ACME, OLIVIA, Dashboard, running_dashboard

PHONE: Final = (390, 844)
DESK: Final = (1280, 900)
ZOOMED: Final = (640, 450)
"""A window of 1280 by 900 pixels at 200 %."""
NAME: Final = "شركة النور للتجارة والخدمات المحدودة " * 5
COUNTS_SENT_FORMS: Final = """
() => {
  window.sent = 0;
  addEventListener("submit", (event) => {
    if (!event.defaultPrevented) window.sent += 1;
    event.preventDefault();
  });
}
"""
"""Counts the forms that the page sends, and keeps the page."""
PAGES: Final = (
    "/",
    "/projects",
    "/projects/new",
    "/settings/api-keys",
    "/settings/transfer",
    "/nothing",
)


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_dashboard(conninfo, people) as dashboard:
        yield dashboard


@asynccontextmanager
async def visiting(
    browser: Browser,
    dashboard: Dashboard,
    path: str = "/",
    size: tuple[int, int] = PHONE,
    *,
    script: bool = True,
) -> AsyncIterator[Page]:
    """A page as the tenant's owner sees it."""
    width, height = size
    context = await browser.new_context(
        base_url=dashboard.url,
        viewport={"width": width, "height": height},
        java_script_enabled=script,
        reduced_motion="reduce",
    )
    page = await context.new_page()
    await page.goto(dashboard.start_of(OLIVIA, AT_ACME + path))
    yield page
    await context.close()


@pytest.mark.parametrize("script", [True, False])
async def test_drawer_opens_with_and_without_the_script(
    browser: Browser, dashboard: Dashboard, *, script: bool
) -> None:
    async with visiting(browser, dashboard, script=script) as page:
        entry = page.get_by_role("link", name="API keys", exact=True).first
        await expect(entry).to_be_hidden()
        await page.get_by_role("button", name="Menu").click()
        await entry.click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("API keys")
        await expect(page.locator("#rail")).to_be_hidden()


async def test_drawer_by_keyboard_alone(browser: Browser, dashboard: Dashboard) -> None:
    async with visiting(browser, dashboard) as page:
        menu = page.get_by_role("button", name="Menu")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        await page.keyboard.press("Tab")
        await expect(menu).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#rail")).to_be_visible()
        await page.keyboard.press("Tab")
        await expect(page.locator("#rail .brand")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.locator("#rail")).to_be_hidden()
        await expect(menu).to_be_focused()


async def test_skip_link_leads_past_the_rail(browser: Browser, dashboard: Dashboard) -> None:
    async with visiting(browser, dashboard, "/projects", DESK) as page:
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.closest('main') !== null")


async def test_rail_stays_beside_a_long_page(browser: Browser, dashboard: Dashboard) -> None:
    async with visiting(browser, dashboard, "/settings/api-keys/new", (1280, 500)) as page:
        await page.evaluate("scrollTo(0, document.body.scrollHeight)")
        assert await page.evaluate("scrollY") > 100
        await expect(page.locator("#rail .brand")).to_be_in_viewport()


@pytest.mark.parametrize("size", [(320, 256), ZOOMED, PHONE, (1920, 1080)])
async def test_frame_fits_with_a_long_arabic_name(
    browser: Browser, dashboard: Dashboard, size: tuple[int, int]
) -> None:
    wishes = {"name": NAME[:200], "ownerEmail": OLIVIA.email, "ownerId": OLIVIA.sub}
    await dashboard.operate("PUT", f"/tenants/{ACME}", wishes)
    async with visiting(browser, dashboard, size=size) as page:
        for path in PAGES:
            await page.goto(AT_ACME + path)
            wide = await page.evaluate("document.documentElement.scrollWidth")
            assert wide <= size[0], path
        menu = page.get_by_role("button", name="Menu")
        if await menu.is_visible():
            await menu.click()
        last = page.locator(".person summary")
        await last.scroll_into_view_if_needed()
        await expect(last).to_be_in_viewport()
        box = await page.locator("#rail").bounding_box()
        assert box is not None
        assert box["width"] <= size[0]


async def test_switcher_finds_an_organization(browser: Browser, dashboard: Dashboard) -> None:
    await dashboard.join_many(OLIVIA, 12)
    async with visiting(browser, dashboard, size=DESK) as page:
        await page.locator(".switcher summary").click()
        entries = page.locator(".switcher li a:visible")
        assert await entries.count() > 10
        await page.get_by_role("searchbox", name="Find an organization").fill("many-7")
        await expect(entries).to_have_count(1)
        await entries.click()
        await expect(page).to_have_url(f"{dashboard.url}/orgs/many-7/")


async def test_button_says_that_its_form_is_being_sent(
    browser: Browser, dashboard: Dashboard
) -> None:
    async with visiting(browser, dashboard, "/projects/new", DESK) as page:
        await page.evaluate(COUNTS_SENT_FORMS)
        button = page.locator("main button")
        await button.click()
        await expect(button).to_have_text("Creating…")
        await expect(button).to_have_attribute("aria-disabled", "true")
        await button.click(force=True)
        assert await page.evaluate("sent") == 1
