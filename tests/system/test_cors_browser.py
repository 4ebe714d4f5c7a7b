"""Three origins in a real browser: the service, a page that it permits, and one that it does
not.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import pytest
from playwright.async_api import Browser, Page
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tenantry.server.asgi_types import AsgiApp
from tests.sdk.sdk_support import Served, serving
from tests.support.postgres import PostgresServer
from tests.support.service import KEYS, PROJECTS, VERIFY, Organization
from tests.support.serving import served
from tests.support.typescript_client import Package

HTML: Final = (
    '<!doctype html><link rel="icon" href="data:,"><title>A page of another origin</title>'
)
CLIENT: Final = """
async ([baseUrl, apiKey]) => {
    const { APIError, Tenantry } = await import("/client/index.js");
    const tenantry = new Tenantry({ baseUrl, tokens: () => apiKey });
    const { orgId } = await tenantry.auth.whoami();
    const created = await tenantry.projects.create({ name: "Zoë" });
    const { data } = await tenantry.projects.list().firstPage();
    await tenantry.projects.update({ projectId: created.id, description: "from a page" });
    await tenantry.projects.delete({ projectId: created.id });
    const rejected = await tenantry.projects.get({ projectId: created.id }).catch((error) => error);
    const known = rejected instanceof APIError && rejected.requestId === rejected.headers["x-request-id"];
    return [orgId, data.map(({ name }) => name), known, rejected.code];
}
"""
FETCH: Final = """
async ([url, token]) => {
    const answer = await fetch(url, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
    return [answer.status, await answer.text(), Object.fromEntries(answer.headers)];
}
"""
FAILURE: Final = """
async ([url, token]) => {
    try {
        await fetch(url, token ? { headers: { Authorization: `Bearer ${token}` } } : {});
        return "read";
    } catch (error) {
        return error.name;
    }
}
"""
CLIENT_FAILURE: Final = """
async ([baseUrl, apiKey]) => {
    const { Tenantry } = await import("/client/index.js");
    const tenantry = new Tenantry({ baseUrl, apiKey, retries: 0 });
    return (await tenantry.projects.create({ name: "x" }).catch((error) => error)).name;
}
"""


class Origins(NamedTuple):
    """The service, and the addresses of pages: one that it permits to read answers, and one that it
    does not.
    """

    service: Served
    listed: str
    other: str


def pages(package: Package) -> AsgiApp:
    """A page, and the client as it is in its package: no bundler."""

    async def page(_request: Request) -> HTMLResponse:
        return HTMLResponse(HTML)

    return Starlette(
        routes=[Route("/", page), Mount("/client", StaticFiles(directory=package.client / "dist"))]
    )


@pytest.fixture(scope="module")
async def origins(postgres: PostgresServer, package: Package) -> AsyncIterator[Origins]:
    async with AsyncExitStack() as stack:
        conninfo = stack.enter_context(postgres.database())
        listed, other = [await stack.enter_async_context(served(pages(package))) for _ in range(2)]
        service = await stack.enter_async_context(
            serving(conninfo, CORS_ORIGINS=f"https://app.example, {listed}")
        )
        yield Origins(service, listed, other)


@pytest.fixture
async def acme(origins: Origins) -> Organization:
    return await origins.service.service.organization()


@pytest.fixture
def token(origins: Origins, acme: Organization) -> str:
    """The access token of a user."""
    return str(origins.service.service.user(org=acme.id, role="owner").credential)


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context()
    yield await context.new_page()
    await context.close()


async def test_typescript_client_works_in_a_page_of_a_listed_origin(
    page: Page, origins: Origins, acme: Organization, token: str
) -> None:
    await page.goto(origins.listed)
    result = await page.evaluate(CLIENT, [origins.service.url, token])
    assert result == [acme.id, ["Zoë"], True, "not_found"]


@pytest.mark.parametrize("path", [PROJECTS, KEYS, f"{VERIFY}projects:read"])
async def test_page_of_a_listed_origin_reads_status_and_rate_limits(
    page: Page, origins: Origins, acme: Organization, token: str, path: str
) -> None:
    await page.goto(origins.listed)
    status, _, headers = await page.evaluate(FETCH, [origins.service.url + path, token])
    assert status == 200
    assert headers["ratelimit"].startswith('"tenant";r=')
    assert {"ratelimit-policy", "x-request-id"} <= headers.keys()
    assert headers.get("x-tenant-id") == (acme.id if path.startswith(VERIFY) else None)


async def test_page_of_a_listed_origin_reads_its_rejection(page: Page, origins: Origins) -> None:
    await page.goto(origins.listed)
    status, body, headers = await page.evaluate(FETCH, [origins.service.url + PROJECTS, None])
    assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="api"')
    assert '"code":"missing_credential"' in body


async def test_page_of_another_origin_reads_nothing_and_changes_nothing(
    page: Page, origins: Origins, acme: Organization, token: str
) -> None:
    await page.goto(origins.other)
    for path in (PROJECTS, KEYS, f"{VERIFY}projects:read"):
        for credential in (token, None):
            assert (
                await page.evaluate(FAILURE, [origins.service.url + path, credential])
                == "TypeError"
            )
    assert (
        await page.evaluate(CLIENT_FAILURE, [origins.service.url, token]) == "ConnectionFailedError"
    )
    assert (await acme.owner.get(PROJECTS)).json()["data"] == []


@pytest.mark.parametrize(
    "path", ["/api/v1/webhooks/payment-provider", "/", "/sign-in", "/metrics", "/healthz"]
)
async def test_no_page_of_another_origin_reads_what_is_not_the_api(
    page: Page, origins: Origins, path: str
) -> None:
    await page.goto(origins.listed)
    assert await page.evaluate(FAILURE, [origins.service.url + path, None]) == "TypeError"
