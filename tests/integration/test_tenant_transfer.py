"""Transfer of a tenant to another owner."""

import pytest

from tests.support.cases import cases
from tests.support.members import MEMBERS, join, owned, remove_member
from tests.support.service import TENANTS, WHOAMI, Caller, Organization, Service, refusal

BODY = {"userId": "heir", "ownerEmail": "heir@x.example"}


def transfer_of(org: Organization) -> str:
    return f"{org.path}/transfer"


async def roles(caller: Caller) -> dict[str, str]:
    return {one["userId"]: one["role"] for one in (await caller.get(MEMBERS)).json()["data"]}


async def test_member_becomes_the_owner_and_the_one_before_an_admin(service: Service) -> None:
    org, _ = await owned(service, "giving")
    await join(service, org, "heir", "member")
    before = (await org.owner.get(org.path)).json()
    answer = await service.user("giving").post(transfer_of(org), BODY)
    assert answer.status_code == 200
    tenant = answer.json()
    assert tenant == {**before, "ownerId": "heir", "updatedAt": tenant["updatedAt"]}
    assert tenant["updatedAt"] > before["updatedAt"]
    assert (await org.owner.get(org.path)).json() == tenant
    assert await roles(org.owner) == {"giving": "admin", "heir": "owner"}
    assert (await service.operator.get(f"{org.path}/export")).json()[
        "ownerEmail"
    ] == "heir@x.example"
    levels = [
        (await service.user(name, asks_for=org.id).get(WHOAMI)).json()["accessLevel"]
        for name in ("giving", "heir")
    ]
    assert levels == ["SCOPED", "OWNER"]


async def test_owner_before_may_be_removed_afterwards(service: Service) -> None:
    org, member = await owned(service, "retiring")
    await join(service, org, "heir", "member")
    await org.owner.post(transfer_of(org), BODY)
    await remove_member(org.owner, member)


async def test_owner_before_who_is_no_member_does_not_become_one(service: Service) -> None:
    org = await service.organization()
    await join(service, org, "heir", "member")
    assert (await org.owner.post(transfer_of(org), BODY)).status_code == 200
    assert await roles(org.owner) == {"heir": "owner"}


async def test_transfer_again_changes_nothing_more(service: Service) -> None:
    org, _ = await owned(service, "once")
    await join(service, org, "heir", "admin")
    first = (await org.owner.post(transfer_of(org), BODY)).json()
    entries = (await org.owner.get("/api/v1/audit-events")).json()["data"]
    again = await org.owner.post(transfer_of(org), BODY)
    assert (again.status_code, again.json()) == (200, first)
    assert (await org.owner.get("/api/v1/audit-events")).json()["data"] == entries


async def test_same_request_again_gets_the_first_answer(service: Service) -> None:
    """The one who gave the tenant away could not repeat it: an admin transfers nothing."""
    org, _ = await owned(service, "repeating")
    await join(service, org, "heir", "member")
    user = service.user("repeating")
    answers = [
        await user.post(transfer_of(org), BODY, idempotency_key="hand-over") for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    assert refusal(await user.post(transfer_of(org), BODY)) == (403, "scope_escalation")


@pytest.mark.parametrize("heir", ["outsider", "former"])
async def test_only_an_active_member_becomes_owner(service: Service, heir: str) -> None:
    org, _ = await owned(service, "careful")
    await remove_member(org.owner, await join(service, org, "former"))
    answer = await org.owner.post(transfer_of(org), {**BODY, "userId": heir})
    assert refusal(answer) == (422, "validation_failed")
    assert answer.json()["errors"] == [
        {"location": "userId", "message": "is not an active member of the tenant"}
    ]
    assert await roles(org.owner) == {"careful": "owner"}


@cases(
    ("body", "location"),
    [
        ({"userId": "heir"}, "ownerEmail"),
        ({"ownerEmail": "heir@x.example"}, "userId"),
        ({**BODY, "ownerEmail": "missing"}, "ownerEmail"),
        ({**BODY, "userId": "a b"}, "userId"),
    ],
)
async def test_faulty_transfer_is_refused(
    service: Service, body: dict[str, str], location: str
) -> None:
    org = await service.organization()
    answer = await org.owner.post(transfer_of(org), body)
    assert refusal(answer) == (422, "validation_failed")
    assert [fault["location"] for fault in answer.json()["errors"]] == [location]


async def test_only_an_owner_transfers(service: Service) -> None:
    org, _ = await owned(service, "guarded")
    await join(service, org, "heir", "owner")
    everything = await service.key(org.owner, org.id, "*:*")
    for caller in (everything.caller, service.user("adm", org=org.id, role="admin")):
        assert refusal(await caller.post(transfer_of(org), BODY)) == (403, "scope_escalation")
    member = service.user("plain", org=org.id)
    assert refusal(await member.post(transfer_of(org), BODY)) == (403, "insufficient_scope")
    assert await roles(org.owner) == {"guarded": "owner", "heir": "owner"}


async def test_another_tenant_is_not_found(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    for path in (transfer_of(other), f"{TENANTS}/missing/transfer"):
        assert refusal(await org.owner.post(path, BODY)) == (404, "not_found")


async def test_transfer_is_in_the_audit_trail(service: Service) -> None:
    org, _ = await owned(service, "recorded")
    await join(service, org, "heir", "member")
    await org.owner.post(transfer_of(org), BODY)
    entries = (await org.owner.get("/api/v1/audit-events", limit=3)).json()["data"]
    assert [entry["action"] for entry in entries] == [
        "tenant.transferred",
        "member.updated",
        "member.updated",
    ]
    assert entries[0]["before"] == {
        "ownerId": "recorded",
        "ownerEmail": "owner@x.example",
        "ownerEmailVerified": True,
    }
    assert entries[0]["after"] == {
        "ownerId": "heir",
        "ownerEmail": "heir@x.example",
        "ownerEmailVerified": False,
    }
    assert [(entry["before"]["role"], entry["after"]["role"]) for entry in entries[1:]] == [
        ("owner", "admin"),
        ("member", "owner"),
    ]
