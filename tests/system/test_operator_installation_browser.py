"""The operator's pages of the installation in a real browser, judged by axe-core."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import pytest
from playwright.async_api import BrowserContext

from tests.integration.dashboard.test_operator_installation import (
    APP,
    HOME,
    LINK,
    SETTINGS,
    catalog_with,
    disable,
    of_unknown_customer,
)
from tests.support import events
from tests.support.accessibility import axe
from tests.support.browser import Browsers, Watched
from tests.support.catalogs import catalog_file
from tests.support.dashboard import ACME, OLGA, Dashboard, running_dashboard
from tests.support.postgres import PostgresServer
from tests.system.test_accessibility_browser import enter, judge, judge_address

MAIL: Final = """
INSERT INTO mails (id, type, tenant_id, cause, recipient, data, status, created_at, due_at, last_error)
VALUES (gen_random_uuid(), 'billing.payment_failed', 'acme', 'x', 'a@b.example', '{}', 'failed', now(), now(),
        'the mail server permanently rejected the recipient')
"""
REFUSAL: Final = """
INSERT INTO provider_refusals (operation, code, message, number, first_at, last_at, last_tenant)
VALUES ('checkout', 'resource_missing', 'No such price: price_pro', 3, now(), now(), 'acme')
"""


@pytest.fixture(scope="module")
def source() -> str:
    return axe()


@pytest.fixture(scope="module")
async def trouble(
    source: str, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Dashboard]:
    """An installation with something of every kind in trouble."""
    assert source  # before anything is started that only this needs
    async with AsyncExitStack() as stack:
        conninfo = stack.enter_context(postgres.database())
        folder = tmp_path_factory.mktemp("people")
        catalog = catalog_file(catalog_with("http://127.0.0.1:1/"))
        dashboard = await stack.enter_async_context(
            running_dashboard(conninfo, folder, TENANTRY_PLANS=catalog, **SETTINGS)
        )
        await dashboard.deliver(of_unknown_customer("cus_Rk2pXw7Lm3"))
        await dashboard.deliver(events.subscription_created(org="later", customer="cus_later"))
        await dashboard.deliver(events.subscription_created(org=ACME, price="price_unknown"))
        await disable(dashboard)
        await dashboard.execute(MAIL)
        await dashboard.execute(REFUSAL)
        yield dashboard


@pytest.fixture(scope="module")
async def operators(browsers: Browsers, trouble: Dashboard) -> AsyncIterator[BrowserContext]:
    context = await enter(await browsers.connected(), trouble, OLGA)
    yield context
    await context.close()


@pytest.mark.parametrize("path", [HOME, f"{HOME}/events", LINK, APP])
async def test_a_page(operators: BrowserContext, source: str, path: str) -> None:
    await judge_address(operators, source, path)


async def test_the_findings_of_a_check(operators: BrowserContext, source: str) -> None:
    page = await operators.new_page()
    watched = Watched(page)
    await page.goto(HOME)
    await page.get_by_role("button", name="Check now").click()
    await page.wait_for_url(f"**{HOME}/checks")
    await judge(page, source, watched)
    await page.close()


async def test_an_endpoint_that_was_tested(operators: BrowserContext, source: str) -> None:
    page = await operators.new_page()
    watched = Watched(page)
    await page.goto(APP)
    await page.get_by_role("button", name="Send a test message").click()
    await page.get_by_text("The receiver did not answer").wait_for()
    await judge(page, source, watched)
    await page.close()
