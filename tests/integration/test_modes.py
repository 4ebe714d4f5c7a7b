"""Live and test mode are separate, except for tenants and billing."""

from tests.contract.test_openapi import operations
from tests.support.cases import cases
from tests.support.service import KEYS, PROJECTS, WHOAMI, Key, Organization, Service, refusal


async def with_test_key(service: Service) -> tuple[Organization, Key]:
    org = await service.organization()
    return org, await service.key(org.owner, org.id, "OWNER", mode="test")


async def test_test_mode_key_makes_and_sees_test_mode_projects_only(service: Service) -> None:
    org, test = await with_test_key(service)
    live = (await org.owner.post(PROJECTS, {"name": "live"})).json()
    made = (await test.caller.post(PROJECTS, {"name": "test"})).json()
    assert (live["mode"], made["mode"]) == ("live", "test")
    assert (await test.caller.get(PROJECTS)).json()["data"] == [made]
    assert (await org.owner.get(PROJECTS)).json()["data"] == [live]


@cases("method", ["GET", "PATCH", "DELETE"])
async def test_project_of_the_other_mode_answers_as_a_missing_one(
    service: Service, method: str
) -> None:
    org, test = await with_test_key(service)
    live = (await org.owner.post(PROJECTS, {"name": "live"})).json()
    made = (await test.caller.post(PROJECTS, {"name": "test"})).json()
    body = {"name": "mine"} if method == "PATCH" else None
    assert refusal(await test.caller.call(method, f"{PROJECTS}/{live['id']}", body)) == (
        404,
        "not_found",
    )
    assert refusal(await org.owner.call(method, f"{PROJECTS}/{made['id']}", body)) == (
        404,
        "not_found",
    )
    assert (await org.owner.get(f"{PROJECTS}/{live['id']}")).json() == live


async def test_test_mode_key_creates_test_mode_keys_by_default(service: Service) -> None:
    org, test = await with_test_key(service)
    made = await service.key(test.caller, org.id, "projects:read")
    assert made.record["mode"] == "test"
    assert str(made.caller.credential).startswith("svc_test_")


async def test_test_mode_key_makes_no_live_key(service: Service) -> None:
    org, test = await with_test_key(service)
    body = {"orgId": org.id, "name": "x", "scopes": ["projects:read"], "mode": "live"}
    assert refusal(await test.caller.post(KEYS, body)) == (403, "mode_mismatch")


async def test_test_mode_key_does_not_see_live_keys(service: Service) -> None:
    org, test = await with_test_key(service)
    assert [key["id"] for key in (await test.caller.get(KEYS)).json()["data"]] == [test.id]
    for method, suffix in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")):
        body: dict[str, str] | None = {} if method in ("PATCH", "POST") else None
        answer = await test.caller.call(method, f"{org.key.path}{suffix}", body)
        assert refusal(answer) == (404, "not_found")
    assert (await org.owner.get(WHOAMI)).status_code == 200


async def test_live_key_manages_the_keys_of_both_modes(service: Service) -> None:
    org, test = await with_test_key(service)
    assert [key["mode"] for key in (await org.owner.get(KEYS)).json()["data"]] == ["test", "live"]
    assert (await org.owner.delete(test.path)).status_code == 204
    assert refusal(await test.caller.get(PROJECTS)) == (401, "api_key_revoked")


async def test_rotated_key_stays_in_its_mode(service: Service) -> None:
    org, test = await with_test_key(service)
    assert (await org.owner.post(f"{test.path}/rotate")).json()["mode"] == "test"


async def test_tokens_act_in_live_mode(service: Service) -> None:
    org, test = await with_test_key(service)
    user = service.user(org=org.id, role="owner")
    assert (await user.get(WHOAMI)).json()["mode"] == "live"
    made = (await test.caller.post(PROJECTS, {"name": "test"})).json()
    assert refusal(await user.get(f"{PROJECTS}/{made['id']}")) == (404, "not_found")


async def test_tenants_and_billing_have_no_mode(service: Service) -> None:
    org, test = await with_test_key(service)
    for path in (org.path, "/api/v1/billing/events", "/api/v1/plans"):
        assert (await test.caller.get(path)).json() == (await org.owner.get(path)).json()


async def test_test_key_changes_neither_tenant_nor_billing(service: Service) -> None:
    org = await service.organization()
    test = (await service.key(org.owner, org.id, accessLevel="OWNER", mode="test")).caller
    refused = {
        (method.upper(), path): refusal(
            await test.call(method.upper(), path.replace("{tenant_id}", org.id), {"name": "x"})
        )
        for path, method, operation in operations()
        for needed in operation["security"]
        if needed.get("bearer") in (["tenants:write"], ["billing:write"])
    }
    assert len(refused) == 5
    assert refused == dict.fromkeys(refused, (403, "mode_mismatch"))


async def test_scope_of_tenants_and_billing_is_checked_first(service: Service) -> None:
    org = await service.organization()
    test = await service.key(org.owner, org.id, "tenants:read", mode="test")
    assert refusal(await test.caller.patch(org.path, {"name": "x"})) == (403, "insufficient_scope")
