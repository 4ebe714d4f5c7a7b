"""The life of an API key in the dashboard, in a real browser, with script and without."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, BrowserContext, Dialog, Page, expect

from tests.support.browser import Watched
from tests.support.dashboard import ACME, AT_ACME, OLIVIA, Dashboard, running_dashboard
from tests.system.test_reference_page_browser import AA, LEAST_CONTRAST, SCHEMES, WIDTHS, Scheme

KEYS: Final = f"{AT_ACME}/settings/api-keys"
PATIENCE: Final = 30_000
"""Milliseconds until the use of a key must show; it is written every five seconds, and asked for
every two.
"""


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_dashboard(conninfo, people) as dashboard:
        yield dashboard


async def signed_in(
    browser: Browser, dashboard: Dashboard, *, script: bool = True
) -> tuple[BrowserContext, Page]:
    """The tenant's owner, on the list of keys."""
    context = await browser.new_context(java_script_enabled=script, base_url=dashboard.url)
    page = await context.new_page()
    await page.goto(f"/sign-in/start?hint={OLIVIA.sub}&return_to={KEYS}")
    assert page.url == dashboard.url + KEYS
    return context, page


async def fill_in(page: Page, name: str = "CI") -> None:
    """The form of a new key, from the list of keys."""
    await page.get_by_role("link", name="Create key").first.click()
    await page.get_by_role("textbox", name="Name").fill(name)
    await page.get_by_label("Chosen scopes").check()
    await page.get_by_role("checkbox", name="projects:read").check()


async def create(page: Page, name: str = "CI") -> str:
    """Make a key, and read its secret."""
    await fill_in(page, name)
    await page.get_by_role("button", name="Create key").click()
    await expect(page.get_by_role("heading", name="Key created")).to_be_visible()
    return await secret_of(page)


async def secret_of(page: Page) -> str:
    secret = await page.locator(".secret code").text_content()
    assert secret
    return secret


async def status_of(dashboard: Dashboard, secret: str) -> int:
    """What the API answers to a key."""
    return (await dashboard.request("GET", "/projects", secret)).status_code


async def test_life_of_a_key(browser: Browser, dashboard: Dashboard) -> None:
    context, page = await signed_in(browser, dashboard)
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    watched = Watched(page)

    secret = await create(page)
    await page.locator(".secret").get_by_role("button", name="Copy").click()
    await expect(page.locator(".secret").get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == secret
    await expect(page.get_by_text("Waiting for the first request")).to_be_visible()
    assert await status_of(dashboard, secret) == 200
    await expect(page.locator(".tick.done")).to_contain_text("The key works.", timeout=PATIENCE)

    await page.get_by_role("link", name="Open the key").click()
    await page.get_by_role("link", name="Rotate").click()
    rotation = page.get_by_role("dialog", name="Rotate CI")
    await rotation.get_by_label("1 hour").check()
    await rotation.get_by_role("button", name="Rotate key").click()
    new = await secret_of(page)
    assert [await status_of(dashboard, one) for one in (secret, new)] == [200, 200]
    await page.get_by_label("I've saved this key").check()
    await page.get_by_role("link", name="Open the key").click()
    replaced = page.get_by_text("The old key keeps working")
    await expect(replaced).to_contain_text("It was last used")

    await page.get_by_role("link", name="Revoke", exact=True).click()
    revocation = page.get_by_role("dialog", name="Revoke CI")
    await revocation.get_by_label("To confirm, type CI").fill("CI")
    await revocation.get_by_role("button", name="Revoke key").click()
    await expect(page.get_by_text("Requests with this key are rejected.")).to_be_visible()
    assert [await status_of(dashboard, one) for one in (secret, new)] == [200, 401]
    assert not watched.complaints
    assert not [url for url in watched.requests if secret in url or new in url]
    assert not [url for url in watched.requests if not url.startswith(dashboard.url)]
    await context.close()


async def test_life_of_a_key_without_javascript(browser: Browser, dashboard: Dashboard) -> None:
    context, page = await signed_in(browser, dashboard, script=False)

    secret = await create(page)
    await expect(page.get_by_role("button", name="Copy")).to_have_count(0)
    await expect(page.get_by_label("I've saved this key")).to_be_hidden()
    assert await status_of(dashboard, secret) == 200
    async with page.expect_popup() as opened:
        await page.get_by_role("link", name="Check now").click()
    check = await opened.value
    await expect(check.get_by_role("heading", name="CI")).to_be_visible()
    await dashboard.use_key(check.url.split("/")[-2], secret)
    await check.get_by_role("link", name="Check again").click()
    await expect(check.get_by_text("The key works.")).to_be_visible()
    assert await secret_of(page) == secret

    await page.get_by_role("link", name="Open the key").click()
    await page.get_by_role("link", name="Rotate").click()
    await page.get_by_label("Revoke it now").check()
    await page.get_by_role("button", name="Rotate key").click()
    new = await secret_of(page)
    assert [await status_of(dashboard, one) for one in (secret, new)] == [401, 200]

    await page.get_by_role("link", name="Open the key").click()
    await page.get_by_role("link", name="Revoke", exact=True).click()
    await page.get_by_label("To confirm, type CI").fill("CI")
    await page.get_by_role("button", name="Revoke key").click()
    await expect(page.get_by_text("Requests with this key are rejected.")).to_be_visible()
    assert await status_of(dashboard, new) == 401
    await context.close()


async def test_double_click_creates_one_key_and_shows_its_secret(
    browser: Browser, dashboard: Dashboard
) -> None:
    context, page = await signed_in(browser, dashboard)
    await fill_in(page)
    await page.get_by_role("button", name="Create key").dblclick()
    assert await status_of(dashboard, await secret_of(page)) == 200
    await page.get_by_label("I've saved this key").check()
    await page.goto(KEYS)
    await expect(page.locator("tbody tr")).to_have_count(1)
    await context.close()


@pytest.mark.parametrize("script", [True, False])
async def test_reload_and_back_show_the_page_without_the_secret_and_send_no_form(
    browser: Browser, dashboard: Dashboard, *, script: bool
) -> None:
    context, page = await signed_in(browser, dashboard, script=script)
    secret = await create(page)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    if script:
        await page.get_by_label("I've saved this key").check()
    shown_at = page.url
    await page.reload()
    await says_that_the_secret_was_shown(page, secret)
    await page.get_by_role("link", name="Open the key").click()
    await expect(page.get_by_role("heading", name="Permissions")).to_be_visible()
    await page.go_back()
    assert page.url == shown_at
    await says_that_the_secret_was_shown(page, secret)
    assert set(sent) == {"GET"}
    await page.get_by_role("link", name="rotate the key").click()
    await expect(page.get_by_role("heading", name="Rotate CI")).to_be_visible()
    await context.close()


async def says_that_the_secret_was_shown(page: Page, secret: str) -> None:
    await expect(page.get_by_role("heading", name="Key created")).to_be_visible()
    await expect(
        page.get_by_text("The secret was shown once, when the key was created.")
    ).to_be_visible()
    assert secret not in await page.content()


async def test_back_from_the_page_just_after_the_form_sends_no_form(
    browser: Browser, dashboard: Dashboard
) -> None:
    context, page = await signed_in(browser, dashboard)
    await create(page)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    await page.get_by_label("I've saved this key").check()
    await page.go_back()
    await expect(page.get_by_role("heading", name="Create key")).to_be_visible()
    await page.go_forward()
    await expect(page.get_by_role("heading", name="Key created")).to_be_visible()
    assert set(sent) == {"GET"}
    await context.close()


async def test_page_that_the_browser_keeps_in_memory_has_no_secret(
    browser: Browser, dashboard: Dashboard
) -> None:
    context, page = await signed_in(browser, dashboard)
    secret = await create(page)
    await page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
    assert secret not in await page.content()
    await page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    await says_that_the_secret_was_shown(page, secret)
    await context.close()


@pytest.mark.parametrize("action", ["Rotate", "Revoke"])
async def test_focus_of_a_dialog_is_on_the_choice_that_changes_nothing(
    browser: Browser, dashboard: Dashboard, action: str
) -> None:
    key = await dashboard.call(
        "POST", "/api-keys", {"orgId": ACME, "name": "CI", "scopes": ["projects:read"]}
    )
    context, page = await signed_in(browser, dashboard)
    await page.goto(f"{KEYS}/{key['id']}")
    await page.get_by_role("link", name=action, exact=True).click()
    dialog = page.get_by_role("dialog", name=f"{action} CI")
    await expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(dialog).to_be_hidden()
    await context.close()


async def test_focus_of_the_new_page_is_on_copy(browser: Browser, dashboard: Dashboard) -> None:
    context, page = await signed_in(browser, dashboard)
    await create(page)
    await expect(page.locator(".secret").get_by_role("button", name="Copy")).to_be_focused()
    await context.close()


async def test_leaving_the_secret_page_needs_confirmation(
    browser: Browser, dashboard: Dashboard
) -> None:
    context, page = await signed_in(browser, dashboard)
    asked: list[str] = []

    async def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        await dialog.dismiss()

    page.on("dialog", stay)
    secret = await create(page)
    await page.get_by_role("heading", name="Key created").click()
    await page.get_by_role("link", name="Open the key").click(no_wait_after=True)
    await expect(page.locator(".secret code")).to_have_text(secret)
    assert asked == ["beforeunload"]
    await page.get_by_label("I've saved this key").check()
    await page.get_by_role("link", name="Open the key").click()
    await expect(page.get_by_role("heading", name="Permissions")).to_be_visible()
    assert asked == ["beforeunload"]
    await context.close()


async def test_fields_of_owner_keys_and_dates_appear_when_chosen(
    browser: Browser, dashboard: Dashboard
) -> None:
    context, page = await signed_in(browser, dashboard)
    await page.goto(f"{KEYS}/new")
    sure, scopes, until = (
        page.get_by_label("I understand"),
        page.get_by_role("checkbox", name="projects:read"),
        page.get_by_label("Last day"),
    )
    for hidden in (scopes, sure, until):
        await expect(hidden).to_be_hidden()
    await page.get_by_label("Chosen scopes").check()
    await expect(scopes).to_be_visible()
    await page.get_by_text("More options").click()
    await page.get_by_label("Everything: an OWNER key").check()
    await page.get_by_label("After a chosen day").check()
    await expect(scopes).to_be_hidden()
    await expect(sure).to_be_visible()
    await expect(until).to_be_visible()
    await context.close()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_pages_fit_every_width_and_are_legible(
    browser: Browser, dashboard: Dashboard, scheme: Scheme
) -> None:
    context, page = await signed_in(browser, dashboard)
    await page.emulate_media(color_scheme=scheme)
    await create(
        page,
        "A key with a name of some length, andwithonewordthatisverylongindeedandnowheretobreak",
    )
    await fits(page)
    await page.get_by_label("I've saved this key").check()
    await page.get_by_role("link", name="Open the key").click()
    key = page.url
    for path in (
        KEYS,
        f"{KEYS}/new",
        key,
        f"{key}/edit",
        f"{key}/rotate",
        f"{key}/revoke",
        f"{key}/first-use",
    ):
        await page.goto(path)
        await fits(page)
    await page.goto(f"{KEYS}/new")
    await page.get_by_role("button", name="Create key").click()
    await expect(page.get_by_text("Fill in this field.")).to_be_visible()
    await fits(page)
    await context.close()


async def fits(page: Page) -> None:
    """The page needs no scrolling sideways at any width, and its text stands out from what is
    behind it.
    """
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, (
            page.url,
            width,
        )
    contrast, where = await page.evaluate(LEAST_CONTRAST)
    assert contrast >= AA, (page.url, where)
