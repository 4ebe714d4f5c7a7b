"""Sessions of the dashboard: cookie, lifetime, and silent renewal at the provider."""

import base64
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx2
import psycopg
import pytest

from tenantry.domain.sessions import ABSOLUTE, FORM_GRACE, IDLE, PROOF_GOOD_FOR
from tests.integration.dashboard.signing_in import HOME, Browser, at_provider
from tests.support.app import BASE_URL, running_app


async def test_sign_in_never_takes_over_a_planted_session(browser: Browser) -> None:
    await browser.sign_in()
    first = browser.cookie
    assert first
    browser.client.cookies.clear()
    browser.client.cookies.set("tenantry_session", first, domain="tenantry.test")
    await browser.sign_in()
    second = browser.cookie
    assert second != first
    browser.client.cookies.clear()
    browser.client.cookies.set("tenantry_session", first, domain="tenantry.test")
    assert (await browser.client.get(HOME)).status_code == 303  # the previous session has ended


async def test_signing_out_ends_every_copy_of_the_cookie(browser: Browser) -> None:
    await browser.sign_in()
    session_cookie = browser.cookie
    assert session_cookie
    answer = await browser.client.post("/sign-out", data={"form_token": await browser.form_token()})
    assert answer.headers["location"] == "/signed-out"
    assert browser.cookie is None
    page = await browser.client.get("/signed-out")
    assert f"{browser.issuer.url}/logout?" in page.text
    browser.client.cookies.set("tenantry_session", session_cookie, domain="tenantry.test")
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_link_cannot_sign_a_user_out(browser: Browser, method: str) -> None:
    await browser.sign_in()
    assert (await browser.client.request(method, "/sign-out")).status_code == 405
    assert (await browser.client.get(HOME)).status_code == 200


async def test_idle_session_ends(browser: Browser) -> None:
    await browser.sign_in()
    browser.clock.now += IDLE
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


async def test_session_in_use_ends_after_its_maximum_age(browser: Browser) -> None:
    await browser.sign_in()
    began = browser.clock.now
    while browser.clock.now < began + ABSOLUTE - PROOF_GOOD_FOR:
        browser.clock.now += PROOF_GOOD_FOR - timedelta(minutes=1)
        if (await browser.client.get(HOME)).status_code == 303:
            await renewed(browser)
    assert (await browser.client.get(HOME)).status_code == 200
    browser.clock.now = began + ABSOLUTE
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


async def renewed(browser: Browser, **claims: Any) -> httpx2.Response:
    """Renew the sign-in at the provider."""
    await browser.start(HOME, silent="1")
    browser.give(access=claims)
    return await browser.open_callback()


async def test_stale_sign_in_is_renewed_silently(browser: Browser) -> None:
    await browser.sign_in()
    before = browser.cookie
    browser.clock.now += PROOF_GOOD_FOR
    led = await browser.client.get("/orgs/acme/settings/api-keys")
    assert led.headers["location"].startswith("/sign-in/start?")
    assert "silent=1" in led.headers["location"]
    answer = await renewed(browser, org_role="member")
    assert browser.asked["prompt"] == "none"
    assert answer.status_code == 303
    assert browser.cookie == before  # concurrent requests may still use it
    assert (await browser.client.get("/orgs/acme/settings/api-keys")).status_code == 403
    assert (await browser.client.get(HOME)).status_code == 200


@pytest.mark.parametrize("error", ["login_required", "interaction_required", "consent_required"])
async def test_renewal_without_a_provider_session_asks_the_user(
    browser: Browser, error: str
) -> None:
    await browser.sign_in()
    browser.clock.now += PROOF_GOOD_FOR
    await browser.start(HOME, silent="1")
    answer = await browser.open_callback(code="", error=error)
    assert answer.headers["location"] == f"/sign-in/start?return_to={quote('/orgs/acme/', safe='')}"
    await browser.start(HOME)
    assert "prompt" not in browser.asked


async def test_renewal_by_another_user_asks_first(browser: Browser) -> None:
    await browser.sign_in()
    browser.clock.now += PROOF_GOOD_FOR
    await browser.start(HOME, silent="1")
    browser.give(access={"sub": "other-user", "org_id": "other"}, sub="other-user")
    led = await browser.open_callback()
    assert led.headers["location"] == f"/sign-in/start?return_to={quote(HOME, safe='')}"
    await browser.start()
    browser.give(access={"sub": "other-user", "org_id": "other"}, sub="other-user")
    await browser.open_callback()
    assert (await browser.client.get("/orgs/acme/")).status_code == 404
    assert (await browser.client.get("/orgs/other/")).status_code == 200


async def test_renewal_never_begins_a_session(browser: Browser) -> None:
    await browser.sign_in()
    await browser.client.post("/sign-out", data={"form_token": await browser.form_token()})
    led = await renewed(browser)
    assert led.headers["location"] == f"/sign-in?return_to={quote(HOME, safe='')}"
    assert browser.cookie is None


async def test_session_that_ends_while_it_is_renewed_stays_ended(browser: Browser) -> None:
    await browser.sign_in()
    form_token, session_cookie = await browser.form_token(), browser.cookie
    assert session_cookie
    browser.clock.now += PROOF_GOOD_FOR
    await browser.start(HOME, silent="1")
    browser.give()
    assert (await browser.client.post("/sign-out", data={"form_token": form_token})).headers[
        "location"
    ] == "/signed-out"
    browser.client.cookies.set("tenantry_session", session_cookie, domain="tenantry.test")
    await browser.open_callback()
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


async def test_stale_sign_in_is_rejected_for_scripts_and_forms(browser: Browser) -> None:
    await browser.sign_in()
    form_token = await browser.form_token()
    browser.clock.now += PROOF_GOOD_FOR
    by_script = {"sec-fetch-mode": "cors"}
    assert (await browser.client.get(HOME, headers=by_script)).status_code == 401
    form = {
        "form_token": form_token,
        "name": "Filled in meanwhile",
        "description": "",
        "once": "x" * 22,
    }
    assert (await browser.client.post("/orgs/acme/projects/new", data=form)).status_code != 401
    browser.clock.now += FORM_GRACE
    assert (await browser.client.post("/orgs/acme/projects/new", data=form)).status_code == 401
    assert (
        await browser.client.post("/sign-out", data={"form_token": form_token})
    ).status_code == 303


async def test_session_of_another_identity_provider_is_rejected(browser: Browser) -> None:
    await browser.sign_in()
    async with at_provider(browser.conninfo) as later:
        later.clock.now = browser.clock.now
        later.client.cookies.update(browser.client.cookies)
        assert (await later.client.get("/")).headers["location"].startswith("/sign-in?")


async def test_signed_in_user_is_redirected_from_the_sign_in_pages(browser: Browser) -> None:
    await browser.sign_in()
    assert (await browser.client.get("/sign-in?return_to=/orgs/acme/billing")).headers[
        "location"
    ] == "/orgs/acme/billing"
    assert (await browser.client.get("/signed-out")).headers["location"] == "/"


async def test_cookie_is_nowhere_in_the_database(browser: Browser) -> None:
    await browser.sign_in()
    cookie = browser.cookie
    assert cookie
    async with await psycopg.AsyncConnection.connect(browser.conninfo) as connection:
        cursor = await connection.execute("SELECT s::text FROM dashboard_sessions s")
        [(row,)] = await cursor.fetchall()
    raw = base64.urlsafe_b64decode(cookie)
    assert cookie not in row
    assert raw[:32].hex() not in row


@pytest.mark.parametrize("cookie", ["", "x", "A" * 64, "ü" * 8, "A" * 5000, "=" * 64])
async def test_forged_cookie_is_rejected(browser: Browser, cookie: str) -> None:
    answer = await browser.client.get(
        HOME, headers=[(b"cookie", f"tenantry_session={cookie}".encode())]
    )
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/sign-in?return_to=%2Forgs%2Facme",
    )


async def test_forged_cookie_does_not_reach_the_database(conninfo: str) -> None:
    async with (
        running_app(conninfo, BASE_URL=BASE_URL) as client,
        await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection,
    ):
        await connection.execute("DROP TABLE dashboard_sessions")
        answer = await client.get(HOME, headers={"cookie": "tenantry_session=" + "A" * 64})
    assert answer.status_code == 303


async def test_cookie_is_not_a_credential_for_the_api(browser: Browser) -> None:
    await browser.sign_in()
    answer = await browser.client.get("/api/v1/projects")
    assert (answer.status_code, answer.json()["code"]) == (401, "missing_credential")
