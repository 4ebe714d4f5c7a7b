"""The dashboard's sign-in at a real OpenID provider, with a real browser, with script in the pages
and without.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from tenantry.app import build_app
from tenantry.common.clock import system_clock
from tenantry.domain.sessions import PROOF_GOOD_FOR
from tests.support.app import OPERATOR_TOKEN, make_settings
from tests.support.browser import Watched
from tests.support.node_provider import DASHBOARD, DASHBOARD_AUDIENCE, node_provider
from tests.support.serving import LOOPBACK, serving, url_of

HOME: Final = "/orgs/acme"
PROJECTS: Final = "/orgs/acme/projects"


class Clock:
    """The machine's, and as much later as it is moved."""

    def __init__(self) -> None:
        self.later = timedelta()

    def __call__(self) -> datetime:
        return system_clock() + self.later


class Place(NamedTuple):
    """The service, the provider that it believes, and the service's clock."""

    url: str
    issuer: str
    clock: Clock


class Prompt:
    """What a page asks the provider for."""

    def __init__(self, page: Page, place: Place) -> None:
        self._watched = Watched(page)
        self._endpoint = f"{place.issuer}/auth?"

    def prompts(self) -> list[str | None]:
        """The prompt of each authorization request, in their order."""
        queries = [
            urlsplit(url).query for url in self._watched.requests if url.startswith(self._endpoint)
        ]
        return [parse_qs(query).get("prompt", [None])[0] for query in queries]


@pytest.fixture
async def place(conninfo: str) -> AsyncIterator[Place]:
    """A tenant whose owner is ann, who is an operator, too."""
    clock = Clock()
    with socket.create_server((LOOPBACK, 0)) as listener:
        url = url_of(listener)
        async with node_provider(dashboard=url) as provider:
            settings = make_settings(
                BASE_URL=url,
                OIDC_ISSUER=provider.issuer,
                OIDC_AUDIENCE=DASHBOARD_AUDIENCE,
                OIDC_CLIENT_ID=DASHBOARD,
                OIDC_CLIENT_SECRET=provider.client_secret,
                OPERATORS="ann",
            )
            async with (
                serving(build_app(settings, conninfo, clock), listener),
                httpx2.AsyncClient(base_url=url, trust_env=False) as client,
            ):
                body = {"name": "Acme", "ownerEmail": "ann@acme.example", "ownerId": "ann"}
                operator = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
                assert (
                    await client.put("/api/v1/tenants/acme", json=body, headers=operator)
                ).status_code == 201
                yield Place(url, provider.issuer, clock)


@asynccontextmanager
async def visiting(browser: Browser, *, script: bool) -> AsyncIterator[tuple[BrowserContext, Page]]:
    context = await browser.new_context(java_script_enabled=script)
    yield context, await context.new_page()
    await context.close()


async def sign_in(page: Page, place: Place, path: str) -> None:
    """Open a page of the dashboard, through the provider's pages."""
    await page.goto(place.url + path)
    await page.get_by_role("link", name="Continue").click()
    await enter_user(page)
    assert page.url == place.url + path


async def enter_user(page: Page) -> None:
    """What the provider's pages ask: who it is, and whether it may be."""
    await page.fill("input[name=login]", "ann")
    await page.fill("input[name=password]", "any")
    await page.click("button[type=submit]")
    await page.click("button[type=submit]")


async def cookie(context: BrowserContext) -> str | None:
    """What the cookie of the session holds."""
    return next(
        (one["value"] for one in await context.cookies() if one["name"] == "tenantry_session"), None
    )


@pytest.mark.parametrize("script", [True, False])
async def test_user_signs_in_and_out_here_and_at_the_provider(
    browser: Browser, place: Place, *, script: bool
) -> None:
    async with visiting(browser, script=script) as (context, page):
        await sign_in(page, place, PROJECTS)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Projects")
        await page.locator("summary", has_text="ann").click()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("You are signed out")
        assert await cookie(context) is None
        await page.get_by_role("link", name="Sign out there too").click()
        assert page.url.startswith(place.issuer)
        await page.get_by_role("button", name="Yes, sign me out").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("You are signed out")
        assert page.url.startswith(f"{place.url}/signed-out")
        await page.goto(place.url + PROJECTS)
        await page.get_by_role("link", name="Continue").click()
        await expect(page.locator("input[name=login]")).to_be_visible()


@pytest.mark.parametrize("script", [True, False])
async def test_sign_in_is_renewed_silently_with_a_provider_session(
    browser: Browser, place: Place, *, script: bool
) -> None:
    async with visiting(browser, script=script) as (context, page):
        await sign_in(page, place, HOME)
        before = await cookie(context)
        place.clock.later += PROOF_GOOD_FOR
        asked = Prompt(page, place)
        await page.goto(place.url + PROJECTS)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Projects")
        assert (page.url, asked.prompts()) == (place.url + PROJECTS, ["none"])
        assert await cookie(context) == before  # other tabs are under way with it
        await page.goto(place.url + HOME)
        assert asked.prompts() == ["none"]


async def test_user_without_a_provider_session_signs_in_again(
    browser: Browser, place: Place
) -> None:
    async with visiting(browser, script=True) as (context, page):
        await sign_in(page, place, HOME)
        ours = [one for one in await context.cookies() if one["name"] == "tenantry_session"]
        await context.clear_cookies()
        await context.add_cookies(
            [{"name": one["name"], "value": one["value"], "url": place.url} for one in ours]
        )
        place.clock.later += PROOF_GOOD_FOR
        asked = Prompt(page, place)
        await page.goto(place.url + PROJECTS)
        assert asked.prompts() == ["none", None]
        await enter_user(page)
        assert page.url == place.url + PROJECTS


@pytest.mark.parametrize("script", [True, False])
async def test_operator_confirms_in_another_tab_and_submits_the_kept_form(
    browser: Browser, place: Place, *, script: bool
) -> None:
    async with visiting(browser, script=script) as (context, page):
        await sign_in(page, place, f"/operator{PROJECTS}/new")
        await page.get_by_label("Name").fill("By support")
        await page.get_by_role("button", name="Create project").click()
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_have_text("Confirm that it is you")
        async with context.expect_page() as opening:
            await page.get_by_role("link", name="Sign in again").click()
        other = await opening.value
        await expect(other.get_by_role("heading", level=1)).to_have_text("You are confirmed")
        await other.close()
        submit = page.get_by_role("button", name="Submit", exact=True)
        if script:
            await page.evaluate("dispatchEvent(new Event('focus'))")
            await expect(page.get_by_role("status")).to_have_text("You are signed in again.")
        else:  # the page cannot know who has signed in
            await submit.click()
            await expect(heading).to_have_text("Submit this form?")
        await submit.click()
        await expect(heading).to_have_text("By support")
        assert page.url.startswith(f"{place.url}/operator{PROJECTS}/")
