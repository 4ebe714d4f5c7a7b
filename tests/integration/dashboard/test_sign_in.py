"""Signing in to the dashboard, at an identity provider that says whatever a test wants it to say."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import msgspec
import psycopg
import pytest

from tenantry.domain.sessions import ABSOLUTE, FORM_GRACE, IDLE, PROOF_GOOD_FOR
from tenantry.kit.clock import system_clock
from tests.support.app import BASE_URL, OPERATOR_TOKEN, running_app
from tests.support.issuer import AUDIENCE, CLIENT_ID, DISCOVERY, JWKS, NOW, Answer, Issuer, signing_key

KEY: Final = signing_key("RS256", "one")
TOKEN: Final = "/token"
CALLBACK: Final = "/sign-in/callback"
USER: Final = "user_olivia"
HOME: Final = "/orgs/acme/"
_FORM_TOKEN: Final = re.compile(r'name="form_token" value="([^"]+)"')


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


class Browser:
    """A browser with its cookies, the service, and the provider behind it."""

    def __init__(self, client: httpx2.AsyncClient, issuer: Issuer, clock: Clock) -> None:
        self.client = client
        self.issuer = issuer
        self.clock = clock
        self.asked: dict[str, str] = {}

    async def start(self, return_to: str = HOME, **query: str) -> httpx2.Response:
        """Begin to sign in; what the provider is asked is kept."""
        answer = await self.client.get("/sign-in/start", params={"return_to": return_to, **query})
        parts = urlsplit(answer.headers["location"])
        self.asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return answer

    def give(self, *, access: Mapping[str, Any] | None = None, **claims: Any) -> None:
        """Let the provider give tokens to whoever began last, with these claims in the ID token."""
        access_token = self.issuer.mint(
            claims={"sub": USER, "org_id": "acme", "org_role": "owner", **self.times(), **(access or {})}
        )
        said = {"sub": USER, "aud": CLIENT_ID, "nonce": self.asked["nonce"], "at_hash": at_hash(access_token), **claims}
        id_token = self.issuer.mint(header={"typ": "JWT"}, claims={**self.times(), **said})
        self.answer({"access_token": access_token, "id_token": id_token, "token_type": "Bearer", "expires_in": 300})

    def times(self) -> dict[str, int]:
        now = int(self.clock.now.timestamp())
        return {"iat": now, "exp": now + 300}

    def answer(self, tokens: object, status: int = 200) -> None:
        """What the token endpoint answers from now on."""
        body = tokens if isinstance(tokens, bytes) else msgspec.json.encode(tokens)
        self.issuer.answers[TOKEN] = Answer(status, body, {"content-type": "application/json"})

    async def come_back(self, **changes: str) -> httpx2.Response:
        """The provider sends the browser back."""
        query = {"code": "a-code", "state": self.asked["state"], "iss": self.issuer.url, **changes}
        return await self.client.get(CALLBACK, params={name: value for name, value in query.items() if value})

    async def sign_in(self, return_to: str = HOME, **claims: Any) -> httpx2.Response:
        """All of it."""
        await self.start(return_to)
        self.give(**claims)
        return await self.come_back()

    async def form_token(self, path: str = HOME) -> str:
        found = _FORM_TOKEN.search((await self.client.get(path)).text)
        assert found
        return found[1]

    @property
    def cookie(self) -> str | None:
        return self.client.cookies.get("tenantry_session")


def at_hash(access_token: str) -> str:
    half = hashlib.sha256(access_token.encode()).digest()[:16]
    return base64.urlsafe_b64encode(half).rstrip(b"=").decode()


@pytest.fixture
async def browser(conninfo: str) -> AsyncIterator[Browser]:
    issuer, clock = Issuer(KEY), Clock()
    await issuer.start()
    describe(issuer)
    values = {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE, "OIDC_CLIENT_ID": CLIENT_ID}
    try:
        async with running_app(conninfo, clock=clock, BASE_URL=BASE_URL, **values) as client:
            for tenant, owner in (("acme", USER), ("other", "somebody")):
                answer = await client.put(
                    f"/api/v1/tenants/{tenant}",
                    json={"name": tenant.title(), "ownerEmail": "o@x.example", "ownerId": owner},
                    headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
                )
                assert answer.is_success, answer.text
            yield Browser(client, issuer, clock)
    finally:
        await issuer.stop()


def describe(issuer: Issuer, **changes: Any) -> None:
    """Let the provider tell of its endpoints."""
    metadata = {
        "issuer": issuer.url,
        "jwks_uri": issuer.url + JWKS,
        "authorization_endpoint": f"{issuer.url}/authorize?tenant=x",
        "token_endpoint": issuer.url + TOKEN,
        "end_session_endpoint": f"{issuer.url}/logout",
        **changes,
    }
    issuer.answers[DISCOVERY] = Answer(200, msgspec.json.encode(metadata), {"content-type": "application/json"})


def refused(answer: httpx2.Response, status: int = 400) -> bool:
    """Whether the sign-in ended on its own page, and nobody is signed in."""
    return answer.status_code == status and "<h1>Sign in</h1>" in answer.text and "tenantry_session" not in str(
        answer.headers.get_list("set-cookie")
    )  # fmt: skip


async def test_provider_is_asked_for_a_code_with_pkce_state_and_nonce(browser: Browser) -> None:
    answer = await browser.start()
    assert answer.headers["location"].startswith(f"{browser.issuer.url}/authorize?tenant=x&")
    asked = browser.asked
    assert (asked["response_type"], asked["client_id"], asked["code_challenge_method"]) == ("code", CLIENT_ID, "S256")
    assert (asked["redirect_uri"], asked["scope"]) == (BASE_URL + CALLBACK, "openid profile email")
    assert asked["resource"] == asked["audience"] == AUDIENCE
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 32
    before = dict(asked)
    await browser.start()
    assert all(browser.asked[name] != before[name] for name in ("state", "nonce", "code_challenge"))
    assert asked["nonce"] not in str(answer.headers.get_list("set-cookie"))


async def test_who_signs_in_gets_to_where_they_wanted_with_a_cookie_that_no_script_reads(browser: Browser) -> None:
    answer = await browser.sign_in("/orgs/acme/settings/api-keys?status=active", name="Olivia <b>Owner</b>")
    assert (answer.status_code, answer.headers["location"]) == (303, "/orgs/acme/settings/api-keys?status=active")
    [cookie] = [one for one in answer.headers.get_list("set-cookie") if one.startswith("tenantry_session=")]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/"} <= attributes
    assert not any(part.startswith("domain") for part in attributes)
    page = await browser.client.get(HOME)
    assert page.status_code == 200
    assert "Olivia &lt;b&gt;Owner&lt;/b&gt;" in page.text
    assert list(browser.client.cookies) == ["tenantry_session"]  # what belonged to the sign-in is gone


async def test_over_https_cookies_are_of_this_host_alone(conninfo: str) -> None:
    issuer = Issuer(KEY)
    await issuer.start()
    describe(issuer)
    values = {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE, "OIDC_CLIENT_ID": CLIENT_ID}
    try:
        async with running_app(
            conninfo, clock=system_clock, **{**values, "BASE_URL": "https://tenantry.test"}
        ) as client:
            answer = await client.get("/sign-in/start")
            assert answer.headers["strict-transport-security"].startswith("max-age=")
    finally:
        await issuer.stop()
    [cookie] = answer.headers.get_list("set-cookie")
    assert cookie.startswith("__Host-tenantry_sign_in_")
    assert "; Secure" in cookie
    assert "; Path=/" in cookie


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "another"},
        {"state": ""},
        {"iss": "https://evil.example"},
        {"code": ""},
        {"code": "", "error": "access_denied"},
        {"code": "", "error": "server_error", "error_description": "<script>alert(1)</script>"},
    ],
)
async def test_answer_that_is_not_the_providers_to_this_browser_signs_nobody_in(
    browser: Browser, changes: dict[str, str]
) -> None:
    await browser.start()
    browser.give()
    answer = await browser.come_back(**changes)
    assert refused(answer)
    assert "<script>alert" not in answer.text
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


async def test_answer_without_an_issuer_is_taken_unless_the_provider_says_that_it_names_itself(
    browser: Browser,
) -> None:
    await browser.start()
    browser.give()
    assert (await browser.come_back(iss="")).status_code == 303


async def test_answer_to_another_browser_signs_nobody_in(browser: Browser) -> None:
    await browser.start()
    browser.give()
    browser.client.cookies.clear()
    assert refused(await browser.come_back())


async def test_answer_is_good_once(browser: Browser) -> None:
    await browser.sign_in()
    again = await browser.come_back()
    assert again.status_code == 400


async def test_answer_that_comes_too_late_signs_nobody_in(browser: Browser) -> None:
    await browser.start()
    browser.clock.now += timedelta(minutes=10)
    browser.give()
    assert refused(await browser.come_back())


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"},
        {"aud": AUDIENCE},
        {"aud": [CLIENT_ID, "another"]},
        {"aud": [CLIENT_ID, "another"], "azp": "another"},
        {"iss": "https://evil.example"},
        {"sub": "somebody_else"},
        {"sub": ""},
        {"exp": int(NOW.timestamp()) - 3600, "iat": int(NOW.timestamp()) - 7200},
        {"iat": int(NOW.timestamp()) + 3600, "exp": int(NOW.timestamp()) + 7200},
    ],
)
async def test_id_token_of_another_sign_in_client_or_person_signs_nobody_in(
    browser: Browser, claims: dict[str, Any]
) -> None:
    assert refused(await browser.sign_in(**claims))


async def test_id_token_that_nobody_signed_signs_nobody_in(browser: Browser) -> None:
    await browser.start()
    browser.give()
    tokens = msgspec.json.decode(browser.issuer.answers[TOKEN].body)
    header, payload, signature = tokens["id_token"].split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    stranger = signing_key("RS256", "stranger")
    forged = browser.issuer.mint(stranger, claims={"aud": CLIENT_ID, "nonce": browser.asked["nonce"]})
    for id_token in (f"{none}.{payload}.", f"{header}.{payload}.{signature[:-8]}AAAAAAAA", forged, "x.y.z", 7, None):
        await browser.start()
        browser.answer({**tokens, "id_token": id_token})
        assert refused(await browser.come_back())


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"error": "invalid_grant"}', 400),
        (200, b"[]", 400),
        (200, b"\xff", 400),
        (200, b'{"access_token": "x"}', 400),
        (500, b"", 503),
        (503, b'{"error": "temporarily_unavailable"}', 503),
    ],
)
async def test_token_endpoint_in_trouble_is_told(browser: Browser, status: int, body: bytes, expected: int) -> None:
    await browser.start()
    browser.answer(body, status)
    assert refused(await browser.come_back(), expected)


async def test_provider_that_is_away_is_told(browser: Browser) -> None:
    await browser.start()
    await browser.issuer.stop()
    answer = await browser.come_back()
    assert refused(answer, 503)
    assert "cannot be reached" in answer.text


async def test_opaque_access_token_leaves_the_word_to_the_id_token(browser: Browser) -> None:
    await browser.start()
    browser.give(org_id="acme", org_role="member")
    tokens = msgspec.json.decode(browser.issuer.answers[TOKEN].body)
    claims = {"sub": USER, "aud": CLIENT_ID, "nonce": browser.asked["nonce"], "org_id": "acme", "org_role": "member"}
    id_token = browser.issuer.mint(claims={**browser.times(), **claims, "at_hash": at_hash("opaque")})
    browser.answer({**tokens, "access_token": "opaque", "id_token": id_token})
    assert (await browser.come_back()).status_code == 303
    assert (await browser.client.get("/orgs/acme/settings/api-keys")).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example", "///evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example",
        "javascript:alert(1)", "/\tevil", "/\r\nSet-Cookie: a=b", "evil", "/sign-out", "/signed-out", "/ü",
        "/" + "x" * 1000, "/" + "x" * 5000, "",
    ],
)  # fmt: skip
async def test_nobody_is_led_to_another_site(browser: Browser, path: str) -> None:
    answer = await browser.sign_in(path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_page_that_was_wanted_is_shown_after_the_sign_in(browser: Browser) -> None:
    wanted = "/orgs/acme/settings/api-keys?status=active"
    away = await browser.client.get(wanted)
    assert away.headers["location"] == f"/sign-in?return_to={quote(wanted, safe='')}"
    assert f"return_to={quote(wanted, safe='')}" in (await browser.client.get(away.headers["location"])).text


async def test_session_that_somebody_has_put_there_is_never_taken_over(browser: Browser) -> None:
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
    assert (await browser.client.get(HOME)).status_code == 303  # the one before has ended


async def test_signing_out_ends_every_copy_of_the_cookie(browser: Browser) -> None:
    await browser.sign_in()
    kept = browser.cookie
    assert kept
    answer = await browser.client.post("/sign-out", data={"form_token": await browser.form_token()})
    assert answer.headers["location"] == "/signed-out"
    assert browser.cookie is None
    page = await browser.client.get("/signed-out")
    assert f"{browser.issuer.url}/logout?" in page.text
    browser.client.cookies.set("tenantry_session", kept, domain="tenantry.test")
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_following_a_link_signs_nobody_out(browser: Browser, method: str) -> None:
    await browser.sign_in()
    assert (await browser.client.request(method, "/sign-out")).status_code == 405
    assert (await browser.client.get(HOME)).status_code == 200


async def test_session_that_is_not_used_ends(browser: Browser) -> None:
    await browser.sign_in()
    browser.clock.now += IDLE
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


async def test_session_that_is_used_ends_all_the_same_in_the_end(browser: Browser) -> None:
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
    """Let the provider vouch again for whoever is signed in there."""
    await browser.start(HOME, silent="1")
    browser.give(access=claims)
    return await browser.come_back()


async def test_provider_is_asked_again_for_its_word_without_the_user(browser: Browser) -> None:
    await browser.sign_in()
    before = browser.cookie
    browser.clock.now += PROOF_GOOD_FOR
    led = await browser.client.get("/orgs/acme/settings/api-keys")
    assert led.headers["location"].startswith("/sign-in/start?")
    assert "silent=1" in led.headers["location"]
    answer = await renewed(browser, org_role="member")
    assert browser.asked["prompt"] == "none"
    assert answer.status_code == 303
    assert browser.cookie == before  # other pages may be under way with it
    assert (await browser.client.get("/orgs/acme/settings/api-keys")).status_code == 403
    assert (await browser.client.get(HOME)).status_code == 200


@pytest.mark.parametrize("error", ["login_required", "interaction_required", "consent_required"])
async def test_who_is_not_signed_in_at_the_provider_any_more_is_asked(browser: Browser, error: str) -> None:
    await browser.sign_in()
    browser.clock.now += PROOF_GOOD_FOR
    await browser.start(HOME, silent="1")
    answer = await browser.come_back(code="", error=error)
    assert answer.headers["location"] == f"/sign-in/start?return_to={quote('/orgs/acme/', safe='')}"
    await browser.start(HOME)
    assert "prompt" not in browser.asked


async def test_another_person_at_the_provider_does_not_take_over_unasked(browser: Browser) -> None:
    await browser.sign_in()
    browser.clock.now += PROOF_GOOD_FOR
    await browser.start(HOME, silent="1")
    browser.give(access={"sub": "somebody", "org_id": "other"}, sub="somebody")
    led = await browser.come_back()
    assert led.headers["location"] == f"/sign-in/start?return_to={quote(HOME, safe='')}"
    await browser.start()
    browser.give(access={"sub": "somebody", "org_id": "other"}, sub="somebody")
    await browser.come_back()
    assert (await browser.client.get("/orgs/acme/")).status_code == 404
    assert (await browser.client.get("/orgs/other/")).status_code == 200


async def test_renewal_signs_nobody_in(browser: Browser) -> None:
    await browser.sign_in()
    await browser.client.post("/sign-out", data={"form_token": await browser.form_token()})
    led = await renewed(browser)
    assert led.headers["location"] == f"/sign-in?return_to={quote(HOME, safe='')}"
    assert browser.cookie is None


async def test_session_that_ends_while_it_is_renewed_stays_ended(browser: Browser) -> None:
    await browser.sign_in()
    form_token, kept = await browser.form_token(), browser.cookie
    assert kept
    browser.clock.now += PROOF_GOOD_FOR
    await browser.start(HOME, silent="1")
    browser.give()
    assert (await browser.client.post("/sign-out", data={"form_token": form_token})).headers[
        "location"
    ] == "/signed-out"
    browser.client.cookies.set("tenantry_session", kept, domain="tenantry.test")
    await browser.come_back()
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


async def test_word_of_the_provider_that_is_too_old_is_none_for_hand_made_requests(browser: Browser) -> None:
    await browser.sign_in()
    form_token = await browser.form_token()
    browser.clock.now += PROOF_GOOD_FOR
    by_script = {"sec-fetch-mode": "cors"}
    assert (await browser.client.get(HOME, headers=by_script)).status_code == 401
    form = {"form_token": form_token, "name": "Filled in meanwhile", "description": "", "once": "x" * 22}
    assert (await browser.client.post("/orgs/acme/projects/new", data=form)).status_code != 401
    browser.clock.now += FORM_GRACE
    assert (await browser.client.post("/orgs/acme/projects/new", data=form)).status_code == 401
    assert (await browser.client.post("/sign-out", data={"form_token": form_token})).status_code == 303


async def test_session_of_another_identity_provider_is_over(conninfo: str) -> None:
    cookies = {}
    for number in range(2):
        issuer, clock = Issuer(KEY), Clock()
        await issuer.start()
        describe(issuer)
        values = {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE, "OIDC_CLIENT_ID": CLIENT_ID}
        async with running_app(conninfo, clock=clock, **{**values, "BASE_URL": BASE_URL}) as client:
            browser = Browser(client, issuer, clock)
            if number == 0:
                await browser.sign_in()
                cookies = dict(client.cookies)
            else:
                client.cookies.update(cookies)
                assert (await client.get("/")).headers["location"].startswith("/sign-in?")
        await issuer.stop()
    assert cookies


async def test_service_that_does_not_know_its_own_name_leads_round_once_at_most(browser: Browser) -> None:
    headers = {"host": "127.0.0.1:8000"}
    first = await browser.client.get("/sign-in/start", headers=headers)
    second = await browser.client.get(first.headers["location"], headers=headers)
    assert second.headers["location"].startswith(browser.issuer.url)


async def test_who_is_signed_in_is_told_neither_to_sign_in_nor_that_they_are_out(browser: Browser) -> None:
    await browser.sign_in()
    assert (await browser.client.get("/sign-in?return_to=/orgs/acme/billing")).headers[
        "location"
    ] == "/orgs/acme/billing"
    assert (await browser.client.get("/signed-out")).headers["location"] == "/"


async def test_name_that_cannot_be_kept_is_no_hindrance(browser: Browser) -> None:
    answer = await browser.sign_in(name="\x00Oli\u202evia")
    assert answer.status_code == 303
    assert "Olivia" in (await browser.client.get(HOME)).text


async def test_cookie_is_nowhere_in_the_database(browser: Browser, conninfo: str) -> None:
    await browser.sign_in()
    cookie = browser.cookie
    assert cookie
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute("SELECT s::text FROM dashboard_sessions s")
        [(row,)] = await cursor.fetchall()
    raw = base64.urlsafe_b64decode(cookie)
    assert cookie not in row
    assert raw[:32].hex() not in row


@pytest.mark.parametrize("cookie", ["", "x", "A" * 64, "ü" * 8, "A" * 5000, "=" * 64])
async def test_made_up_cookie_is_nobodys(browser: Browser, cookie: str) -> None:
    answer = await browser.client.get(HOME, headers=[(b"cookie", f"tenantry_session={cookie}".encode())])
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?return_to=%2Forgs%2Facme")


async def test_made_up_cookie_costs_no_question_to_the_database(conninfo: str) -> None:
    async with running_app(conninfo, BASE_URL=BASE_URL) as client, await psycopg.AsyncConnection.connect(
        conninfo, autocommit=True
    ) as connection:  # fmt: skip
        await connection.execute("DROP TABLE dashboard_sessions")
        answer = await client.get(HOME, headers={"cookie": "tenantry_session=" + "A" * 64})
    assert answer.status_code == 303


async def test_cookie_is_no_credential_of_the_api(browser: Browser) -> None:
    await browser.sign_in()
    answer = await browser.client.get("/api/v1/projects")
    assert (answer.status_code, answer.json()["code"]) == (401, "missing_credential")


async def test_without_an_identity_provider_the_page_says_how_to_set_it_up(conninfo: str) -> None:
    async with running_app(conninfo, BASE_URL=BASE_URL) as client:
        answer = await client.get("/", follow_redirects=True)
    assert answer.status_code == 503
    assert BASE_URL + CALLBACK in answer.text
    assert "OIDC_ISSUER" in answer.text


async def test_another_name_of_the_service_leads_to_the_one_that_the_provider_knows(browser: Browser) -> None:
    answer = await browser.client.get("/sign-in/start?return_to=%2Forgs%2Facme", headers={"host": "localhost:3001"})
    assert answer.headers["location"] == f"{BASE_URL}/sign-in/start?return_to=%2Forgs%2Facme&here=1"


async def test_session_of_a_user_whom_nobody_has_made_a_member_shows_what_to_do(browser: Browser) -> None:
    await browser.start()
    browser.give(access={"sub": "newcomer", "org_id": None, "org_role": None}, sub="newcomer")
    await browser.come_back()
    page = await browser.client.get("/")
    assert page.status_code == 200
    assert "newcomer" in page.text
    assert (await browser.client.get(HOME)).status_code == 404
