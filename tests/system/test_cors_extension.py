"""A browser extension calls the API: its pages have an origin with a scheme of their own."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from playwright.async_api import Page

from tests.sdk.sdk_support import Served, serving
from tests.support.browser import EXTENSION_WORKER, browser_with_extension
from tests.support.service import PROJECTS, Organization
from tests.support.typescript_client import Package

MANIFEST: Final = {
    "manifest_version": 3,
    "name": "An extension without permissions for hosts",
    "version": "1",
    "background": {"service_worker": EXTENSION_WORKER},
}
CLIENT: Final = """
async ([baseUrl, token]) => {
    const { Tenantry } = await import("/client/index.js");
    const tenantry = new Tenantry({ baseUrl, tokens: () => token, retries: 0 });
    const created = await tenantry.projects.create({ name: "Zoë" }).catch((error) => error);
    return created.id ?? created.name;
}
"""


class Extension(NamedTuple):
    """A page of the extension, and its origin."""

    page: Page
    origin: str


@pytest.fixture
async def extension(tmp_path: Path, package: Package) -> AsyncIterator[Extension]:
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    (tmp_path / EXTENSION_WORKER).touch()
    (tmp_path / "page.html").write_text("<!doctype html><title>A page of an extension</title>")
    shutil.copytree(package.client / "dist", tmp_path / "client")
    async with browser_with_extension(tmp_path) as (context, origin):
        page = await context.new_page()
        await page.goto(f"{origin}/page.html")
        yield Extension(page, origin)


async def created(extension: Extension, served: Served, org: Organization) -> str:
    """Return the id of the project that the page made, or the name of its error."""
    token = served.service.user(org=org.id, role="owner").credential
    return str(await extension.page.evaluate(CLIENT, [served.url, token]))


async def test_extension_works_with_the_typescript_client_where_it_is_listed(
    extension: Extension, conninfo: str
) -> None:
    assert extension.origin.startswith("chrome-extension://")
    async with serving(conninfo, CORS_ORIGINS=extension.origin) as served:
        org = await served.service.organization()
        project = await created(extension, served, org)
        assert [one["id"] for one in (await org.owner.get(PROJECTS)).json()["data"]] == [project]


async def test_extension_that_is_not_listed_changes_nothing(
    extension: Extension, conninfo: str
) -> None:
    other = f"chrome-extension://{'a' * 32}"
    async with serving(conninfo, CORS_ORIGINS=f"{other}, https://app.example") as served:
        org = await served.service.organization()
        assert await created(extension, served, org) == "ConnectionFailedError"
        assert (await org.owner.get(PROJECTS)).json()["data"] == []
