"""No caller grants, raises or removes more than it may, and no tenant loses its last owner by
accident.
"""

import asyncio
from typing import Final

import psycopg
import pytest

from tests.support.billing import until_blocked
from tests.support.cases import cases
from tests.support.members import (
    MANAGER,
    MEMBERS,
    add_member,
    change_role,
    join,
    owned,
    path_of,
    remove_member,
)
from tests.support.service import WHOAMI, Caller, Organization, Service, refusal

ESCALATION: Final = (403, "scope_escalation")
LAST_OWNER: Final = (409, "last_owner")
MEMBER_SCOPES: Final = ("projects:*", "tenants:read", "billing:read")
SOON: Final = "2026-01-02T00:00:00Z"


async def manager_of(service: Service, org: Organization, *scopes: str, **fields: object) -> Caller:
    """A key that may manage members, and what else its scopes say."""
    return (await service.key(org.owner, org.id, *MANAGER, *scopes, **fields)).caller


@cases(
    ("scopes", "gives"),
    [
        ((), set()),
        (("projects:*", "tenants:read"), set()),
        (MEMBER_SCOPES, {"member"}),
        (("*:*",), {"member", "admin"}),
        (("OWNER",), {"member", "admin", "owner"}),
    ],
)
async def test_role_is_granted_by_a_caller_with_all_its_rights(
    service: Service, scopes: tuple[str, ...], gives: set[str]
) -> None:
    org = await service.organization()
    giver = (
        await service.key(
            org.owner, org.id, *(scopes if "OWNER" in scopes else (*MANAGER, *scopes))
        )
    ).caller
    given = set()
    for role in ("member", "admin", "owner"):
        answer = await giver.post(MEMBERS, {"userId": f"given-{role}", "role": role})
        if answer.status_code == 201:
            given.add(role)
        else:
            assert refusal(answer) == ESCALATION
    assert given == gives


@pytest.mark.parametrize(
    ("role", "gives"), [("admin", {"member", "admin"}), ("owner", {"member", "admin", "owner"})]
)
async def test_user_grants_at_most_the_own_role(
    service: Service, role: str, gives: set[str]
) -> None:
    org = await service.organization()
    giver = service.user("giver", org=org.id, role=role)
    for wanted in ("member", "admin", "owner"):
        answer = await giver.post(MEMBERS, {"userId": f"given-{wanted}", "role": wanted})
        assert (answer.status_code == 201) is (wanted in gives)


async def test_narrowed_token_grants_only_its_scopes(service: Service) -> None:
    org = await service.organization()
    narrowed = service.user("narrow", org=org.id, role="owner", scope="members:write projects:*")
    for role in ("member", "admin", "owner"):
        assert refusal(await narrowed.post(MEMBERS, {"userId": "x", "role": role})) == ESCALATION


async def test_raising_is_like_giving(service: Service) -> None:
    org = await service.organization()
    manager = await manager_of(service, org, *MEMBER_SCOPES)
    admin = service.user("adm", org=org.id, role="admin")
    member = await join(service, org, "to-raise", "member")
    for caller, roles in ((manager, ("admin", "owner")), (admin, ("owner",))):
        for role in roles:
            assert refusal(await caller.patch(path_of(member), {"role": role})) == ESCALATION
    assert (await change_role(admin, member, "admin"))["role"] == "admin"


async def test_adding_a_removed_member_needs_the_same_rights(service: Service) -> None:
    org = await service.organization()
    manager = await manager_of(service, org, *MEMBER_SCOPES)
    former = await join(service, org, "former-admin", "admin")
    await remove_member(org.owner, former)
    assert (
        refusal(await manager.post(MEMBERS, {"userId": "former-admin", "role": "admin"}))
        == ESCALATION
    )
    assert (await add_member(manager, "former-admin", "member"))["id"] == former["id"]


async def test_no_member_raises_the_own_role(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "ambitious", "admin")
    user = service.user("ambitious", org=org.id, role="owner")
    assert refusal(await user.patch(path_of(member), {"role": "owner"})) == ESCALATION
    assert refusal(
        await user.post(
            f"{org.path}/transfer", {"userId": "ambitious", "ownerEmail": "a@x.example"}
        )
    ) == (ESCALATION)


async def test_reducing_access_needs_only_the_scope(service: Service) -> None:
    org = await service.organization()
    manager = await manager_of(service, org)
    admin = await join(service, org, "lowered", "admin")
    assert (await change_role(manager, admin, "member"))["role"] == "member"
    await remove_member(manager, admin)


async def test_only_an_owner_changes_and_removes_owners(service: Service) -> None:
    org = await service.organization()
    owners = [await join(service, org, name, "owner") for name in ("first-owner", "second-owner")]
    everything = await manager_of(service, org, "*:*")
    for caller in (everything, service.user("adm", org=org.id, role="admin")):
        for role in ("member", "admin", "owner"):
            assert refusal(await caller.patch(path_of(owners[0]), {"role": role})) == ESCALATION
        assert refusal(await caller.delete(path_of(owners[0]))) == ESCALATION
    first_owner = service.user("first-owner")
    assert (await change_role(first_owner, owners[1], "admin"))["role"] == "admin"
    await change_role(org.owner, owners[1], "owner")
    await remove_member(service.user("second-owner"), owners[0])


async def test_test_mode_key_manages_no_members(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "untouched")
    tester = (await service.key(org.owner, org.id, "OWNER", mode="test")).caller
    for answer in (
        await tester.post(MEMBERS, {"userId": "x", "role": "member"}),
        await tester.patch(path_of(member), {"role": "admin"}),
        await tester.patch(path_of(member), {"role": "member"}),
        await tester.delete(path_of(member)),
        await tester.post(
            f"{org.path}/transfer", {"userId": "untouched", "ownerEmail": "a@x.example"}
        ),
    ):
        assert refusal(answer) == (403, "mode_mismatch")
    assert (await tester.get(path_of(member))).json() == member


async def test_expiring_key_grants_no_permanent_access(service: Service) -> None:
    org = await service.organization()
    ending = (await service.key(org.owner, org.id, "OWNER", expiresAt=SOON)).caller
    member = await join(service, org, "kept", "member")
    former = await join(service, org, "former", "member")
    await remove_member(org.owner, former)
    for answer in (
        await ending.post(MEMBERS, {"userId": "x", "role": "member"}),
        await ending.post(MEMBERS, {"userId": "former", "role": "member"}),
        await ending.patch(path_of(member), {"role": "admin"}),
        await ending.post(f"{org.path}/transfer", {"userId": "kept", "ownerEmail": "a@x.example"}),
    ):
        assert refusal(answer) == ESCALATION


async def test_expiring_key_removes_members(service: Service) -> None:
    org = await service.organization()
    ending = (await service.key(org.owner, org.id, "OWNER", expiresAt=SOON)).caller
    admin = await join(service, org, "taken-from", "admin")
    await change_role(ending, admin, "member")
    await remove_member(ending, admin)


async def test_user_gives_access_that_outlives_the_token(service: Service) -> None:
    org = await service.organization()
    await add_member(service.user("adm", org=org.id, role="admin"), "lasting")


async def test_last_owner_stays(service: Service) -> None:
    org = await service.organization()
    last = await join(service, org, "last", "owner")
    for role in ("admin", "member"):
        answer = await org.owner.patch(path_of(last), {"role": role})
        assert refusal(answer) == LAST_OWNER
        assert "another member the role owner" in answer.json()["detail"]
    assert refusal(await org.owner.delete(path_of(last))) == LAST_OWNER
    assert (await service.user("last").get(WHOAMI)).json()["accessLevel"] == "OWNER"


async def test_removed_owner_is_no_other_owner(service: Service) -> None:
    org = await service.organization()
    former, last = [await join(service, org, name, "owner") for name in ("former", "only-one")]
    await remove_member(org.owner, former)
    assert refusal(await org.owner.delete(path_of(last))) == LAST_OWNER


async def test_tenant_owner_cannot_be_removed_despite_other_owners(service: Service) -> None:
    org, member = await owned(service, "the-owner")
    await join(service, org, "second", "owner")
    for answer in (
        await org.owner.patch(path_of(member), {"role": "admin"}),
        await org.owner.delete(path_of(member)),
        await service.user("the-owner").delete(path_of(member)),
    ):
        assert refusal(answer) == LAST_OWNER
        assert "transfer the tenant first" in answer.json()["detail"]


async def test_owner_of_the_tenant_does_not_begin_as_less(service: Service) -> None:
    """One who comes with claims alone would be lowered by being added."""
    org = await service.organization()
    owner_id = (await org.owner.get(org.path)).json()["ownerId"]
    for role in ("member", "admin"):
        answer = await org.owner.post(MEMBERS, {"userId": owner_id, "role": role})
        assert refusal(answer) == LAST_OWNER
    assert (
        refusal(
            await service.user("adm", org=org.id, role="admin").post(
                MEMBERS, {"userId": owner_id, "role": "owner"}
            )
        )
        == ESCALATION
    )
    await join(service, org, owner_id, "owner")


@pytest.mark.parametrize("attack", ["remove", "lower"])
async def test_concurrent_mutual_removal_leaves_one_owner(service: Service, attack: str) -> None:
    org = await service.organization()
    names = [f"duellist-{attack}-{number}" for number in range(2)]
    members = [await join(service, org, name, "owner") for name in names]

    async def change_other(attacker: str, victim: str) -> int:
        user = service.user(attacker)
        if attack == "remove":
            return (await user.delete(victim)).status_code
        return (await user.patch(victim, {"role": "member"})).status_code

    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("SELECT 1 FROM tenants WHERE id = %s FOR NO KEY UPDATE", (org.id,))
        attempts = [
            asyncio.create_task(change_other(names[0], path_of(members[1]))),
            asyncio.create_task(change_other(names[1], path_of(members[0]))),
        ]
        await until_blocked(service.conninfo, 2)
    assert sorted(await asyncio.gather(*attempts)) == [204 if attack == "remove" else 200, 403]
    owners = (await org.owner.get(MEMBERS, role="owner")).json()["data"]
    assert len(owners) == 1
