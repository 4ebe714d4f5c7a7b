"""Roles of the operator's own: what their users may do, and which roles they give."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import psycopg
import pytest

from tests.support.billing import until_blocked
from tests.support.catalogs import catalog_file
from tests.support.members import MEMBERS, add_member, join, path_of
from tests.support.postgres import PostgresServer
from tests.support.service import (
    KEYS,
    PROJECTS,
    WHOAMI,
    Organization,
    Service,
    refusal,
    running_service,
)

ROLES: Final = "/api/v1/roles"
ESCALATION: Final = (403, "scope_escalation")
CATALOG: Final = """
[[plans]]
id = "free"

[[roles]]
id = "lead"
name = "Team lead"
scopes = ["projects:*", "tenants:read", "billing:read", "members:*", "api-keys:*"]
gives = ["support", "member"]

[[roles]]
id = "support"
scopes = ["projects:read", "members:read"]

[[roles]]
id = "bookkeeper"
scopes = ["billing:*", "projects:read"]
"""


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as service:
            yield service


@pytest.fixture
async def org(service: Service) -> Organization:
    return await service.organization()


async def scopes_of(service: Service, user: str, **claims: Any) -> set[str]:
    answer = await service.user(user, **claims).get(WHOAMI)
    assert answer.status_code == 200, answer.text
    return set(answer.json()["scopes"])


async def test_role_of_a_membership_grants_its_scopes(service: Service, org: Organization) -> None:
    await join(service, org, "sue", "support")
    assert await scopes_of(service, "sue") == {"projects:read", "members:read"}
    assert refusal(await service.user("sue").post(PROJECTS, {"name": "x"})) == (
        403,
        "insufficient_scope",
    )


async def test_role_of_a_claim_grants_its_scopes(service: Service, org: Organization) -> None:
    assert await scopes_of(service, "cleo", org=org.id, role="bookkeeper") == {
        "billing:*",
        "projects:read",
    }


async def test_of_claim_and_membership_counts_what_both_grant(
    service: Service, org: Organization
) -> None:
    await join(service, org, "both", "lead")
    assert await scopes_of(service, "both", org=org.id, role="bookkeeper") == {
        "billing:read",
        "projects:read",
    }


async def test_user_gives_and_changes_only_the_roles_that_the_own_role_gives(
    service: Service, org: Organization
) -> None:
    await join(service, org, "lea", "lead")
    lead = service.user("lea")
    for number, role in enumerate(("owner", "admin", "lead", "bookkeeper")):
        answer = await lead.post(MEMBERS, {"userId": f"refused-{number}", "role": role})
        assert refusal(answer) == ESCALATION
    given = await add_member(lead, "given", "support")
    assert (await lead.patch(path_of(given), {"role": "member"})).json()["role"] == "member"
    admin = await join(service, org, "ann", "admin")
    assert refusal(await lead.patch(path_of(admin), {"role": "support"})) == ESCALATION
    assert refusal(await lead.delete(path_of(admin))) == ESCALATION
    assert (await lead.delete(path_of(given))).status_code == 204


async def test_user_whose_role_gives_some_roles_makes_no_key_that_gives_others(
    service: Service, org: Organization
) -> None:
    await join(service, org, "lia", "lead")
    lead = service.user("lia")
    managing = {"orgId": org.id, "name": "x", "scopes": ["members:write", "projects:read"]}
    assert refusal(await lead.post(KEYS, managing)) == ESCALATION
    key = await service.key(org.owner, org.id, "members:write", "projects:read")
    assert refusal(await lead.post(f"{KEYS}/{key.id}/rotate", {})) == ESCALATION
    reading = {**managing, "scopes": ["members:read", "projects:read"]}
    assert (await lead.post(KEYS, reading)).status_code == 201


async def test_role_that_was_lowered_while_a_request_waited_gives_nothing(
    service: Service, org: Organization
) -> None:
    member = await join(service, org, "falling", "lead")
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("SELECT 1 FROM tenants WHERE id = %s FOR NO KEY UPDATE", (org.id,))
        lowered = asyncio.ensure_future(org.owner.patch(path_of(member), {"role": "support"}))
        await until_blocked(service.conninfo, 1)
        falling = service.user("falling")
        given = asyncio.ensure_future(falling.post(MEMBERS, {"userId": "z", "role": "member"}))
        await until_blocked(service.conninfo, 2)
    assert (await lowered).status_code == 200
    assert refusal(await given) == (403, "insufficient_scope")


async def test_unknown_role_is_rejected_with_the_names_of_the_known_ones(
    service: Service, org: Organization
) -> None:
    answer = await org.owner.post(MEMBERS, {"userId": "x", "role": "boss"})
    assert refusal(answer) == (422, "validation_failed")
    [error] = answer.json()["errors"]
    assert error == {
        "location": "role",
        "message": "is none of the roles owner, admin, lead, support, bookkeeper, member",
    }
    assert (await org.owner.get(f"{MEMBERS}?role=boss")).status_code == 422


async def test_member_with_a_role_that_left_the_catalog_may_do_nothing(
    service: Service, org: Organization
) -> None:
    member = await join(service, org, "left", "support")
    async with await psycopg.AsyncConnection.connect(
        service.conninfo, autocommit=True
    ) as connection:
        await connection.execute(
            "UPDATE memberships SET role = 'gone' WHERE id = %s", (member["id"],)
        )
    assert await scopes_of(service, "left") == set()
    assert refusal(await service.user("left").get(PROJECTS)) == (403, "insufficient_scope")
    assert (await org.owner.get(path_of(member))).json()["role"] == "gone"
    assert (await org.owner.patch(path_of(member), {"role": "member"})).status_code == 200


async def test_roles_are_listed_with_what_the_caller_may_give(
    service: Service, org: Organization
) -> None:
    await join(service, org, "lou", "lead")
    listed = (await service.user("lou").get(ROLES)).json()
    assert listed["nextCursor"] is None
    assert [role["id"] for role in listed["data"] if role["assignable"]] == ["support", "member"]
    assert listed["data"][2] == {
        "id": "lead",
        "name": "Team lead",
        "scopes": ["projects:*", "tenants:read", "billing:read", "members:*", "api-keys:*"],
        "gives": ["support", "member"],
        "assignable": False,
    }
    of_admin = next(role for role in listed["data"] if role["id"] == "admin")
    assert of_admin["gives"] == ["admin", "lead", "support", "bookkeeper", "member"]
