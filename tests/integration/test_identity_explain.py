"""The explanation of a token: by the checks that accept it, and without anything usable."""

import contextlib
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tenantry.auth.token_explanation import AccessExplanation, explain_token
from tenantry.cli.token_explanation import as_document, lines
from tenantry.db.database import Database
from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError, TokenExpiredError
from tenantry.domain.issuers import Issuers
from tenantry.domain.roles import BUILT_IN_ROLES
from tenantry.integrations.oidc.claims import OidcConfig, unmapped_roles
from tenantry.integrations.oidc.tokens import CheckResult, TokenVerifier
from tests.support.cases import cases
from tests.support.forgeries import ATTACKS, ISSUED, PUBLISHED, RSA
from tests.support.issuer import AUDIENCE, CLIENT_ID, NOW, Issuer, running_issuer
from tests.support.members import OWN, accept_path, add_member, remove_member
from tests.support.patience import patient_database, patient_keys
from tests.support.ports import free_port
from tests.support.service import TENANTS, Service

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "tokens.md"
LATER = NOW + timedelta(minutes=2)
KNOWN = unmapped_roles(BUILT_IN_ROLES)


class Desk(NamedTuple):
    """A verifier, and the provider whose tokens it explains."""

    issuer: Issuer
    config: OidcConfig
    verifier: TokenVerifier
    now: datetime

    async def explained(
        self, token: str, organization: str | None = None, database: Database | None = None
    ) -> AccessExplanation:
        return await explain_token(self.verifier, token, organization, database)

    def text(self, explanation: AccessExplanation) -> str:
        """The output of the command, with a constant address of the provider."""
        printed = "".join(f"{line}\n" for line in lines(explanation, self.config))
        return printed.replace(self.issuer.url, "https://login.example.com")


@contextlib.asynccontextmanager
async def desk_of(issuer: Issuer, now: datetime = NOW) -> AsyncIterator[Desk]:
    config = OidcConfig(Issuers(issuer.url), (AUDIENCE,), client_id=CLIENT_ID)
    async with httpx2.AsyncClient(verify=False) as client:
        keys = patient_keys(config, client, monotonic=lambda: 0.0)
        await keys.refresh()
        yield Desk(issuer, config, TokenVerifier(config, keys, clock=lambda: now), now)
        await keys.aclose()


@pytest.fixture(scope="module")
async def desk() -> AsyncIterator[Desk]:
    async with running_issuer(*PUBLISHED) as issuer, desk_of(issuer) as made:
        yield made


async def test_every_check_of_a_valid_token_is_ok(desk: Desk) -> None:
    told = await desk.verifier.explain(desk.issuer.mint())
    assert {step.result for step in told.steps} == {CheckResult.OK}
    assert told.refusal is None
    assert told.proven
    assert told.claims == await desk.verifier.verify(desk.issuer.mint())


@cases("reason", ATTACKS)
async def test_the_reason_is_that_of_the_verifier_and_nothing_of_the_token_is_shown(
    desk: Desk, reason: str
) -> None:
    for name, forge in ATTACKS[reason].items():
        token = forge(desk.issuer)
        with pytest.raises(InvalidCredentialError) as refused:
            await desk.verifier.verify(token)
        explanation = await desk.explained(token)
        (failed,) = [step for step in explanation.steps if step.result is CheckResult.FAILED]
        assert refused.value.token_fault == (failed.name.replace(" ", "_"), failed.reason), name
        assert isinstance(explanation.refusal, refused.type), name
        text, document = desk.text(explanation), as_document(explanation, desk.config)
        assert json.loads(document)["valid"] is False, name
        assert all(line.isprintable() for line in text.splitlines()), name
        for part in token.split("."):
            assert len(part) < 20 or (part not in text and part not in document), name


async def test_checks_after_the_failing_one_are_not_reached(desk: Desk) -> None:
    told = await desk.verifier.explain(desk.issuer.mint(claims={"iss": "https://evil.example"}))
    results = [(step.name, step.result) for step in told.steps]
    position = results.index(("issuer", CheckResult.FAILED))
    assert {result for _, result in results[:position]} == {CheckResult.OK}
    assert {result for _, result in results[position + 1 :]} == {CheckResult.NOT_REACHED}


@cases(
    ("header", "claims", "name", "said", "expected"),
    [
        (
            {},
            {"aud": ["web", "mobile"]},
            "audience",
            '["web", "mobile"]',
            '"tenantry-api", or a list with it',
        ),
        (
            {},
            {"iat": ISSUED - 7200, "exp": ISSUED - 60},
            "expiry",
            "2026-01-01T11:59:00Z, 1 min ago",
            "30 s ago",
        ),
        (
            {},
            {"nbf": ISSUED + 3600},
            "not before",
            "2026-01-01T13:00:00Z, in 1 h",
            "30 s in the future",
        ),
        ({}, {"exp": ISSUED + 90_000}, "lifetime", "1 d 1 h", "at most 1 d"),
        ({}, {"nonce": "n"}, "access token", "it has nonce", "no nonce"),
        ({}, {"token_use": "id"}, "access token", 'it has token_use "id"', "no token_use id"),
        ({"kid": "old"}, {}, "key", '"old"', "rsa-1 (RS256), ec-1 (ES256), ed-1 (EdDSA, Ed25519)"),
        ({"alg": "HS256"}, {}, "algorithm", '"HS256"', "one of RS256, RS384, RS512, PS256"),
        ({"typ": "id+jwt"}, {}, "type", '"id+jwt"', "no typ, JWT or at+jwt"),
        ({"crit": ["x"]}, {}, "extensions", 'crit ["x"]', "no crit"),
        ({}, {"org_id": 7}, "organization claim", "org_id: 7", "a text, or none"),
        ({}, {"sub": "x" * 300}, "subject", f'"{"x" * 119}... (302 characters)', "1 to 255"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)
async def test_explanation_shows_actual_and_expected_values(
    desk: Desk, header: dict[str, Any], claims: dict[str, Any], name: str, said: str, expected: str
) -> None:
    told = await desk.verifier.explain(desk.issuer.mint(header=header, claims=claims))
    (failed,) = [step for step in told.steps if step.result is CheckResult.FAILED]
    assert (failed.name, failed.said) == (name, said)
    assert expected in failed.expected


async def test_explanation_of_an_expired_token(desk: Desk) -> None:
    told = await desk.verifier.explain(
        desk.issuer.mint(claims={"iat": ISSUED - 7200, "exp": ISSUED - 3600})
    )
    assert isinstance(told.refusal, TokenExpiredError)


async def test_claims_of_a_forged_token_are_shown_as_unproven(desk: Desk) -> None:
    token = desk.issuer.mint(claims={"sub": "admin"})
    explanation = await desk.explained(
        token.rpartition(".")[0] + "." + desk.issuer.mint().rpartition(".")[2]
    )
    text = desk.text(explanation)
    assert "What it says, which nothing proves" in text
    assert '  sub  "admin"\n' in text
    assert explanation.access is None


async def test_other_claims_are_not_shown(desk: Desk) -> None:
    explanation = await desk.explained(
        desk.issuer.mint(claims={"email": "ann@acme.example", "address": "1 Main St"})
    )
    shown = desk.text(explanation) + as_document(explanation, desk.config)
    assert "ann@acme.example" not in shown
    assert "Main St" not in shown


@cases(
    ("value", "written"),
    [
        ("user_1", "user_1"),
        (7, 7),
        (7.5, 7.5),
        (10**400, f"1{'0' * 119}... (401 characters)"),
        (True, True),
        (["a", "b"], ["a", "b"]),
        ({"a": 1}, '{"a": 1}'),
    ],
)
async def test_claims_are_json_that_every_reader_can_hold(
    desk: Desk, value: Any, written: Any
) -> None:
    explanation = await desk.explained(desk.issuer.mint(claims={"sub": value}))
    assert json.loads(as_document(explanation, desk.config))["claims"]["sub"] == written


async def test_explanation_names_why_keys_are_unavailable() -> None:
    async with running_issuer(RSA) as issuer:
        await issuer.stop()
        async with desk_of(issuer) as desk:
            told = await desk.verifier.explain(issuer.mint())
    (failed,) = [step for step in told.steps if step.result is CheckResult.FAILED]
    assert isinstance(told.refusal, AuthUnavailableError)
    assert (failed.name, failed.reason) == (
        "key",
        "the provider's keys are unavailable: ConnectError: All connection attempts failed",
    )


@contextlib.asynccontextmanager
async def connected(conninfo: str) -> AsyncIterator[Database]:
    database = patient_database(conninfo, 1)
    try:
        yield database
    finally:
        await database.close()


class DeskOnService(NamedTuple):
    """A desk beside the service, on its database and its provider."""

    service: Service
    desk: Desk

    async def explained(
        self, organization: str | None = None, **claims: object
    ) -> AccessExplanation:
        token = self.desk.issuer.mint(claims={**claims})
        async with connected(self.service.conninfo) as database:
            return await self.desk.explained(token, organization, database)


@pytest.fixture(scope="module")
async def desk_on_service(service: Service) -> AsyncIterator[DeskOnService]:
    async with desk_of(service.issuer, LATER) as desk:
        for org in ("acme", "other", "suspended", "ended"):
            await service.operator.put(
                f"{TENANTS}/{org}", {"name": org, "ownerEmail": "owner@x.example"}
            )
        owner = service.user("owner", org="acme", role="owner")
        accepted = await service.user("ann").post(
            accept_path(await add_member(owner, "ann", "member"))
        )
        assert accepted.status_code == 200
        await add_member(owner, "invited", "admin")
        await remove_member(owner, await add_member(owner, "gone", "admin"))
        await service.operator.put(
            f"{TENANTS}/suspended",
            {"name": "s", "ownerEmail": "owner@x.example", "suspended": True},
        )
        await service.operator.delete(f"{TENANTS}/ended")
        yield DeskOnService(service, desk)


async def test_explanation_shows_the_lower_of_claim_and_membership(
    desk_on_service: DeskOnService,
) -> None:
    explanation = await desk_on_service.explained(
        sub="ann", org_id="acme", org_role="admin", scope="openid projects:read"
    )
    assert explanation.refusal is None
    assert explanation.steps[-1].said == "claim acme: acme (plan free, the user is member)"
    assert explanation.access is not None
    told = explanation.access
    assert told.role_origin == 'org_role is "admin", and the membership has a lower role'
    assert (told.org_id, told.role, told.scopes, told.plan) == (
        "acme",
        "member",
        ("projects:read",),
        "free",
    )


async def test_the_only_membership_counts_without_a_claim(desk_on_service: DeskOnService) -> None:
    explanation = await desk_on_service.explained(sub="ann")
    assert explanation.steps[-1].said == "no claim: acme (plan free, the user is member)"
    assert explanation.access is not None
    assert explanation.access.org_id == "acme"
    assert explanation.access.role_origin == "the token has no org_role, so the membership counts"


@pytest.mark.parametrize(
    ("role", "origin"),
    [
        (None, "the token has no org_role, so the default counts"),
        ("admin", 'org_role is "admin"'),
        (
            "Admin",
            f'org_role is "Admin", which is none of {", ".join(KNOWN)}: map it with OIDC_ROLE_MAP',
        ),
    ],
)
async def test_origin_of_the_role_without_a_membership(
    desk_on_service: DeskOnService, role: str | None, origin: str
) -> None:
    explanation = await desk_on_service.explained(sub="claimed", org_id="acme", org_role=role)
    assert explanation.access is not None
    assert explanation.access.role_origin == origin
    assert desk_on_service.desk.text(explanation).endswith(
        f"The role is {explanation.access.role}: {origin}.\n"
    )


async def test_invitation_that_the_header_names_is_explained_and_not_accepted(
    desk_on_service: DeskOnService,
) -> None:
    explanation = await desk_on_service.explained("acme", sub="invited")
    said = "no claim, X-Organization-Id acme: acme (plan free, the user is invited as admin)"
    assert (explanation.refusal, explanation.steps[-1].said) == (None, said)
    (own,) = (await desk_on_service.service.user("invited").get(OWN)).json()["data"]
    assert own["status"] == "invited"


@cases(
    ("claims", "organization", "code", "said"),
    [
        (
            {"sub": "gone", "org_id": "acme"},
            None,
            "no_organization",
            "acme (plan free, the user was removed)",
        ),
        ({"org_id": "unknown"}, None, "no_organization", "no tenant or membership found"),
        ({"sub": "missing"}, None, "no_organization", "no tenant or membership found"),
        ({"org_id": "acme"}, "other", "org_mismatch", "claim acme, X-Organization-Id other"),
        (
            {"org_id": "suspended"},
            None,
            "org_suspended",
            "suspended (suspended, no membership: the claims count)",
        ),
        (
            {"org_id": "ended"},
            None,
            "invalid_credential",
            "ended (ended, no membership: the claims count)",
        ),
    ],
    ids=["removed", "unknown tenant", "no tenant", "mismatch", "suspended", "ended"],
)
async def test_token_without_a_membership_is_explained_as_the_service_rejects_it(
    desk_on_service: DeskOnService,
    claims: dict[str, str],
    organization: str | None,
    code: str,
    said: str,
) -> None:
    explanation = await desk_on_service.explained(organization, **claims)
    assert explanation.refusal is not None
    assert explanation.refusal.code == code
    assert explanation.steps[-1].result is CheckResult.FAILED
    assert said in (explanation.steps[-1].said or "")
    assert [step.result for step in explanation.steps[:-1]] == [CheckResult.OK] * (
        len(explanation.steps) - 1
    )


@pytest.mark.parametrize(
    "conninfo_of",
    [
        lambda conninfo: f"{conninfo} dbname=postgres",
        lambda _: f"host=127.0.0.1 port={free_port()} dbname=x",
    ],
    ids=["another schema", "out of reach"],
)
async def test_unusable_database_leaves_the_last_check_unreached(
    desk: Desk, conninfo: str, conninfo_of: Any
) -> None:
    async with connected(conninfo_of(conninfo)) as database:
        explanation = await desk.explained(
            desk.issuer.mint(claims={"org_id": "acme"}), None, database
        )
    assert explanation.refusal is None
    assert explanation.steps[-1].result is CheckResult.NOT_REACHED
    assert explanation.steps[-1].reason
    assert explanation.access is not None
    assert not explanation.access.tenant_known


def quoted(command: str) -> str:
    """The output of the command in the docs."""
    _, _, after = DOCS.read_text().partition(f"```text\n$ {command}\n")
    return after.partition("```\n")[0]


async def test_docs_show_the_explanation_of_an_id_token(desk_on_service: DeskOnService) -> None:
    explanation = await desk_on_service.explained(aud=CLIENT_ID, nonce="n-0S6", org_id="acme")
    assert quoted(
        "tenantry admin explain-token --token-file id-token.txt"
    ) == desk_on_service.desk.text(explanation)
