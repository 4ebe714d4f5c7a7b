"""Keys that are switched off and on."""

from typing import Final

from tests.support.app import OPERATOR_TOKEN
from tests.support.cases import cases
from tests.support.in_process import DJANGO, FASTAPI, FLASK, MIDDLEWARE, SERVICE, WSGI, running_app
from tests.support.service import (
    KEYS,
    PROJECTS,
    VERIFY,
    WHOAMI,
    Service,
    refusal,
)

DISABLED: Final = (401, "api_key_disabled")
OFF: Final = {"enabled": False}
ON: Final = {"enabled": True}


@cases("kind", [SERVICE, MIDDLEWARE, FASTAPI, WSGI, FLASK, DJANGO])
async def test_key_is_refused_from_the_next_request_on_by_every_road(
    service: Service, kind: str
) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    async with running_app(kind, service) as app:
        caller = app.caller(key.caller.credential)
        for _ in range(2):
            assert (await caller.get(app.path())).status_code == 200
            off = await org.owner.patch(key.path, OFF)
            assert (off.json()["enabled"], off.json()["status"]) == (False, "active")
            assert refusal(await caller.get(app.path())) == DISABLED
            assert (await org.owner.patch(key.path, ON)).json()["enabled"] is True


@cases("path", [WHOAMI, PROJECTS, KEYS, f"{VERIFY}projects:read"])
async def test_every_route_refuses_it(service: Service, path: str) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "*:*", enabled=False)
    answer = await key.caller.get(path)
    assert refusal(answer) == DISABLED
    assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
    cut = service.caller(str(key.caller.credential)[:-1])
    assert refusal(await cut.get(path)) == (401, "invalid_credential")


async def test_refusals_come_in_order(service: Service) -> None:
    org = await service.organization()
    key = await service.key(
        org.owner,
        org.id,
        "projects:read",
        enabled=False,
        allowedAddresses=["192.0.2.7"],
        expiresAt="2099-01-01T00:00:00Z",
    )
    tenant = {"name": "A", "ownerEmail": "a@example.com"}
    await service.operator.put(org.path, {**tenant, "suspended": True})
    assert refusal(await key.caller.get(WHOAMI)) == DISABLED
    acting = service.caller(OPERATOR_TOKEN, **{"X-Act-As-Organization": org.id})
    await acting.patch(key.path, ON)
    assert refusal(await key.caller.get(WHOAMI)) == (403, "org_suspended")
    await service.operator.put(org.path, {**tenant, "suspended": False})
    assert refusal(await key.caller.get(WHOAMI)) == (403, "address_not_allowed")
    await acting.patch(key.path, OFF)
    await acting.delete(key.path)
    assert refusal(await key.caller.get(WHOAMI)) == (401, "api_key_revoked")


async def test_it_is_not_rotated(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", enabled=False)
    assert refusal(await org.owner.post(f"{key.path}/rotate")) == (409, "key_not_active")
    await org.owner.patch(key.path, ON)
    rotated = await org.owner.post(f"{key.path}/rotate")
    assert (rotated.status_code, rotated.json()["enabled"]) == (201, True)


async def test_it_counts_towards_the_plan(service: Service) -> None:
    org = await service.organization()
    body = {"orgId": org.id, "name": "one", "scopes": ["a:b"], "enabled": False}
    answers = [await org.owner.post(KEYS, body)]
    while answers[-1].status_code == 201:
        answers.append(await org.owner.post(KEYS, body))
    assert refusal(answers[-1]) == (409, "key_limit_reached")
    listed = (await org.owner.get(KEYS, status="active", limit=100)).json()["data"]
    assert len(listed) == len(answers)  # with the owner's


async def test_last_owner_key_is_not_switched_off(service: Service) -> None:
    org = await service.organization()
    assert refusal(await org.owner.patch(org.key.path, OFF)) == (409, "last_owner")
    spare = await service.key(org.owner, org.id, accessLevel="OWNER", enabled=False)
    assert refusal(await org.owner.patch(org.key.path, OFF)) == (409, "last_owner")
    assert refusal(await org.owner.delete(org.key.path)) == (409, "last_owner")
    await org.owner.patch(spare.path, ON)
    assert (await org.owner.patch(org.key.path, OFF)).status_code == 200
    assert (await spare.caller.delete(org.key.path)).status_code == 204


async def test_repeated_creation_has_the_first_answer_only(service: Service) -> None:
    org = await service.organization()
    headers = {"Idempotency-Key": "once"}
    body = {"orgId": org.id, "name": "one", "scopes": ["a:b"], "enabled": False}
    first = await service.caller(org.owner.credential, **headers).post(KEYS, body)
    again = await service.caller(org.owner.credential, **headers).post(KEYS, body)
    other = await service.caller(org.owner.credential, **headers).post(
        KEYS, {**body, "enabled": True}
    )
    assert first.json()["enabled"] is False
    assert refusal(again) == (409, "idempotency_replay")
    assert refusal(other) == (422, "idempotency_mismatch")


async def test_audit_names_the_field(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b")
    await org.owner.patch(key.path, OFF)
    [event, _] = (await org.owner.get(f"/api/v1/audit-events?targetId={key.id}")).json()["data"]
    assert (event["action"], event["before"], event["after"]) == (
        "api_key.updated",
        {"enabled": True},
        {"enabled": False},
    )


@cases("value", [None, 0, "false", []])
async def test_it_is_a_boolean(service: Service, value: object) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b")
    body = {"orgId": org.id, "name": "one", "scopes": ["a:b"], "enabled": value}
    for answer in (
        await org.owner.post(KEYS, body),
        await org.owner.patch(key.path, {"enabled": value}),
    ):
        assert refusal(answer) == (422, "validation_failed")
        assert answer.json()["errors"][0]["location"] == "enabled"


async def test_followers_are_told_of_the_change(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b")
    await org.owner.patch(key.path, {**OFF, "requestsPerMinute": 7})
    feed = await service.operator.get(
        "/api/v1/operator/events", orgId=org.id, types="api_key.updated"
    )
    [event] = feed.json()["data"]
    assert (event["data"]["enabled"], event["data"]["requestsPerMinute"]) == (False, 7)
