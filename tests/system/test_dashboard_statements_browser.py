"""Texts of pages hold in a real browser: valid forms, disappearing notices, right-to-left names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Final

import psycopg
import pytest
from playwright.async_api import Browser, Page, expect

from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.inbox import Inbox
from tests.support.dashboard import (
    ACME,
    AT_ACME,
    MIA,
    OLIVIA,
    Dashboard,
    running_dashboard,
    running_with_provider,
    settings_of,
)
from tests.support.events import updated
from tests.support.provider_api import running_provider

KEYS: Final = f"{AT_ACME}/settings/api-keys"
AUDIT: Final = f"{AT_ACME}/settings/audit"
RIGHT_TO_LEFT: Final = "شركة " + "الخدمات العامة للتجارة والصناعة " * 4
FIRST_LETTER: Final = """
(element) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let node = walker.nextNode();
  while (!node.data.trim()) node = walker.nextNode();
  const range = document.createRange();
  const begin = node.data.search(/\\S/);
  range.setStart(node, begin);
  range.setEnd(node, begin + 1);
  const [letter, box] = [range.getBoundingClientRect(), element.getBoundingClientRect()];
  return letter.left >= box.left - 1 && letter.right <= box.right + 1;
}
"""
"""Whether the first letter of an element is within the element's own box."""

LOOK: Final = """
(element) => {
  const { color, fontSize, marginBottom } = getComputedStyle(element);
  return [color, fontSize, marginBottom];
}
"""


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_with_provider(conninfo, people) as dashboard:
        yield dashboard


@asynccontextmanager
async def visiting(
    browser: Browser, dashboard: Dashboard, path: str, *, timezone: str = "UTC", width: int = 1280
) -> AsyncIterator[Page]:
    """A page as the tenant's owner sees it; its clock can be moved on."""
    context = await browser.new_context(
        base_url=dashboard.url,
        timezone_id=timezone,
        locale="en-US",
        viewport={"width": width, "height": 900},
    )
    page = await context.new_page()
    await page.clock.install()
    await page.goto(dashboard.start_of(OLIVIA, path))
    yield page
    await context.close()


@pytest.mark.parametrize("until", ["2020-01-01", "12"])
async def test_hidden_invalid_date_does_not_block_creating_a_key(
    browser: Browser, dashboard: Dashboard, until: str
) -> None:
    async with visiting(browser, dashboard, f"{KEYS}/new") as page:
        await page.get_by_role("textbox", name="Name").fill("CI")
        await page.get_by_label("Chosen scopes").check()
        await page.get_by_role("checkbox", name="projects:read").check()
        await page.get_by_text("More options").click()
        await type_day(page, until)
        await page.get_by_label("In 90 days").check()
        await page.get_by_role("button", name="Create key").click()
        await expect(page.get_by_role("heading", name="Key created")).to_be_visible()


async def test_hidden_past_date_does_not_block_editing_a_key(
    browser: Browser, dashboard: Dashboard
) -> None:
    wishes = {"orgId": ACME, "name": "CI", "scopes": ["projects:read"]}
    key = await dashboard.call("POST", "/api-keys", wishes)
    async with visiting(browser, dashboard, f"{KEYS}/{key['id']}/edit") as page:
        await type_day(page, "2020-01-01")
        await page.get_by_label("Keep:").check()
        await page.get_by_role("textbox", name="Name").fill("Builds")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("heading", name="Builds")).to_be_visible()


async def type_day(page: Page, day: str) -> None:
    """Choose a day as the expiry, and type all or the beginning of it."""
    await page.get_by_label("After a chosen day").check()
    field = page.get_by_label("Last day")
    if len(day) == len("2020-01-01"):
        await field.fill(day)
    else:
        await field.press_sequentially(day)


async def test_past_date_shows_an_error_beside_its_field(
    browser: Browser, dashboard: Dashboard
) -> None:
    async with visiting(browser, dashboard, f"{KEYS}/new") as page:
        await page.get_by_role("textbox", name="Name").fill("CI")
        await page.get_by_label("Chosen scopes").check()
        await page.get_by_role("checkbox", name="projects:read").check()
        await page.get_by_text("More options").click()
        await type_day(page, "2020-01-01")
        await page.get_by_role("button", name="Create key").click()
        await expect(
            page.get_by_text("This day is over. Enter today or a later day.")
        ).to_be_visible()


async def test_checkout_message_disappears_with_the_new_plan(
    browser: Browser, conninfo: str, people: Path
) -> None:
    async with (
        running_provider() as provider,
        running_dashboard(conninfo, people, **settings_of(provider)) as dashboard,
        visiting(browser, dashboard, f"{AT_ACME}/billing") as page,
    ):
        await page.route(
            "https://checkout.provider.example/**", lambda route: route.fulfill(body="pay here")
        )
        await page.get_by_role("button", name="Subscribe to Pro").click()
        await page.wait_for_url("https://checkout.provider.example/c/1")
        await page.goto(provider.requests[-1].params["success_url"])
        await expect(page.get_by_text("Checkout complete.")).to_be_visible()
        await dashboard.deliver(updated())
        await page.clock.fast_forward(10_000)
        await expect(page.get_by_text("Your plan is now Pro.")).to_be_visible()
        await expect(page.get_by_text("Checkout complete.")).to_have_count(0)
        await expect(page.get_by_text("when the provider's event arrives")).to_have_count(0)
        assert page.url == f"{dashboard.url}{AT_ACME}/billing"


async def test_rotated_key_page_updates_after_the_overlap(
    browser: Browser, dashboard: Dashboard
) -> None:
    key = await dashboard.call(
        "POST", "/api-keys", {"orgId": ACME, "name": "CI", "scopes": ["projects:read"]}
    )
    new = await dashboard.call("POST", f"/api-keys/{key['id']}/rotate", {"overlapSeconds": 3600})
    works = {key["id"]: "keeps working until", new["id"]: "The old key keeps working"}
    async with (
        visiting(browser, dashboard, f"{KEYS}/{key['id']}") as old_page,
        visiting(browser, dashboard, f"{KEYS}/{new['id']}") as new_page,
    ):
        await expect(old_page.get_by_text(works[key["id"]])).to_be_visible()
        await expect(new_page.get_by_text(works[new["id"]])).to_be_visible()
        async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as connection:
            await connection.execute(
                "UPDATE api_keys SET expires_at = now() WHERE id = %s", (key["id"],)
            )
        for page, key_id in ((old_page, key["id"]), (new_page, new["id"])):
            await page.clock.fast_forward(3_700_000)
            await expect(page.get_by_text(works[key_id])).to_have_count(0)
        await expect(old_page.get_by_text("Requests with this key are rejected.")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1280])
async def test_right_to_left_name_shows_its_beginning(
    browser: Browser, dashboard: Dashboard, width: int
) -> None:
    await dashboard.operate(
        "PUT", f"/tenants/{ACME}", {"name": RIGHT_TO_LEFT, "ownerEmail": "olivia@acme.example"}
    )
    async with visiting(browser, dashboard, f"{AT_ACME}/", width=width) as page:
        assert await page.locator(".top .tenant").evaluate(FIRST_LETTER)
        await dashboard.call(
            "POST", "/projects", {"name": RIGHT_TO_LEFT, "description": RIGHT_TO_LEFT}
        )
        await page.goto(f"{AT_ACME}/projects")
        for cell in await page.locator("tbody th, tbody td[data-label=Description]").all():
            assert await cell.evaluate(FIRST_LETTER)
        await page.get_by_role("link", name=RIGHT_TO_LEFT.strip()).click()
        await page.get_by_role("link", name="Edit").click()
        for field in await page.locator("#name, #description").all():
            assert await field.evaluate("(field) => getComputedStyle(field).direction") == "rtl"
    await dashboard.operate(
        "PUT",
        "/tenants/second",
        {"name": "Second", "ownerEmail": "o@x.example", "ownerId": OLIVIA.sub},
    )
    async with visiting(browser, dashboard, f"{AT_ACME}/", width=width) as page:
        label = page.locator(".menu:not(.person) .label")
        assert await label.evaluate(FIRST_LETTER)


async def test_audit_filters_and_entries_use_utc(browser: Browser, dashboard: Dashboard) -> None:
    async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as connection:
        await connection.execute(
            "INSERT INTO audit_events (id, org_id, at, action, actor_kind, target_id, after) VALUES ('aud_late', %s, "
            "'2026-03-01T23:30:00Z', 'api_key.created', 'user', 'key_x', '{\"expiresAt\": \"2026-03-05T23:30:00Z\"}')",
            (ACME,),
        )
    async with visiting(browser, dashboard, AUDIT, timezone="Asia/Tokyo") as page:
        await page.goto(f"{AUDIT}?since=2026-03-01&until=2026-03-01")
        row = page.locator(".trail > li")
        await expect(row).to_have_count(1)
        await expect(page.locator("main h2")).to_have_text("Sunday, 1 March 2026")
        await expect(row.locator("time").first).to_have_text("23:30:00")
        await row.locator("summary").click()
        await expect(row.get_by_text("5 Mar 2026, 23:30:00 UTC")).to_be_visible()
        await expect(page.get_by_text("Times are in UTC.")).to_be_visible()


async def test_subject_of_a_mail_looks_like_the_inbox_and_nothing_else(
    browser: Browser, tmp_path: Path
) -> None:
    inbox = Inbox(tmp_path / "inbox")
    mail = EmailMessage()
    mail["Subject"] = "A payment failed"
    mail.set_content("Hello")
    inbox.store(
        mail.as_bytes(), sender="billing@tenantry.example", recipients=["olivia@acme.example"]
    )
    with Companion(
        tmp_path, users=(OLIVIA, MIA), audience="a", client_id="c", inbox=inbox
    ) as companion:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{companion.http_url}/inbox")
        subject, around = page.locator(".subject"), page.locator("main")
        await expect(subject).to_have_text("A payment failed")
        assert await subject.evaluate(LOOK) == await around.evaluate(LOOK)
        await context.close()
