"""Security headers: no caching, no frames, no sniffing."""

from typing import Final

import httpx2
import pytest

from tests.support.app import running_app
from tests.support.routes import WEBHOOK, requests_of_every_kind
from tests.support.service import PROJECTS, Service

NEVER: Final = ("server", "x-powered-by")
PAGES: Final = {
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
MANY: Final = 100
"""There are more routes than this."""
FORMS: Final = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}


@pytest.fixture(scope="module")
async def answers(service: Service) -> dict[tuple[str, str], httpx2.Response]:
    """What the service answers to each of `requests_of_every_kind`."""
    return {
        (method, path): await service.anonymous.call(method, path, headers=FORMS)
        for method, path in requests_of_every_kind()
    }


def test_answers_are_neither_sniffed_nor_cached(
    answers: dict[tuple[str, str], httpx2.Response],
) -> None:
    assert len(answers) > MANY
    for (method, path), answer in answers.items():
        where = f"{method} {path}"
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], where
        may_be_kept = path == "/docs" and method in {"GET", "HEAD"}
        kept = ["public, max-age=300"] if may_be_kept else ["no-store"]
        assert answer.headers.get_list("cache-control") == kept, where
        assert not [name for name in NEVER if name in answer.headers], where
        assert len(answer.headers.get_list("x-request-id")) == 1, where


def test_pages_forbid_frames_and_referrers(answers: dict[tuple[str, str], httpx2.Response]) -> None:
    pages = {
        where: answer
        for where, answer in answers.items()
        if answer.headers.get("content-type", "").startswith("text/html") or answer.is_redirect
    }
    assert pages
    for (method, path), answer in pages.items():
        where = f"{method} {path}"
        assert {
            name for name, value in PAGES.items() if value not in answer.headers.get(name, "")
        } == set(), where
        assert "unsafe" not in answer.headers["content-security-policy"], where


async def test_assets_are_same_origin_only(service: Service) -> None:
    page = await service.anonymous.get("/docs")
    style = page.text.partition('href="/assets/')[2].partition('"')[0]
    asset = await service.anonymous.get(f"/assets/{style}")
    assert asset.status_code == 200
    assert asset.headers["cross-origin-resource-policy"] == "same-origin"
    assert asset.headers["x-content-type-options"] == "nosniff"
    assert "immutable" in asset.headers["cache-control"]


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [("https://api.example.com", ["max-age=31536000"]), ("http://127.0.0.1:3001", [])],
)
async def test_https_answers_have_strict_transport_security(
    emptied: str, base_url: str, expected: list[str]
) -> None:
    async with running_app(emptied, BASE_URL=base_url) as client:
        for path in (
            "/healthz",
            PROJECTS,
            "/nothing",
            "/api/v1/nothing",
            WEBHOOK,
            "/sign-in",
            "/docs",
        ):
            answer: httpx2.Response = await client.get(path)
            assert answer.headers.get_list("strict-transport-security") == expected, path
