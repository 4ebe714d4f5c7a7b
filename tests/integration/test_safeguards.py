"""Header fields that keep every answer from being kept, framed, or taken for what it is not."""

from collections.abc import Iterator
from typing import Final, cast

import httpx2
import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from tenantry.main import build_app
from tests.support.app import make_settings, running_app
from tests.support.service import PROJECTS, VERIFY, Service

WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
NEVER: Final = ("server", "x-powered-by")
PAGES: Final = {
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
FORMS: Final = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}


def routes() -> Iterator[tuple[str, str]]:
    """Method and path of everything there is, with ``x`` for each parameter, and of what there is not."""
    for route in cast("Litestar", build_app(make_settings(), "host=/nowhere")._app).routes:
        assert isinstance(route, HTTPRoute)
        path = "/".join("x" if part.startswith("{") else part for part in route.path_format.split("/"))
        yield from ((method, path) for method in sorted(route.methods))
    yield from (
        ("GET", PROJECTS), ("HEAD", PROJECTS), ("GET", f"{VERIFY}-"), ("POST", WEBHOOK), ("GET", WEBHOOK),
        ("GET", "/nothing"), ("GET", "/%00"), ("PUT", "/docs"), ("GET", "/api/v1/nothing"), ("TRACE", "/"),
    )  # fmt: skip


@pytest.mark.parametrize(("method", "path"), sorted(set(routes())), ids=lambda part: part)
async def test_answer_is_taken_for_what_it_is_and_kept_by_nobody(service: Service, method: str, path: str) -> None:
    answer = await service.nobody.call(method, path, headers=FORMS)
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    may_be_kept = path == "/docs" and method in {"GET", "HEAD"}
    assert answer.headers.get_list("cache-control") == (["public, max-age=300"] if may_be_kept else ["no-store"])
    assert not [name for name in NEVER if name in answer.headers]
    assert len(answer.headers.get_list("x-request-id")) == 1


@pytest.mark.parametrize(("method", "path"), sorted(set(routes())), ids=lambda part: part)
async def test_page_is_framed_by_nobody_and_tells_nobody_its_address(service: Service, method: str, path: str) -> None:
    answer = await service.nobody.call(method, path, headers=FORMS)
    if answer.headers.get("content-type", "").startswith("text/html") or answer.is_redirect:
        assert {name for name, value in PAGES.items() if value not in answer.headers.get(name, "")} == set()
        assert "unsafe" not in answer.headers["content-security-policy"]


async def test_asset_is_of_use_to_pages_of_ours_alone(service: Service) -> None:
    page = await service.nobody.get("/docs")
    style = page.text.partition('href="/assets/')[2].partition('"')[0]
    asset = await service.nobody.get(f"/assets/{style}")
    assert asset.status_code == 200
    assert asset.headers["cross-origin-resource-policy"] == "same-origin"
    assert asset.headers["x-content-type-options"] == "nosniff"
    assert "immutable" in asset.headers["cache-control"]


@pytest.mark.parametrize("path", ["/healthz", PROJECTS, "/nothing", "/api/v1/nothing", WEBHOOK, "/sign-in", "/docs"])
@pytest.mark.parametrize("base_url", ["https://api.example.com", "http://127.0.0.1:3001"])
async def test_who_comes_by_https_is_told_to_stay_there(conninfo: str, base_url: str, path: str) -> None:
    async with running_app(conninfo, BASE_URL=base_url) as client:
        answer: httpx2.Response = await client.get(path)
    expected = ["max-age=31536000"] if base_url.startswith("https") else []
    assert answer.headers.get_list("strict-transport-security") == expected
