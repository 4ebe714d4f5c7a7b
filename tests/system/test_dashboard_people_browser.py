"""Projects, members, the trail and the profile in a real browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import pytest
from playwright.async_api import Browser, Page, expect

from tenantry_devkit.serving import serving
from tests.support.browser import Watched
from tests.support.dashboard import ADAM, AT_ACME, OLIVIA, Dashboard, running_dashboard
from tests.support.postgres import PostgresServer
from tests.support.simulator import a_simulator
from tests.system.test_reference_page_browser import AA, LEAST_CONTRAST

Scheme = Literal["light", "dark"]
MARKUP: Final = "<img src=x onerror=alert(1)>"
NOTHING_TWICE: Final = """
() => [...document.querySelectorAll("[id]")].map((one) => one.id).filter((id, at, all) => all.indexOf(id) !== at)
"""
UNNAMED: Final = """
() => [...document.querySelectorAll("input:not([type=hidden]), select, textarea")]
  .filter((one) => !one.labels.length).map((one) => one.outerHTML)
"""

INVITING: Final = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
}


@pytest.fixture(scope="module")
async def dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    with postgres.database() as conninfo:
        async with running_dashboard(conninfo, people, **INVITING) as dashboard:
            await dashboard.call(
                "POST", "/invitations", {"email": f"{'long' * 15}@x.example", "role": "member"}
            )
            await dashboard.call(
                "POST", "/projects", {"name": MARKUP, "description": f"A description. {MARKUP}"}
            )
            await dashboard.call(
                "POST", "/api-keys", {"orgId": "acme", "name": MARKUP, "scopes": ["projects:read"]}
            )
            await dashboard.add_member("auth0|5f7c8ec7c33c6c004bbafe82-" + "x" * 80)
            yield dashboard


@asynccontextmanager
async def visiting(
    browser: Browser,
    dashboard: Dashboard,
    path: str,
    *,
    width: int = 1280,
    scheme: Scheme = "light",
    script: bool = True,
) -> AsyncIterator[Page]:
    """A page as Olivia sees it; at the end, nothing in it may have been complained of."""
    context = await browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
    )
    page = await context.new_page()
    watched = Watched(page)
    await page.goto(dashboard.start_of(OLIVIA, f"{AT_ACME}{path}"))
    await expect(page.locator("h1")).to_be_visible()
    yield page
    assert not [complaint for complaint in watched.complaints if "status of 422" not in complaint]
    assert all(request.startswith(("http://127.0.0.1", "data:")) for request in watched.requests)
    await context.close()


async def paths(dashboard: Dashboard) -> list[str]:
    [project] = [
        one for one in (await dashboard.call("GET", "/projects"))["data"] if one["name"] == MARKUP
    ]
    member = (await dashboard.page_of("olivia")).removeprefix(AT_ACME)
    other = (await dashboard.call("GET", "/members?role=member"))["data"][0]["id"]
    [mailed] = (await dashboard.call("GET", "/invitations"))["data"]
    return [
        "/projects",
        "/projects/new",
        f"/projects/{project['id']}",
        f"/projects/{project['id']}/edit",
        f"/projects/{project['id']}/delete",
        "/settings/members",
        "/settings/members/identity-provider",
        "/settings/members/invitations",
        f"/settings/members/invitations/{mailed['id']}",
        f"/settings/members/invitations/{mailed['id']}/withdraw",
        "/settings/members/invitations/new",
        "/settings/members/new",
        member,
        f"{member}/remove",
        f"/settings/members/{other}",
        f"/settings/members/{other}/remove",
        "/settings/transfer",
        "/settings/audit",
        "/settings/general",
        "/settings/general/delete",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_is_legible_labeled_and_fits_narrow_screens(
    browser: Browser, dashboard: Dashboard, scheme: Scheme
) -> None:
    async with visiting(browser, dashboard, "/projects", width=320, scheme=scheme) as page:
        for path in await paths(dashboard):
            await page.goto(f"{dashboard.url}{AT_ACME}{path}")
            for details in await page.locator("main details").all():
                await details.evaluate("(one) => { one.open = true; }")
            assert await page.evaluate("document.documentElement.scrollWidth") <= 320, path
            ratio, where = await page.evaluate(LEAST_CONTRAST)
            assert ratio >= AA, (path, where)
            assert await page.evaluate(UNNAMED) == [], path
            assert await page.evaluate(NOTHING_TWICE) == [], path
            assert await page.locator("h1").count() == 1, path


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_demo_pages_are_legible_labeled_and_fit_narrow_screens(
    browser: Browser, dashboard: Dashboard, scheme: Scheme
) -> None:
    sim = a_simulator()
    customer = sim.customer("cus_acme", email="owner@acme.example")
    sim.subscribe(customer, "price_pro")
    sim.misbehave(drop=0.5)
    async with serving(sim):
        session = sim.checkout("price_pro", customer=customer)
        page = await browser.new_page(viewport={"width": 320, "height": 900}, color_scheme=scheme)
        for address in (
            f"{sim.url}/",
            sim.portal(customer, f"{sim.url}/").url,
            session.url or "",
            f"{dashboard.beside}/inbox",
            f"{dashboard.beside}/device",
        ):
            await page.goto(address)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 320, address
            ratio, where = await page.evaluate(LEAST_CONTRAST)
            assert ratio >= AA, (address, where)
            assert await page.evaluate(UNNAMED) == [], address
            assert await page.evaluate(NOTHING_TWICE) == [], address
        await page.close()


async def test_simulator_buttons_fail_a_payment_without_javascript(browser: Browser) -> None:
    sim = a_simulator()
    sim.subscribe(sim.customer("cus_acme"), "price_pro")
    async with serving(sim):
        page = await browser.new_page(java_script_enabled=False)
        await page.goto(f"{sim.url}/")
        await page.get_by_role("button", name="Let it decline").click()
        await page.get_by_role("button", name="31 days").click()
        await expect(page.get_by_text("past_due")).to_be_visible()
        await expect(page.get_by_text("invoice.payment_failed")).to_be_visible()
        await page.close()


async def test_project_is_deleted_in_a_dialog(browser: Browser, dashboard: Dashboard) -> None:
    made = await dashboard.call("POST", "/projects", {"name": "Short-lived"})
    async with visiting(browser, dashboard, f"/projects/{made['id']}") as page:
        address = page.url
        await page.get_by_role("link", name="Delete").click()
        dialog = page.get_by_role("dialog", name="Delete this project?")
        await expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        await dialog.get_by_role("button", name="Cancel").click()
        await expect(dialog).to_be_hidden()
        await page.get_by_role("link", name="Delete").click()
        await dialog.get_by_label("To confirm, type Short-lived").fill("something else")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("The name does not match.")).to_be_visible()
        assert page.url == f"{address}/delete"
        await expect(page.get_by_label("To confirm, type Short-lived")).to_be_focused()
        await page.get_by_label("To confirm, type Short-lived").fill("Short-lived")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").filter(has_text="deleted")).to_be_visible()


async def test_member_is_managed_without_javascript(browser: Browser, dashboard: Dashboard) -> None:
    async with visiting(browser, dashboard, "/settings/members", script=False) as page:
        await page.get_by_role("link", name="Invite member").click()
        await page.get_by_role("link", name="Invite by user id").click()
        await page.get_by_label("User id").fill("auth0|guest")
        await page.get_by_role("button", name="Invite").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("auth0|guest")
        await expect(page.get_by_role("link", name="Withdraw invitation")).to_be_visible()
        await dashboard.accept_invitations()
        await page.reload()
        await page.get_by_label("Role", exact=True).select_option("admin")
        await page.get_by_role("button", name="Change role").click()
        await expect(page.get_by_role("status")).to_contain_text("Role changed.")
        await page.get_by_role("link", name="Remove").click()
        await expect(
            page.get_by_text("The very next request of auth0|guest is rejected")
        ).to_be_visible()
        await page.get_by_role("button", name="Remove member").click()
        await expect(page.get_by_role("status")).to_contain_text("Member removed.")
        await page.get_by_role("link", name="Show removed members").click()
        await page.get_by_role("link", name="auth0|guest").click()
        await page.get_by_role("link", name="Invite again").click()
        await page.get_by_role("button", name="Invite").click()
        await expect(page.get_by_role("status")).to_contain_text("Invitation created.")


async def test_remove_dialog_focuses_cancel(browser: Browser, dashboard: Dashboard) -> None:
    path = (await dashboard.add_member("auth0|stays")).removeprefix(AT_ACME)
    async with visiting(browser, dashboard, path) as page:
        await page.get_by_role("link", name="Remove").click()
        dialog = page.get_by_role("dialog", name="Remove this member?")
        await expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(dialog).to_be_hidden()
        await page.get_by_role("link", name="Remove").click()
        await dialog.get_by_role("button", name="Remove member").click()
        await expect(page.get_by_role("status")).to_contain_text("Member removed.")


async def test_audit_entries_open_by_keyboard_and_are_exported(
    browser: Browser, dashboard: Dashboard
) -> None:
    async with visiting(browser, dashboard, "/settings/audit") as page:
        entry = page.get_by_role("listitem").filter(has_text="Olivia Owner created the key")
        await expect(entry.first).to_contain_text(MARKUP)
        await entry.first.locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(entry.first.get_by_text("projects:read")).to_be_visible()
        async with page.expect_download() as downloading:
            await page.get_by_role("link", name="Export as NDJSON").click()
        download = await downloading.value
        assert download.suggested_filename.startswith("audit-acme-")
        assert (await download.path()).read_text().count("\n") >= 3


async def test_user_signs_out_everywhere_else(browser: Browser, dashboard: Dashboard) -> None:
    async with (
        visiting(browser, dashboard, "/") as other,
        visiting(browser, dashboard, "/", script=False) as page,
    ):
        await page.goto(f"{dashboard.url}/account")
        await page.get_by_role("button", name="Sign out everywhere else").click()
        await expect(page.get_by_role("status")).to_contain_text(
            "All other sessions are signed out"
        )
        await expect(page.get_by_text("this one")).to_have_count(1)
        await other.goto(f"{dashboard.url}/sign-in?return_to=/")
        await other.goto(f"{dashboard.url}/account")
        await expect(other.get_by_role("heading", level=1)).to_have_text("Sign in")


@pytest.mark.parametrize("script", [True, False])
async def test_input_survives_the_end_of_the_session(
    browser: Browser, dashboard: Dashboard, *, script: bool
) -> None:
    context = await browser.new_context(java_script_enabled=script, base_url=dashboard.url)
    page = await context.new_page()
    await page.goto(dashboard.start_of(OLIVIA, f"{AT_ACME}/projects/new"))
    await page.get_by_label("Name").fill("A long story")
    await page.get_by_label("Description").fill(f"First line\n  second line {MARKUP}")
    await context.clear_cookies()
    await page.get_by_role("button", name="Create project").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Your session has ended")
    async with context.expect_page() as opening:
        await page.get_by_role("link", name="Sign in in a new tab").click()
    other = await opening.value
    await expect(other.get_by_role("heading", level=1)).to_have_text("Sign in")
    await other.goto(dashboard.start_of(OLIVIA))
    if script:
        await page.evaluate("dispatchEvent(new Event('focus'))")
        await expect(page.get_by_role("status")).to_have_text("You are signed in again.")
    else:  # the page cannot know who has signed in
        await page.get_by_role("button", name="Submit", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Submit this form?")
    await expect(page.get_by_text("A long story")).to_be_visible()
    await page.get_by_role("button", name="Submit", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("A long story")
    assert await page.locator(".as-typed").inner_text() == f"First line\n  second line {MARKUP}"
    # the plan has room for few
    await dashboard.call("DELETE", f"/projects/{page.url.rpartition('/')[2]}")
    await context.close()


async def test_form_of_another_person_is_confirmed(browser: Browser, dashboard: Dashboard) -> None:
    context = await browser.new_context(base_url=dashboard.url)
    page, other = await context.new_page(), await context.new_page()
    await page.goto(dashboard.start_of(OLIVIA, f"{AT_ACME}/projects/new"))
    await page.get_by_label("Name").fill("Of Olivia")
    await context.clear_cookies()
    await page.get_by_role("button", name="Create project").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Your session has ended")
    await other.goto(dashboard.start_of(ADAM))
    async with page.expect_response("**/account") as looking:
        await page.evaluate("dispatchEvent(new Event('focus'))")
    await (await looking.value).finished()
    await page.get_by_role("button", name="Submit", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Submit this form?")
    await expect(page.get_by_text("You are now signed in as Adam Admin.")).to_be_visible()
    projects = (await dashboard.call("GET", "/projects"))["data"]
    assert "Of Olivia" not in [project["name"] for project in projects]
    await context.close()


async def test_signing_out_of_an_ended_session_succeeds(
    browser: Browser, dashboard: Dashboard
) -> None:
    async with visiting(browser, dashboard, "/projects") as page:
        await page.context.clear_cookies()
        await page.locator(".person summary").click()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("You are signed out")
