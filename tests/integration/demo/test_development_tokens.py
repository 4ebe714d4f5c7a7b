"""The development identity provider, over real HTTP: refresh, machine use, userinfo and logout."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_tokens import DemoUser
from tests.support.issuer import signing_key
from tests.support.sign_in import (
    ADA,
    CLIENT_ID,
    CLIENT_SECRET,
    Clock,
    basic,
    location,
    refresh,
    sign_in,
    userinfo,
    verified,
)


def minted(companion: Companion, user: DemoUser = ADA, **changes: Any) -> str:
    """A good access token of this provider, but for what is asked otherwise."""
    return replace(companion.tokens, **changes).access_token(user)


def assert_invalid_token(response: httpx2.Response) -> None:
    assert response.status_code == 401
    assert 'error="invalid_token"' in response.headers["www-authenticate"]


def test_token_has_additional_claims(
    companion: Companion, clock: Clock, http: httpx2.Client
) -> None:
    claims = verified(
        http, companion.tokens.access_token(ADA, more_claims={"org_id": "another", "plan": ["x"]})
    ).claims
    assert (claims["sub"], claims["org_id"], claims["plan"]) == (ADA.sub, "another", ["x"])


def test_refresh_gives_new_tokens_of_the_same_user(http: httpx2.Client) -> None:
    first = sign_in(http)
    second = refresh(http, first["refresh_token"]).json()

    assert second["refresh_token"] != first["refresh_token"]
    assert second["access_token"] != first["access_token"]
    assert verified(http, second["access_token"]).claims["sub"] == ADA.sub
    id_token = verified(http, second["id_token"]).claims
    assert id_token["sub"] == ADA.sub
    assert "nonce" not in id_token
    assert refresh(http, second["refresh_token"]).status_code == 200


def test_refresh_token_works_once(http: httpx2.Client) -> None:
    first = sign_in(http)["refresh_token"]
    assert refresh(http, first).status_code == 200
    assert refresh(http, first).json()["error"] == "invalid_grant"


def test_refresh_token_lives_for_thirty_days(http: httpx2.Client, clock: Clock) -> None:
    token = sign_in(http)["refresh_token"]
    clock.now += timedelta(days=30)
    assert refresh(http, token).json()["error"] == "invalid_grant"


@pytest.mark.parametrize(
    ("parameters", "headers", "status", "error"),
    [
        (
            {"grant_type": "client_credentials", "client_id": CLIENT_ID},
            {},
            400,
            "unsupported_grant_type",
        ),
        ({"grant_type": "refresh_token", "client_id": "other"}, {}, 401, "invalid_client"),
        ({"grant_type": "refresh_token"}, {}, 401, "invalid_client"),
        (
            {"grant_type": "client_credentials"},
            {"Authorization": basic("wrong")},
            401,
            "invalid_client",
        ),
        (
            {"grant_type": "client_credentials"},
            {"Authorization": "Basic ???"},
            401,
            "invalid_client",
        ),
        (
            {"grant_type": "client_credentials"},
            {"Authorization": "Bearer eA=="},
            401,
            "invalid_client",
        ),
        ({"client_id": "other"}, {"Authorization": basic(CLIENT_SECRET)}, 400, "invalid_request"),
        ({"client_id": CLIENT_ID}, {}, 400, "invalid_request"),
        ({"grant_type": "password", "client_id": CLIENT_ID}, {}, 400, "unsupported_grant_type"),
        ({"grant_type": "refresh_token", "client_id": CLIENT_ID}, {}, 400, "invalid_request"),
        (
            {"grant_type": "authorization_code", "client_id": CLIENT_ID, "code": "x"},
            {},
            400,
            "invalid_request",
        ),
    ],
)
def test_token_endpoint_errors_of_rfc_6749(
    http: httpx2.Client,
    parameters: dict[str, str],
    headers: dict[str, str],
    status: int,
    error: str,
) -> None:
    response = http.post("/token", data=parameters, headers=headers)
    assert (response.status_code, response.json()["error"]) == (status, error)
    assert response.headers["cache-control"] == "no-store"
    # RFC 6749 section 5.2: the challenge answers a client that tried this header.
    assert ("www-authenticate" in response.headers) == (
        status == 401 and "Authorization" in headers
    )


def test_token_endpoint_accepts_only_forms(http: httpx2.Client) -> None:
    response = http.post("/token", json={"grant_type": "client_credentials"})
    assert (response.status_code, response.json()["error"]) == (400, "invalid_request")


def test_userinfo_depends_on_the_scopes(http: httpx2.Client) -> None:
    assert userinfo(http, sign_in(http)["access_token"]).json() == {
        "sub": ADA.sub,
        "name": ADA.name,
        "email": ADA.email,
        "email_verified": True,
    }
    assert userinfo(http, sign_in(http, scope="openid")["access_token"]).json() == {"sub": ADA.sub}


def test_userinfo_needs_a_token(http: httpx2.Client) -> None:
    response = http.get("/userinfo")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


def test_userinfo_needs_the_openid_scope(http: httpx2.Client) -> None:
    response = userinfo(http, sign_in(http, scope="projects:read")["access_token"])
    assert response.status_code == 403
    assert 'error="insufficient_scope"' in response.headers["www-authenticate"]


def test_userinfo_accepts_minted_tokens(
    companion: Companion, http: httpx2.Client, clock: Clock
) -> None:
    assert userinfo(http, minted(companion)).json()["sub"] == ADA.sub


def test_userinfo_refuses_an_expired_token(
    companion: Companion, http: httpx2.Client, clock: Clock
) -> None:
    token = minted(companion)
    clock.now += timedelta(hours=1, seconds=1)
    assert_invalid_token(userinfo(http, token))


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "http://127.0.0.1:1"},
        {"audience": CLIENT_ID},
        {"user": DemoUser("user_eve", "Eve", None)},
    ],
    ids=["issuer", "audience", "user"],
)
def test_userinfo_rejects_a_token_of_another_issuer_audience_or_user(
    companion: Companion, http: httpx2.Client, clock: Clock, changes: dict[str, Any]
) -> None:
    assert_invalid_token(userinfo(http, minted(companion, **changes)))


def test_userinfo_refuses_a_token_of_another_key(
    companion: Companion, http: httpx2.Client, clock: Clock
) -> None:
    assert_invalid_token(
        userinfo(http, minted(companion, signing_key=signing_key("RS256", "outsider").private))
    )


def test_userinfo_refuses_an_id_token(http: httpx2.Client) -> None:
    assert_invalid_token(userinfo(http, sign_in(http)["id_token"]))


def test_userinfo_rejects_a_malformed_token(http: httpx2.Client) -> None:
    assert_invalid_token(userinfo(http, "a.b.c"))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_logout_returns_to_the_client(http: httpx2.Client, method: str) -> None:
    parameters = {
        "client_id": CLIENT_ID,
        "post_logout_redirect_uri": "http://127.0.0.1:3001/",
        "state": "s",
    }
    sent: Mapping[str, Any] = {"params": parameters} if method == "GET" else {"data": parameters}
    address, query = location(http.request(method, "/logout", **sent))
    assert address == "http://127.0.0.1:3001/"
    assert query == {"state": ["s"]}


@pytest.mark.parametrize(
    "parameters",
    [
        {"client_id": CLIENT_ID, "post_logout_redirect_uri": "https://example.com/"},
        {"post_logout_redirect_uri": "http://127.0.0.1:3001/"},
    ],
    ids=["beyond loopback", "no client"],
)
def test_logout_rejects_other_redirects(http: httpx2.Client, parameters: dict[str, str]) -> None:
    response = http.get("/logout", params=parameters)
    assert response.status_code == 400
    assert "location" not in response.headers


def test_style_sheet_is_served(http: httpx2.Client) -> None:
    response = http.get("/companion.css")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/css")
    assert "--paper: light-dark(" in response.text
