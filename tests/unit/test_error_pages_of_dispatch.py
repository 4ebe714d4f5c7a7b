"""Pages of requests that no route has answered in time, or could."""

import pytest

from tenantry.common.clock import system_clock
from tenantry.dashboard.context import Renderer
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.error_pages import raw_page_of
from tenantry.domain.branding import DEFAULT_BRANDING
from tenantry.domain.sessions import SessionSecret
from tenantry.server.asgi_types import HotResponse
from tests.support.cases import cases

BROWSER = b"text/html,application/xhtml+xml,*/*;q=0.8"


def page_of(
    path: str, *, method: str = "GET", accept: bytes = BROWSER, status: int = 503
) -> HotResponse | None:
    scope = {"type": "http", "method": method, "path": path, "headers": [(b"accept", accept)]}
    secret = SessionSecret("a secret of the tests")
    renderer = Renderer(
        Cookies(secret, system_clock, secure=False), "http://localhost", DEFAULT_BRANDING
    )
    return raw_page_of(renderer, scope, status, "an-id")


@cases("path", ["/orgs/acme/", "/", "/sign-in/callback"])
def test_timeout_of_a_page_names_when_to_retry(path: str) -> None:
    page = page_of(path)
    assert page is not None
    headers = dict(page.headers)
    assert (page.status, headers[b"retry-after"], headers[b"vary"]) == (503, b"1", b"Accept")
    assert headers[b"content-type"] == b"text/html; charset=utf-8"
    assert b"Try again in a moment" in page.body
    assert b"an-id" in page.body


def test_timeout_of_a_form_warns_that_it_may_have_been_processed() -> None:
    page = page_of("/orgs/acme/projects/new", method="POST")
    assert page is not None
    assert b"may have been saved: check" in page.body


@pytest.mark.parametrize("path", ["/api", "/api/v1/projects"])
def test_the_api_has_no_pages(path: str) -> None:
    assert page_of(path) is None


def test_body_of_another_type_is_rejected_without_a_page() -> None:
    assert page_of("/orgs/acme/projects/new", method="POST", status=415) is None


def test_programs_get_a_page_only_below_dashboard_paths() -> None:
    assert page_of("/healthz", accept=b"application/json") is None
    assert page_of("/orgs/acme/", accept=b"application/json") is not None
