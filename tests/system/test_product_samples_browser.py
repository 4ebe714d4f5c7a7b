"""The operator's samples on the page of a new key, with and without JavaScript."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, Page, expect

from tests.integration.dashboard.keys import NEW
from tests.support.accessibility import axe, violations_of
from tests.support.browser import Watched
from tests.support.catalogs import catalog_file
from tests.support.dashboard import OLIVIA, Dashboard, running_dashboard

CATALOG: Final = """
[[plans]]
id = "free"
[[scopes]]
id = "reports:read"
name = "Read reports"
about = "See and download every report."
group = "Reports"
[[scopes]]
id = "reports:write"
name = "Write reports"
about = "Create and change reports."
group = "Reports"
"""
SAMPLES: Final = """
```curl
curl https://api.nimbus.example/v1/reports \\
  -H "Authorization: Bearer {key}"
```
```Python
import nimbus

client = nimbus.Client(api_key="{key}")
print(client.reports.list())
```
```TypeScript
const client = new Nimbus({ apiKey: "{key}" });
```
"""


@pytest.fixture
async def dashboard(conninfo: str, people: Path, tmp_path: Path) -> AsyncIterator[Dashboard]:
    samples = tmp_path / "samples.md"
    samples.write_text(SAMPLES)
    async with running_dashboard(
        conninfo,
        people,
        TENANTRY_PLANS=catalog_file(CATALOG),
        PRODUCT_NAME="Nimbus",
        PRODUCT_SAMPLE=str(samples),
        PRODUCT_DOCS_URL="https://docs.nimbus.example/",
        PRODUCT_SUPPORT="help@nimbus.example",
    ) as dashboard:
        yield dashboard


async def create_key(page: Page) -> str:
    """Create a key with a scope of the catalog; return its secret."""
    await page.get_by_role("textbox", name="Name").fill("CI")
    await page.get_by_label("Chosen scopes").check()
    await page.get_by_role("checkbox", name="Read reports").check()
    await page.get_by_role("button", name="Create key").click()
    return await page.locator(".secret code").inner_text()


async def test_languages_are_tabs(browser: Browser, dashboard: Dashboard) -> None:
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(dashboard.start_of(OLIVIA, NEW))
    secret = await create_key(page)
    panel = page.get_by_role("tabpanel")
    await expect(panel).to_contain_text(f"Bearer {secret}")
    curl = page.get_by_role("tab", name="curl")
    await expect(curl).to_have_attribute("aria-selected", "true")
    await curl.focus()
    await curl.press("ArrowRight")
    await expect(page.get_by_role("tab", name="Python")).to_be_focused()
    await expect(panel).to_contain_text(f'nimbus.Client(api_key="{secret}")')
    await page.keyboard.press("Home")
    await page.keyboard.press("ArrowLeft")
    await expect(panel).to_contain_text("new Nimbus(")
    await page.get_by_role("tab", name="Python").click()
    await expect(page.get_by_role("tabpanel")).to_have_count(1)
    assert await violations_of(page, axe()) == []
    assert watched.complaints == []
    await page.close()


async def test_samples_with_a_secret_leave_with_the_page(
    browser: Browser, dashboard: Dashboard
) -> None:
    page = await browser.new_page()
    await page.goto(dashboard.start_of(OLIVIA, NEW))
    secret = await create_key(page)
    await page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    assert secret not in await page.content()
    await page.close()


async def test_all_languages_are_shown_without_javascript(
    browser: Browser, dashboard: Dashboard
) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(dashboard.start_of(OLIVIA, NEW))
    secret = await create_key(page)
    for language, code in (("curl", "Bearer"), ("Python", "nimbus.Client"), ("TypeScript", "new")):
        sample = page.get_by_role("figure", name=language)
        await expect(sample).to_contain_text(code)
        await expect(sample).to_contain_text(secret)
    await context.close()
