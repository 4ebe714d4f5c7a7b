"""Overview, billing and events in a real browser."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Literal

import psycopg
import pytest
from playwright.async_api import Browser, Page, expect

from tenantry_devkit.identity_tokens import DemoUser
from tests.support import events
from tests.support.browser import Watched
from tests.support.dashboard import (
    ACME,
    AT_ACME,
    CUSTOMER,
    MIA,
    OLIVIA,
    Dashboard,
    running_dashboard,
    running_with_provider,
)
from tests.support.events import deleted, failed, succeeded, updated
from tests.support.reversals import paid_invoice, refunded
from tests.system.test_reference_page_browser import AA, LEAST_CONTRAST

HERE: Final = AT_ACME
PAGES: Final = ("/", "/billing", "/events", "/events/evt_1")
BROKEN_WORDS: Final = """
    all => all.flatMap(cell => {
        const found = [], texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT)
        while (texts.nextNode()) {
            const text = texts.currentNode
            if (text.parentElement.closest("code")) continue
            for (const word of text.data.matchAll(/\\S+/g)) {
                const range = document.createRange()
                range.setStart(text, word.index)
                range.setEnd(text, word.index + word[0].length)
                if (new Set([...range.getClientRects()].map(line => line.top)).size > 1) found.push(word[0])
            }
        }
        return found
    })
"""
"""Returns the words of elements that a line's end breaks, without those of ids."""
MARKUP: Final = "<img src=x onerror=alert(1)><script>alert(1)</script>"
Scheme = Literal["light", "dark"]


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_with_provider(conninfo, people) as dashboard:
        yield dashboard


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context(reduced_motion="reduce")
    yield await context.new_page()
    await context.close()


async def enter(page: Page, dashboard: Dashboard, path: str, user: DemoUser = OLIVIA) -> Watched:
    """Sign in, and go to a page of the tenant."""
    watched = Watched(page)
    await page.goto(dashboard.start_of(user, HERE + path))
    return watched


async def test_new_event_appears_and_is_announced_politely(
    page: Page, dashboard: Dashboard
) -> None:
    watched = await enter(page, dashboard, "/events")
    await expect(page.locator("[data-live-state]")).to_have_text("Live")
    await dashboard.deliver(updated(event_id="evt_1"))
    entry = page.locator('[data-event="evt_1"]')
    await expect(entry).to_contain_text("Your plan changed from Free to Pro.")
    await expect(page.get_by_role("status")).to_have_text("New: Your subscription started.")
    assert watched.complaints == []


async def test_banner_of_a_failed_payment_follows_the_events(
    page: Page, dashboard: Dashboard
) -> None:
    await dashboard.deliver(updated(created=events.NOW))
    await enter(page, dashboard, "/events")
    await expect(page.locator("[data-live-state]")).to_have_text("Live")
    banner = page.get_by_role("region", name="Past due")
    await expect(banner).to_have_count(0)
    await dashboard.deliver(failed(created=events.NOW + 1))
    await expect(banner).to_be_visible()
    await dashboard.deliver(succeeded(created=events.NOW + 2))
    await expect(banner).to_have_count(0)


async def test_open_billing_page_shows_a_failed_payment(page: Page, dashboard: Dashboard) -> None:
    await dashboard.deliver(updated(created=events.NOW))
    watched = await enter(page, dashboard, "/billing")
    await expect(page.locator("[data-live-state]")).to_have_text("Live")
    warning = page.get_by_role("heading", name="A payment failed")
    await expect(warning).to_have_count(0)
    await dashboard.deliver(failed(created=events.NOW + 1))
    await expect(warning).to_be_visible()
    await expect(page.get_by_text("Past due: a payment failed", exact=True)).to_be_visible()
    await expect(page.locator("#announcer")).to_contain_text(
        "The plan or the subscription has changed: Pro, Past due"
    )
    await dashboard.deliver(succeeded(created=events.NOW + 2))
    await expect(warning).to_have_count(0)
    assert watched.complaints == []


@pytest.mark.parametrize(
    ("locale", "amount"), [("de-DE", "29,00\xa0€"), ("en-US", "€29.00"), ("sv-SE", "29,00\xa0€")]
)
async def test_amounts_are_written_as_in_the_readers_language(
    browser: Browser, dashboard: Dashboard, locale: str, amount: str
) -> None:
    context = await browser.new_context(locale=locale)
    page = await context.new_page()
    await dashboard.deliver(failed())
    await enter(page, dashboard, "/billing")
    await expect(page.locator("a.primary")).to_have_text(f"Pay {amount}")
    await context.close()


async def test_an_event_that_changes_nothing_is_not_announced_as_a_change(
    page: Page, dashboard: Dashboard
) -> None:
    await dashboard.deliver(updated(created=events.NOW))
    await enter(page, dashboard, "/billing")
    await expect(page.locator("[data-live-state]")).to_have_text("Live")
    await dashboard.call("POST", "/projects", {"name": "Counted"})
    async with page.expect_response("**/billing"):
        await dashboard.deliver(succeeded(created=events.NOW + 1))
    await expect(page.get_by_role("definition").filter(has_text="1 of")).not_to_have_count(0)
    await expect(page.locator("#announcer")).to_have_count(0)


async def test_updates_keep_the_focus(page: Page, dashboard: Dashboard) -> None:
    await dashboard.deliver(updated(event_id="evt_1", created=events.NOW))
    await enter(page, dashboard, "/events")
    await expect(page.locator("[data-live-state]")).to_have_text("Live")
    await page.locator('[data-event="evt_1"] a').focus()
    await dashboard.deliver(succeeded(event_id="evt_2", created=events.NOW + 1))
    await expect(page.locator('[data-event="evt_2"]')).to_be_visible()
    await expect(page.locator('[data-event="evt_1"] a')).to_be_focused()


async def test_filtered_page_adds_only_matching_events(page: Page, dashboard: Dashboard) -> None:
    await enter(page, dashboard, "/events?search=payment+failed")
    await expect(page.locator("[data-live-state]")).to_have_text("Live")
    await dashboard.deliver(updated(event_id="evt_1", created=events.NOW))
    await dashboard.deliver(failed(event_id="evt_2", created=events.NOW + 1))
    await expect(page.locator('[data-event="evt_2"]')).to_be_visible()
    await expect(page.locator("[data-event]")).to_have_count(1)


async def test_page_of_a_removed_member_stops_updating(
    page: Page, dashboard: Dashboard, conninfo: str
) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(
            "INSERT INTO memberships (issuer, subject, tenant_id, role) "
            "SELECT issuer, %s, tenant_id, 'member' FROM memberships WHERE tenant_id = %s",
            (MIA.sub, ACME),
        )
    await enter(page, dashboard, "/events", MIA)
    await expect(page.locator("[data-live-state]")).to_have_text("Live")
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(
            "UPDATE memberships SET removed_at = now() WHERE subject = %s", (MIA.sub,)
        )
    await dashboard.deliver(updated())
    await expect(page.locator("[data-live-state]")).to_have_text("Live updates stopped")
    await expect(page.get_by_role("link", name="Reload")).to_be_visible()
    await expect(page.locator("[data-event]")).to_have_count(0)


async def test_events_are_filtered_and_reloaded_without_javascript(
    browser: Browser, dashboard: Dashboard
) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await enter(page, dashboard, "/events")
    await dashboard.deliver(updated(event_id="evt_1"))
    await page.get_by_role("link", name="Reload").click()
    await expect(page.locator('[data-event="evt_1"]')).to_be_visible()
    await page.locator("main").get_by_role("searchbox").fill("payment failed")
    await page.locator("main").get_by_role("button", name="Search").click()
    await expect(page.locator("[data-event]")).to_have_count(0)
    await page.get_by_role("link", name="Clear").click()
    await page.locator('[data-event="evt_1"] a').click()
    await expect(page.locator("dd", has_text="evt_1")).to_be_visible()
    await context.close()


@pytest.mark.parametrize("scripted", [True, False])
async def test_checkout_opens_the_provider(
    browser: Browser, dashboard: Dashboard, *, scripted: bool
) -> None:
    context = await browser.new_context(java_script_enabled=scripted)
    await context.route(
        "https://checkout.provider.example/**", lambda route: route.fulfill(body="pay here")
    )
    page = await context.new_page()
    watched = await enter(page, dashboard, "/billing")
    await page.get_by_role("button", name="Subscribe to Pro").click()
    await page.wait_for_url("https://checkout.provider.example/c/1")
    assert watched.complaints == []
    await context.close()


async def test_foreign_markup_is_escaped_everywhere(page: Page, dashboard: Dashboard) -> None:
    hostile = updated(event_id="evt_1", price=MARKUP)
    hostile["data"]["object"]["metadata"][MARKUP] = MARKUP
    await dashboard.deliver(hostile)
    await dashboard.operate(
        "PUT", f"/tenants/{ACME}", {"name": MARKUP, "ownerEmail": "olivia@acme.example"}
    )
    watched = await enter(page, dashboard, "/")
    for path in PAGES:
        await page.goto(dashboard.url + HERE + path)
        assert await page.locator("main img, main script").count() == 0
    await page.goto(f"{dashboard.url}{HERE}/events")
    await expect(page.locator("[data-live-state]")).to_have_text("Live")
    await dashboard.deliver(failed(event_id="evt_2", invoice_id=MARKUP, created=events.NOW + 1))
    await expect(page.locator('[data-event="evt_2"]')).to_contain_text("The payment of")
    assert watched.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_fit_every_width_and_are_legible(
    page: Page, dashboard: Dashboard, scheme: Scheme
) -> None:
    await dashboard.deliver(updated(event_id="evt_0", price="price_" + "x" * 200))
    await dashboard.deliver(failed(event_id="evt_1", created=events.NOW + 1))
    watched = await enter(page, dashboard, "/")
    await page.emulate_media(color_scheme=scheme)
    for path in PAGES:
        await page.goto(dashboard.url + HERE + path)
        ratio, element = await page.evaluate(LEAST_CONTRAST)
        assert ratio >= AA, (path, element)
        for width in (320, 390, 768, 1280, 1920):
            await page.set_viewport_size({"width": width, "height": 844})
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, (
                path,
                width,
            )
    assert watched.complaints == []


async def test_sentences_of_the_billing_history_are_whole_on_a_phone(
    page: Page, dashboard: Dashboard
) -> None:
    await dashboard.deliver(paid_invoice(CUSTOMER))
    await dashboard.deliver(refunded("refund.failed", status="failed"))
    await page.set_viewport_size({"width": 390, "height": 844})
    await enter(page, dashboard, "/events")
    rows = page.locator("main tbody th")
    await expect(rows).to_have_count(2)
    cut = "all => all.filter((one) => one.scrollWidth > one.clientWidth).length"
    assert await rows.evaluate_all(cut) == 0


async def test_printed_pages_use_the_whole_width_without_navigation(
    page: Page, dashboard: Dashboard
) -> None:
    await dashboard.deliver(updated(event_id="evt_1"))
    await enter(page, dashboard, "/events")
    await page.set_viewport_size({"width": 1000, "height": 844})
    await page.emulate_media(media="print")
    for part in (".top", ".rail", ".filter-bar"):
        assert not await page.locator(part).is_visible(), part
    box = await page.locator("main .table").bounding_box()
    assert box is not None
    assert box["width"] > 900


async def test_printed_pages_show_tables_as_tables_without_buttons(
    page: Page, dashboard: Dashboard
) -> None:
    await dashboard.deliver(updated(event_id="evt_1"))
    key = await dashboard.call(
        "POST", "/api-keys", {"orgId": ACME, "name": "CI", "scopes": ["projects:read"]}
    )
    await enter(page, dashboard, "/")
    await page.emulate_media(media="print")
    await page.set_viewport_size({"width": 718, "height": 1047})  # A4, without its margins
    for path in (
        "/",
        "/billing",
        "/settings/api-keys",
        f"/settings/api-keys/{key['id']}",
        "/settings/members",
        "/settings/general",
    ):
        await page.goto(dashboard.url + HERE + path)
        assert (
            await page.locator("button:visible, .button:visible, summary:visible").count() == 0
        ), path
        for part, display in (
            ("table", "table"),
            ("tr", "table-row"),
            ("thead th", "table-cell"),
            ("td", "table-cell"),
        ):
            shown = await page.locator(
                f"main .table {part}" if part != "table" else "main .table"
            ).evaluate_all("all => all.map((one) => getComputedStyle(one).display)")
            assert set(shown) <= {display}, (path, part)
        has_no_table = path in ("/", "/billing", "/settings/general") or "api-keys/" in path
        assert await page.locator("main .table").count() or has_no_table
        assert await page.evaluate("document.documentElement.scrollWidth") <= 718, path


async def test_words_of_the_subscriptions_do_not_break(
    conninfo: str, people: Path, page: Page
) -> None:
    """Only an id breaks at any place."""
    async with running_dashboard(conninfo, people, SUBSCRIPTIONS="each") as dashboard:
        await dashboard.deliver(
            updated(subscription_id="sub_1QmainBusiness", price="price_business")
        )
        await dashboard.deliver(updated(subscription_id="sub_1QsidePro"))
        await dashboard.deliver(failed(subscription_id="sub_1QsidePro", created=events.NOW + 1))
        await dashboard.deliver(
            updated(subscription_id="sub_1QcustomDeal", price="price_custom_of_2026")
        )
        await dashboard.deliver(deleted(subscription_id="sub_1Qold"))
        await enter(page, dashboard, "/billing")
        table = page.locator(".subscriptions")
        statuses = await table.locator("[data-label=Status]").all_inner_texts()
        assert statuses == ["Active", "Past due: a payment failed", "Active", "Canceled"]
        for width in (1440, 1280, 1200, 1000, 390):
            await page.set_viewport_size({"width": width, "height": 900})
            cells = table.locator(":is(th[scope=col], [data-label=Status], [data-label=Plan])")
            assert await cells.evaluate_all(BROKEN_WORDS) == [], width
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
