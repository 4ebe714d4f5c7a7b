"""The plan cards of the Billing page in a real browser, with and without JavaScript."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, Page, expect

from tenantry_devkit.simulator import Simulator
from tests.support.accessibility import axe
from tests.support.browser import Watched
from tests.support.dashboard import AT_ACME, MIA, OLIVIA, Dashboard, running_dashboard
from tests.support.selling import (
    selling_settings,
    simulated_provider,
    subscribed,
    until_prices_are_shown,
)
from tests.system.test_accessibility_browser import judge

PATH: Final = f"{AT_ACME}/billing"


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with simulated_provider() as sim:
        yield sim


@pytest.fixture
async def dashboard(conninfo: str, people: Path, sim: Simulator) -> AsyncIterator[Dashboard]:
    async with running_dashboard(conninfo, people, **selling_settings(sim)) as dashboard:
        await until_prices_are_shown(await dashboard.sign_in())
        yield dashboard


async def test_plan_is_bought_without_javascript(
    browser: Browser, dashboard: Dashboard, sim: Simulator
) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    watched = Watched(page)
    await page.goto(dashboard.start_of(OLIVIA, PATH))
    await page.get_by_role("link", name="Yearly").click()
    card = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="Pro"))
    await expect(card).to_contain_text("290.00 EUR a year")
    await card.get_by_text("Several seats").click()
    await card.get_by_label("Seats").fill("5")
    await card.get_by_role("button", name="Subscribe to Pro").click()
    await page.wait_for_url(f"{sim.url}/c/pay/*")
    await page.get_by_role("button", name="Pay").first.click()
    await page.wait_for_url(f"**{PATH}?awaits=pro")
    await expect(page.get_by_text("Checkout complete.")).to_be_visible()
    [subscription] = sim.subscriptions.values()
    [item] = subscription.items
    assert (item.price.id, item.quantity) == ("price_pro_yearly", 5)
    assert watched.complaints == []
    await context.close()


async def test_plan_is_changed_through_the_portal(
    browser: Browser, dashboard: Dashboard, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim)
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(dashboard.start_of(OLIVIA, PATH))
    await page.get_by_role("button", name="Upgrade to Business").click()
    await page.wait_for_url(f"{sim.url}/p/session/*")
    await page.get_by_role("button", name="Confirm").click()
    await page.wait_for_url(f"**{PATH}")
    await expect(page.get_by_text("Changes made at the provider")).to_be_visible()
    await expect(page.get_by_text("€99.00 on")).to_be_visible()
    assert sim.subscriptions[subscription.id].price == "price_business"
    assert watched.complaints == []
    await page.close()


@pytest.mark.parametrize("user", ["owner", "member"])
async def test_cards_are_accessible_at_every_width(
    browser: Browser, dashboard: Dashboard, sim: Simulator, user: str
) -> None:
    source = axe()
    await subscribed(dashboard, sim, quantity=3)
    context = await browser.new_context(reduced_motion="reduce")
    page: Page = await context.new_page()
    watched = Watched(page)
    start = dashboard.start_of(OLIVIA, PATH) if user == "owner" else dashboard.start_of(MIA, PATH)
    await page.goto(start)
    await expect(page.get_by_role("heading", name="Plans", exact=True)).to_be_visible()
    await judge(page, source, watched)
    await context.close()
