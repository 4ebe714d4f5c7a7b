"""HEAD answers like GET, without the body and without effects (RFC 9110 section 9.3.2)."""

from datetime import timedelta
from typing import Final

import httpx2
import pytest

from tests.integration.dashboard.signing_in import CALLBACK, HOME, TOKEN, Browser
from tests.integration.dashboard.test_event_stream import STREAM
from tests.support.dashboard import AT_ACME, OLIVIA, Dashboard
from tests.support.http_line import Line

_AROUND: Final = ("GET", "HEAD", "GET")
"""A page says how long ago something was, so its length changes while time passes."""
_NOT_COMPARED: Final = {"x-request-id", "date", "ratelimit", "transfer-encoding"}


def head_of(answer: httpx2.Response) -> tuple[int, dict[str, str]]:
    """Return the status and headers, without those that differ between requests or describe the
    body.
    """
    return answer.status_code, {
        name: text for name, text in answer.headers.items() if name not in _NOT_COMPARED
    }


PATHS: Final = (
    "/",
    f"{AT_ACME}/",
    f"{AT_ACME}/projects",
    f"{AT_ACME}/events",
    f"{AT_ACME}/settings/audit/export",
    "/account",
    f"{AT_ACME}/nothing",
    "/orgs/beta/",
    "/sign-in",
    "/signed-out",
    "/docs",
    "/healthz",
    "/readyz",
    "/assets/x/base.css",
    "/api/v1/openapi.json",
    "/api/v1/projects",
    "/api/v1/nothing",
    "/nothing",
)


async def test_head_answers_like_get_without_a_body(dashboard: Dashboard) -> None:
    client = (await dashboard.sign_in()).client
    for path in PATHS:
        before, head, after = [await client.request(method, path) for method in _AROUND]
        assert head_of(head) in (head_of(before), head_of(after)), path
        assert head.content == b"", path


@pytest.mark.parametrize("path", ["/projects", "/projects/", "/api-keys", "/auth/whoami"])
async def test_head_of_the_api_answers_like_get_without_a_body(
    dashboard: Dashboard, path: str
) -> None:
    token = dashboard.token(OLIVIA)
    whole = await dashboard.request("GET", path, token)
    head = await dashboard.request("HEAD", path, token)
    assert whole.status_code == 200
    assert head_of(head) == head_of(whole)
    assert head.content == b""


async def test_head_of_a_stream_ends_and_keeps_the_connection(dashboard: Dashboard) -> None:
    cookie = (await dashboard.sign_in()).client.cookies["tenantry_session"]
    line = await Line.to(dashboard.url)
    common = f" HTTP/1.1\r\nHost: x\r\nCookie: tenantry_session={cookie}\r\n\r\n"
    await line.send(f"HEAD {STREAM}{common}".encode())
    status, headers = await line.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    await line.send(f"GET /healthz{common}".encode())
    assert (await line.answer())[0] == 200
    line.close()


@pytest.mark.parametrize("path", ["/sign-out", "/account/end-other-sessions"])
async def test_head_without_a_get_route_is_rejected(dashboard: Dashboard, path: str) -> None:
    answer = await (await dashboard.sign_in()).client.head(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")


async def test_head_does_not_extend_the_session(browser: Browser) -> None:
    await browser.sign_in()
    browser.clock.now += timedelta(hours=1, minutes=30)
    await browser.client.head(HOME)
    browser.clock.now += timedelta(minutes=30)
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


async def test_head_neither_starts_nor_finishes_a_sign_in(browser: Browser) -> None:
    started = await browser.client.head("/sign-in/start", params={"return_to": HOME})
    assert (started.status_code, started.headers.get_list("set-cookie")) == (303, [])
    await browser.start()
    browser.give()
    query = {"code": "a-code", "state": browser.asked["state"], "iss": browser.issuer.url}
    ended = await browser.client.head(CALLBACK, params=query)
    assert (ended.status_code, ended.headers.get_list("set-cookie")) == (303, [])
    assert browser.issuer.fetches[TOKEN] == 0
    assert (await browser.open_callback()).headers["location"] == HOME
