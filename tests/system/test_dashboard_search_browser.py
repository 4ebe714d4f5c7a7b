"""The search box and the way to pay, in a real browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.support.accessibility import axe, violations_of
from tests.support.dashboard import AT_ACME, OLIVIA, Dashboard, running_dashboard
from tests.support.database_link import database_link
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


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_typing_suggests_commands_pages_and_objects(
    browser: Browser, dashboard: Dashboard, size: tuple[int, int]
) -> None:
    await dashboard.call("POST", "/projects", {"name": "<i>Progress</i>"})
    async with visiting(browser, dashboard, size) as page:
        await page.keyboard.press("Control+k")
        await page.keyboard.type("pro")
        suggested = page.get_by_role("list", name="Suggestions").get_by_role("link")
        await expect(suggested).to_have_text(
            ["Create projectCommand", "ProjectsPage", "<i>Progress</i>Projects"]
        )
        assert await violations_of(page, axe()) == []
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowDown")
        await expect(suggested.nth(1)).to_be_focused()
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("ArrowUp")
        await expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Create project", level=1)).to_be_visible()


async def test_suggestions_send_no_secret_and_one_search_at_a_time(
    browser: Browser, dashboard: Dashboard
) -> None:
    async with visiting(browser, dashboard, DESKTOP) as page:
        sent: list[str] = []
        aborted: list[str] = []

        async def hold(_: Route) -> None: ...

        await page.route("**/search?q=*", hold)
        page.on("request", lambda request: sent.append(request.url.partition("?q=")[2]))
        page.on("requestfailed", lambda request: aborted.append(request.url.partition("?q=")[2]))
        await page.clock.install()
        box = page.get_by_role("searchbox", name="Search")

        async def enter(text: str) -> None:
            await box.fill("")
            await box.press_sequentially(text)
            await page.clock.run_for(300)

        async def paste(text: str) -> None:
            await box.fill("")
            await box.evaluate(
                """(box, text) => {
                  box.value = text;
                  box.dispatchEvent(new InputEvent("input", { inputType: "insertFromPaste" }));
                }""",
                text,
            )
            await page.clock.run_for(300)

        await enter("s")
        await enter("s" * 21)
        await paste("secret")
        await box.press_sequentially("s")
        await page.clock.run_for(300)
        async with page.expect_request("**/search?q=first"):
            await enter("first")
        async with page.expect_event("requestfailed"), page.expect_request("**/search?q=second"):
            await enter("second")
        assert ([text for text in sent if text], aborted) == (["first", "second"], ["first"])


async def test_kept_form_is_submitted_when_the_database_is_back(
    browser: Browser, conninfo: str, people: Path
) -> None:
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people) as dashboard,
        visiting(browser, dashboard, PHONE) as page,
    ):
        await page.goto(f"{AT_ACME}/projects/new")
        await page.get_by_label("Name").fill("Storefront")
        await link.cut()
        await page.get_by_role("main").get_by_role("button").click()
        await expect(page.get_by_text("Nothing was saved, because")).to_be_visible()
        await link.restore()
        await expect(page.get_by_role("heading", name="Storefront", level=1)).to_be_visible(
            timeout=30_000
        )


async def test_kept_form_is_not_submitted_by_itself_after_two_minutes(
    browser: Browser, conninfo: str, people: Path
) -> None:
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people) as dashboard,
        visiting(browser, dashboard, PHONE) as page,
    ):
        await page.clock.install()
        await page.goto(f"{AT_ACME}/projects/new")
        await page.get_by_label("Name").fill("Storefront")
        await link.cut()
        await page.get_by_role("main").get_by_role("button").click()
        promise = page.get_by_text("It will be submitted by itself")
        await expect(promise).to_be_visible()
        await page.clock.fast_forward("02:01")
        await expect(promise).to_be_hidden(timeout=30_000)
        await link.restore()
        await page.clock.fast_forward("01:00")
        await page.get_by_role("button", name="Submit").click()
        await expect(page.get_by_role("heading", name="Storefront", level=1)).to_be_visible(
            timeout=30_000
        )


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


async def test_a_filter_suggests_the_names_that_the_search_finds(
    browser: Browser, dashboard: Dashboard
) -> None:
    await dashboard.call("POST", "/projects", {"name": "Storefront"})
    await dashboard.call("POST", "/projects", {"name": "Warehouse"})
    async with visiting(browser, dashboard, DESKTOP) as page:
        await page.goto(f"{AT_ACME}/settings/audit?action=project.created&until=2020-01-31")
        actor, target = (
            page.get_by_label("Actor (name or id)"),
            page.get_by_label("Target (name or id)"),
        )
        await target.press_sequentially("store")
        await expect(page.locator("#targetId-known option")).to_have_attribute(
            "value", "Storefront"
        )
        async with page.expect_response("**/search?q=store"):
            await actor.press_sequentially("store")
        await expect(page.locator("#actorId-known option")).to_have_count(0)
        await page.get_by_label("Through").fill("")
        await actor.fill("")
        await target.fill("Storefront")
        await target.press("Enter")
        trail = page.locator(".trail summary")
        await expect(trail).to_have_count(1)
        await expect(trail).to_contain_text("created the project Storefront")
