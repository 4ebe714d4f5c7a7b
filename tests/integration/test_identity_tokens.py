"""Accepted bearer tokens, and their claims."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec
import pytest

from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError, TokenExpiredError
from tenantry.domain.issuers import Issuers
from tenantry.integrations.oidc.claim_checks import MAX_TOKEN_BYTES
from tenantry.integrations.oidc.claims import Claims, OidcConfig
from tenantry.integrations.oidc.keys import ALGORITHMS
from tenantry.integrations.oidc.tokens import TokenVerifier
from tests.support.cases import cases
from tests.support.issuer import (
    AUDIENCE,
    CLIENT_ID,
    DISCOVERY,
    JWKS,
    NOW,
    Answer,
    Issuer,
    SigningKey,
    running_issuer,
    signing_key,
)
from tests.support.patience import patient_keys

RSA = signing_key("RS256", "rsa-1")
EC = signing_key("ES256", "ec-1")
ED25519 = signing_key("EdDSA", "ed-1")
OTHERS = tuple(
    signing_key(alg, alg) for alg in ALGORITHMS if alg not in ("RS256", "ES256", "EdDSA")
)
ISSUED = int(NOW.timestamp())
DAY = 24 * 3600


@pytest.fixture(scope="module")
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer(RSA, EC, ED25519, *OTHERS) as running:
        yield running


@contextlib.asynccontextmanager
async def verifier_of(
    issuer: Issuer, now: datetime = NOW, **config: Any
) -> AsyncIterator[TokenVerifier]:
    settings = OidcConfig(Issuers(issuer.url), (AUDIENCE,), client_id=CLIENT_ID)
    async with httpx2.AsyncClient(verify=False) as client:
        keys = patient_keys(settings, client, monotonic=lambda: 0.0)
        await keys.refresh()
        try:
            yield TokenVerifier(
                msgspec.structs.replace(settings, **config), keys, clock=lambda: now
            )
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


@cases("key", [RSA, EC, ED25519, *OTHERS], ids=lambda key: key.alg)
async def test_every_algorithm_of_the_contract_is_accepted(
    issuer: Issuer, verifier: TokenVerifier, key: Any
) -> None:
    assert (await verifier.verify(issuer.mint(key))).subject == "user_1"


@pytest.mark.parametrize(
    ("key", "alg"), [(ED25519, "Ed25519"), (OTHERS[-1], "EdDSA")], ids=["EdDSA", "Ed25519"]
)
async def test_both_names_of_ed25519_are_accepted_for_one_key(
    issuer: Issuer, verifier: TokenVerifier, key: SigningKey, alg: str
) -> None:
    assert (await verifier.verify(issuer.mint(key, header={"alg": alg}))).subject == "user_1"


async def test_key_without_an_algorithm_verifies_all_that_fit_and_no_other() -> None:
    async with running_issuer(RSA) as issuer:
        bare = {name: value for name, value in RSA.jwk().items() if name not in ("alg", "use")}
        issuer.answers[JWKS] = Answer(
            200, json.dumps({"keys": [{**bare, "kid": 7, "key_ops": []}]}).encode()
        )
        async with verifier_of(issuer) as verifier:
            for alg in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"):
                for kid in (7, "7"):
                    token = issuer.mint(SigningKey(alg, RSA.kid, RSA.private), header={"kid": kid})
                    assert (await verifier.verify(token)).subject == "user_1", alg
            with pytest.raises(InvalidCredentialError):
                await verifier.verify(issuer.mint(EC, header={"kid": 7}))


@cases(
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
        pytest.param({"kid": None}, id="kid null"),
        pytest.param({"typ": None}, id="typ null"),
    ],
)
async def test_these_headers_change_nothing(
    issuer: Issuer, verifier: TokenVerifier, header: dict[str, Any]
) -> None:
    assert (await verifier.verify(issuer.mint(header=header))).subject == "user_1"


@pytest.mark.parametrize("name", ["typ", "kid"])
async def test_typ_and_kid_are_optional(issuer: Issuer, verifier: TokenVerifier, name: str) -> None:
    assert (await verifier.verify(issuer.mint(without=(name,)))).subject == "user_1"


@cases(
    "claims",
    [
        pytest.param({"aud": [AUDIENCE]}, id="audience in a list"),
        pytest.param({"aud": ["other", AUDIENCE, CLIENT_ID]}, id="several audiences"),
        pytest.param({"exp": ISSUED - 29}, id="expired within the leeway"),
        pytest.param({"exp": ISSUED + DAY + 30}, id="lives a day and the leeway"),
        pytest.param(
            dict.fromkeys(
                (
                    "nbf",
                    "nonce",
                    "at_hash",
                    "token_use",
                    "org_id",
                    "org_role",
                    "scope",
                    "scp",
                    "email",
                )
            ),
            id="null claims are absent",
        ),
        pytest.param({"token_use": "access"}, id="token_use access"),
        pytest.param({"iat": ISSUED + 30}, id="issued ahead within the leeway"),
        pytest.param({"iat": ISSUED - 0.5, "exp": ISSUED + 60.5}, id="fractions of seconds"),
        pytest.param({"nbf": ISSUED + 30}, id="valid soon within the leeway"),
        pytest.param({"nbf": 0}, id="valid for long"),
        pytest.param({"sub": "~" * 255}, id="longest subject"),
        pytest.param({"sub": "auth0|507f1f77bcf86cd799439011"}, id="usual subject"),
        pytest.param({"ext": {"name": 'Zoë \U0001f600 "quoted":'}}, id="any text elsewhere"),
    ],
)
async def test_these_claims_are_accepted(
    issuer: Issuer, verifier: TokenVerifier, claims: dict[str, Any]
) -> None:
    assert (await verifier.verify(issuer.mint(claims=claims))).issuer == issuer.url


async def test_a_token_of_the_greatest_size_is_accepted(
    issuer: Issuer, verifier: TokenVerifier
) -> None:
    spare = MAX_TOKEN_BYTES - len(issuer.mint(claims={"pad": ""}))
    token = issuer.mint(claims={"pad": "x" * (spare * 3 // 4)})
    assert MAX_TOKEN_BYTES - 4 < len(token) <= MAX_TOKEN_BYTES
    assert (await verifier.verify(token)).subject == "user_1"


EXPIRED = {"iat": ISSUED - 3600, "exp": ISSUED - 30}


async def test_otherwise_valid_token_is_expired(issuer: Issuer, verifier: TokenVerifier) -> None:
    with pytest.raises(TokenExpiredError):
        await verifier.verify(issuer.mint(claims=EXPIRED))


@cases(
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
        await verifier.verify(
            issuer.mint(signing_key("RS256", "outsider"), header={"kid": "rsa-1"}, claims=EXPIRED)
        )


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


@cases(
    ("claims", "org_claim", "org_id"),
    [
        ({"org_id": "acme"}, "org_id", "acme"),
        ({"org_id": ""}, "org_id", None),
        ({"org_id": None}, "org_id", None),
        ({"org": {"id": None}}, "org.id", None),
        ({"org": None}, "org.id", None),
        ({"org.id": None, "org": {"id": "nested"}}, "org.id", "nested"),
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


@cases(
    ("claims", "role"),
    [
        ({"ext": {"role": "admin"}}, "admin"),
        ({"ext": {"role": "whatever the provider wrote"}}, "member"),
        ({"ext": {"role": ["member", "admin"]}}, "admin"),
        ({"ext": {"role": None}}, None),
        ({"ext": "admin"}, None),
        ({}, None),
    ],
)
async def test_role_is_the_highest_of_ours_and_member_if_unknown(
    issuer: Issuer, claims: dict[str, Any], role: str | None
) -> None:
    async with verifier_of(issuer, role_claim="ext.role") as verifier:
        assert (await verifier.verify(issuer.mint(claims=claims))).role == role


@cases(
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


@cases(
    ("claims", "email"),
    [
        ({"email": "ann@acme.example", "email_verified": True}, "ann@acme.example"),
        ({"email": "ann@acme.example"}, None),
        ({"email": "ann@acme.example", "email_verified": False}, None),
        ({"email": "ann@acme.example", "email_verified": "true"}, "ann@acme.example"),
        ({"email": "ann@acme.example", "email_verified": "false"}, None),
        ({"email": "ann@acme.example", "email_verified": ["true"]}, None),
        ({"email": None, "email_verified": True}, None),
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


async def test_any_of_several_audiences_is_accepted(issuer: Issuer) -> None:
    async with verifier_of(issuer, audiences=("first", "second")) as verifier:
        for audience in ("first", "second", ["other", "second"]):
            assert (
                await verifier.verify(issuer.mint(claims={"aud": audience}))
            ).subject == "user_1"
        for audience in ("other", "first,second", ["firs", "t"]):
            with pytest.raises(InvalidCredentialError):
                await verifier.verify(issuer.mint(claims={"aud": audience}))


OF_CLIENT = {"aud": None, "client_id": "spa", "azp": "spa"}


@pytest.mark.parametrize("claim", ["client_id", "azp"])
@pytest.mark.parametrize(
    "client_id", [CLIENT_ID, "spa"], ids=["another dashboard client", "the dashboard's client"]
)
async def test_audience_may_be_in_another_claim(issuer: Issuer, claim: str, client_id: str) -> None:
    async with verifier_of(
        issuer, audiences=("spa", "mobile"), audience_claim=claim, client_id=client_id
    ) as verifier:
        assert (await verifier.verify(issuer.mint(claims=OF_CLIENT))).subject == "user_1"
        assert (
            await verifier.verify(issuer.mint(claims={**OF_CLIENT, claim: ["mobile"]}))
        ).subject == "user_1"


ID_TOKENS: list[dict[str, Any]] = [
    {"aud": "spa", "token_use": "id"},
    {"aud": "spa"},
    {"aud": ["spa"]},
    {"aud": "spa", "azp": "mobile"},
    {"aud": ["spa", "mobile"]},
    {"aud": None, "token_use": "id"},
    {"aud": None, "nonce": "n-0S6_WzA2Mj"},
    {"aud": None, "at_hash": "MTIzNDU2Nzg5MDEyMzQ1Ng"},
]


@cases("claim", ["client_id", "azp"])
@cases("claims", ID_TOKENS, ids=str)
async def test_id_token_is_rejected_where_the_client_is_the_audience(
    issuer: Issuer, claim: str, claims: dict[str, Any]
) -> None:
    async with verifier_of(
        issuer, audiences=("spa", "mobile"), audience_claim=claim, client_id="spa"
    ) as verifier:
        told = await verifier.explain(issuer.mint(claims={**OF_CLIENT, **claims}))
        (failed,) = [step for step in told.steps if step.result == "failed"]
    assert (failed.reason or "").startswith("an ID token")


@cases(
    ("claims", "reason"),
    [
        ({"client_id": None}, "client_id is absent"),
        ({"client_id": "other"}, "wrong audience"),
        ({"client_id": ["other"]}, "wrong audience"),
        ({"client_id": 7}, "client_id is of the wrong type"),
        ({"client_id": {"spa": 1}}, "client_id is of the wrong type"),
        ({"aud": "another-api"}, "an ID token, or for another API: it has aud"),
        ({"aud": []}, "an ID token, or for another API: it has aud"),
    ],
)
async def test_token_of_another_client_or_for_another_api_is_rejected(
    issuer: Issuer, claims: dict[str, Any], reason: str
) -> None:
    async with verifier_of(issuer, audiences=("spa",), audience_claim="client_id") as verifier:
        told = await verifier.explain(issuer.mint(claims={**OF_CLIENT, **claims}))
    assert [step.reason for step in told.steps if step.name == "audience"] == [reason]


@pytest.mark.parametrize(("lifetime", "accepted"), [(600, 630), (7 * DAY, 7 * DAY + 30)])
async def test_lifetime_is_a_setting_to_which_the_leeway_is_added(
    issuer: Issuer, lifetime: int, accepted: int
) -> None:
    async with verifier_of(issuer, token_lifetime=lifetime) as verifier:
        assert (
            await verifier.verify(issuer.mint(claims={"exp": ISSUED + accepted}))
        ).subject == "user_1"
        with pytest.raises(InvalidCredentialError):
            await verifier.verify(issuer.mint(claims={"exp": ISSUED + accepted + 1}))


OURS, THEIRS = "11111111-aaaa-4bbb-8ccc-000000000001", "22222222-aaaa-4bbb-8ccc-000000000002"
PERSONAL = "99999999-aaaa-4bbb-8ccc-000000000009"
OF_PERSONAL = signing_key("RS256", "rsa-personal")
UNRESTRICTED = signing_key("RS256", "rsa-any-issuer")


@contextlib.asynccontextmanager
async def directories(*accepted: str) -> AsyncIterator[tuple[Issuer, TokenVerifier]]:
    """A provider with a template, as Microsoft Entra ID has it, and a verifier that accepts these
    directories.
    """
    async with running_issuer(RSA, OF_PERSONAL, UNRESTRICTED) as issuer:
        template = issuer.url + "/{tenantid}/v2.0"
        address = issuer.url + JWKS
        document = {"issuer": template, "jwks_uri": address}
        issuer.answers["/organizations/v2.0" + DISCOVERY] = Answer(
            200, json.dumps(document).encode()
        )
        keys = [
            {**RSA.jwk(), "issuer": template},
            {**OF_PERSONAL.jwk(), "issuer": template.replace("{tenantid}", PERSONAL)},
            {**UNRESTRICTED.jwk(), "issuer": None},
        ]
        issuer.answers[JWKS] = Answer(200, json.dumps({"keys": keys}).encode())
        config = OidcConfig(Issuers(template, accepted), (AUDIENCE,))
        async with httpx2.AsyncClient(verify=False) as client:
            key_set = patient_keys(config, client, monotonic=lambda: 0.0)
            await key_set.refresh()
            assert key_set.trouble is None
            yield issuer, TokenVerifier(config, key_set, clock=lambda: NOW)
            await key_set.aclose()


def of_directory(issuer: Issuer, tid: object, **claims: Any) -> dict[str, Any]:
    return {"iss": f"{issuer.url}/{tid}/v2.0", "tid": tid, **claims}


@cases("accepted", [(OURS,), (THEIRS, OURS), ("*",)], ids=["one", "several", "any"])
async def test_user_of_an_accepted_directory_is_of_its_issuer(accepted: tuple[str, ...]) -> None:
    async with directories(*accepted) as (issuer, verifier):
        claims = await verifier.verify(issuer.mint(claims=of_directory(issuer, OURS)))
        assert claims.user == (f"{issuer.url}/{OURS}/v2.0", "user_1")
        assert (
            await verifier.verify(issuer.mint(UNRESTRICTED, claims=of_directory(issuer, OURS)))
        ).user == claims.user


async def test_other_directories_and_issuers_that_do_not_fit_are_rejected() -> None:
    async with directories(OURS) as (issuer, verifier):
        rejected: dict[str, tuple[dict[str, Any], str]] = {
            "another directory": (of_directory(issuer, THEIRS), "the directory is not accepted"),
            "another directory's issuer": (
                {**of_directory(issuer, THEIRS), "tid": OURS},
                "wrong issuer",
            ),
            "another tid": ({**of_directory(issuer, OURS), "tid": THEIRS}, "wrong issuer"),
            "no tid": ({**of_directory(issuer, OURS), "tid": None}, "tid is absent"),
            "tid of the wrong type": (of_directory(issuer, 7), "tid is not the id of a directory"),
            "the template": (
                of_directory(issuer, "{tenantid}"),
                "tid is not the id of a directory",
            ),
            "any": (of_directory(issuer, "*"), "tid is not the id of a directory"),
            "a path": (of_directory(issuer, f"x/../{OURS}"), "tid is not the id of a directory"),
            "the alias": (of_directory(issuer, "organizations"), "the directory is not accepted"),
            "another host": (
                {**of_directory(issuer, OURS), "iss": f"https://evil.example/{OURS}/v2.0"},
                "wrong issuer",
            ),
            "version 1": (
                {**of_directory(issuer, OURS), "iss": f"https://sts.windows.net/{OURS}/"},
                "wrong issuer",
            ),
        }
        for name, (claims, reason) in rejected.items():
            told = await verifier.explain(issuer.mint(claims=claims))
            assert [step.reason for step in told.steps if step.result == "failed"] == [reason], name


async def test_key_of_another_issuer_proves_no_token_of_a_directory() -> None:
    async with directories("*") as (issuer, verifier):
        told = await verifier.explain(issuer.mint(OF_PERSONAL, claims=of_directory(issuer, OURS)))
        assert [step.reason for step in told.steps if step.result == "failed"] == [
            "the key is of another issuer"
        ]
        personal = await verifier.verify(
            issuer.mint(OF_PERSONAL, claims=of_directory(issuer, PERSONAL))
        )
        assert personal.issuer == f"{issuer.url}/{PERSONAL}/v2.0"
