"""Tenants over the API, for their users."""

import json
from typing import Any, Final

from tests.support.cases import cases
from tests.support.issuer import USERINFO, Answer
from tests.support.service import KEYS, PROJECTS, TENANTS, WHOAMI, Service, refusal

NEW = {
    "plan": "free",
    "subscriptionStatus": "none",
    "currentPeriodEnd": None,
    "cancelAtPeriodEnd": False,
    "cancelAt": None,
    "endsAt": None,
    "seats": None,
    "access": {
        "state": "none",
        "plan": "free",
        "until": None,
        "reason": "There is no subscription.",
    },
    "stripeCustomerId": None,
}
VERIFIED: Final[dict[str, Any]] = {"email": "verified@x.example", "email_verified": True}


async def owner_email(service: Service, tenant_id: str) -> str:
    return str((await service.operator.get(f"{TENANTS}/{tenant_id}/export")).json()["ownerEmail"])


async def test_user_without_a_tenant_makes_one_and_becomes_its_owner(service: Service) -> None:
    user = service.user("founder")
    answer = await user.post(TENANTS, {"name": "Mine", "ownerEmail": "me@x.example"})
    tenant = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{TENANTS}/{tenant['id']}"
    assert tenant == {
        **NEW,
        "id": tenant["id"],
        "name": "Mine",
        "ownerId": "founder",
        "createdAt": tenant["createdAt"],
        "updatedAt": tenant["createdAt"],
    }
    assert tenant["createdAt"].endswith("Z")
    who = (await user.get(WHOAMI)).json()
    assert (who["orgId"], who["accessLevel"], who["scopes"]) == (tenant["id"], "OWNER", ["*:*"])
    assert (await user.get(answer.headers["location"])).json() == tenant
    assert (await user.get(TENANTS)).json()["data"] == [tenant]
    await service.key(user, tenant["id"], "OWNER")


async def test_org_claim_that_names_no_tenant_becomes_its_id(service: Service) -> None:
    user = service.user("claimant", org="org_of-the-Claim", role="owner")
    assert refusal(await user.get(PROJECTS)) == (403, "no_organization")
    answer = await user.post(TENANTS, {"name": "Claimed", "ownerEmail": "me@x.example"})
    assert answer.json()["id"] == "org_of-the-Claim"
    assert (await user.get(WHOAMI)).json()["accessLevel"] == "OWNER"


async def test_org_claim_that_names_a_tenant_makes_no_other(service: Service) -> None:
    org = await service.organization()
    user = service.user(org=org.id, role="owner")
    answer = await user.post(TENANTS, {"name": "Again", "ownerEmail": "me@x.example"})
    assert refusal(answer) == (409, "tenant_exists")


@cases("claim", ["with space", "a/b", "a" * 65, "ö", "a\u2028"])
async def test_org_claim_that_can_be_no_id_makes_no_tenant(service: Service, claim: str) -> None:
    user = service.user("claimant", org=claim)
    answer = await user.post(TENANTS, {"name": "x", "ownerEmail": "me@x.example"})
    assert answer.status_code in (401, 403)
    assert refusal(answer)[1] in ("no_organization", "invalid_credential")


async def test_header_that_differs_from_the_claim_makes_no_tenant(service: Service) -> None:
    user = service.user("claimant", org="unmade", asks_for="other")
    answer = await user.post(TENANTS, {"name": "x", "ownerEmail": "me@x.example"})
    assert refusal(answer) == (403, "org_mismatch")


async def test_address_comes_from_the_body_first(service: Service) -> None:
    user = service.user("body", **VERIFIED)
    tenant = (await user.post(TENANTS, {"name": "x", "ownerEmail": "body@x.example"})).json()
    assert await owner_email(service, tenant["id"]) == "body@x.example"


async def test_verified_address_of_the_token_is_next(service: Service) -> None:
    tenant = (await service.user("token", **VERIFIED).post(TENANTS, {"name": "x"})).json()
    assert await owner_email(service, tenant["id"]) == "verified@x.example"


async def test_address_of_the_identity_provider_is_last(service: Service) -> None:
    said = {"sub": "asked", "email": "asked@x.example", "email_verified": True}
    service.issuer.answers[USERINFO] = Answer(200, json.dumps(said).encode())
    user = service.user("asked", email="unverified@x.example", email_verified=False)
    tenant = (await user.post(TENANTS, {"name": "x"})).json()
    assert await owner_email(service, tenant["id"]) == "asked@x.example"
    assert service.issuer.authorization == f"Bearer {user.credential}"


@cases(
    "said",
    [
        None,
        {"sub": "unknown", "email": "a@x.example", "email_verified": False},
        {"sub": "another", "email": "a@x.example", "email_verified": True},
    ],
)
async def test_without_any_verified_address_it_is_422(
    service: Service, said: dict[str, object] | None
) -> None:
    service.issuer.answers.pop(USERINFO, None)
    if said is not None:
        service.issuer.answers[USERINFO] = Answer(200, json.dumps(said).encode())
    answer = await service.user("unknown", email="a@x.example").post(TENANTS, {"name": "x"})
    assert refusal(answer) == (422, "validation_failed")
    assert answer.json()["errors"][0]["location"] == "ownerEmail"


async def test_api_key_makes_no_tenant(service: Service) -> None:
    org = await service.organization()
    body = {"name": "x", "ownerEmail": "me@x.example"}
    assert refusal(await org.owner.post(TENANTS, body)) == (403, "user_token_required")
    await org.owner.delete(f"{org.key.path}?force=true")
    assert refusal(await org.owner.post(TENANTS, body)) == (401, "api_key_revoked")
    assert refusal(await service.anonymous.post(TENANTS, body)) == (401, "missing_credential")


async def test_key_sees_its_own_tenant_and_no_other(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    tenant = (await org.owner.get(org.path)).json()
    assert (await org.owner.get(TENANTS)).json() == {"data": [tenant], "nextCursor": None}
    answers = []
    for path in (other.path, f"{TENANTS}/missing", f"{TENANTS}/not%20an%20id"):
        answer = await org.owner.get(path)
        assert refusal(answer) == (404, "not_found")
        answers.append({**answer.json(), "requestId": ""})
        assert refusal(await org.owner.patch(path, {"name": "mine"})) == (404, "not_found")
    assert answers[0] == answers[1] == answers[2]


async def test_user_lists_every_tenant_it_belongs_to_but_acts_for_one(service: Service) -> None:
    body = {"name": "x", "ownerEmail": "me@x.example"}
    made = [(await service.user("many").post(TENANTS, body)).json() for _ in range(2)]
    assert refusal(await service.user("many").get(TENANTS)) == (403, "no_organization")
    user = service.user("many", asks_for=made[0]["id"])
    first = (await user.get(TENANTS, limit=1)).json()
    second = (await user.get(TENANTS, limit=1, cursor=first["nextCursor"])).json()
    assert first["data"] + second["data"] == [made[1], made[0]]
    assert second["nextCursor"] is None
    assert refusal(await user.get(f"{TENANTS}/{made[1]['id']}")) == (404, "not_found")


async def test_name_and_address_are_changed(service: Service) -> None:
    org = await service.organization()
    before = (await org.owner.get(org.path)).json()
    answer = await org.owner.patch(org.path, {"name": "Renamed"})
    assert answer.status_code == 200
    assert answer.json() == {**before, "name": "Renamed", "updatedAt": answer.json()["updatedAt"]}
    assert answer.json()["updatedAt"] > before["updatedAt"]
    assert await owner_email(service, org.id) == "owner@x.example"
    await org.owner.patch(org.path, {"name": "Renamed", "ownerEmail": "new@x.example"})
    assert await owner_email(service, org.id) == "new@x.example"


async def test_change_needs_its_scope(service: Service) -> None:
    org = await service.organization()
    reader = (await service.key(org.owner, org.id, "tenants:read")).caller
    member = service.user(org=org.id, role="member")
    for caller in (reader, member):
        assert (await caller.get(org.path)).status_code == 200
        assert refusal(await caller.patch(org.path, {"name": "x"})) == (403, "insufficient_scope")


BAD_ADDRESSES = [
    "",
    "a",
    "@",
    "a@",
    "@b",
    "a b@x.example",
    "a@x.example\n",
    "a@x.example\r\nBcc: c@x.example",
    "a@b@c",
    "<a@b>",
    "a@b,c@d",
    f"{'a' * 250}@b.example",
    7,
    ["a@b.example"],
]


@cases("address", BAD_ADDRESSES)
async def test_what_is_no_address_is_refused(service: Service, address: object) -> None:
    org = await service.organization()
    body = {"name": "x", "ownerEmail": address}
    for answer in (
        await org.owner.patch(org.path, body),
        await service.user("bad").post(TENANTS, body),
        await service.operator.put(org.path, body),
    ):
        assert refusal(answer) == (422, "validation_failed")
        assert answer.json()["errors"][0]["location"] == "ownerEmail"


@cases("body", [{}, {"name": None}, {"name": "a", "plan": "pro"}, {"name": "a", "ownerId": "me"}])
async def test_nothing_else_of_a_tenant_can_be_changed(service: Service, body: object) -> None:
    org = await service.organization()
    assert refusal(await org.owner.patch(org.path, body)) == (422, "validation_failed")


async def test_keys_of_a_tenant_that_a_user_made_are_its_own(service: Service) -> None:
    user = service.user("solo")
    tenant = (await user.post(TENANTS, {"name": "x", "ownerEmail": "me@x.example"})).json()
    other = await service.organization()
    assert refusal(await user.get(KEYS, orgId=other.id)) == (403, "org_mismatch")
    assert (await user.get(KEYS, orgId=tenant["id"])).json()["data"] == []


@cases("write", ["create", "change", "transfer"])
@cases("source", ["claim", "userinfo", "foreign", "none"])
async def test_owner_address_is_verified_by_one_rule(
    service: Service, write: str, source: str
) -> None:
    """The callers' own address is verified if a claim or userinfo proves it, whichever request sets
    it.
    """
    subject, email = f"{write}-{source}", f"{write}@x.example"
    proven: dict[str, Any] = {"email": email, "email_verified": True}
    answers = {"userinfo": {"sub": subject, **proven}, "foreign": {"sub": "another", **proven}}
    service.issuer.answers[USERINFO] = Answer(200, json.dumps(answers.get(source, {})).encode())
    user = service.user(subject, **(proven if source == "claim" else {}))
    first = email if write == "create" else "first@x.example"
    tenant = (await user.post(TENANTS, {"name": "x", "ownerEmail": first})).json()
    path = f"{TENANTS}/{tenant['id']}"
    if write == "change":
        await user.patch(path, {"name": "x", "ownerEmail": email})
    elif write == "transfer":
        await user.post(f"{path}/transfer", {"userId": subject, "ownerEmail": email})
    export = (await service.operator.get(f"{path}/export")).json()
    assert export["ownerEmail"] == email
    assert export["ownerEmailVerified"] is (source in ("claim", "userinfo"))
