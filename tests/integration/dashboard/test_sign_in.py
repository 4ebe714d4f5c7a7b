"""Signing in to the dashboard at an identity provider with scripted answers."""

import base64
import gzip
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote_plus

import httpx2
import msgspec
import pytest

from tenantry.common.clock import Timeouts
from tenantry.common.secret import Secret
from tenantry.dashboard.cookies import MOST_PENDING
from tenantry.domain.issuers import Issuers
from tenantry.domain.sessions import PROOF_GOOD_FOR
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.sign_in import SignIn
from tests.integration.dashboard.signing_in import (
    CALLBACK,
    HOME,
    TOKEN,
    USER,
    Browser,
    at_hash,
    at_provider,
    describe,
)
from tests.support.app import BASE_URL, running_app
from tests.support.issuer import AUDIENCE, CLIENT_ID, NOW, Answer, Issuer, signing_key
from tests.support.logs import watched
from tests.support.patience import patient_keys


def refused(answer: httpx2.Response, status: int = 400) -> bool:
    """Whether the sign-in ended on the sign-in page without a session."""
    return (
        answer.status_code == status
        and "<h1>Sign in</h1>" in answer.text
        and "tenantry_session" not in str(answer.headers.get_list("set-cookie"))
    )


async def test_authorization_request_has_pkce_state_and_nonce(browser: Browser) -> None:
    answer = await browser.start()
    assert answer.headers["location"].startswith(f"{browser.issuer.url}/authorize?tenant=x&")
    asked = browser.asked
    assert (asked["response_type"], asked["client_id"], asked["code_challenge_method"]) == (
        "code",
        CLIENT_ID,
        "S256",
    )
    assert (asked["redirect_uri"], asked["scope"]) == (BASE_URL + CALLBACK, "openid profile email")
    assert asked["audience"] == AUDIENCE
    assert "resource" not in asked  # it must be an absolute URI (RFC 8707, section 2)
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 32
    before = dict(asked)
    await browser.start()
    assert all(browser.asked[name] != before[name] for name in ("state", "nonce", "code_challenge"))
    assert asked["nonce"] not in str(answer.headers.get_list("set-cookie"))


async def test_sign_in_redirects_back_and_sets_an_http_only_cookie(browser: Browser) -> None:
    answer = await browser.sign_in(
        "/orgs/acme/settings/api-keys?status=active", name="Olivia <b>Owner</b>"
    )
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/orgs/acme/settings/api-keys?status=active",
    )
    [cookie] = [
        one for one in answer.headers.get_list("set-cookie") if one.startswith("tenantry_session=")
    ]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/"} <= attributes
    assert not any(part.startswith("domain") for part in attributes)
    page = await browser.client.get(HOME)
    assert page.status_code == 200
    assert "Olivia &lt;b&gt;Owner&lt;/b&gt;" in page.text
    assert list(browser.client.cookies) == ["tenantry_session"]  # the sign-in's cookie is deleted


async def test_cookies_over_https_are_limited_to_the_host(conninfo: str) -> None:
    async with at_provider(conninfo, base_url="https://tenantry.test") as browser:
        browser.client.base_url = httpx2.URL("https://tenantry.test")
        started = await browser.start()
        browser.give()
        signed_in = await browser.open_callback()
        form_token = await browser.form_token("/")
        signed_out = await browser.client.post("/sign-out", data={"form_token": form_token})
    assert started.headers["strict-transport-security"].startswith("max-age=")
    cookies = [
        one
        for answer in (started, signed_in, signed_out)
        for one in answer.headers.get_list("set-cookie")
    ]
    names = [cookie.partition("=")[0] for cookie in cookies]
    begun_as = f"__Host-tenantry_sign_in_{browser.asked['state'][:12]}"
    assert sorted(names) == sorted(["__Host-tenantry_session", begun_as] * 2)
    for cookie in cookies:
        attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"httponly", "path=/", "samesite=lax", "secure"} <= attributes
        assert not any(part.startswith("domain") for part in attributes)


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
async def test_callback_with_wrong_parameters_is_rejected(
    browser: Browser, changes: dict[str, str]
) -> None:
    await browser.start()
    browser.give()
    answer = await browser.open_callback(**changes)
    assert refused(answer)
    assert "<script>alert" not in answer.text
    assert (await browser.client.get(HOME)).headers["location"].startswith("/sign-in?")


async def test_callback_without_issuer_is_accepted_unless_the_provider_announces_it(
    browser: Browser,
) -> None:
    await browser.start()
    browser.give()
    assert (await browser.open_callback(iss="")).status_code == 303


async def test_callback_in_another_browser_is_rejected(browser: Browser) -> None:
    await browser.start()
    browser.give()
    browser.client.cookies.clear()
    assert refused(await browser.open_callback())


async def test_unfinished_sign_ins_make_room_for_new_ones(browser: Browser) -> None:
    started = []
    for _ in range(50):
        browser.clock.now += timedelta(seconds=1)
        await browser.start()
        started.append(dict(browser.asked))
    assert len(browser.client.cookies) == MOST_PENDING
    for asked in started[-MOST_PENDING:]:
        browser.asked = asked
        browser.give()
        assert (await browser.open_callback()).status_code == 303
    browser.asked = started[-MOST_PENDING - 1]
    browser.client.cookies.delete("tenantry_session")
    assert refused(await browser.open_callback())


async def test_pending_sign_ins_fit_into_a_small_header(browser: Browser) -> None:
    await browser.sign_in()
    longest = "/orgs/acme/settings/audit?actorId=" + "x" * 960
    for _ in range(20):
        browser.clock.now += timedelta(seconds=1)
        await browser.start(longest)
        assert (
            len("; ".join(f"{name}={text}" for name, text in browser.client.cookies.items())) < 8000
        )
    browser.give()
    assert (await browser.open_callback()).headers["location"] == longest


async def test_next_sign_in_deletes_expired_ones(browser: Browser) -> None:
    await browser.start()
    browser.client.cookies.set("tenantry_sign_in_made_up", "x", domain="tenantry.test")
    browser.clock.now += timedelta(minutes=10)
    await browser.start()
    assert list(browser.client.cookies) == [f"tenantry_sign_in_{browser.asked['state'][:12]}"]


async def test_callback_works_once(browser: Browser) -> None:
    await browser.sign_in()
    browser.client.cookies.delete("tenantry_session")
    assert refused(await browser.open_callback())


async def test_repeated_callback_redirects_a_signed_in_user(browser: Browser) -> None:
    await browser.start("/orgs/acme/projects")
    started = dict(browser.client.cookies)
    browser.give()
    await browser.open_callback()
    gone = await browser.open_callback()
    assert (gone.status_code, gone.headers["location"]) == (303, "/")
    browser.client.cookies.update(started)
    browser.answer({"error": "invalid_grant"}, 400)  # a code works once
    second_callback = await browser.open_callback()
    assert (second_callback.status_code, second_callback.headers["location"]) == (
        303,
        "/orgs/acme/projects",
    )


async def test_failed_renewal_is_shown_on_the_sign_in_page(browser: Browser) -> None:
    await browser.sign_in()
    browser.clock.now += PROOF_GOOD_FOR
    await browser.start(silent="1")
    assert refused(await browser.open_callback(code="", error="server_error"))


@pytest.mark.parametrize("error", ["login_required", "interaction_required", "consent_required"])
async def test_interaction_error_of_an_interactive_sign_in_is_shown(
    browser: Browser, error: str
) -> None:
    await browser.start()
    with watched("tenantry.dashboard.sign_in") as log:
        answer = await browser.open_callback(code="", error=error)
    assert refused(answer)
    assert "The identity provider must ask you first." in answer.text
    assert log.count("a sign-in failed") == 1


async def test_late_callback_is_rejected(browser: Browser) -> None:
    await browser.start()
    browser.clock.now += timedelta(minutes=10)
    browser.give()
    assert refused(await browser.open_callback())


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
        {"exp": timedelta(hours=-1), "iat": timedelta(hours=-2)},
        {"iat": timedelta(hours=1), "exp": timedelta(hours=2)},
    ],
)
async def test_id_token_of_another_sign_in_client_or_user_is_rejected(
    browser: Browser, claims: dict[str, Any]
) -> None:
    now = browser.clock.now
    moments = {
        name: int((now + value).timestamp())
        for name, value in claims.items()
        if isinstance(value, timedelta)
    }
    assert refused(await browser.sign_in(**{**claims, **moments}))


async def test_unsigned_id_token_is_rejected(browser: Browser) -> None:
    await browser.start()
    browser.give()
    tokens = msgspec.json.decode(browser.issuer.answers[TOKEN].body)
    header, payload, signature = tokens["id_token"].split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    unknown = signing_key("RS256", "unknown")
    said = {**browser.times(), "sub": USER, "aud": CLIENT_ID}
    forged = browser.issuer.mint(unknown, claims={**said, "nonce": browser.asked["nonce"]})
    for id_token in (
        f"{none}.{payload}.",
        f"{header}.{payload}.{signature[:-8]}AAAAAAAA",
        forged,
        "x.y.z",
        7,
        None,
    ):
        await browser.start()
        browser.answer({**tokens, "id_token": id_token})
        assert refused(await browser.open_callback())


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"error": "invalid_grant"}', 400),
        (200, b"[]", 400),
        (200, b"\xff", 400),
        (200, b'{"access_token": "x"}', 400),
        (200, b'{"access_token": "x", "id_token": 7}', 400),
        (200, b'{"access_token": ["x"], "id_token": "y"}', 400),
        (200, b"access_token=x&id_token=y", 400),
        (200, b"[" * 100_000, 400),
        (204, b"", 400),
        (401, b'{"error": "invalid_client"}', 400),
        (400, b'{"error": {"code": "invalid_grant"}}', 400),
        (400, b"", 400),
        (500, b"", 503),
        (503, b'{"error": "temporarily_unavailable"}', 503),
    ],
)
async def test_token_endpoint_error_is_shown(
    browser: Browser, status: int, body: bytes, expected: int
) -> None:
    await browser.start()
    browser.answer(body, status)
    assert refused(await browser.open_callback(), expected)


async def test_endless_answer_of_the_token_endpoint_is_an_error(browser: Browser) -> None:
    await browser.start()
    browser.issuer.answers[TOKEN] = Answer(200, b" " * 65_536, ends=False)
    with watched("tenantry.dashboard.sign_in") as log:
        answer = await browser.open_callback()
    assert refused(answer)
    assert "response is invalid" in answer.text
    assert log.count("answered with more than 262144 bytes") == 1


async def test_silent_token_endpoint_is_an_error(conninfo: str) -> None:
    async with at_provider(conninfo, Timeouts(token_endpoint=0.1)) as browser:
        await browser.start()
        browser.issuer.open.clear()
        assert refused(await browser.open_callback(), 503)


async def test_redirect_of_the_token_endpoint_is_not_followed(browser: Browser) -> None:
    await browser.start()
    browser.give()
    elsewhere = browser.issuer.answers[TOKEN]
    browser.issuer.answers["/elsewhere"] = elsewhere
    for status in (302, 307, 308):
        browser.issuer.answers[TOKEN] = Answer(
            status, b"", {"Location": browser.issuer.url + "/elsewhere"}
        )
        assert refused(await browser.open_callback())
        await browser.start()
    assert browser.issuer.fetches["/elsewhere"] == 0


async def test_compressed_answer_of_the_token_endpoint_is_an_error(browser: Browser) -> None:
    await browser.start()
    bomb = gzip.compress(b" " * 10_000_000)
    browser.issuer.answers[TOKEN] = Answer(200, bomb, {"Content-Encoding": "gzip"})
    assert refused(await browser.open_callback())


async def test_failed_sign_in_is_logged_without_secrets(conninfo: str) -> None:
    secret = "the-secret-of-the-client"
    async with at_provider(conninfo, OIDC_CLIENT_SECRET=secret) as browser:
        await browser.start()
        echo = {"error": "invalid_client", "error_description": f"not {secret} with a-code"}
        browser.answer(echo, 401)
        with watched("tenantry") as log:
            answer = await browser.open_callback()
    assert refused(answer)
    assert "rejected this service&#39;s client id and secret" in answer.text
    assert log.count("answered 401 invalid_client") == 1
    assert log.count(answer.headers["x-request-id"]) == 1
    for hidden in (secret, "a-code", browser.asked["state"], browser.asked["nonce"]):
        assert log.count(hidden) == 0
        assert hidden not in answer.text


async def test_client_authenticates_with_the_configured_id_and_secret(conninfo: str) -> None:
    async with at_provider(
        conninfo, OIDC_CLIENT_SECRET="1+1 two words", OIDC_CLIENT_ID="a client%3A1"
    ) as browser:
        await browser.start()
        browser.give(aud="a client%3A1")
        assert (await browser.open_callback()).status_code == 303
        assert credentials_in(browser.issuer.authorization) == ["a client%3A1", "1+1 two words"]


@pytest.mark.parametrize(
    "secret", ["a:b", "100%", "1+1", "two words", "sécret-密", "%3A%2B", "a&b=c;d/e~"]
)
async def test_client_authenticates_with_any_secret(shared_browser: Browser, secret: str) -> None:
    assert await proof(shared_browser.issuer, CLIENT_ID, secret) == [CLIENT_ID, secret]


@pytest.mark.parametrize("client_id", ["https://accounts.example", "a client%3A1", "ünal"])
async def test_client_authenticates_with_any_id(shared_browser: Browser, client_id: str) -> None:
    assert await proof(shared_browser.issuer, client_id, "s" * 32) == [client_id, "s" * 32]


async def proof(issuer: Issuer, client_id: str, secret: str) -> list[str]:
    """Redeem a code at this provider; return the id and secret that the client sent."""
    describe(issuer)
    async with new_http_client() as http:
        config = OidcConfig(Issuers(issuer.url), (AUDIENCE,), client_id=client_id)
        keys = patient_keys(config, http)
        sign_in = SignIn(
            config,
            keys,
            http,
            client_id=client_id,
            client_secret=Secret(secret),
            redirect_uri=BASE_URL + CALLBACK,
            clock=lambda: NOW,
        )
        _, started = await sign_in.begin()
        access_token = issuer.mint(claims={"sub": USER})
        said = {
            "sub": USER,
            "aud": client_id,
            "nonce": started.nonce,
            "at_hash": at_hash(access_token),
        }
        tokens = {
            "access_token": access_token,
            "id_token": issuer.mint(header={"typ": "JWT"}, claims=said),
        }
        issuer.answers[TOKEN] = Answer(
            200, msgspec.json.encode(tokens), {"content-type": "application/json"}
        )
        person = await sign_in.finish(
            started, {"code": "a-code", "state": started.state, "iss": issuer.url}
        )
        assert person.claims.subject == USER
        await keys.aclose()
    return credentials_in(issuer.authorization)


def credentials_in(authorization: str | None) -> list[str]:
    """Decode the client id and secret, each encoded as in a form (RFC 6749 section 2.3.1 and
    appendix B).
    """
    scheme, _, credentials = (authorization or "").partition(" ")
    assert scheme == "Basic"
    return [unquote_plus(part) for part in base64.b64decode(credentials).decode("ascii").split(":")]


async def test_unavailable_provider_is_shown(own_browser: Browser) -> None:
    await own_browser.start()
    await own_browser.issuer.stop()
    answer = await own_browser.open_callback()
    assert refused(answer, 503)
    assert "cannot be reached" in answer.text


async def test_id_token_is_used_if_the_access_token_is_opaque(browser: Browser) -> None:
    await browser.start()
    browser.give(org_id="acme", org_role="member")
    tokens = msgspec.json.decode(browser.issuer.answers[TOKEN].body)
    claims = {
        "sub": USER,
        "aud": CLIENT_ID,
        "nonce": browser.asked["nonce"],
        "org_id": "acme",
        "org_role": "member",
    }
    id_token = browser.issuer.mint(
        claims={**browser.times(), **claims, "at_hash": at_hash("opaque")}
    )
    browser.answer({**tokens, "access_token": "opaque", "id_token": id_token})
    assert (await browser.open_callback()).status_code == 303
    assert (await browser.client.get("/orgs/acme/settings/api-keys")).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "///evil.example",
        "https://evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "/\tevil",
        "/\r\nSet-Cookie: a=b",
        "evil",
        "/sign-out",
        "/signed-out",
        "/ü",
        "/" + "x" * 1000,
        "/" + "x" * 5000,
        "",
    ],
)
async def test_return_address_cannot_leave_the_site(browser: Browser, path: str) -> None:
    answer = await browser.sign_in(path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_requested_page_is_shown_after_the_sign_in(browser: Browser) -> None:
    wanted = "/orgs/acme/settings/api-keys?status=active"
    away = await browser.client.get(wanted)
    assert away.headers["location"] == f"/sign-in?return_to={quote(wanted, safe='')}"
    assert (
        f"return_to={quote(wanted, safe='')}"
        in (await browser.client.get(away.headers["location"])).text
    )


async def test_wrong_base_url_redirects_at_most_once(browser: Browser) -> None:
    headers = {"host": "127.0.0.1:8000"}
    first = await browser.client.get("/sign-in/start", headers=headers)
    second = await browser.client.get(first.headers["location"], headers=headers)
    assert second.headers["location"].startswith(browser.issuer.url)


async def test_name_that_cannot_be_stored_does_not_prevent_the_sign_in(browser: Browser) -> None:
    answer = await browser.sign_in(name="\x00Oli\u202evia")
    assert answer.status_code == 303
    assert "Olivia" in (await browser.client.get(HOME)).text


async def test_missing_identity_provider_shows_the_setup(conninfo: str) -> None:
    async with running_app(conninfo, BASE_URL=BASE_URL) as client:
        answer = await client.get("/", follow_redirects=True)
    assert answer.status_code == 404
    assert BASE_URL + CALLBACK in answer.text
    assert "OIDC_ISSUER" in answer.text


async def test_sign_in_on_another_host_redirects_to_the_base_url(browser: Browser) -> None:
    answer = await browser.client.get(
        "/sign-in/start?return_to=%2Forgs%2Facme", headers={"host": "localhost:3001"}
    )
    assert answer.headers["location"] == f"{BASE_URL}/sign-in/start?return_to=%2Forgs%2Facme&here=1"


async def test_user_without_an_organization_sees_what_to_do(browser: Browser) -> None:
    await browser.start()
    browser.give(access={"sub": "newcomer", "org_id": None, "org_role": None}, sub="newcomer")
    await browser.open_callback()
    page = await browser.client.get("/")
    assert page.status_code == 200
    assert "newcomer" in page.text
    assert (await browser.client.get(HOME)).status_code == 404
