"""Accepted bearer tokens, and their claims."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec
import pytest

from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError, TokenExpiredError
from tenantry.integrations.oidc.claim_checks import MAX_TOKEN_BYTES
from tenantry.integrations.oidc.claims import Claims, OidcConfig
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import TokenVerifier
from tests.support.issuer import AUDIENCE, CLIENT_ID, NOW, Issuer, running_issuer, signing_key

RSA = signing_key("RS256", "rsa-1")
EC = signing_key("ES256", "ec-1")
ED25519 = signing_key("EdDSA", "ed-1")
ISSUED = int(NOW.timestamp())
DAY = 24 * 3600


@pytest.fixture(scope="module")
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer(RSA, EC, ED25519) as running:
        yield running


@contextlib.asynccontextmanager
async def verifier_of(issuer: Issuer, now: datetime = NOW, **config: str) -> AsyncIterator[TokenVerifier]:
    settings = OidcConfig(issuer=issuer.url, audience=AUDIENCE, client_id=CLIENT_ID)
    async with httpx2.AsyncClient() as client:
        keys = KeySet(settings, client, monotonic=lambda: 0.0)
        await keys.start()
        try:
            yield TokenVerifier(msgspec.structs.replace(settings, **config), keys, clock=lambda: now)
        finally:
            await keys.aclose()


@pytest.fixture(scope="module")
async def verifier(issuer: Issuer) -> AsyncIterator[TokenVerifier]:
    async with verifier_of(issuer) as made:
        yield made


async def test_claims_name_user_and_expiry(issuer: Issuer, verifier: TokenVerifier) -> None:
    assert await verifier.verify(issuer.mint()) == Claims(
        issuer=issuer.url,
        subject="user_1",
        org_id=None,
        role=None,
        scopes=(),
        issued_at=NOW,
        expires_at=NOW + timedelta(hours=1),
        email=None,
    )


@pytest.mark.parametrize("key", [RSA, EC, ED25519], ids=lambda key: key.alg)
async def test_every_algorithm_of_the_contract_is_accepted(issuer: Issuer, verifier: TokenVerifier, key: Any) -> None:
    assert (await verifier.verify(issuer.mint(key))).subject == "user_1"


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({"typ": "JWT"}, id="typ JWT"),
        pytest.param({"typ": "jwt"}, id="typ jwt"),
        pytest.param({"typ": "AT+JWT"}, id="typ AT+JWT"),
        pytest.param({"typ": "application/at+jwt"}, id="typ application/at+jwt"),
        pytest.param({"jwk": signing_key("RS256", "outsider").jwk()}, id="jwk"),
        pytest.param({"jku": "https://evil.example/jwks"}, id="jku"),
        pytest.param({"x5u": 7, "x5c": "no certificate"}, id="x5u, x5c"),
        pytest.param({"b64": True}, id="b64 true"),
        pytest.param({"future": {"anything": [1]}}, id="unknown parameter"),
    ],
)
async def test_these_headers_change_nothing(issuer: Issuer, verifier: TokenVerifier, header: dict[str, Any]) -> None:
    assert (await verifier.verify(issuer.mint(header=header))).subject == "user_1"


@pytest.mark.parametrize("name", ["typ", "kid"])
async def test_typ_and_kid_are_optional(issuer: Issuer, verifier: TokenVerifier, name: str) -> None:
    assert (await verifier.verify(issuer.mint(without=(name,)))).subject == "user_1"


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({"aud": [AUDIENCE]}, id="audience in a list"),
        pytest.param({"aud": ["other", AUDIENCE, CLIENT_ID]}, id="several audiences"),
        pytest.param({"exp": ISSUED - 29}, id="expired within the leeway"),
        pytest.param({"exp": ISSUED + DAY}, id="lives a day"),
        pytest.param({"iat": ISSUED + 30}, id="issued ahead within the leeway"),
        pytest.param({"iat": ISSUED - 0.5, "exp": ISSUED + 60.5}, id="fractions of seconds"),
        pytest.param({"nbf": ISSUED + 30}, id="valid soon within the leeway"),
        pytest.param({"nbf": 0}, id="valid for long"),
        pytest.param({"sub": "~" * 255}, id="longest subject"),
        pytest.param({"sub": "auth0|507f1f77bcf86cd799439011"}, id="usual subject"),
        pytest.param({"ext": {"name": 'Zoë \U0001f600 "quoted":'}}, id="any text elsewhere"),
    ],
)
async def test_these_claims_are_accepted(issuer: Issuer, verifier: TokenVerifier, claims: dict[str, Any]) -> None:
    assert (await verifier.verify(issuer.mint(claims=claims))).issuer == issuer.url


async def test_a_token_of_the_greatest_size_is_accepted(issuer: Issuer, verifier: TokenVerifier) -> None:
    spare = MAX_TOKEN_BYTES - len(issuer.mint(claims={"pad": ""}))
    token = issuer.mint(claims={"pad": "x" * (spare * 3 // 4)})
    assert MAX_TOKEN_BYTES - 4 < len(token) <= MAX_TOKEN_BYTES
    assert (await verifier.verify(token)).subject == "user_1"


EXPIRED = {"iat": ISSUED - 3600, "exp": ISSUED - 30}


async def test_otherwise_valid_token_is_expired(issuer: Issuer, verifier: TokenVerifier) -> None:
    with pytest.raises(TokenExpiredError):
        await verifier.verify(issuer.mint(claims=EXPIRED))


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "other"},
        {"iss": "https://other.example"},
        {"nbf": ISSUED + 31},
        {"org_id": 7},
        {"nonce": "n"},
        {"sub": ""},
    ],
    ids=lambda claims: next(iter(claims)),
)
async def test_invalid_expired_token_is_invalid(
    issuer: Issuer, verifier: TokenVerifier, claims: dict[str, Any]
) -> None:
    with pytest.raises(InvalidCredentialError):
        await verifier.verify(issuer.mint(claims={**EXPIRED, **claims}))


async def test_forged_expired_token_is_invalid(issuer: Issuer, verifier: TokenVerifier) -> None:
    with pytest.raises(InvalidCredentialError):
        await verifier.verify(issuer.mint(signing_key("RS256", "outsider"), header={"kid": "rsa-1"}, claims=EXPIRED))


async def test_known_keys_verify_while_the_provider_is_unreachable() -> None:
    async with running_issuer(RSA) as issuer, verifier_of(issuer) as verifier:
        await issuer.stop()
        assert (await verifier.verify(issuer.mint())).subject == "user_1"


async def test_without_keys_authentication_is_unavailable() -> None:
    async with running_issuer(RSA) as issuer:
        await issuer.stop()
        async with verifier_of(issuer) as verifier:
            with pytest.raises(AuthUnavailableError):
                await verifier.verify(issuer.mint())


@pytest.mark.parametrize(
    ("claims", "org_claim", "org_id"),
    [
        ({"org_id": "acme"}, "org_id", "acme"),
        ({"org_id": ""}, "org_id", None),
        ({}, "org_id", None),
        ({"org": {"id": "acme"}}, "org.id", "acme"),
        ({"org": {"name": "Acme"}}, "org.id", None),
        ({"org": "acme"}, "org.id", None),
        ({"https://example.com/org": "acme"}, "https://example.com/org", "acme"),
        ({"org.id": "literal", "org": {"id": "nested"}}, "org.id", "literal"),
    ],
)
async def test_the_organization_is_read_from_the_claim_that_is_configured(
    issuer: Issuer, claims: dict[str, Any], org_claim: str, org_id: str | None
) -> None:
    async with verifier_of(issuer, org_claim=org_claim) as verifier:
        assert (await verifier.verify(issuer.mint(claims=claims))).org_id == org_id


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({"ext": {"role": "admin"}}, "admin"),
        ({"ext": {"role": "whatever the provider wrote"}}, "whatever the provider wrote"),
        ({"ext": {"role": ["admin"]}}, None),
        ({"ext": {"role": None}}, None),
        ({"ext": "admin"}, None),
        ({}, None),
    ],
)
async def test_the_role_is_read_as_written_and_ignored_unless_a_text(
    issuer: Issuer, claims: dict[str, Any], role: str | None
) -> None:
    async with verifier_of(issuer, role_claim="ext.role") as verifier:
        assert (await verifier.verify(issuer.mint(claims=claims))).role == role


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "openid projects:read"}, ("openid", "projects:read")),
        ({"scope": ["projects:read", "billing:read"]}, ("projects:read", "billing:read")),
        ({"scp": ["projects:read"]}, ("projects:read",)),
        ({"scp": "projects:read openid"}, ("projects:read", "openid")),
        ({"scope": "billing:read", "scp": ["projects:*"]}, ("billing:read",)),
        ({"scope": ""}, ()),
        ({"scope": None, "scp": []}, ()),
    ],
)
async def test_scopes_come_as_a_text_or_a_list(
    issuer: Issuer, verifier: TokenVerifier, claims: dict[str, Any], scopes: tuple[str, ...]
) -> None:
    assert (await verifier.verify(issuer.mint(claims=claims))).scopes == scopes


@pytest.mark.parametrize(
    ("claims", "email"),
    [
        ({"email": "ann@acme.example", "email_verified": True}, "ann@acme.example"),
        ({"email": "ann@acme.example"}, None),
        ({"email": "ann@acme.example", "email_verified": False}, None),
        ({"email": "ann@acme.example", "email_verified": "true"}, None),
        ({"email": "ann@acme.example", "email_verified": 1}, None),
        ({"email": "ann\r\nBcc: eve@evil.example", "email_verified": True}, None),
        ({"email": "missing", "email_verified": True}, None),
        ({"email": ["ann@acme.example"], "email_verified": True}, None),
        ({"email": "a" * 250 + "@b.example", "email_verified": True}, None),
        ({"email_verified": True}, None),
    ],
)
async def test_only_a_verified_address_counts(
    issuer: Issuer, verifier: TokenVerifier, claims: Mapping[str, Any], email: str | None
) -> None:
    assert (await verifier.verify(issuer.mint(claims=claims))).email == email


async def test_the_expiry_keeps_its_fraction(issuer: Issuer, verifier: TokenVerifier) -> None:
    claims = await verifier.verify(issuer.mint(claims={"exp": ISSUED + 0.5}))
    assert claims.expires_at == datetime.fromtimestamp(ISSUED + 0.5, UTC)
