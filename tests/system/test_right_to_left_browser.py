"""Pages with names and times of a right-to-left script, in a real browser: nothing around them
changes its place.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest
from playwright.async_api import Browser, Page

from tests.support import events
from tests.support.catalogs import catalog_file
from tests.support.dashboard import ACME, AT_ACME, OLIVIA, Dashboard, running_dashboard

NAME: Final = "شركة النور (2030)"
PLAN: Final = "خطة الأعمال"
CATALOG: Final = f"""
[[plans]]
id = "free"
name = "مجاني"
[[plans]]
id = "pro"
name = "{PLAN}"
stripe_price_id = "price_pro"
[plans.limits]
projects = 1
"""
"""The direction of the page: its own, and that of a page that the browser translates."""
OUTSIDE_OF_ISOLATION: Final = r"""
() => {
  const isolates = (element) => {
    const { display, unicodeBidi } = getComputedStyle(element);
    return element.dir === "auto" || (display.startsWith("inline") && ["isolate", "plaintext"].includes(unicodeBidi));
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const text = node.data.replace(/\u2068[^\u2069]*\u2069/gu, "");  // isolated by characters
    if (!/\p{Script=Arabic}/u.test(text)) continue;
    let element = node.parentElement;
    if (["OPTION", "SCRIPT"].includes(element.tagName)) continue;
    while (element && !isolates(element)) element = element.parentElement;
    if (!element) found.push(node.parentElement.outerHTML);
  }
  return found;
}
"""
"""The elements with text of a right-to-left script that is not isolated from what is around it."""


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_dashboard(
        conninfo, people, TENANTRY_PLANS=catalog_file(CATALOG)
    ) as dashboard:
        yield dashboard


@asynccontextmanager
async def reading_arabic(
    browser: Browser, dashboard: Dashboard, direction: str
) -> AsyncIterator[Page]:
    """A browser in Arabic, signed in as the tenant's owner."""
    context = await browser.new_context(
        base_url=dashboard.url, locale="ar-EG", timezone_id="Africa/Cairo"
    )
    await context.add_init_script(
        f"document.addEventListener('readystatechange', () => {{ document.documentElement.dir = '{direction}'; }})"
    )
    page = await context.new_page()
    await page.goto(dashboard.start_of(OLIVIA, f"{AT_ACME}/"))
    yield page
    await context.close()


async def report_changes(dashboard: Dashboard) -> None:
    """Two events that change plan, status and period."""
    await dashboard.deliver(events.updated(event_id="evt_1", created=events.NOW))
    later = events.updated(
        event_id="evt_2", created=events.NOW + 1, period_end=events.NOW + 2 * events.MONTH
    )
    await dashboard.deliver(later)


async def give_name(dashboard: Dashboard, user_id: str) -> None:
    """Store the name of a member, as at their first visit."""
    async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as connection:
        await connection.execute(
            "INSERT INTO user_profiles (org_id, issuer, subject, name, seen_at) "
            "SELECT tenant_id, issuer, subject, %s, now() FROM memberships WHERE subject = %s",
            (NAME, user_id),
        )


async def test_every_name_and_time_is_isolated(browser: Browser, dashboard: Dashboard) -> None:
    await report_changes(dashboard)
    wishes = {"name": NAME, "ownerEmail": OLIVIA.email, "ownerId": OLIVIA.sub}
    await dashboard.operate("PUT", f"/tenants/{ACME}", wishes)
    key = await dashboard.call(
        "POST", "/api-keys", {"orgId": ACME, "name": NAME, "scopes": ["projects:read"]}
    )
    project = await dashboard.call("POST", "/projects", {"name": NAME, "description": NAME})
    member = await dashboard.add_member("member")
    await give_name(dashboard, "member")
    keys = "/settings/api-keys"
    own = f"{keys}/{key['id']}"
    paths = (
        "/",
        "/projects",
        f"/projects/{project['id']}",
        f"/projects/{project['id']}/delete",
        "/events",
        "/events/evt_2",
        "/billing",
        keys,
        f"{keys}/new",
        own,
        f"{own}/created",
        f"{own}/rotate",
        f"{own}/revoke",
        f"{own}/first-use",
        "/settings/members",
        "/settings/members/identity-provider",
        "/settings/members/invitations",
        member.removeprefix(AT_ACME),
        "/settings/audit",
        "/settings/transfer",
        "/settings/general",
        "/settings/general/delete",
    )
    async with reading_arabic(browser, dashboard, "ltr") as page:
        for address in (
            *(AT_ACME + path for path in paths),
            "/account",
            "/account/new-organization",
        ):
            answer = await page.goto(address)
            assert answer is not None
            assert answer.status == 200, address
            assert await page.evaluate(OUTSIDE_OF_ISOLATION) == [], address
        await page.goto(AT_ACME + own)
        assert await page.title() == f"\u2068{NAME}\u2069 · \u2068{NAME}\u2069 · tenantry"
