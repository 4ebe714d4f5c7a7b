"""Confirming an owner's address in a real browser, on a wide and a narrow screen."""

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

import psycopg
import pytest
from playwright.async_api import Browser, Page, expect

from tenantry.domain.owner_mails import CONFIRM_PATH, link_digest
from tests.support.browser import Watched
from tests.support.dashboard import ACME, AT_ACME, OLIVIA, Dashboard, running_dashboard
from tests.support.postgres import PostgresServer

NEW: Final = "a-rather-long-mailbox-name-for-billing@subdivision.elsewhere.example"
EVIL: Final = "ACTION REQUIRED https://evil.example/pay"
WIDER: Final = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
PICTURES: Final = os.environ.get("TENANTRY_TEST_PICTURES")
"""A folder for screenshots of each page."""


@pytest.fixture
async def dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    with postgres.database() as conninfo:
        async with running_dashboard(conninfo, people) as dashboard:
            await dashboard.call("PATCH", f"/tenants/{ACME}", {"name": EVIL, "ownerEmail": NEW})
            yield dashboard


async def make_link(dashboard: Dashboard) -> str:
    """The path of a confirmation link, as a mail would have it."""
    token = uuid4().hex + "x" * 11
    expires = datetime.now(UTC) + timedelta(days=365)
    async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as connection:
        await connection.execute(
            "UPDATE mails SET digest = %s, expires_at = %s WHERE id = (SELECT id FROM mails "
            "WHERE type = 'owner_address.confirmation' ORDER BY created_at DESC LIMIT 1)",
            (link_digest(token), expires),
        )
    return f"{CONFIRM_PATH}?token={token}"


async def fits(page: Page, name: str) -> None:
    assert await page.evaluate(WIDER) <= 0, name
    if PICTURES:
        await page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("width", [1280, 390])
async def test_address_is_confirmed_with_one_click(
    dashboard: Dashboard, browser: Browser, width: int
) -> None:
    context = await browser.new_context(viewport={"width": width, "height": 900})
    page = await context.new_page()
    watched = Watched(page)
    await page.goto(dashboard.start_of(OLIVIA, f"{AT_ACME}/"))
    await expect(page.get_by_text("is not verified")).to_be_visible()
    await fits(page, f"overview-{width}")
    await page.get_by_role("button", name="Resend confirmation").click()
    await expect(page.get_by_role("status")).to_have_text(
        "Confirmation sent to the owner's address."
    )
    await fits(page, f"sent-{width}")
    link = await make_link(dashboard)
    await page.goto(dashboard.start_of(OLIVIA, "/").partition("/sign-in")[0] + link)
    await expect(page.locator("h1")).to_have_text("Confirm your email address")
    await expect(page.get_by_role("link")).to_have_count(0)
    await fits(page, f"confirm-{width}")
    await page.get_by_role("button", name="Confirm address").click()
    await expect(page.locator("h1")).to_have_text("Address confirmed")
    await fits(page, f"confirmed-{width}")
    assert not watched.complaints
    await page.goto(dashboard.start_of(OLIVIA, "/").partition("/sign-in")[0] + link)
    await expect(page.locator("h1")).to_have_text("This link is invalid")
    await fits(page, f"invalid-{width}")
    await page.goto(dashboard.start_of(OLIVIA, f"{AT_ACME}/"))
    await expect(page.get_by_text("is not verified")).to_have_count(0)
    await context.close()
