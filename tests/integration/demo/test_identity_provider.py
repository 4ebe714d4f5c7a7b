"""The development identity provider, over real HTTP: signing in, and what is refused."""

import base64
import hashlib
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from tenantry.domain.errors import InvalidCredentialError
from tenantry.domain.issuers import Issuers
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.sign_in import UserInfo
from tenantry.integrations.oidc.tokens import TokenVerifier
from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_provider import DEVICE_GRANT
from tenantry_devkit.identity_tokens import DemoUser
from tests.support.patience import patient_keys
from tests.support.sign_in import (
    ADA,
    AUDIENCE,
    BOB,
    CALLBACK,
    CLIENT_ID,
    VERIFIER,
    Clock,
    Form,
    asking,
    choose,
    location,
    redeem,
    refresh,
    sign_in,
    verified,
)


def test_discovery_names_the_issuer_and_its_endpoints(
    http: httpx2.Client, companion: Companion
) -> None:
    metadata = http.get("/.well-known/openid-configuration").json()

    assert metadata["issuer"] == companion.issuer == companion.http_url
    endpoints = {
        "authorization_endpoint": "/authorize",
        "token_endpoint": "/token",
        "userinfo_endpoint": "/userinfo",
        "jwks_uri": "/jwks",
        "end_session_endpoint": "/logout",
    }
    assert {name: metadata[name] for name in endpoints} == {
        name: companion.issuer + path for name, path in endpoints.items()
    }
    assert metadata["code_challenge_methods_supported"] == ["S256"]
    assert metadata["response_types_supported"] == ["code"]
    assert metadata["id_token_signing_alg_values_supported"] == ["RS256"]
    grants = {"authorization_code", "refresh_token", DEVICE_GRANT}
    assert set(metadata["grant_types_supported"]) == grants


def test_published_keys_hold_nothing_private(http: httpx2.Client) -> None:
    (key,) = http.get("/jwks").json()["keys"]
    assert set(key) == {"kty", "n", "e", "kid", "alg", "use"}


def test_page_offers_every_user(http: httpx2.Client) -> None:
    assert Form(http.get("/authorize", params=asking()).text).buttons == [ADA.sub, BOB.sub]


def test_request_may_come_as_a_form(http: httpx2.Client) -> None:
    assert Form(http.post("/authorize", data=asking()).text).buttons == [ADA.sub, BOB.sub]


def test_names_of_users_are_escaped(http: httpx2.Client) -> None:
    page = http.get("/authorize", params=asking()).text
    assert "&lt;b&gt;Bob" in page
    assert "<b>Bob" not in page


def test_parameters_come_back_escaped(http: httpx2.Client) -> None:
    page = http.get("/authorize", params=asking(state='"><script>alert(1)</script>')).text
    assert "<script" not in page
    assert Form(page).fields["state"] == '"><script>alert(1)</script>'


def test_page_runs_nothing_and_sends_its_form_to_the_client_alone(http: httpx2.Client) -> None:
    policy = http.get("/authorize", params=asking()).headers["content-security-policy"].split("; ")
    assert {
        "default-src 'none'",
        "style-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    } <= set(policy)
    assert "form-action 'self' http://127.0.0.1:3001" in policy


def test_choice_redirects_with_code_state_and_issuer(
    http: httpx2.Client, companion: Companion
) -> None:
    form = Form(http.get("/authorize", params=asking()).text)

    address, query = location(http.post(form.action, data={**form.fields, "user": ADA.sub}))

    assert address == CALLBACK
    assert query["state"] == ["st&te"]
    assert query["iss"] == [companion.issuer]
    assert set(query) == {"code", "state", "iss"}


def test_query_of_the_redirect_address_is_kept(http: httpx2.Client) -> None:
    parameters = asking(redirect_uri=f"{CALLBACK}?tab=2", user=ADA.sub)
    _, query = location(http.post("/authorize/choice", data=parameters))
    assert query["tab"] == ["2"]
    assert "code" in query


def test_access_token_claims(http: httpx2.Client, companion: Companion, clock: Clock) -> None:
    answer = sign_in(http)

    assert answer["token_type"] == "Bearer"
    assert answer["expires_in"] == 3600
    assert answer["scope"] == "openid profile email projects:read"
    token = verified(http, answer["access_token"])
    assert token.header["typ"] == "at+jwt"
    issued = int(clock.now.timestamp())
    claims = dict(token.claims)
    assert claims.pop("jti")
    assert claims == {
        "iss": companion.issuer,
        "sub": ADA.sub,
        "aud": AUDIENCE,
        "client_id": CLIENT_ID,
        "iat": issued,
        "exp": issued + 3600,
        "scope": "openid profile email projects:read",
        "org_id": "org_demo",
        "org_role": "owner",
        "email": "ada@demo.example",
        "email_verified": True,
    }


def test_id_token_is_for_the_client_and_bound_to_request_and_access_token(
    http: httpx2.Client, companion: Companion, clock: Clock
) -> None:
    answer = sign_in(http)

    claims = verified(http, answer["id_token"]).claims
    half = hashlib.sha256(answer["access_token"].encode()).digest()[:16]
    assert claims["iss"] == companion.issuer
    assert claims["aud"] == CLIENT_ID
    assert claims["sub"] == ADA.sub
    assert claims["nonce"] == "n-1"
    assert claims["at_hash"] == base64.urlsafe_b64encode(half).rstrip(b"=").decode()
    assert claims["auth_time"] == int(clock.now.timestamp())
    assert (claims["name"], claims["email"]) == (ADA.name, ADA.email)


def auth_time(http: httpx2.Client, code: str) -> datetime:
    claims = verified(http, redeem(http, code).json()["id_token"]).claims
    return datetime.fromtimestamp(claims["auth_time"], UTC)


def code_for(http: httpx2.Client, user: DemoUser, **changes: str) -> str:
    """The code that the provider sends without a page to a client that names the user."""
    response = http.get("/authorize", params=asking(login_hint=user.sub, **changes))
    return location(response)[1]["code"][0]


def test_named_user_within_max_age_needs_no_page(http: httpx2.Client, clock: Clock) -> None:
    signed_in = clock.now
    choose(http)
    clock.now += timedelta(seconds=60)
    assert auth_time(http, code_for(http, ADA, max_age="60")) == signed_in
    assert auth_time(http, code_for(http, ADA, prompt="none")) == signed_in


def test_user_signs_in_again_after_max_age(http: httpx2.Client, clock: Clock) -> None:
    choose(http)
    clock.now += timedelta(seconds=61)
    page = http.get("/authorize", params=asking(login_hint=ADA.sub, max_age="60"))
    assert Form(page.text).buttons == [ADA.sub, BOB.sub]
    _, query = location(
        http.get("/authorize", params=asking(login_hint=ADA.sub, max_age="60", prompt="none"))
    )
    assert query["error"] == ["login_required"]
    assert auth_time(http, choose(http, max_age="60")) == clock.now


def test_client_that_names_a_user_without_max_age_signs_them_in(
    http: httpx2.Client, clock: Clock
) -> None:
    choose(http)
    clock.now += timedelta(hours=2)
    assert auth_time(http, code_for(http, ADA)) == clock.now


def test_refreshed_tokens_keep_the_time_of_the_sign_in(http: httpx2.Client, clock: Clock) -> None:
    signed_in = clock.now
    answer = sign_in(http)
    clock.now += timedelta(minutes=5)
    renewed = refresh(http, answer["refresh_token"]).json()
    claims = verified(http, renewed["id_token"]).claims
    assert claims["auth_time"] == int(signed_in.timestamp())


def test_no_id_token_without_the_openid_scope(http: httpx2.Client) -> None:
    assert "id_token" not in sign_in(http, scope="projects:read")


def test_scopes_that_mean_nothing_are_not_granted(http: httpx2.Client) -> None:
    assert sign_in(http, scope="openid OWNER whatever")["scope"] == "openid"


def test_user_without_organization_gets_no_organization_claim(http: httpx2.Client) -> None:
    claims = verified(http, sign_in(http, BOB)["access_token"]).claims
    assert claims["sub"] == BOB.sub
    assert not {"org_id", "org_role"} & set(claims)


async def test_service_takes_the_access_token_and_refuses_the_id_token(
    http: httpx2.Client, companion: Companion, clock: Clock
) -> None:
    answer = sign_in(http)
    config = OidcConfig(Issuers(companion.issuer), (AUDIENCE,), client_id=CLIENT_ID)
    async with httpx2.AsyncClient(verify=False) as client:
        keys = patient_keys(config, client)
        verifier = TokenVerifier(config, keys, clock=clock)
        claims = await verifier.verify(answer["access_token"])
        with pytest.raises(InvalidCredentialError):
            await verifier.verify(answer["id_token"])
        email = await UserInfo(config, keys, client).userinfo_email(answer["access_token"], ADA.sub)
        await keys.aclose()

    assert (claims.subject, claims.org_id, claims.role, claims.email) == (
        ADA.sub,
        "org_demo",
        "owner",
        ADA.email,
    )
    assert email == ADA.email


@pytest.mark.parametrize(
    "changes",
    [
        {"code_verifier": VERIFIER[::-1]},
        {"code_verifier": "short"},
        {"redirect_uri": "http://127.0.0.1:3001/other"},
        {"code": "unknown"},
    ],
    ids=["wrong verifier", "malformed verifier", "other redirect address", "unknown code"],
)
def test_code_is_bound_to_verifier_and_redirect_address(
    http: httpx2.Client, changes: dict[str, str]
) -> None:
    response = redeem(http, choose(http), **changes)
    assert response.status_code == 400
    assert response.json()["error"] == "invalid_grant"
    assert response.headers["cache-control"] == "no-store"


def test_wrong_verifier_spends_the_code(http: httpx2.Client) -> None:
    code = choose(http)
    redeem(http, code, code_verifier=VERIFIER[::-1])
    assert redeem(http, code).json()["error"] == "invalid_grant"


def test_code_works_once(http: httpx2.Client) -> None:
    code = choose(http)
    assert redeem(http, code).status_code == 200
    assert redeem(http, code).json()["error"] == "invalid_grant"


def test_code_lives_for_sixty_seconds(http: httpx2.Client, clock: Clock) -> None:
    young, old = choose(http), choose(http)
    clock.now += timedelta(seconds=59)
    assert redeem(http, young).status_code == 200
    clock.now += timedelta(seconds=1)
    assert redeem(http, old).json()["error"] == "invalid_grant"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge": "too-short"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"prompt": "none"}, "login_required"),
        ({"max_age": "soon"}, "invalid_request"),
        ({"max_age": "-1"}, "invalid_request"),
    ],
)
@pytest.mark.parametrize("path", ["/authorize", "/authorize/choice"])
def test_faulty_request_is_answered_to_the_client(
    http: httpx2.Client, path: str, changes: dict[str, str | None], error: str
) -> None:
    address, query = location(http.post(path, data={**asking(**changes), "user": ADA.sub}))
    assert address == CALLBACK
    assert query["error"] == [error]
    assert query["state"] == ["st&te"]
    assert "code" not in query


def test_choice_of_an_unknown_user_is_denied(http: httpx2.Client) -> None:
    _, query = location(http.post("/authorize/choice", data=asking(user="user_eve")))
    assert query["error"] == ["access_denied"]


@pytest.mark.parametrize(
    "redirect_uri",
    [
        None,
        "https://example.com/callback",
        "http://127.0.0.1.example.com/callback",
        "http://localhost.example.com/callback",
        "http://localhost@example.com/callback",
        "http://user@127.0.0.1/callback",
        "http://example.com\\@127.0.0.1/callback",
        "http://127.0.0.1\\.example.com/callback",
        "http://127.0.0.1:80@example.com/callback",
        "http://127.0.0.1/callback#fragment",
        "http://127.0.0.1/call\r\nSet-Cookie: a=b",
        "http://192.168.0.1/callback",
        "//127.0.0.1/callback",
        "javascript:alert(1)//127.0.0.1",
        "app://127.0.0.1/callback",
    ],
)
@pytest.mark.parametrize("path", ["/authorize", "/authorize/choice"])
def test_redirect_address_beyond_loopback_is_refused_without_a_redirect(
    http: httpx2.Client, path: str, redirect_uri: str | None
) -> None:
    response = http.post(path, data={**asking(redirect_uri=redirect_uri), "user": ADA.sub})
    assert response.status_code == 400
    assert "location" not in response.headers


@pytest.mark.parametrize(
    ("redirect_uri", "form_action"),
    [
        ("http://localhost:5173/cb", "http://localhost:5173"),
        ("http://127.0.0.1", "http://127.0.0.1"),
        ("http://127.8.9.1:1/cb?x=1", "http://127.8.9.1:1"),
        ("https://localhost/cb", "https://localhost"),
        ("http://[::1]:8080/cb", "http:"),
    ],
)
def test_redirect_address_may_be_any_loopback_address(
    http: httpx2.Client, redirect_uri: str, form_action: str
) -> None:
    response = http.get("/authorize", params=asking(redirect_uri=redirect_uri))
    assert response.status_code == 200
    assert f"form-action 'self' {form_action};" in response.headers["content-security-policy"]


def test_other_client_is_refused_without_a_redirect(http: httpx2.Client) -> None:
    response = http.get("/authorize", params=asking(client_id="other"))
    assert response.status_code == 400
    assert "location" not in response.headers


def test_repeated_parameter_is_rejected(http: httpx2.Client) -> None:
    query = "&".join(f"client_id={name}" for name in (CLIENT_ID, "other"))
    response = http.get(f"/authorize?{query}")
    assert response.status_code == 400
    assert response.json()["error"] == "invalid_request"


def test_malformed_query_is_rejected(http: httpx2.Client) -> None:
    assert http.get("/authorize?client_id=%ff").json()["error"] == "invalid_request"


def test_other_sites_page_cannot_choose(http: httpx2.Client) -> None:
    response = http.post(
        "/authorize/choice", data=asking(user=ADA.sub), headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert response.status_code == 400
    assert "location" not in response.headers


def test_other_host_name_is_refused(http: httpx2.Client) -> None:
    assert (
        http.get("/authorize", params=asking(), headers={"Host": "rebound.example"}).status_code
        == 400
    )
