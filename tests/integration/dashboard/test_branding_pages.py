"""The operator's product on pages: name, logo and accent color."""

import re
from pathlib import Path

import httpx2

from tests.support.app import running_app
from tests.support.pictures import png


async def asset(client: httpx2.AsyncClient, page: str, name: str) -> httpx2.Response:
    """The response for the asset that a page links by this name."""
    found = re.search(rf'(?:href|src)="(/assets/\w+/{re.escape(name)})"', page)
    assert found is not None
    return await client.get(found[1])


async def test_pages_show_the_product(conninfo: str, tmp_path: Path) -> None:
    logo = tmp_path / "logo.png"
    logo.write_bytes(png(96, 96))
    async with running_app(
        conninfo,
        PRODUCT_NAME="Nimbus <b>",
        PRODUCT_COLOR="#ffcc00",
        PRODUCT_LOGO=str(logo),
    ) as client:
        for path in ("/sign-in", "/docs"):
            page = (await client.get(path)).text
            assert "Nimbus &lt;b&gt;</title>" in page
            style = await asset(client, page, "product.css")
            assert style.headers["content-type"].startswith("text/css")
            assert "--accent: light-dark(#" in style.text
            picture = await asset(client, page, "product.png")
            assert picture.content == png(96, 96)
            assert picture.headers["content-type"] == "image/png"
            assert picture.headers["x-content-type-options"] == "nosniff"
            assert picture.headers["content-security-policy"] == "default-src 'none'"
        document = (await client.get("/api/v1/openapi.json")).json()
        assert document["info"]["title"] == "Nimbus <b>"


async def test_pages_show_tenantry_without_settings(conninfo: str) -> None:
    async with running_app(conninfo) as client:
        page = (await client.get("/sign-in")).text
        assert " · tenantry</title>" in page
        assert "/product." not in page
