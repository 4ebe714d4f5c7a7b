"""Script in pages, in a real browser: copying, menus, and parts that load later."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.integration.dashboard.test_api_key_usage import count_requests
from tests.support.dashboard import AT_ACME, OLIVIA, Dashboard, running_with_provider
from tests.support.events import updated

KEYS: Final = f"{AT_ACME}/settings/api-keys"
BILLING: Final = f"{AT_ACME}/billing"
AWAITS_PRO: Final = f"{BILLING}?awaits=pro"
ASKS_FIRST: Final = "() => !dispatchEvent(new Event('beforeunload', { cancelable: true }))"
"""Whether leaving the page is asked about first."""
COPIES_NOTHING: Final = (
    "() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }"
)
CHANGES_HIDDEN: Final = """
(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""
"""Another tab comes to the front, or this one again."""
PATIENCE: Final = 30_000
HALF_AN_HOUR: Final = 30 * 60_000


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_with_provider(conninfo, people) as dashboard:
        yield dashboard


@asynccontextmanager
async def visiting(browser: Browser, dashboard: Dashboard, path: str) -> AsyncIterator[Page]:
    """A page as the tenant's owner sees it; its clock can be moved on."""
    context = await browser.new_context(base_url=dashboard.url)
    page = await context.new_page()
    await page.clock.install()
    await page.goto(dashboard.start_of(OLIVIA, path))
    yield page
    await context.close()


async def create_key(page: Page) -> str:
    """Make a key, and read its secret."""
    await page.get_by_role("textbox", name="Name").fill("CI")
    await page.get_by_label("Chosen scopes").check()
    await page.get_by_role("checkbox", name="projects:read").check()
    await page.get_by_role("button", name="Create key").click()
    secret = await page.locator(".secret code").text_content()
    assert secret
    return secret


async def test_failed_copy_selects_the_secret_and_keeps_the_warning(
    browser: Browser, dashboard: Dashboard
) -> None:
    async with visiting(browser, dashboard, f"{KEYS}/new") as page:
        secret = await create_key(page)
        await page.evaluate(COPIES_NOTHING)
        await page.get_by_role("button", name="Copy Secret").click()
        await expect(page.get_by_role("status").filter(has_text="Copying failed")).to_have_count(1)
        assert await page.evaluate("String(getSelection())") == secret
        await expect(page.get_by_label("I've saved this key")).not_to_be_checked()
        assert await page.evaluate(ASKS_FIRST)


async def test_copying_the_secret_ends_the_warning(browser: Browser, dashboard: Dashboard) -> None:
    async with visiting(browser, dashboard, f"{KEYS}/new") as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        secret = await create_key(page)
        line = page.locator("figure", has_text=secret)
        copy = line.get_by_role("button")
        label = await line.locator("figcaption").text_content()
        await expect(copy).to_have_accessible_name(f"Copy {label}")
        await copy.click()
        await expect(copy).to_have_accessible_name(f"Copied {label}")
        assert secret in await page.evaluate("navigator.clipboard.readText()")
        await expect(page.get_by_label("I've saved this key")).to_be_checked()
        assert not await page.evaluate(ASKS_FIRST)


async def test_menu_closes_when_the_focus_leaves(browser: Browser, dashboard: Dashboard) -> None:
    async with visiting(browser, dashboard, BILLING) as page:
        menu = page.locator("details.person")
        await menu.locator("summary").press("Enter")
        await expect(menu).to_have_attribute("open", "")
        for entry in ("Account", "Sign out"):
            await page.keyboard.press("Tab")
            await expect(menu.get_by_text(entry)).to_be_focused()
        await page.keyboard.press("Tab")
        await expect(menu).not_to_have_attribute("open", "")


async def test_a_chart_shows_the_numbers_of_the_bar_below_the_pointer(
    browser: Browser, dashboard: Dashboard
) -> None:
    await count_requests(dashboard, "key_1", 1234, days_ago=2)
    async with visiting(browser, dashboard, f"{AT_ACME}/usage?range=7d") as page:
        readout = page.locator(".readout")
        await expect(readout).to_have_text(
            "Point at a bar, or use the arrow keys, for its numbers."
        )
        box = await page.locator(".bars").bounding_box()
        assert box is not None
        middle = box["x"] + box["width"] * 4.5 / 7
        await page.mouse.move(middle, box["y"] + 10)
        await expect(readout).to_contain_text(": 1,234")
        await page.mouse.move(0, 0)
        await expect(readout).to_contain_text("Point at a bar")


async def test_a_chart_shows_the_parts_of_the_bar_that_are_not_zero(
    browser: Browser, dashboard: Dashboard
) -> None:
    await count_requests(dashboard, "key_1", 1234, days_ago=1)
    await count_requests(dashboard, "key_1", 5, outcome="forbidden", days_ago=1)
    await count_requests(dashboard, "key_1", 6, outcome="rate_limited", days_ago=2)
    async with visiting(browser, dashboard, f"{AT_ACME}/usage?range=7d") as page:
        slider = page.get_by_role("slider", name="Day of the chart")
        await page.get_by_role("link", name="By outcome").click()
        await slider.focus()
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator(".readout")).to_contain_text(
            ": 1,239 · Accepted 1,234 · Forbidden 5"
        )


async def test_arrow_keys_move_along_the_bars_of_a_chart(
    browser: Browser, dashboard: Dashboard
) -> None:
    await count_requests(dashboard, "key_1", 1234, days_ago=1)
    await count_requests(dashboard, "key_1", 56, days_ago=0)
    async with visiting(browser, dashboard, f"{AT_ACME}/usage?range=7d") as page:
        slider = page.get_by_role("slider", name="Day of the chart")
        readout = page.locator(".readout")
        await page.get_by_role("link", name="By outcome").focus()
        await page.keyboard.press("Tab")
        await expect(slider).to_be_focused()
        await expect(readout).to_contain_text(": 56")
        await page.keyboard.press("ArrowLeft")
        await expect(readout).to_contain_text(": 1,234")
        shown = await readout.text_content()
        await expect(slider).to_have_attribute("aria-valuetext", shown or "")


async def test_polling_replaces_nothing_until_the_change(
    browser: Browser, dashboard: Dashboard
) -> None:
    await dashboard.deliver(updated(price="price_business", created=1))
    async with visiting(browser, dashboard, AWAITS_PRO) as page:
        button = page.get_by_role("button", name="Update payment method")
        await button.evaluate("(one) => { one.dataset.mark = '' }")
        await button.focus()
        async with page.expect_response("**/billing?awaits=pro"):
            pass
        async with page.expect_response("**/billing?awaits=pro"):
            pass
        await expect(page.locator("[data-mark]")).to_be_focused()


async def test_new_plan_is_announced_and_the_focus_stays(
    browser: Browser, dashboard: Dashboard
) -> None:
    await dashboard.deliver(updated(price="price_business", created=1))
    async with visiting(browser, dashboard, AWAITS_PRO) as page:
        button = page.get_by_role("button", name="Update payment method")
        await button.focus()
        await dashboard.deliver(updated())
        await expect(page.get_by_role("status")).to_contain_text(
            "Your plan is now Pro.", timeout=PATIENCE
        )
        await expect(page.get_by_role("heading", name="Pro plan", exact=True)).to_be_visible()
        await expect(button).to_be_focused()


async def test_form_added_later_is_submitted_once(browser: Browser, dashboard: Dashboard) -> None:
    await dashboard.deliver(updated(price="price_business", created=1))
    async with visiting(browser, dashboard, AWAITS_PRO) as page:
        await dashboard.deliver(updated())
        await expect(page.get_by_role("heading", name="Pro plan", exact=True)).to_be_visible(
            timeout=PATIENCE
        )
        sent: list[str] = []

        async def hold(route: Route) -> None:
            sent.append(route.request.url)
            await route.fulfill(status=204)

        await page.route("**/billing/portal", hold)
        await page.get_by_role("button", name="Update payment method").dblclick()
        await expect(page.locator("form[data-sent]")).to_have_count(1)
        assert len(sent) == 1


async def test_polling_ends_visibly_and_restarts_when_the_tab_is_visible(
    browser: Browser, dashboard: Dashboard
) -> None:
    async with visiting(browser, dashboard, f"{KEYS}/new") as page:
        secret = await create_key(page)
        await expect(page.locator("#first-use")).to_contain_text(
            "It appears within seconds. Check now"
        )
        await page.clock.fast_forward(HALF_AN_HOUR)
        await expect(page.locator("#first-use")).to_contain_text("No longer checking. Check now")
        check = await page.get_by_role("link", name="Check now").get_attribute("href")
        assert check
        await page.evaluate(CHANGES_HIDDEN, True)
        await dashboard.use_key(check.split("/")[-2], secret)
        await page.evaluate(CHANGES_HIDDEN, False)
        await expect(page.locator(".tick.done")).to_contain_text("The key works.")


async def test_polling_restarts_immediately_when_the_tab_is_visible(
    browser: Browser, dashboard: Dashboard
) -> None:
    async with visiting(browser, dashboard, AWAITS_PRO) as page:
        await page.evaluate(CHANGES_HIDDEN, True)
        await page.clock.pause_at(await page.evaluate("Date.now() + 60000"))
        async with page.expect_response("**/billing?awaits=pro"):
            await page.evaluate(CHANGES_HIDDEN, False)
