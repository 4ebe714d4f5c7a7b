"""Owners by claim: only an OWNER or the operator can lower or remove them."""

import pytest

from tests.support.cases import cases
from tests.support.members import (
    MEMBERS,
    accept_path,
    add_member,
    change_role,
    join,
    own_path,
    path_of,
    remove_member,
)
from tests.support.service import KEYS, WHOAMI, Caller, Organization, Service, refusal

NO_ORGANIZATION = (403, "no_organization")


async def writers(service: Service, org: Organization) -> dict[str, Caller]:
    """Those who write memberships without being an OWNER."""
    key = await service.key(org.owner, org.id, "*:*")
    return {"admin": service.user("the-admin", org=org.id, role="admin"), "key": key.caller}


async def level(caller: Caller) -> str:
    answer = await caller.get(WHOAMI)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["accessLevel"])


@cases("by", ["admin", "key"])
@cases("role", ["member", "admin"])
async def test_only_an_owner_lowers_a_claimed_owner(service: Service, by: str, role: str) -> None:
    org = await service.organization()
    owner = service.user("claimed-owner", org=org.id, role="owner")
    member = await add_member((await writers(service, org))[by], "claimed-owner", role)
    assert await level(owner) == "OWNER"
    made = await owner.post(
        KEYS, {"orgId": org.id, "name": "x", "scopes": [], "accessLevel": "OWNER"}
    )
    assert made.status_code == 201, made.text
    assert (await owner.patch(path_of(member), {"role": "owner"})).status_code == 200


@pytest.mark.parametrize("by", ["admin", "key"])
async def test_only_an_owner_removes_a_claimed_owner(service: Service, by: str) -> None:
    org = await service.organization()
    owner = service.user("thrown-out", org=org.id, role="owner")
    caller = (await writers(service, org))[by]
    member = await add_member(caller, "thrown-out")
    await remove_member(caller, member)
    assert await level(owner) == "OWNER"
    made = await owner.post(KEYS, {"orgId": org.id, "name": "x", "scopes": ["projects:read"]})
    assert made.status_code == 201, made.text


async def test_narrowed_token_of_a_claimed_owner_writes_with_its_scopes(service: Service) -> None:
    org = await service.organization()
    await add_member((await writers(service, org))["admin"], "narrowed")
    owner = service.user(
        "narrowed",
        org=org.id,
        role="owner",
        scope="members:write projects:* tenants:read billing:read",
    )
    await add_member(owner, "another_user")


async def test_claimed_owner_who_leaves_is_rejected(service: Service) -> None:
    org = await service.organization()
    member = await add_member((await writers(service, org))["admin"], "leaving")
    owner = service.user("leaving", org=org.id, role="owner")
    assert (await owner.post(accept_path(member))).status_code == 200
    assert await level(owner) == "OWNER"
    assert (await owner.delete(own_path(member))).status_code == 204
    assert refusal(await owner.get(WHOAMI)) == NO_ORGANIZATION


@pytest.mark.parametrize("then", ["confirmed", "removed again"])
async def test_confirmation_by_an_owner_is_audited_once(service: Service, then: str) -> None:
    org = await service.organization()
    admin = (await writers(service, org))["admin"]
    member = await add_member(admin, "confirmed", "member")
    if then == "removed again":
        await remove_member(admin, member)
    for _ in range(2):
        if then == "confirmed":
            await change_role(org.owner, member, "member")
        else:
            await remove_member(org.owner, member)
    entries = (await org.owner.get("/api/v1/audit-events", targetId=member["id"])).json()["data"]
    found = [
        (entry["before"], entry["after"])
        for entry in entries
        if "bindsOwner" in (entry["before"] or {})
    ]
    assert found == [({"bindsOwner": False}, {"bindsOwner": True})]


@cases("then", ["lowered", "removed", "confirmed", "removed again"])
async def test_owner_lowers_and_removes_a_claimed_owner(service: Service, then: str) -> None:
    org = await service.organization()
    admin = (await writers(service, org))["admin"]
    owner = service.user("overruled", org=org.id, role="owner")
    member = await add_member(admin, "overruled", "member")
    if then == "lowered":
        await change_role(org.owner, member, "admin")
    elif then == "confirmed":
        assert await change_role(org.owner, member, "member") == member
    else:
        if then == "removed again":
            await remove_member(admin, member)
        await remove_member(org.owner, member)
    if then.startswith("removed"):
        assert refusal(await owner.get(WHOAMI)) == NO_ORGANIZATION
    else:
        assert await level(owner) == "SCOPED"


async def test_admin_does_not_undo_an_owners_restriction_of_a_claimed_owner(
    service: Service,
) -> None:
    org = await service.organization()
    admin = (await writers(service, org))["admin"]
    owner = service.user("decided", org=org.id, role="owner")
    member = await add_member(org.owner, "decided", "admin")
    for role in ("member", "admin"):
        await change_role(admin, member, role)
        assert await level(owner) == "SCOPED"
    await remove_member(admin, member)
    assert refusal(await owner.get(WHOAMI)) == NO_ORGANIZATION
    await add_member(admin, "decided", "member")
    assert await level(owner) == "SCOPED"


async def test_leaving_and_joining_again_keeps_the_restriction(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "in-and-out", "member")
    owner = service.user("in-and-out", org=org.id, role="owner")
    assert await level(owner) == "SCOPED"
    assert (await owner.delete(own_path(member))).status_code == 204
    assert refusal(await owner.get(WHOAMI)) == NO_ORGANIZATION


async def test_claimed_owner_who_declines_an_admins_invitation_stays_owner(
    service: Service,
) -> None:
    org = await service.organization()
    member = await add_member((await writers(service, org))["admin"], "unimpressed")
    owner = service.user("unimpressed", org=org.id, role="owner")
    assert (await owner.delete(own_path(member))).status_code == 204
    assert await level(owner) == "OWNER"


async def test_role_claim_without_the_organization_is_lowered_by_any_membership(
    service: Service,
) -> None:
    org = await service.organization()
    await add_member((await writers(service, org))["admin"], "owner-elsewhere")
    guest = service.user("owner-elsewhere", role="owner", asks_for=org.id)
    assert await level(guest) == "SCOPED"
    assert refusal(await guest.get(MEMBERS)) == (403, "insufficient_scope")


async def test_operator_lowers_a_claimed_owner(service: Service) -> None:
    org = await service.organization(ownerId="handed-over")
    (member,) = (await org.owner.get(MEMBERS)).json()["data"]
    await add_member(org.owner, "successor", "owner")
    await service.user("successor", asks_for=org.id).get(WHOAMI)
    await service.operator.put(
        org.path, {"name": "x", "ownerEmail": "o@x.example", "ownerId": "successor"}
    )
    await change_role(org.owner, member, "member")
    assert await level(service.user("handed-over", org=org.id, role="owner")) == "SCOPED"
