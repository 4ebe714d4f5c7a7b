"""The documented tokens of identity providers, verified with the settings that their pages print.

Each file in ``providers`` has tokens of one provider in the shape that its documentation describes,
and what tenantry makes of them. The settings come from the page, so that a page and its test cannot
differ.
"""

import json
import re
from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest

from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import CheckResult, TokenVerifier
from tests.support.app import BASE_URL, OPERATOR_TOKEN, make_settings, running_app
from tests.support.identity_providers import (
    GUIDES,
    NAMES,
    DocumentedToken,
    Provider,
    Rejection,
    page_of,
    printed_claims,
    provider,
    settings_of,
)
from tests.support.issuer import JWKS, NOW, Answer, running_issuer
from tests.support.service import TENANTS, WHOAMI, Caller

A_MINUTE_LATER: Final = NOW + timedelta(minutes=1)
HEADINGS: Final = [
    "Set up",
    "Settings",
    "The token",
    "Organization and role",
    "Check",
    "Limits",
]
"""The parts of every provider's page."""
_FAILED_CHECK: Final = re.compile(r"^\| `([\w ]+)` failed: ([^|]+?) \|", re.MULTILINE)
_WITHOUT_MEMBERSHIP: Final = Rejection("tenant and membership", "no tenant or membership found")
"""What depends on the service's tenants, not on the token."""
_TABLE: Final = GUIDES / "identity-providers.md"


class TokenReading(NamedTuple):
    """What the verifier reads from an accepted token."""

    issuer: str
    subject: str
    org: str | None
    role: str | None
    scopes: list[str]
    email: str | None


async def reading_of(
    documented: Provider, token: DocumentedToken, values: dict[str, str]
) -> TokenReading | Rejection:
    """Verify a token with these settings, against the keys that the provider publishes."""
    config = make_settings(**values).oidc
    assert config is not None
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(documented.answer)) as client:
        keys = KeySet(config, client)
        await keys.refresh()
        assert keys.trouble is None, keys.trouble
        explanation = await TokenVerifier(config, keys, clock=lambda: A_MINUTE_LATER).explain(
            token.encode()
        )
    for step in explanation.steps:
        if step.result is CheckResult.FAILED:
            return Rejection(step.name, step.reason or "")
    claims = explanation.claims
    assert claims is not None
    return TokenReading(
        claims.issuer, claims.subject, claims.org_id, claims.role, list(claims.scopes), claims.email
    )


def expected_reading(token: DocumentedToken) -> TokenReading | Rejection:
    if token.rejected is not None:
        return token.rejected
    expected = token.expected
    assert expected is not None, token.name
    issuer, subject = token.claims["iss"], token.claims["sub"]
    return TokenReading(
        issuer, subject, expected.org, expected.role, expected.scopes, expected.email
    )


@pytest.mark.parametrize("name", NAMES)
async def test_documented_tokens_give_what_is_expected(name: str) -> None:
    documented, printed = provider(name), settings_of(name)
    for token in documented.tokens:
        reading = await reading_of(documented, token, printed[token.settings])
        assert reading == expected_reading(token), token.name


ON_THE_SERVICE: Final = [
    pytest.param(name, token, id=f"{name}-{token.settings}".removesuffix("-").replace(" ", "-"))
    for name in NAMES
    for token in provider(name).tokens
    if token.whoami
]


@pytest.mark.parametrize(("name", "token"), ON_THE_SERVICE)
async def test_the_service_accepts_a_documented_token(
    name: str, token: DocumentedToken, conninfo: str
) -> None:
    printed = settings_of(name)[token.settings]
    async with running_issuer(token.key) as issuer:
        own_issuer = issuer.url + urlsplit(printed["OIDC_ISSUER"]).path
        discovery = provider(name).discovery_path(printed["OIDC_ISSUER"])
        issuer.answers[discovery] = Answer(
            200, _json({"issuer": own_issuer, "jwks_uri": issuer.url + JWKS})
        )
        values = {**printed, "OIDC_ISSUER": own_issuer, "BASE_URL": BASE_URL}
        async with running_app(conninfo, clock=lambda: A_MINUTE_LATER, **values) as client:
            await _make_tenant(client, token)
            encoded = token.encode(iss=issuer.url + urlsplit(token.claims["iss"]).path)
            answer = await Caller(client, encoded).get(WHOAMI)
    assert answer.status_code == 200, answer.text
    assert {member: answer.json()[member] for member in token.whoami} == token.whoami


async def _make_tenant(client: httpx2.AsyncClient, token: DocumentedToken) -> None:
    org = token.owner_of or token.whoami["orgId"]
    fields = {"name": org, "ownerEmail": "owner@acme.example"}
    if token.owner_of:
        fields["ownerId"] = token.claims["sub"]
    made = await Caller(client, OPERATOR_TOKEN).put(f"{TENANTS}/{org}", fields)
    assert made.status_code == 201, made.text


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_on_a_page_is_tested(name: str) -> None:
    used = {token.settings for token in provider(name).tokens}
    assert set(settings_of(name)) == used
    on_service = {token.settings for token in provider(name).tokens if token.whoami}
    assert on_service


@pytest.mark.parametrize("name", NAMES)
def test_claims_on_a_page_are_those_of_the_documented_token(name: str) -> None:
    tokens: dict[str, dict[str, Any]] = {
        token.name: token.claims for token in provider(name).tokens
    }
    printed = printed_claims(name)
    assert printed
    for token, claims in printed.items():
        assert claims == {claim: tokens[token].get(claim) for claim in claims}, token


@pytest.mark.parametrize("name", NAMES)
def test_a_page_explains_every_failed_check_with_the_reason_that_explain_token_shows(
    name: str,
) -> None:
    rejections = {token.rejected for token in provider(name).tokens if token.rejected is not None}
    shown = {Rejection(*row) for row in _FAILED_CHECK.findall(page_of(name).read_text("utf-8"))}
    assert shown - {_WITHOUT_MEMBERSHIP} == rejections


@pytest.mark.parametrize("name", NAMES)
def test_pages_have_the_same_parts(name: str) -> None:
    assert re.findall(r"^## (.+)$", page_of(name).read_text("utf-8"), re.MULTILINE) == HEADINGS


def table() -> str:
    """The table of providers, made from their tokens and the settings on their pages."""
    rows = [
        "| provider | audience in | organization in | role in | sign-in to the dashboard |",
        "|---|---|---|---|---|",
        *(_row(name, token) for name in NAMES for token in first_on_the_service(name)),
    ]
    return "\n".join(rows) + "\n"


def first_on_the_service(name: str) -> list[DocumentedToken]:
    """The first token for each of the settings that a page prints."""
    found: dict[str, DocumentedToken] = {}
    for token in provider(name).tokens:
        if token.whoami:
            found.setdefault(token.settings, token)
    return list(found.values())


def _row(name: str, token: DocumentedToken) -> str:
    values = settings_of(name)[token.settings]
    label = f", {token.settings}" if token.settings else ""
    cells = (
        f"[{provider(name).provider}{label}](identity-provider-{name}.md)",
        f"`{values.get('OIDC_AUDIENCE_CLAIM', 'aud')}`",
        _claim(values.get("OIDC_ORG_CLAIM")),
        _claim(values.get("OIDC_ROLE_CLAIM")),
        "yes" if "OIDC_CLIENT_ID" in values else "-",
    )
    return f"| {' | '.join(cells)} |"


def _claim(name: str | None) -> str:
    return "membership" if name is None else f"`{name}`"


def test_the_table_of_providers_is_that_of_the_tokens() -> None:
    assert table() in _TABLE.read_text("utf-8"), table()
