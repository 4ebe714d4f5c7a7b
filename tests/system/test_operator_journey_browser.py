"""What the page on the operator's pages lets a newcomer try, in a real browser and the demo."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx2
from playwright.async_api import Browser, Page, expect

from tests.e2e.test_demo import demo, trouble_of
from tests.support.browser import Watched
from tests.support.documentation import ROOT, sections_of
from tests.support.ports import free_port

_PAGE: Final = ROOT / "docs" / "how-to" / "operator-pages.md"
_STEP: Final = re.compile(r"^\d\. (.+(?:\n   .+)*)", re.MULTILINE)
_ACT: Final = re.compile(r"\*\*([^*]+)\*\*|\*([^*]+)\*\s+(?:`([^`]+)`|in a week)")
"""What a step lets the reader do: open or press something, or fill in a field."""
_RESULTS: Final = (
    "What led to it",
    "Trial of the largest plan",
    "new-card",
    "Revoked",
    "Suspended.",
    "Resumed",
    "set the grant",
)
"""What the page shows after each step."""


def steps() -> Iterator[str]:
    for step in _STEP.findall(sections_of(_PAGE, "Try them")):
        yield " ".join(step.split())


async def follow(page: Page, step: str) -> None:
    """Do what a step says."""
    for name, field, text in _ACT.findall(step):
        if name:
            await open_or_press(page, name)
        else:
            await fill_in(page, field, text)


async def open_or_press(page: Page, name: str) -> None:
    """Use a button of the form or dialog that is open, else a link."""
    dialog = page.locator("dialog[open]")
    within = dialog if await dialog.count() else page.locator("body")
    button = within.get_by_role("button", name=name, exact=True)
    link = within.get_by_role("link", name=name, exact=True)
    await (button if await button.count() else link).first.click()
    await page.wait_for_load_state()


async def fill_in(page: Page, label: str, text: str) -> None:
    field = page.get_by_label(re.compile(f"^{re.escape(label)}")).last
    if not text:
        in_a_week = datetime.now(UTC) + timedelta(weeks=1)
        await field.fill(in_a_week.strftime("%Y-%m-%dT%H:%M"))
    elif await field.evaluate("element => element.localName") == "select":
        await field.select_option(label=text)
    else:
        await field.fill(text)
    if await field.get_attribute("type") == "search":
        await field.press("Enter")
        await page.wait_for_load_state()


async def test_newcomer_repairs_a_customer_as_the_page_says(browser: Browser, place: Path) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    context = await browser.new_context(base_url=address)
    async with demo(place, port):
        with httpx2.Client(base_url=address, trust_env=False, verify=False) as client:
            trouble_of(client, place)
        page = await context.new_page()
        watched = Watched(page)
        await page.goto("/operator")
        await page.get_by_role("link", name="Otto Operator").click()
        for step, result in zip(steps(), _RESULTS, strict=True):
            await follow(page, step)
            await expect(page.locator("main").get_by_text(result).first).to_be_visible()
        for act in ("Otto Operator", "revoked the key", "Your export floods the API"):
            shown = page.locator("main").get_by_text(act).locator("visible=true")
            await expect(shown.first).to_be_visible()
        assert watched.complaints == []
    await context.close()
