"""Consent: a membership created by another user is an invitation until its user accepts it."""

import asyncio

import psycopg
import pytest

from tests.support.billing import until_blocked
from tests.support.cases import cases
from tests.support.members import (
    MEMBERS,
    OWN,
    accept_path,
    add_member,
    join,
    own_path,
    owned,
    path_of,
    remove_member,
)
from tests.support.service import (
    KEYS,
    PROJECTS,
    TENANTS,
    WHOAMI,
    Caller,
    Organization,
    Service,
    refusal,
)

NOT_FOUND = (404, "not_found")
NO_ORGANIZATION = (403, "no_organization")
LISTED = {"id", "orgId", "orgName", "role", "status"}


async def audited(org: Organization, member_id: str) -> list[tuple[str, str]]:
    """What the audit trail says of a membership: the action and who did it, oldest first."""
    entries = (await org.owner.get("/api/v1/audit-events", targetId=member_id)).json()["data"][::-1]
    return [(entry["action"], entry["actorId"]) for entry in entries]


async def test_invitation_does_not_change_the_tenant_of_a_token_without_organization(
    service: Service,
) -> None:
    home, _ = await owned(service, "victim-at-home")
    attacker = await service.organization()
    await add_member(attacker.owner, "victim-at-home", "owner")
    who = await service.user("victim-at-home").get(WHOAMI)
    assert (who.status_code, who.json().get("orgId")) == (200, home.id)


async def test_invited_owner_of_the_tenant_keeps_the_role_owner(service: Service) -> None:
    org, member = await owned(service, "owner-invited-again")
    other = await add_member(org.owner, "other-owner", "owner")
    assert (await service.user("other-owner").post(accept_path(other))).status_code == 200
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "UPDATE memberships SET removed_at = now() WHERE id = %s", (member["id"],)
        )
    invited = await add_member(org.owner, "owner-invited-again", "owner")
    assert invited["status"] == "invited"
    owner = service.user("owner-invited-again")
    for answer in (
        await org.owner.patch(path_of(invited), {"role": "member"}),
        await org.owner.delete(path_of(invited)),
        await owner.delete(own_path(invited)),
    ):
        assert refusal(answer) == (409, "last_owner")
    assert (await owner.post(accept_path(invited))).json()["role"] == "owner"


async def test_user_who_is_only_invited_has_no_organization(service: Service) -> None:
    attacker = await service.organization()
    member = await add_member(attacker.owner, "newcomer", "admin")
    assert member["status"] == "invited"
    user = service.user("newcomer")
    for path in (WHOAMI, PROJECTS, TENANTS, MEMBERS, KEYS, attacker.path):
        assert refusal(await user.get(path)) == NO_ORGANIZATION
    assert refusal(await user.post(PROJECTS, {"name": "stray"})) == NO_ORGANIZATION


@cases("by", ["owner key", "scoped key", "user"])
async def test_membership_created_by_another_caller_is_an_invitation(
    service: Service, by: str
) -> None:
    org = await service.organization()
    caller: Caller = org.owner
    if by == "scoped key":
        caller = (
            await service.key(
                org.owner, org.id, "members:write", "projects:*", "tenants:read", "billing:read"
            )
        ).caller
    elif by == "user":
        caller = service.user("inviting-admin", org=org.id, role="admin")
    assert (await add_member(caller, f"invited-by-{by.replace(' ', '-')}"))["status"] == "invited"


async def test_users_who_add_themselves_need_no_invitation(service: Service) -> None:
    org = await service.organization()
    user = service.user("by-claim", org=org.id, role="admin")
    member = await add_member(user, "by-claim", "member")
    assert member["status"] == "active"
    assert (await service.user("by-claim").get(WHOAMI)).json()["orgId"] == org.id


async def test_invitation_is_accepted_by_a_user_without_any_organization(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "accepting", "admin")
    user = service.user("accepting", scope="projects:read")
    (listed,) = (await user.get(OWN)).json()["data"]
    expected = {
        "id": member["id"],
        "orgId": org.id,
        "orgName": org.id,
        "role": "admin",
        "status": "invited",
    }
    assert listed == expected
    for _ in range(2):
        answer = await user.post(accept_path(member))
        assert (answer.status_code, answer.json()) == (200, {**expected, "status": "active"})
    assert (await service.user("accepting").get(WHOAMI)).json()["orgId"] == org.id
    assert (await org.owner.get(path_of(member))).json()["status"] == "active"
    assert await audited(org, member["id"]) == [
        ("member.invited", org.key.id),
        ("member.accepted", "accepting"),
    ]


async def test_acceptance_is_repeated_with_an_idempotency_key(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "accepting-once")
    user = service.user("accepting-once")
    answers = [await user.post(accept_path(member), idempotency_key="accept-1") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()


async def test_request_that_names_the_organization_accepts(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "naming", "admin")
    assert (await service.user("naming", asks_for=org.id).get(PROJECTS)).status_code == 200
    assert (await org.owner.get(path_of(member))).json()["status"] == "active"
    assert (await service.user("naming").get(WHOAMI)).json()["orgId"] == org.id
    assert (await audited(org, member["id"]))[1:] == [("member.accepted", "naming")]


async def test_header_does_not_accept_where_memberships_are_listed_or_declined(
    service: Service,
) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "careful")
    user = service.user("careful", asks_for=org.id)
    assert [one["status"] for one in (await user.get(OWN)).json()["data"]] == ["invited"]
    assert (await user.delete(own_path(member))).status_code == 204
    assert (await audited(org, member["id"]))[1:] == [("member.declined", "careful")]


async def test_header_does_not_accept_in_a_suspended_tenant(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "invited-into-suspended")
    fields = {"name": org.id, "ownerEmail": "owner@x.example"}
    await service.operator.put(org.path, {**fields, "suspended": True})
    user = service.user("invited-into-suspended", asks_for=org.id)
    assert refusal(await user.get(PROJECTS)) == (403, "org_suspended")
    assert (await user.get(OWN)).json()["data"][0]["status"] == "invited"
    assert (await user.delete(own_path(member))).status_code == 204


async def test_claim_of_the_identity_provider_needs_no_acceptance(service: Service) -> None:
    org = await service.organization()
    await add_member(org.owner, "claimed", "member")
    who = (await service.user("claimed", org=org.id, role="admin").get(WHOAMI)).json()
    assert (who["orgId"], who["scopes"]) == (org.id, ["projects:*", "tenants:read", "billing:read"])
    assert refusal(await service.user("claimed").get(WHOAMI)) == NO_ORGANIZATION


async def test_memberships_by_the_operator_and_the_creator_need_no_acceptance(
    service: Service,
) -> None:
    _, member = await owned(service, "named-by-operator")
    assert member["status"] == "active"
    creator = service.user("creating")
    assert (
        await creator.post(TENANTS, {"name": "x", "ownerEmail": "me@x.example"})
    ).status_code == 201
    assert [(one["role"], one["status"]) for one in (await creator.get(OWN)).json()["data"]] == [
        ("owner", "active")
    ]


async def test_operator_who_names_an_invited_user_as_owner_needs_no_acceptance(
    service: Service,
) -> None:
    org = await service.organization()
    await add_member(org.owner, "promoted", "member")
    await service.operator.put(
        org.path, {"name": "x", "ownerEmail": "owner@x.example", "ownerId": "promoted"}
    )
    assert (await service.user("promoted").get(WHOAMI)).json()["accessLevel"] == "OWNER"


async def test_declined_invitation_can_be_made_again(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "declining", "admin")
    user = service.user("declining")
    for _ in range(2):
        assert (await user.delete(own_path(member))).status_code == 204
    assert (await user.get(OWN)).json() == {"data": [], "nextCursor": None}
    assert (await org.owner.get(path_of(member))).json()["status"] == "removed"
    assert refusal(await user.post(accept_path(member))) == (409, "member_not_active")
    again = await add_member(org.owner, "declining", "member")
    assert (again["id"], again["status"], again["role"]) == (member["id"], "invited", "member")
    assert refusal(await user.get(WHOAMI)) == NO_ORGANIZATION
    assert (await user.post(accept_path(member))).json()["role"] == "member"
    assert [action for action, _ in await audited(org, member["id"])] == [
        "member.invited",
        "member.declined",
        "member.invited",
        "member.accepted",
    ]


async def test_member_of_any_role_leaves_without_any_scope(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "leaving-alone", "member")
    user = service.user("leaving-alone", scope="projects:read")
    assert (await user.delete(own_path(member))).status_code == 204
    assert refusal(await user.get(PROJECTS)) == NO_ORGANIZATION
    assert (
        refusal(await service.user("leaving-alone", org=org.id, role="admin").get(PROJECTS))
        == NO_ORGANIZATION
    )
    assert (await audited(org, member["id"]))[-1] == ("member.left", "leaving-alone")


async def test_member_leaves_a_suspended_tenant(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "leaving-suspended", "member")
    fields = {"name": org.id, "ownerEmail": "owner@x.example"}
    await service.operator.put(org.path, {**fields, "suspended": True})
    assert (await service.user("leaving-suspended").delete(own_path(member))).status_code == 204


async def test_last_owner_does_not_leave(service: Service) -> None:
    org, member = await owned(service, "the-owner")
    owner = service.user("the-owner")
    await add_member(owner, "other-owner", "owner")  # an invitation makes anonymous an owner
    answer = await owner.delete(own_path(member))
    assert refusal(answer) == (409, "last_owner")
    assert "/transfer" in answer.json()["detail"]
    assert refusal(await owner.delete(path_of(member))) == (409, "last_owner")
    assert refusal(
        await owner.post(
            f"{org.path}/transfer", {"userId": "other-owner", "ownerEmail": "o@x.example"}
        )
    ) == (422, "validation_failed")
    await service.user("other-owner", asks_for=org.id).get(WHOAMI)
    await owner.post(f"{org.path}/transfer", {"userId": "other-owner", "ownerEmail": "o@x.example"})
    assert (await owner.delete(own_path(member))).status_code == 204


async def test_only_owner_among_the_members_does_not_leave(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "sole-owner", "owner")
    await add_member(org.owner, "invited-owner", "owner")
    assert refusal(await service.user("sole-owner").delete(own_path(member))) == (409, "last_owner")


async def test_membership_of_another_user_is_not_found(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "invited-alone")
    for caller in (service.user("curious"), service.user("curious", org=org.id, role="owner")):
        for path in (member["id"], "mbr_missing"):
            assert refusal(await caller.post(f"/api/v1/memberships/{path}/accept")) == NOT_FOUND
            assert refusal(await caller.delete(f"{OWN}/{path}")) == NOT_FOUND
    assert (await org.owner.get(path_of(member))).json()["status"] == "invited"


async def test_keys_have_no_memberships(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "invited-beside-a-key")
    for answer in (
        await org.owner.get(OWN),
        await org.owner.post(accept_path(member)),
        await org.owner.delete(own_path(member)),
    ):
        assert refusal(answer) == (403, "user_token_required")
    assert (await service.anonymous.get(OWN)).status_code == 401


async def test_withdrawn_invitation_cannot_be_accepted(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "too-late")
    await remove_member(org.owner, member)
    user = service.user("too-late")
    assert refusal(await user.post(accept_path(member))) == (409, "member_not_active")
    assert refusal(await service.user("too-late", asks_for=org.id).get(PROJECTS)) == NO_ORGANIZATION
    assert (await user.get(OWN)).json()["data"] == []


@pytest.mark.parametrize("by_header", [False, True])
async def test_acceptance_during_a_withdrawal_is_rejected(
    service: Service, by_header: bool
) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "racing")
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE", (org.id,))
        user = service.user("racing", asks_for=org.id if by_header else None)
        accepting = asyncio.create_task(
            user.get(PROJECTS) if by_header else user.post(accept_path(member))
        )
        await until_blocked(service.conninfo)
        await connection.execute(
            "UPDATE memberships SET removed_at = now() WHERE id = %s", (member["id"],)
        )
        await connection.commit()
    assert refusal(await accepting) == (
        NO_ORGANIZATION if by_header else (409, "member_not_active")
    )
    assert (await org.owner.get(path_of(member))).json()["status"] == "removed"


async def test_own_list_is_paged_and_filtered(service: Service) -> None:
    orgs = [await service.organization() for _ in range(3)]
    made = [await add_member(org.owner, "listing") for org in orgs]
    user = service.user("listing")
    await user.post(accept_path(made[0]))
    first = (await user.get(OWN, limit=2)).json()
    second = (await user.get(OWN, limit=2, cursor=first["nextCursor"])).json()
    assert [one["id"] for one in first["data"] + second["data"]] == [
        one["id"] for one in made[::-1]
    ]
    assert {frozenset(one) for one in first["data"]} == {frozenset(LISTED)}
    assert second["nextCursor"] is None
    assert [one["id"] for one in (await user.get(OWN, status="active")).json()["data"]] == [
        made[0]["id"]
    ]
    assert [one["id"] for one in (await user.get(OWN, status="invited")).json()["data"]] == [
        made[2]["id"],
        made[1]["id"],
    ]
    assert refusal(await user.get(OWN, cursor="made-up")) == (400, "invalid_cursor")
    await service.operator.delete(orgs[2].path)
    assert [one["id"] for one in (await user.get(OWN)).json()["data"]] == [
        made[1]["id"],
        made[0]["id"],
    ]
    assert refusal(await user.post(accept_path(made[2]))) == NOT_FOUND


async def test_role_of_an_invitation_changes(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "reconsidered", "admin")
    changed = await org.owner.patch(path_of(member), {"role": "member"})
    assert (changed.status_code, changed.json()["status"], changed.json()["role"]) == (
        200,
        "invited",
        "member",
    )


async def test_members_list_has_invitations(service: Service) -> None:
    org = await service.organization()
    active = await join(service, org, "list-active")
    invited = await add_member(org.owner, "list-invited")
    for query, expected in (
        ({}, [invited["id"], active["id"]]),
        ({"status": "invited"}, [invited["id"]]),
        ({"status": "active"}, [active["id"]]),
        ({"status": "removed"}, []),
    ):
        assert [
            one["id"] for one in (await org.owner.get(MEMBERS, **query)).json()["data"]
        ] == expected
    assert refusal(await org.owner.post(MEMBERS, {"userId": "list-invited", "role": "member"})) == (
        409,
        "member_exists",
    )
