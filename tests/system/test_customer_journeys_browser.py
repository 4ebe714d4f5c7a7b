"""What customers come for, each as one journey in a real browser, on one service."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from playwright.async_api import Browser, Page, expect

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry_devkit.identity_tokens import DemoUser
from tenantry_devkit.simulator import SECRET_KEY, Simulator
from tests.support import signing
from tests.support.app import WEBHOOK_SECRET
from tests.support.catalogs import catalog_file
from tests.support.dashboard import (
    ACME,
    AT_ACME,
    AT_BETA,
    BERTA,
    BETA,
    MIA,
    NOA,
    OLIVIA,
    Dashboard,
    running_dashboard,
)
from tests.support.database_link import DatabaseLink, database_link
from tests.support.events import updated
from tests.support.postgres import PostgresServer
from tests.support.serving import LOOPBACK, serving, url_of

VERIFY: Final = "/api/v1/auth/verify/reports:read"
CATALOG: Final = """
[[scopes]]
id = "reports:read"
name = "Read reports"
group = "Reports"
[[scopes]]
id = "reports:write"
name = "Write reports"
group = "Reports"
[[features]]
id = "exports"
name = "Exports"
type = "metered"
period = "billing"

[[plans]]
id = "free"
name = "Free"
[plans.features]
exports = 10
[[plans]]
id = "pro"
name = "Pro"
stripe_price_id = "price_pro"
[plans.features]
exports = 10
"""
SAMPLE: Final = f"""
```curl
curl --silent --output /dev/null --write-out "%{{http_code}}" \\
  -H "Authorization: Bearer {{key}}" {{base}}{VERIFY}
```
"""
ELSEWHERE: Final = "http://elsewhere.example/"


class Place(NamedTuple):
    """The service, the link to its database, and its payment provider, whose clock is 40 days
    late.
    """

    dashboard: Dashboard
    link: DatabaseLink
    provider: Simulator


@pytest.fixture(scope="module")
async def place(
    postgres: PostgresServer, people: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    sample = tmp_path_factory.mktemp("samples") / "samples.md"
    sample.write_text(SAMPLE)
    with (
        postgres.database() as conninfo,
        socket.create_server((LOOPBACK, 0)) as listener,
    ):
        start = datetime.now(UTC) - timedelta(days=40)
        provider = Simulator(url=url_of(listener), start=start)
        settings = {
            "PRODUCT_NAME": "Nimbus",
            "PRODUCT_SAMPLE": str(sample),
            "PROVIDER_SECRET_KEY": SECRET_KEY,
            "PROVIDER_API_BASE": provider.url,
            "TENANTRY_PLANS": catalog_file(CATALOG),
        }
        async with (
            serving(provider, listener),
            database_link(conninfo) as link,
            running_dashboard(link.conninfo, people, DEFAULT_TIMEOUTS, **settings) as dashboard,
        ):
            provider.add_endpoint(f"{dashboard.url}{signing.PATH}", WEBHOOK_SECRET)
            yield Place(dashboard, link, provider)


@asynccontextmanager
async def visiting(
    browser: Browser, place: Place, user: DemoUser, path: str
) -> AsyncIterator[Page]:
    """A page as a user sees it, on a service that names no other product."""
    context = await browser.new_context(base_url=place.dashboard.url)
    page = await context.new_page()
    await page.goto(place.dashboard.start_of(user, path))
    yield page
    assert "tenantry" not in (await page.locator("body").inner_text()).lower()
    await context.close()


async def reload_until(page: Page, text: str) -> None:
    """Reload a page until it says this: what it shows is written behind the requests."""
    while not await page.get_by_text(text).count():
        await page.reload()


async def expect_title(page: Page, text: str) -> None:
    """Expect the page's heading; a form may wait for the deadline of its request."""
    await expect(page.get_by_role("heading", level=1)).to_have_text(text, timeout=30_000)


async def test_key_is_created_and_the_vendors_sample_runs(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, OLIVIA, f"{AT_ACME}/settings/api-keys") as page:
        await page.get_by_role("main").get_by_role("link", name="Create key").first.click()
        await page.get_by_role("textbox", name="Name").fill("CI")
        await page.get_by_label("Chosen scopes").check()
        await page.get_by_role("checkbox", name="Read reports").check()
        await page.get_by_role("button", name="Create key").click()
        await expect_title(page, "Key created")
        sample = await page.locator("code", has_text="curl --silent").inner_text()
        process = await asyncio.create_subprocess_shell(sample, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        assert output == b"200"
        await expect(page.get_by_text("The key works.")).to_be_visible(timeout=30_000)
        await page.get_by_label("I've saved this key").check()


async def test_reason_of_a_403_is_found_and_mended(browser: Browser, place: Place) -> None:
    dashboard = place.dashboard
    key = {"orgId": ACME, "name": "Nightly export", "scopes": ["reports:read"]}
    secret = (await dashboard.call("POST", "/api-keys", key))["secret"]
    writes = "/auth/verify/reports:write"
    assert (await dashboard.request("GET", writes, secret)).status_code == 403
    async with visiting(browser, place, OLIVIA, f"{AT_ACME}/usage") as page:
        await reload_until(page, "Scope missing")
        row = page.get_by_role("row").filter(has_text="Nightly export")
        await expect(row).to_contain_text("reports:write: Write reports")
        await row.get_by_role("link", name="Nightly export").click()
        await page.get_by_role("link", name="Edit").click()
        await page.get_by_role("checkbox", name="Write reports").check()
        await page.get_by_role("button", name="Save").click()
        await expect_title(page, "Nightly export")
    assert (await dashboard.request("GET", writes, secret)).status_code == 200


async def test_end_of_a_quota_is_seen_before_it_comes(browser: Browser, place: Place) -> None:
    dashboard = place.dashboard
    consume = "/entitlements/exports/consume"
    middle = int(time.time()) + 15 * 86_400  # of the period, which began as long ago
    at = middle - 20 * 86_400
    await dashboard.deliver(updated(org=BETA, customer="cus_beta", created=at, period_end=middle))
    await dashboard.call("POST", consume, {"amount": 9}, user=BERTA)
    async with visiting(browser, place, BERTA, f"{AT_BETA}/") as page:
        quotas = page.get_by_role("region", name="Quotas", exact=True)
        await expect(quotas).to_contain_text("A quota is nearly used up.")
        await expect(quotas).to_contain_text("Exports: 9 of 10 used. It starts again on")
        await quotas.get_by_role("link", name="See usage").click()
        await expect(page.get_by_text("1 left. At the present rate, none is left")).to_be_visible()
        refused = await dashboard.request("POST", consume, dashboard.token(BERTA), {"amount": 2})
        assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded")
        await reload_until(page, "Quota used up")
        await dashboard.call("POST", consume, {"amount": 1}, user=BERTA)
        await page.reload()
        await expect(quotas).to_contain_text("A quota is used up.")


async def test_failed_invoice_is_paid(browser: Browser, place: Place) -> None:
    dashboard, provider = place.dashboard, place.provider
    customer = provider.customer("cus_acme")
    provider.subscribe(customer, "price_pro", metadata={"orgId": ACME})
    provider.card_declines(customer)
    await provider.advance(days=32)
    provider.card_works(customer)
    async with visiting(browser, place, OLIVIA, f"{AT_ACME}/") as page:
        alert = page.get_by_role("region", name="Payment")
        await expect(alert).to_contain_text("A payment failed.")
        await alert.get_by_role("link", name="Pay the invoice").click()
        await page.wait_for_url(f"{provider.url}/i/*")
        await page.get_by_role("button", name="Pay").click()
        await expect(page.get_by_text("paid", exact=True)).to_be_visible()
        await page.goto(f"{AT_ACME}/")
        await expect(alert).to_have_count(0)
        await page.get_by_role("main").get_by_role("link", name="Billing history").click()
        received = page.get_by_role("link", name="was received.").first
        await expect(received).to_have_text("The payment of €29.00 was received.")
        await expect(page.get_by_text("Your subscription is active again.")).to_be_visible()
    assert (await dashboard.call("GET", f"/tenants/{ACME}"))["subscriptionStatus"] == "active"


async def test_organization_is_transferred_to_a_member_by_name(
    browser: Browser, place: Place
) -> None:
    dashboard = place.dashboard
    invited = {"userId": MIA.sub, "role": "member"}
    await dashboard.call("POST", "/members", invited, user=BERTA)
    await dashboard.accept_invitations()
    async with visiting(browser, place, MIA, f"{AT_BETA}/"):
        pass  # the organization learns the name
    async with visiting(browser, place, BERTA, f"{AT_BETA}/settings/general") as page:
        await page.get_by_role("link", name="Transfer").click()
        await page.get_by_role("radio", name=MIA.name).check()
        await page.get_by_label("Type Beta").fill("Beta")
        await page.get_by_role("button", name="Transfer ownership").click()
        await expect(page.get_by_role("status")).to_contain_text("transferred")
    record = await dashboard.call("GET", f"/tenants/{BETA}", user=BERTA)
    assert record["ownerId"] == MIA.sub


async def test_form_outlives_a_database_that_hangs(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, OLIVIA, f"{AT_ACME}/projects/new") as page:
        await page.get_by_label("Name").fill("Storefront")
        place.link.block()
        await page.get_by_role("button", name="Create project").click()
        await expect_title(page, "Not saved yet")
        await expect(page.get_by_text("Nothing was saved, because")).to_be_visible()
        await expect(page.get_by_text("Storefront")).to_be_visible()
        await expect(page.get_by_role("button", name="Submit")).to_be_visible()
        place.link.unblock()
        await expect_title(page, "Storefront")


async def test_form_of_a_removed_member_keeps_the_text(browser: Browser, place: Place) -> None:
    dashboard = place.dashboard
    member = (await dashboard.add_member(NOA.sub)).rpartition("/")[2]
    async with visiting(browser, place, NOA, f"{AT_ACME}/projects/new") as page:
        await page.get_by_label("Name").fill("Much thought")
        await dashboard.call("DELETE", f"/members/{member}")
        await page.get_by_role("button", name="Create project").click()
        await expect_title(page, "Page not found")
        await expect(page.get_by_text("Nothing was saved.")).to_be_visible()
        await expect(page.get_by_text("Much thought")).to_be_visible()


async def test_form_with_a_wrong_token_is_asked_about_and_that_of_another_site_forgotten(
    browser: Browser, place: Place
) -> None:
    new = f"{AT_ACME}/projects/new"
    async with visiting(browser, place, OLIVIA, new) as page:
        await page.get_by_label("Name").fill("Of this page")
        await page.evaluate("document.querySelector('main [name=form_token]').value = 'wrong'")
        await page.get_by_role("button", name="Create project").click()
        await expect_title(page, "Submit this form?")
        await page.get_by_role("button", name="Submit").click()
        await expect_title(page, "Of this page")

        form = f'<form method="post" action="{place.dashboard.url}{new}">'
        field = '<input name="name" value="Of elsewhere"><button>Go</button></form>'
        await page.route(
            ELSEWHERE, lambda route: route.fulfill(body=form + field, content_type="text/html")
        )
        await page.goto(ELSEWHERE)
        await page.get_by_role("button", name="Go").click()
        await page.wait_for_url(f"{place.dashboard.url}{new}")
        assert "Of elsewhere" not in await page.content()
        projects = (await place.dashboard.call("GET", "/projects"))["data"]
        assert "Of elsewhere" not in [project["name"] for project in projects]
