"""The link of an invitation in a real browser, which runs scripts as some mail scanners do."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, Page, expect

from tests.support.browser import Browsers, Watched
from tests.support.dashboard import ACME, NOA, Dashboard, running_dashboard
from tests.support.postgres import PostgresServer

ENABLED: Final = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
}
VISITS: Final = 200
AT_ONCE: Final = 4
WIDER: Final = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
PICTURES: Final = os.environ.get("TENANTRY_TEST_PICTURES")
"""A folder for screenshots of each page."""


@pytest.fixture
async def dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    with postgres.database() as conninfo:
        async with running_dashboard(conninfo, people, **ENABLED) as dashboard:
            yield dashboard


async def invite(dashboard: Dashboard, email: str) -> tuple[str, str]:
    """An address invited to acme; returns the id of the invitation and its link."""
    body = {"email": email, "role": "member"}
    made = await dashboard.call("POST", "/invitations", body)
    link = await dashboard.call("GET", f"/invitations/{made['id']}/link")
    return str(made["id"]), str(link["url"])


async def visit(page: Page, link: str, times: int) -> None:
    for _ in range(times):
        await page.goto(link)
        await page.wait_for_load_state("load")


async def test_200_visits_with_scripts_leave_the_invitation_open(dashboard: Dashboard) -> None:
    """Half of them are signed in as the invited user, whose page has the button.

    A browser of its own, since the visits take longer than a test with the shared one may.
    """
    async with Browsers() as browsers:
        await visit_and_accept(dashboard, await browsers.connected())


async def visit_and_accept(dashboard: Dashboard, browser: Browser) -> None:
    invitation, link = await invite(dashboard, str(NOA.email))
    signed_in, signed_out = await browser.new_context(), await browser.new_context()
    first = await signed_in.new_page()
    await first.goto(dashboard.start_of(NOA, "/"))
    pages = [
        await context.new_page() for context in (signed_in, signed_out) for _ in range(AT_ONCE // 2)
    ]
    await asyncio.gather(*(visit(page, link, VISITS // AT_ONCE) for page in pages))
    record = await dashboard.call("GET", f"/invitations/{invitation}")
    assert record["status"] == "open"
    members = await dashboard.call("GET", f"/members?userId={NOA.sub}")
    assert members["data"] == []
    await first.goto(link)
    await first.get_by_role("button", name="Accept invitation").click()
    await first.wait_for_url(f"**/orgs/{ACME}**")
    record = await dashboard.call("GET", f"/invitations/{invitation}")
    assert record["status"] == "accepted"


@pytest.mark.parametrize("width", [1280, 390])
async def test_invited_user_signs_in_and_accepts(
    dashboard: Dashboard, browser: Browser, width: int
) -> None:
    _, link = await invite(dashboard, str(NOA.email))
    context = await browser.new_context(viewport={"width": width, "height": 900})
    page = await context.new_page()
    watched = Watched(page)
    await page.goto(link)
    await expect(page.locator("h1")).to_have_text("Join Acme")
    await fits(page, f"signed-out-{width}")
    await expect(page.get_by_role("link", name="Sign in to accept")).to_be_visible()
    await page.goto(dashboard.start_of(NOA, "/"))
    await page.goto(link)
    await fits(page, f"accept-{width}")
    await page.get_by_role("button", name="Accept invitation").click()
    await expect(page.get_by_role("status")).to_have_text(
        "Invitation accepted. You are now a member of this organization."
    )
    assert not watched.complaints


async def fits(page: Page, name: str) -> None:
    assert await page.evaluate(WIDER) <= 0, name
    if PICTURES:
        await page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)
