"""Which tenant a user's token is for, and with which role."""

import psycopg

from tests.support.cases import cases
from tests.support.service import KEYS, PROJECTS, TENANTS, WHOAMI, Caller, Service, refusal

MEMBER_SCOPES = ["projects:*", "tenants:read", "billing:read"]
NO_ORGANIZATION = (403, "no_organization")


async def add_member(
    service: Service, org: str, sub: str, role: str, *, removed: bool = False
) -> None:
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "INSERT INTO memberships (tenant_id, issuer, subject, role, removed_at) "
            "VALUES (%s, %s, %s, %s, CASE WHEN %s THEN now() END)",
            (org, service.issuer.url, sub, role, removed),
        )


async def principal_values(caller: Caller) -> tuple[str, str, list[str]]:
    """The tenant, level and scopes that a caller acts with."""
    answer = await caller.get(WHOAMI)
    assert answer.status_code == 200, answer.text
    who = answer.json()
    return who["orgId"], who["accessLevel"], who["scopes"]


@cases(
    ("role", "level", "scopes"),
    [
        ("owner", "OWNER", ["*:*"]),
        ("admin", "SCOPED", ["*:*"]),
        ("member", "SCOPED", MEMBER_SCOPES),
        (None, "SCOPED", MEMBER_SCOPES),
        ("OWNER", "SCOPED", MEMBER_SCOPES),
        ("root", "SCOPED", MEMBER_SCOPES),
    ],
)
async def test_role_claim_counts_where_there_is_no_membership(
    service: Service, role: str | None, level: str, scopes: list[str]
) -> None:
    org = await service.organization()
    assert await principal_values(service.user("guest", org=org.id, role=role)) == (
        org.id,
        level,
        scopes,
    )


@cases(
    ("claimed", "stored", "level", "scopes"),
    [
        ("owner", "member", "SCOPED", MEMBER_SCOPES),
        ("owner", "admin", "SCOPED", ["*:*"]),
        ("admin", "owner", "SCOPED", ["*:*"]),
        ("member", "owner", "SCOPED", MEMBER_SCOPES),
        ("owner", "owner", "OWNER", ["*:*"]),
        (None, "owner", "OWNER", ["*:*"]),
    ],
)
async def test_lower_of_claim_and_membership_counts(
    service: Service, claimed: str | None, stored: str, level: str, scopes: list[str]
) -> None:
    org = await service.organization()
    await add_member(service, org.id, "both", stored)
    assert await principal_values(service.user("both", org=org.id, role=claimed)) == (
        org.id,
        level,
        scopes,
    )


async def test_removed_member_is_rejected_despite_claims(service: Service) -> None:
    org = await service.organization()
    await add_member(service, org.id, "former", "owner", removed=True)
    for user in (
        service.user("former", org=org.id, role="owner"),
        service.user("former", asks_for=org.id, role="owner"),
        service.user("former"),
    ):
        for path in (PROJECTS, KEYS, TENANTS, WHOAMI):
            assert refusal(await user.get(path)) == NO_ORGANIZATION


async def test_only_membership_counts_without_a_claim(service: Service) -> None:
    org = await service.organization()
    await add_member(service, org.id, "only", "admin")
    assert await principal_values(service.user("only")) == (org.id, "SCOPED", ["*:*"])


async def test_of_several_memberships_the_header_names_one(service: Service) -> None:
    orgs = [await service.organization() for _ in range(2)]
    for org, role in zip(orgs, ("admin", "member"), strict=True):
        await add_member(service, org.id, "several", role)
    assert refusal(await service.user("several").get(PROJECTS)) == NO_ORGANIZATION
    assert await principal_values(service.user("several", asks_for=orgs[0].id)) == (
        orgs[0].id,
        "SCOPED",
        ["*:*"],
    )
    assert await principal_values(service.user("several", asks_for=orgs[1].id)) == (
        orgs[1].id,
        "SCOPED",
        MEMBER_SCOPES,
    )


async def test_removed_membership_does_not_count_as_one_of_several(service: Service) -> None:
    org, left = await service.organization(), await service.organization()
    await add_member(service, org.id, "moved", "admin")
    await add_member(service, left.id, "moved", "owner", removed=True)
    assert (await principal_values(service.user("moved")))[0] == org.id


async def test_header_gives_no_access_to_a_foreign_tenant(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    await add_member(service, org.id, "curious", "owner")
    answers = []
    for asked in (other.id, "missing", "not an id"):
        answer = await service.user("curious", role="owner", asks_for=asked).get(PROJECTS)
        assert refusal(answer) == NO_ORGANIZATION
        answers.append(answer.json()["title"])
    assert len(set(answers)) == 1


async def test_header_must_equal_the_claim(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    assert (await service.user(org=org.id, asks_for=org.id).get(PROJECTS)).status_code == 200
    for asked in (other.id, "missing", "", f"{org.id}, {org.id}"):
        assert refusal(await service.user(org=org.id, asks_for=asked).get(PROJECTS)) == (
            403,
            "org_mismatch",
        )


async def test_user_without_any_tenant_has_no_organization(service: Service) -> None:
    assert refusal(await service.user("outsider").get(PROJECTS)) == NO_ORGANIZATION
    assert (
        refusal(await service.user("outsider", org="missing", role="owner").get(PROJECTS))
        == NO_ORGANIZATION
    )


async def test_member_of_another_issuer_is_another_user(service: Service) -> None:
    org = await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "INSERT INTO memberships (tenant_id, issuer, subject, role) "
            "VALUES (%s, 'https://elsewhere', 'twin', 'owner')",
            (org.id,),
        )
    assert refusal(await service.user("twin").get(PROJECTS)) == NO_ORGANIZATION


async def test_member_may_use_projects_and_read_tenant_and_billing(service: Service) -> None:
    org = await service.organization()
    member = service.user("plain", org=org.id)
    assert (await member.post(PROJECTS, {"name": "a"})).status_code == 201
    for path in (PROJECTS, org.path, TENANTS, "/api/v1/billing/events", "/api/v1/plans"):
        assert (await member.get(path)).status_code == 200
    for answer in (
        await member.get(KEYS),
        await member.post(KEYS, {"orgId": org.id, "name": "x", "scopes": ["projects:read"]}),
        await member.patch(org.path, {"name": "x"}),
        await member.post("/api/v1/billing/portal-sessions", {}),
    ):
        assert refusal(answer) == (403, "insufficient_scope")


@cases(
    ("scope", "scopes"),
    [
        ("openid profile email", ["*:*"]),
        ("openid projects:read", ["projects:read"]),
        ("*:read", ["*:read"]),
        ("", ["*:*"]),
    ],
)
async def test_token_scope_narrows_only_by_the_services_scopes(
    service: Service, scope: str, scopes: list[str]
) -> None:
    org = await service.organization()
    assert (await principal_values(service.user(org=org.id, role="admin", scope=scope)))[
        2
    ] == scopes


async def test_whoami_shows_the_user_and_the_end_of_the_token(service: Service) -> None:
    org = await service.organization()
    who = (await service.user("me", org=org.id, role="owner").get(WHOAMI)).json()
    assert who == {
        "kind": "user",
        "id": "me",
        "orgId": org.id,
        "mode": "live",
        "scopes": ["*:*"],
        "accessLevel": "OWNER",
        "plan": "free",
        "subscriptionStatus": "none",
        "access": {
            "state": "none",
            "plan": "free",
            "until": None,
            "reason": "There is no subscription.",
        },
        "expiresAt": "2026-01-01T13:00:00Z",
        "externalId": None,
        "metadata": {},
    }


async def test_whoami_shows_a_key(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b", mode="test", expiresAt="2026-02-01T00:00:00Z")
    assert (await key.caller.get(WHOAMI)).json() == {
        "kind": "api_key",
        "id": key.id,
        "orgId": org.id,
        "mode": "test",
        "scopes": ["a:b"],
        "accessLevel": "SCOPED",
        "plan": "free",
        "subscriptionStatus": "none",
        "access": {
            "state": "none",
            "plan": "free",
            "until": None,
            "reason": "There is no subscription.",
        },
        "expiresAt": "2026-02-01T00:00:00Z",
        "externalId": None,
        "metadata": {},
    }
