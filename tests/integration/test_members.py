"""Members over the API: add, list, change, remove, and add again."""

import psycopg

from tests.support.cases import cases
from tests.support.members import (
    MEMBERS,
    accept_path,
    add_member,
    change_role,
    join,
    owned,
    path_of,
    remove_member,
)
from tests.support.service import PROJECTS, TENANTS, WHOAMI, Service, refusal, running_service

NOT_FOUND = (404, "not_found")
NO_ORGANIZATION = (403, "no_organization")


async def test_member_is_added(service: Service) -> None:
    org = await service.organization()
    answer = await org.owner.post(MEMBERS, {"userId": "auth0|ada", "role": "admin"})
    assert answer.status_code == 201
    member = answer.json()
    assert answer.headers["location"] == path_of(member)
    assert member["id"].startswith("mbr_")
    assert member == {
        "id": member["id"],
        "orgId": org.id,
        "userId": "auth0|ada",
        "role": "admin",
        "status": "invited",
        "createdAt": member["createdAt"],
        "updatedAt": member["createdAt"],
        "removedAt": None,
    }
    assert (await org.owner.get(path_of(member))).json() == member


@cases(
    ("role", "level", "scopes"),
    [
        ("owner", "OWNER", ["*:*"]),
        ("admin", "SCOPED", ["*:*"]),
        ("member", "SCOPED", ["projects:*", "tenants:read", "billing:read"]),
    ],
)
async def test_added_user_is_authorized_with_the_role(
    service: Service, role: str, level: str, scopes: list[str]
) -> None:
    org = await service.organization()
    user = service.user(f"newcomer-{role}")
    assert refusal(await user.get(WHOAMI)) == NO_ORGANIZATION
    await join(service, org, f"newcomer-{role}", role)
    who = (await user.get(WHOAMI)).json()
    assert (who["orgId"], who["accessLevel"], who["scopes"]) == (org.id, level, scopes)


async def test_member_is_not_added_again(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "twice")
    for role in ("member", "admin"):
        answer = await org.owner.post(MEMBERS, {"userId": "twice", "role": role})
        assert refusal(answer) == (409, "member_exists")
        assert member["id"] in answer.json()["detail"]
    assert (await org.owner.get(path_of(member))).json() == member


async def test_user_may_be_a_member_of_several_tenants(service: Service) -> None:
    for role in ("admin", "member"):
        await join(service, await service.organization(), "shared", role)
    assert refusal(await service.user("shared").get(PROJECTS)) == NO_ORGANIZATION


async def test_removed_member_can_be_added_again(service: Service) -> None:
    org = await service.organization()
    first = await join(service, org, "returning", "admin")
    await remove_member(org.owner, first)
    again = await join(service, org, "returning", "member")
    assert again == {**first, "role": "member", "updatedAt": again["updatedAt"]}
    assert again["updatedAt"] > first["updatedAt"]
    assert (await service.user("returning").get(PROJECTS)).status_code == 200


async def test_members_are_listed_newest_first_a_page_at_a_time(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    made = [await join(service, org, f"listed-{number}") for number in range(3)]
    await add_member(other.owner, "elsewhere")
    first = (await org.owner.get(MEMBERS, limit=2)).json()
    second = (await org.owner.get(MEMBERS, limit=2, cursor=first["nextCursor"])).json()
    assert first["data"] + second["data"] == made[::-1]
    assert second["nextCursor"] is None
    assert refusal(await org.owner.get(MEMBERS, cursor="made-up")) == (400, "invalid_cursor")


async def test_list_is_filtered(service: Service) -> None:
    org = await service.organization()
    admin = await join(service, org, "filtered-admin", "admin")
    member = await join(service, org, "filtered-member")
    gone = await join(service, org, "filtered-gone")
    await remove_member(org.owner, gone)
    for query, expected in (
        ({}, [member, admin]),
        ({"role": "admin"}, [admin]),
        ({"userId": "filtered-member"}, [member]),
        ({"userId": "filtered-member", "role": "admin"}, []),
        ({"userId": "filtered-gone"}, []),
        ({"status": "active"}, [member, admin]),
    ):
        assert (await org.owner.get(MEMBERS, **query)).json()["data"] == expected
    for query in ({"status": "removed"}, {"status": "removed", "userId": "filtered-gone"}):
        listed = (await org.owner.get(MEMBERS, **query)).json()["data"]
        assert [(one["id"], one["status"]) for one in listed] == [(gone["id"], "removed")]


@cases(
    ("body", "location"),
    [
        ({"role": "member"}, "userId"),
        ({"userId": "", "role": "member"}, "userId"),
        ({"userId": "a b", "role": "member"}, "userId"),
        ({"userId": "a\n", "role": "member"}, "userId"),
        ({"userId": "ö", "role": "member"}, "userId"),
        ({"userId": "a" * 256, "role": "member"}, "userId"),
        ({"userId": "a"}, "role"),
        ({"userId": "a", "role": "root"}, "role"),
        ({"userId": "a", "role": "OWNER"}, "role"),
        ({"userId": "a", "role": "member", "issuer": "https://elsewhere.example"}, "issuer"),
    ],
)
async def test_faulty_member_is_refused(
    service: Service, body: dict[str, str], location: str
) -> None:
    org = await service.organization()
    answer = await org.owner.post(MEMBERS, body)
    assert refusal(answer) == (422, "validation_failed")
    assert [fault["location"] for fault in answer.json()["errors"]] == [location]


@cases("query", [{"role": "root"}, {"status": "gone"}, {"userId": ""}, {"userId": "a\x00"}])
async def test_faulty_filter_is_refused(service: Service, query: dict[str, str]) -> None:
    org = await service.organization()
    assert refusal(await org.owner.get(MEMBERS, **query)) == (422, "validation_failed")


async def test_member_of_another_tenant_is_not_found(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    member = await add_member(other.owner, "private")
    for path in (path_of(member), f"{MEMBERS}/mbr_missing"):
        assert refusal(await org.owner.get(path)) == NOT_FOUND
        assert refusal(await org.owner.patch(path, {"role": "admin"})) == NOT_FOUND
        assert refusal(await org.owner.delete(path)) == NOT_FOUND
    assert (await other.owner.get(path_of(member))).json() == member


async def test_reading_and_writing_need_their_scopes(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "scoped")
    reader = (await service.key(org.owner, org.id, "members:read")).caller
    writer = (await service.key(org.owner, org.id, "members:write")).caller
    for path in (MEMBERS, path_of(member)):
        assert (await reader.get(path)).status_code == 200
        assert refusal(await writer.get(path)) == (403, "insufficient_scope")
    for caller in (reader, service.user("scoped")):
        for answer in (
            await caller.post(MEMBERS, {"userId": "x", "role": "member"}),
            await caller.patch(path_of(member), {"role": "member"}),
            await caller.delete(path_of(member)),
        ):
            assert refusal(answer) == (403, "insufficient_scope")


async def test_role_change_applies_to_the_next_request(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "risen", "member")
    user = service.user("risen", org=org.id, role="owner")
    for role, level, scopes in (
        ("admin", "SCOPED", ["*:*"]),
        ("owner", "OWNER", ["*:*"]),
        ("member", "SCOPED", ["projects:*", "tenants:read", "billing:read"]),
    ):
        if role == "member":
            await join(service, org, "other-owner", "owner")
        changed = await change_role(org.owner, member, role)
        assert changed == {**member, "role": role, "updatedAt": changed["updatedAt"]}
        assert changed["updatedAt"] > member["updatedAt"]
        who = (await user.get(WHOAMI)).json()
        assert (who["accessLevel"], who["scopes"]) == (level, scopes)


async def test_same_role_again_changes_nothing(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "unchanged", "admin")
    assert await change_role(org.owner, member, "admin") == member


async def test_removed_member_is_rejected_on_the_next_request(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "leaving", "admin")
    users = (service.user("leaving"), service.user("leaving", org=org.id, role="owner"))
    for user in users:
        assert (await user.get(PROJECTS)).status_code == 200
    await remove_member(org.owner, member)
    for user in users:
        for path in (PROJECTS, MEMBERS, TENANTS, WHOAMI):
            assert refusal(await user.get(path)) == NO_ORGANIZATION


async def test_removing_twice_succeeds_and_keeps_the_record(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "gone")
    for _ in range(2):
        await remove_member(org.owner, member)
    shown = (await org.owner.get(path_of(member))).json()
    removed = shown["removedAt"]
    assert shown == {**member, "status": "removed", "removedAt": removed, "updatedAt": removed}
    assert removed > member["createdAt"]


async def test_role_of_a_removed_member_is_not_changed(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "inactive")
    await remove_member(org.owner, member)
    assert refusal(await org.owner.patch(path_of(member), {"role": "admin"})) == (
        409,
        "member_not_active",
    )


async def test_same_request_again_gets_the_first_answer(service: Service) -> None:
    org = await service.organization()
    body = {"userId": "once", "role": "member"}
    first = await org.owner.post(MEMBERS, body, idempotency_key="add-once")
    again = await org.owner.post(MEMBERS, body, idempotency_key="add-once")
    assert (again.status_code, again.json()) == (201, first.json())
    other = await org.owner.post(MEMBERS, {**body, "role": "admin"}, idempotency_key="add-once")
    assert refusal(other) == (422, "idempotency_mismatch")


async def test_without_an_identity_provider_no_member_is_added(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        org = await service.organization()
        member = await join(service, org, "early")
    async with running_service(
        conninfo, OIDC_ISSUER="", OIDC_AUDIENCE="", OIDC_CLIENT_ID=""
    ) as service:
        owner = service.caller(org.owner.credential)
        not_configured = (501, "identity_provider_not_configured")
        assert (
            refusal(await owner.post(MEMBERS, {"userId": "late", "role": "member"}))
            == not_configured
        )
        transfer = {"userId": "early", "ownerEmail": "early@x.example"}
        assert refusal(await owner.post(f"{org.path}/transfer", transfer)) == not_configured
        assert (await owner.get(MEMBERS)).json()["data"] == [member]
        await remove_member(owner, member)


async def test_user_of_another_issuer_is_no_member_here(service: Service) -> None:
    org = await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "INSERT INTO memberships (id, tenant_id, issuer, subject, role) "
            "VALUES ('mbr_elsewhere', %s, 'https://elsewhere', 'namesake', 'owner')",
            (org.id,),
        )
    assert (await org.owner.get(MEMBERS)).json()["data"] == []
    assert refusal(await org.owner.get(f"{MEMBERS}/mbr_elsewhere")) == NOT_FOUND
    await join(service, org, "namesake")


async def test_maker_of_a_tenant_is_its_owner_among_the_members(service: Service) -> None:
    user = service.user("founding")
    tenant = (await user.post(TENANTS, {"name": "x", "ownerEmail": "me@x.example"})).json()
    listed = (await user.get(MEMBERS)).json()["data"]
    assert [(one["userId"], one["role"], one["orgId"]) for one in listed] == [
        ("founding", "owner", tenant["id"])
    ]


async def test_owner_named_by_the_operator_is_authorized_as_owner(service: Service) -> None:
    org, member = await owned(service, "named")
    assert (member["userId"], member["role"]) == ("named", "owner")
    who = (await service.user("named").get(WHOAMI)).json()
    assert (who["orgId"], who["accessLevel"]) == (org.id, "OWNER")
    await service.operator.put(
        org.path, {"name": "x", "ownerEmail": "owner@x.example", "ownerId": "named"}
    )
    assert (await org.owner.get(MEMBERS)).json()["data"] == [member]


async def test_owner_whom_the_operator_changes_joins_the_one_before(service: Service) -> None:
    org, _ = await owned(service, "predecessor")
    await join(service, org, "successor", "member")
    await service.operator.put(
        org.path, {"name": "x", "ownerEmail": "owner@x.example", "ownerId": "successor"}
    )
    listed = (await org.owner.get(MEMBERS)).json()["data"]
    assert [(one["userId"], one["role"]) for one in listed] == [
        ("successor", "owner"),
        ("predecessor", "owner"),
    ]


async def test_removed_owner_stays_removed_after_a_new_owner_is_named(service: Service) -> None:
    org = await service.organization()
    await remove_member(org.owner, await join(service, org, "banished", "admin"))
    await service.operator.put(
        org.path, {"name": "x", "ownerEmail": "owner@x.example", "ownerId": "banished"}
    )
    assert (
        refusal(await service.user("banished", org=org.id, role="owner").get(PROJECTS))
        == NO_ORGANIZATION
    )


async def test_operator_without_an_owner_id_makes_no_member(service: Service) -> None:
    org = await service.organization()
    assert (await org.owner.get(MEMBERS)).json() == {"data": [], "nextCursor": None}


async def test_every_change_is_in_the_audit_trail(service: Service) -> None:
    org = await service.organization()
    invited = await add_member(org.owner, "audited", "member")
    assert (await service.user("audited").post(accept_path(invited))).status_code == 200
    member = (await org.owner.get(path_of(invited))).json()
    changed = await change_role(org.owner, member, "admin")
    await change_role(org.owner, member, "admin")
    for _ in range(2):
        await remove_member(org.owner, member)
    gone = (await org.owner.get(path_of(member))).json()
    again = await add_member(org.owner, "audited", "admin")
    entries = (await org.owner.get("/api/v1/audit-events", targetId=member["id"])).json()["data"][
        ::-1
    ]
    assert [(entry["action"], entry["before"], entry["after"]) for entry in entries] == [
        ("member.invited", None, {**invited, "bindsOwner": True}),
        (
            "member.accepted",
            {"status": "invited", "updatedAt": invited["updatedAt"]},
            {"status": "active", "updatedAt": member["updatedAt"]},
        ),
        (
            "member.updated",
            {"role": "member", "updatedAt": member["updatedAt"]},
            {"role": "admin", "updatedAt": changed["updatedAt"]},
        ),
        (
            "member.removed",
            {"status": "active", "updatedAt": changed["updatedAt"], "removedAt": None},
            {"status": "removed", "updatedAt": gone["updatedAt"], "removedAt": gone["removedAt"]},
        ),
        (
            "member.invited",
            {"status": "removed", "updatedAt": gone["updatedAt"], "removedAt": gone["removedAt"]},
            {"status": "invited", "updatedAt": again["updatedAt"], "removedAt": None},
        ),
    ]
    actors = [(entry["actorKind"], entry["actorId"]) for entry in entries]
    assert actors == [("api_key", org.key.id), ("user", "audited"), *[("api_key", org.key.id)] * 3]


async def test_owner_whom_the_operator_names_is_in_the_audit_trail(service: Service) -> None:
    org, member = await owned(service, "named-and-audited")
    (entry,) = (await org.owner.get("/api/v1/audit-events", targetId=member["id"])).json()["data"]
    assert (entry["action"], entry["actorKind"], entry["after"]) == (
        "member.added",
        "operator",
        {**member, "bindsOwner": True},
    )


async def test_export_names_current_and_former_members(service: Service) -> None:
    org = await service.organization()
    members = [await join(service, org, name, "admin") for name in ("exported", "exported-before")]
    await remove_member(org.owner, members[1])
    members[1] = (await org.owner.get(path_of(members[1]))).json()
    exported = (await service.operator.get(f"{org.path}/export")).json()["members"]
    assert exported == [
        {
            "id": member["id"],
            "issuer": service.issuer.url,
            "subject": member["userId"],
            "role": "admin",
            "status": member["status"],
            "createdAt": member["createdAt"],
            "updatedAt": member["updatedAt"],
            "removedAt": member["removedAt"],
        }
        for member in members
    ]
