"""Signing devices in at the development identity provider (RFC 8628), and ending tokens (RFC
7009).
"""

from datetime import timedelta
from typing import Any

import httpx2

from tenantry_devkit.demo.companion import Companion
from tests.support.sign_in import (
    ADA,
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    Clock,
    Form,
    basic,
    refresh,
    sign_in,
    verified,
)

GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def begin(http: httpx2.Client, **changes: str) -> dict[str, Any]:
    answer = http.post(
        "/device_authorization",
        data={"client_id": CLIENT_ID, "scope": "openid projects:read", **changes},
    )
    assert answer.status_code == 200, answer.text
    fields: dict[str, Any] = answer.json()
    return fields


def ask(http: httpx2.Client, device_code: str) -> httpx2.Response:
    return http.post(
        "/token", data={"grant_type": GRANT, "device_code": device_code, "client_id": CLIENT_ID}
    )


def error_of(answer: httpx2.Response) -> str:
    assert answer.status_code == 400
    return str(answer.json()["error"])


def decide(http: httpx2.Client, user_code: str, **fields: str) -> httpx2.Response:
    return http.post("/device/choice", data={"user_code": user_code, **fields})


def test_discovery_names_the_endpoints(http: httpx2.Client, companion: Companion) -> None:
    metadata = http.get("/.well-known/openid-configuration").json()
    assert metadata["device_authorization_endpoint"] == f"{companion.issuer}/device_authorization"
    assert metadata["revocation_endpoint"] == f"{companion.issuer}/revoke"
    assert GRANT in metadata["grant_types_supported"]


def test_device_gets_its_tokens_once_the_code_was_entered(
    http: httpx2.Client, clock: Clock
) -> None:
    authorization = begin(http)
    page = Form(http.get(authorization["verification_uri_complete"]).text)
    assert page.fields["user_code"] == authorization["user_code"]
    assert ADA.sub in page.buttons
    clock.now += timedelta(seconds=authorization["interval"])
    assert error_of(ask(http, authorization["device_code"])) == "authorization_pending"
    typed = authorization["user_code"].lower().replace("-", "")
    assert ADA.name in decide(http, typed, user=ADA.sub).text
    tokens = ask(http, authorization["device_code"]).json()
    claims = verified(http, tokens["access_token"]).claims
    assert (claims["sub"], claims["aud"], claims["scope"]) == (
        ADA.sub,
        AUDIENCE,
        "openid projects:read",
    )
    assert refresh(http, tokens["refresh_token"]).status_code == 200
    assert error_of(ask(http, authorization["device_code"])) == "invalid_grant"


def test_code_that_is_denied_or_late_is_refused(http: httpx2.Client, clock: Clock) -> None:
    authorization = begin(http)
    assert "denied" in decide(http, authorization["user_code"], deny="yes").text
    assert error_of(ask(http, authorization["device_code"])) == "access_denied"
    late = begin(http)
    clock.now += timedelta(seconds=late["expires_in"])
    assert decide(http, late["user_code"], user=ADA.sub).status_code == 400
    assert error_of(ask(http, late["device_code"])) == "expired_token"


def test_invalid_device_choice_is_rejected(http: httpx2.Client) -> None:
    assert decide(http, "BBBB-BBBB", user=ADA.sub).status_code == 400
    code = begin(http)["user_code"]
    assert decide(http, code, user="missing").status_code == 400
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    form = {"user_code": code, "user": ADA.sub}
    assert http.post("/device/choice", data=form, headers=elsewhere).status_code == 400


def test_other_client_gets_no_code(http: httpx2.Client) -> None:
    assert http.post("/device_authorization", data={"client_id": "other"}).status_code == 401


def test_revocation_ends_the_token_and_ignores_unknown_ones(http: httpx2.Client) -> None:
    tokens = sign_in(http)
    successor = refresh(http, tokens["refresh_token"]).json()["refresh_token"]
    assert (
        http.post("/revoke", data={"token": "nonsense", "client_id": CLIENT_ID}).status_code == 200
    )
    secret = {"Authorization": basic(CLIENT_SECRET)}
    assert http.post("/revoke", data={"token": successor}, headers=secret).status_code == 200
    assert refresh(http, successor).json()["error"] == "invalid_grant"
    assert http.post("/revoke", data={"token": "x", "client_id": "other"}).status_code == 401
