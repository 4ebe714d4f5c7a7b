"""Tokens that must be refused, through the whole service: the check for gateways and the list of
projects.

The first rows are forged, and all of them get one and the same answer; `test_identity_attacks`
sends the whole table through the verifier. The other rows are true tokens of people who may not
come in.
"""

import itertools
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final, NamedTuple

import httpx2
import pytest

from tests.support import figures
from tests.support.app import OPERATOR_TOKEN, running_app
from tests.support.cases import cases
from tests.support.figures import RecordProperty
from tests.support.forgeries import ATTACKER, ATTACKS, ISSUED, PUBLISHED, remote
from tests.support.issuer import AUDIENCE, CLIENT_ID, Issuer, running_issuer
from tests.support.members import add_member, remove_member
from tests.support.postgres import PostgresServer
from tests.support.service import PROJECTS, TENANTS, VERIFY, Caller, ManualClock, refusal

ROUTES = (f"{VERIFY}projects:read", PROJECTS)
FORGED = (401, "invalid_credential")
OF_EACH_REASON: Final = 2
"""How many forged tokens of each reason go through the service."""


class Target(NamedTuple):
    """The service under attack, its identity provider, and an attacker who imitates the
    provider.
    """

    client: httpx2.AsyncClient
    issuer: Issuer
    attacker: Issuer


@pytest.fixture(scope="module")
async def target(postgres: PostgresServer) -> AsyncIterator[Target]:
    with postgres.database() as conninfo:
        async with (
            running_issuer(*PUBLISHED) as issuer,
            running_issuer(ATTACKER) as attacker,
            running_app(
                conninfo,
                clock=ManualClock(),
                OIDC_ISSUER=issuer.url,
                OIDC_AUDIENCE=AUDIENCE,
                OIDC_CLIENT_ID=CLIENT_ID,
            ) as client,
        ):
            operator = Caller(client, OPERATOR_TOKEN)
            for org in ("acme", "suspended", "ended"):
                answer = await operator.put(
                    f"{TENANTS}/{org}", {"name": org, "ownerEmail": "owner@x.example"}
                )
                assert answer.status_code == 201
            await operator.put(
                f"{TENANTS}/suspended",
                {"name": "s", "ownerEmail": "owner@x.example", "suspended": True},
            )
            await operator.delete(f"{TENANTS}/ended")
            owner = Caller(
                client, issuer.mint(claims={"sub": "owner", "org_id": "acme", "org_role": "owner"})
            )
            await remove_member(owner, await add_member(owner, "removed", "admin"))
            yield Target(client, issuer, attacker)


async def _answer(target: Target, route: str, token: str, **headers: str) -> httpx2.Response:
    authorization = b"Bearer " + token.encode("utf-8", "surrogatepass")
    return await Caller(target.client, None, **headers).call(
        "GET", route, headers={"Authorization": authorization}
    )


async def test_forged_token_is_rejected_without_a_reason(
    target: Target, record_property: RecordProperty
) -> None:
    forged = [
        (f"{reason}: {name}", forge(target.issuer))
        for reason, forgeries in ATTACKS.items()
        for name, forge in islice(forgeries.items(), OF_EACH_REASON)
    ]
    passed = 0
    for (name, token), route in itertools.product(forged, ROUTES):
        answer = await _answer(target, route, token)
        passed += answer.is_success
        assert refusal(answer) == FORGED, name
        assert answer.json()["detail"] in {
            "The bearer token is not valid.",
            "The credential is neither an API key nor a token.",
            "The credential is too long: at most 16,384 bytes.",
        }, name
        assert answer.headers["www-authenticate"].startswith(
            'Bearer realm="api", error="invalid_token"'
        ), name
    figures.record(
        record_property,
        "forged tokens sent to the service",
        {"requests": len(forged) * len(ROUTES)},
        {"accepted": passed},
    )


async def test_no_key_is_fetched_from_a_url_in_a_token(target: Target) -> None:
    for name, forge in remote(target.attacker).items():
        for route in ROUTES:
            assert refusal(await _answer(target, route, forge(target.issuer))) == FORGED, name
    assert target.attacker.connections == 0


WITHOUT_ACCESS = {
    "a removed member, as owner": (
        {"sub": "removed", "org_id": "acme", "org_role": "owner"},
        {},
        "no_organization",
    ),
    "a removed member, without an org claim": ({"sub": "removed"}, {}, "no_organization"),
    "a removed member, who names the tenant": (
        {"sub": "removed"},
        {"X_Organization_Id": "acme"},
        "no_organization",
    ),
    "an org claim that disagrees with the header": (
        {"org_id": "acme"},
        {"X_Organization_Id": "suspended"},
        "org_mismatch",
    ),
    "an org claim that disagrees with an empty header": (
        {"org_id": "acme"},
        {"X_Organization_Id": ""},
        "org_mismatch",
    ),
    "an unknown tenant's claim": (
        {"org_id": "unknown", "org_role": "owner"},
        {},
        "no_organization",
    ),
    "a claim that can be no tenant's": ({"org_id": "../acme"}, {}, "no_organization"),
    "no tenant at all": ({}, {}, "no_organization"),
    "a tenant in the header alone": ({}, {"X_Organization_Id": "acme"}, "no_organization"),
    "a suspended tenant's claim": (
        {"org_id": "suspended", "org_role": "owner"},
        {},
        "org_suspended",
    ),
}


@cases(("claims", "headers", "code"), WITHOUT_ACCESS.values(), ids=WITHOUT_ACCESS)
async def test_valid_token_without_a_membership_is_rejected(
    target: Target, claims: dict[str, str], headers: dict[str, str], code: str
) -> None:
    for route in ROUTES:
        answer = await _answer(target, route, target.issuer.mint(claims=claims), **headers)
        assert refusal(answer) == (403, code)


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        pytest.param(
            {"org_id": "ended", "org_role": "owner"},
            "invalid_credential",
            id="an ended tenant's claim",
        ),
        pytest.param(
            {"org_id": "acme", "iat": ISSUED - 3600, "exp": ISSUED - 30},
            "token_expired",
            id="an expired token",
        ),
    ],
)
async def test_expired_token_is_rejected(
    target: Target, claims: dict[str, str | int], code: str
) -> None:
    for route in ROUTES:
        assert refusal(await _answer(target, route, target.issuer.mint(claims=claims))) == (
            401,
            code,
        )


async def test_original_of_the_forged_tokens_is_accepted(target: Target) -> None:
    """Or nothing above would show anything."""
    for key in PUBLISHED:
        for route in ROUTES:
            answer = await _answer(
                target, route, target.issuer.mint(key, claims={"org_id": "acme"})
            )
            assert answer.status_code == 200
