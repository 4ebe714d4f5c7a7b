"""Bearer tokens of real providers through the whole service."""

import hmac
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from joserfc.jwk import RSAKey

from tests.support.app import OPERATOR_TOKEN, running_app
from tests.support.issuer import AUDIENCE, NOW, Issuer, running_issuer, segment, signing_key
from tests.support.node_provider import node_provider

PROJECTS = "/api/v1/projects"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def put_tenant(client: httpx2.AsyncClient, tenant_id: str) -> None:
    answer = await client.put(
        f"/api/v1/tenants/{tenant_id}",
        json={"name": "Acme", "ownerEmail": "owner@acme.example"},
        headers=bearer(OPERATOR_TOKEN),
    )
    assert answer.status_code == 201


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
async def test_token_of_a_real_provider_lists_and_makes_projects(conninfo: str, alg: str) -> None:
    async with (
        node_provider("ann") as provider,
        running_app(
            conninfo, OIDC_ISSUER=provider.issuer, OIDC_AUDIENCE=AUDIENCE, OIDC_CLIENT_ID="dashboard"
        ) as client,
    ):
        await put_tenant(client, "acme")
        token = await provider.token("ann", alg=alg, org_id="acme", org_role="member")
        made = await client.post(PROJECTS, json={"name": "Rocket"}, headers=bearer(token))
        listed = await client.get(PROJECTS, headers=bearer(token))
        refused = await client.get("/api/v1/api-keys", headers=bearer(token))
    assert made.status_code == 201
    assert [project["name"] for project in listed.json()["data"]] == ["Rocket"]
    assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_scope")


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer(signing_key("RS256", "one"), signing_key("ES256", "two")) as issuer:
        yield issuer


@pytest.fixture
async def client(conninfo: str, issuer: Issuer) -> AsyncIterator[httpx2.AsyncClient]:
    async with running_app(
        conninfo, clock=lambda: NOW, OIDC_ISSUER=issuer.url, OIDC_AUDIENCE=AUDIENCE, OIDC_CLIENT_ID="dashboard"
    ) as client:
        await put_tenant(client, "acme")
        yield client


def unsigned(issuer: Issuer) -> str:
    head = segment(json.dumps({"alg": "none", "typ": "JWT"}).encode())
    return f"{head}.{issuer.mint(claims={'org_id': 'acme'}).split('.')[1]}."


def signed_with_the_public_key(issuer: Issuer) -> str:
    """HS256 with the provider's public key as the shared secret."""
    key = issuer.keys[0].private
    assert isinstance(key, RSAKey)
    public = key.as_pem(private=False)
    head = segment(json.dumps({"alg": "HS256", "kid": "one", "typ": "JWT"}).encode())
    signed = f"{head}.{issuer.mint(claims={'org_id': 'acme'}).split('.')[1]}"
    return f"{signed}.{segment(hmac.digest(public, signed.encode(), 'sha256'))}"


NOW_SECONDS = int(NOW.timestamp())
FAULTS: dict[str, dict[str, Any]] = {
    "issuer": {"iss": "https://elsewhere.example"},
    "audience": {"aud": "another-api"},
    "not yet valid": {"nbf": NOW_SECONDS + 600},
    "issued in the future": {"iat": NOW_SECONDS + 600, "exp": NOW_SECONDS + 1200},
    "an ID token": {"nonce": "n"},
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_token_with_a_wrong_claim_is_refused(client: httpx2.AsyncClient, issuer: Issuer, fault: str) -> None:
    token = issuer.mint(claims={"org_id": "acme", **FAULTS[fault]})
    answer = await client.get(PROJECTS, headers=bearer(token))
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_credential")
    assert answer.headers["www-authenticate"].startswith('Bearer realm="api", error="invalid_token"')


async def test_expired_token_is_told_that_it_has_expired(client: httpx2.AsyncClient, issuer: Issuer) -> None:
    claims = {"org_id": "acme", "iat": NOW_SECONDS - 7200, "exp": NOW_SECONDS - 3600}
    answer = await client.get(PROJECTS, headers=bearer(issuer.mint(claims=claims)))
    assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")


async def test_token_of_a_wrong_key_is_refused(client: httpx2.AsyncClient, issuer: Issuer) -> None:
    forged = issuer.mint(signing_key("RS256", "of an attacker"), header={"kid": "one"}, claims={"org_id": "acme"})
    answer = await client.get(PROJECTS, headers=bearer(forged))
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_credential")


@pytest.mark.parametrize("forge", [unsigned, signed_with_the_public_key])
async def test_token_of_a_wrong_algorithm_is_refused(client: httpx2.AsyncClient, issuer: Issuer, forge: Any) -> None:
    answer = await client.get(PROJECTS, headers=bearer(forge(issuer)))
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_credential")


async def test_known_keys_go_on_while_the_provider_is_away(client: httpx2.AsyncClient, issuer: Issuer) -> None:
    good = issuer.mint(claims={"org_id": "acme"})
    assert (await client.get(PROJECTS, headers=bearer(good))).status_code == 200
    await issuer.stop()
    assert (await client.get(PROJECTS, headers=bearer(good))).status_code == 200


async def test_unknown_key_of_a_provider_that_is_away_is_an_outage(conninfo: str, issuer: Issuer) -> None:
    await issuer.stop()
    async with running_app(
        conninfo, clock=lambda: NOW, OIDC_ISSUER=issuer.url, OIDC_AUDIENCE=AUDIENCE, OIDC_CLIENT_ID="dashboard"
    ) as client:
        answer = await client.get(PROJECTS, headers=bearer(issuer.mint(claims={"org_id": "acme"})))
    assert (answer.status_code, answer.json()["code"]) == (503, "auth_unavailable")
    assert answer.headers["retry-after"] == "1"
