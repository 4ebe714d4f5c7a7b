"""The operator's routes: a team's backend creates, changes, ends and exports tenants."""

from tests.support.app import OPERATOR_TOKEN
from tests.support.cases import cases
from tests.support.service import KEYS, PROJECTS, TENANTS, WHOAMI, Service, refusal, running_service

BODY = {"name": "Acme", "ownerEmail": "owner@acme.example"}


async def test_tenant_is_made_and_set(service: Service) -> None:
    made = await service.operator.put(f"{TENANTS}/acme", BODY)
    assert made.status_code == 201
    assert made.headers["location"] == f"{TENANTS}/acme"
    tenant = made.json()
    assert (tenant["id"], tenant["name"], tenant["plan"], tenant["subscriptionStatus"]) == (
        "acme",
        "Acme",
        "free",
        "none",
    )
    assert tenant["ownerId"]
    again = await service.operator.put(f"{TENANTS}/acme", {**BODY, "name": "Acme Ltd"})
    assert again.status_code == 200
    assert again.json() == {**tenant, "name": "Acme Ltd", "updatedAt": again.json()["updatedAt"]}


async def test_omitted_fields_stay(service: Service) -> None:
    fields = {**BODY, "ownerId": "user_9", "stripeCustomerId": "cus_stays", "suspended": True}
    made = (await service.operator.put(f"{TENANTS}/stays", fields)).json()
    assert (made["ownerId"], made["stripeCustomerId"]) == ("user_9", "cus_stays")
    again = (await service.operator.put(f"{TENANTS}/stays", BODY)).json()
    assert again == {**made, "updatedAt": again["updatedAt"]}
    export = (await service.operator.get(f"{TENANTS}/stays/export")).json()
    assert (export["suspended"], export["ownerEmail"], export["customers"]) == (
        True,
        BODY["ownerEmail"],
        ["cus_stays"],
    )


@cases("tenant_id", ["a b", "a" * 65, "ö", "a.b", "a%0A", "%00"])
async def test_invalid_id_is_rejected(service: Service, tenant_id: str) -> None:
    answer = await service.operator.put(f"{TENANTS}/{tenant_id}", BODY)
    assert refusal(answer) in ((422, "validation_failed"), (404, "not_found"))


@cases("tenant_id", ["a", "A-z_0", "a" * 64])
async def test_every_valid_id_is_accepted(service: Service, tenant_id: str) -> None:
    assert (await service.operator.put(f"{TENANTS}/{tenant_id}", BODY)).status_code == 201


@cases(
    ("fields", "location"),
    [
        ({"ownerEmail": None}, "ownerEmail"),
        ({"ownerId": ""}, "ownerId"),
        ({"ownerId": "a b"}, "ownerId"),
        ({"ownerId": "a\n"}, "ownerId"),
        ({"stripeCustomerId": "cus 1"}, "stripeCustomerId"),
        ({"stripeCustomerId": "cus_1\n"}, "stripeCustomerId"),
        ({"suspended": "true"}, "suspended"),
        ({"suspended": 1}, "suspended"),
        ({"plan": "pro"}, "plan"),
        ({"id": "x"}, "id"),
    ],
)
async def test_faulty_field_is_refused(
    service: Service, fields: dict[str, object], location: str
) -> None:
    answer = await service.operator.put(f"{TENANTS}/faulty", {**BODY, **fields})
    assert refusal(answer) == (422, "validation_failed")
    assert [fault["location"] for fault in answer.json()["errors"]] == [location]
    assert refusal(await service.operator.get(f"{TENANTS}/faulty/export")) == (404, "not_found")


async def test_customer_cannot_be_linked_to_a_second_tenant(service: Service) -> None:
    await service.operator.put(f"{TENANTS}/first", {**BODY, "stripeCustomerId": "cus_taken"})
    answer = await service.operator.put(
        f"{TENANTS}/second", {**BODY, "stripeCustomerId": "cus_taken"}
    )
    assert refusal(answer) == (409, "customer_taken")
    assert refusal(await service.operator.get(f"{TENANTS}/second/export")) == (404, "not_found")


async def test_suspended_tenant_is_rejected_until_it_is_resumed(service: Service) -> None:
    org = await service.organization()
    body = {"name": org.id, "ownerEmail": "owner@x.example"}
    user = service.user(org=org.id, role="owner")
    assert (await service.operator.put(org.path, {**body, "suspended": True})).status_code == 200
    for caller in (org.owner, user):
        for path in (PROJECTS, KEYS, TENANTS, WHOAMI):
            assert refusal(await caller.get(path)) == (403, "org_suspended")
    await service.operator.put(org.path, {**body, "suspended": False})
    for caller in (org.owner, user):
        assert (await caller.get(PROJECTS)).status_code == 200


async def test_revoked_key_of_a_suspended_tenant_is_revoked(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b")
    await org.owner.delete(key.path)
    await service.operator.put(
        org.path, {"name": "x", "ownerEmail": "owner@x.example", "suspended": True}
    )
    assert refusal(await key.caller.get(PROJECTS)) == (401, "api_key_revoked")


async def test_keys_and_tokens_of_an_ended_tenant_are_rejected_immediately(
    service: Service,
) -> None:
    org = await service.organization()
    answer = await service.operator.delete(org.path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert refusal(await org.owner.get(PROJECTS)) == (401, "api_key_revoked")
    assert refusal(await service.user(org=org.id, role="owner").get(PROJECTS)) == (
        401,
        "invalid_credential",
    )


async def test_ending_twice_succeeds_and_a_missing_tenant_is_404(service: Service) -> None:
    org = await service.organization()
    for _ in range(2):
        assert (await service.operator.delete(org.path)).status_code == 204
    assert refusal(await service.operator.delete(f"{TENANTS}/missing")) == (404, "not_found")


async def test_ended_tenant_cannot_be_set_but_still_be_exported(service: Service) -> None:
    org = await service.organization()
    await service.operator.delete(org.path)
    assert refusal(await service.operator.put(org.path, BODY)) == (409, "tenant_deleted")
    assert (await service.operator.get(f"{org.path}/export")).json()["tenant"]["id"] == org.id


async def test_export_holds_everything_and_no_secret(service: Service) -> None:
    org = await service.organization(stripeCustomerId="cus_exported")
    test = await service.key(org.owner, org.id, "OWNER", mode="test")
    projects = [
        (await caller.post(PROJECTS, {"name": "p"})).json() for caller in (org.owner, test.caller)
    ]
    trail = (await org.owner.get("/api/v1/audit-events")).json()["data"]
    answer = await service.operator.get(f"{org.path}/export")
    assert answer.status_code == 200
    exported = answer.json()
    for key in exported["apiKeys"]:
        key["lastUsedAt"] = key["lastUsedAddress"] = None  # are written now and then
    exported.pop("users", None)  # so are the visits of users
    assert exported == {
        "tenant": (await org.owner.get(org.path)).json(),
        "ownerEmail": "owner@x.example",
        "ownerEmailVerified": True,
        "suspended": False,
        "customers": ["cus_exported"],
        "members": [],
        "apiKeys": [org.key.record, test.record],
        "auditEvents": list(reversed(trail)),
        "projects": projects,
        "billingEvents": [],
    }
    for caller in (org.owner, test.caller):
        assert str(caller.credential) not in answer.text


async def test_export_names_the_members(service: Service) -> None:
    user = service.user("maker")
    tenant = (await user.post(TENANTS, {"name": "x", "ownerEmail": "me@x.example"})).json()
    export = (await service.operator.get(f"{TENANTS}/{tenant['id']}/export")).json()
    assert export["members"] == [
        {
            "id": export["members"][0]["id"],
            "issuer": service.issuer.url,
            "subject": "maker",
            "role": "owner",
            "status": "active",
            "createdAt": tenant["createdAt"],
            "updatedAt": tenant["createdAt"],
            "removedAt": None,
        }
    ]


async def test_only_the_operator_token_is_the_operator(service: Service) -> None:
    org = await service.organization()
    callers = {
        "missing_credential": [service.anonymous],
        "invalid_credential": [
            org.owner,
            service.user(org=org.id, role="owner"),
            service.caller(OPERATOR_TOKEN[:-1]),
            service.caller(OPERATOR_TOKEN + "0"),
            service.caller(OPERATOR_TOKEN.upper()),
            service.caller("a.b.c"),
        ],
    }
    for code, group in callers.items():
        for caller in group:
            for answer in (
                await caller.put(org.path, BODY),
                await caller.delete(org.path),
                await caller.get(f"{org.path}/export"),
            ):
                assert refusal(answer) == (401, code)
                assert answer.headers["www-authenticate"].startswith('Bearer realm="api"')
                if code == "invalid_credential":
                    assert "needs the operator's token" in answer.json()["detail"]
    assert (await org.owner.get(PROJECTS)).status_code == 200


async def test_without_an_operator_token_there_is_no_operator(conninfo: str) -> None:
    async with running_service(conninfo, OPERATOR_TOKEN="") as service:
        for caller in (service.operator, service.caller(""), service.caller("None")):
            answer = await caller.put(f"{TENANTS}/acme", BODY)
            assert refusal(answer)[0] == 401
