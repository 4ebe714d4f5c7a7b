"""The operator's routes for support, which need no address of the database: each with every kind
of credential, what it answers, and what it refuses.
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from tests.support import events
from tests.support.billing import rows
from tests.support.cases import cases
from tests.support.emptying import SharedDatabase
from tests.support.members import add_member, join
from tests.support.service import (
    KEYS,
    PROJECTS,
    TENANTS,
    VERIFY,
    Caller,
    Organization,
    Service,
    refusal,
    running_service,
)
from tests.support.signing import deliver
from tests.support.webhook_endpoint import SECRET, WebhookServer, running_webhook_server

OPERATOR: Final = "/api/v1/operator"
CUSTOMERS: Final = f"{OPERATOR}/customers"
IMPORTED: Final = f"{OPERATOR}/imported-keys"
ENDPOINTS: Final = f"{OPERATOR}/webhook-endpoints"
AUDIT: Final = f"{OPERATOR}/audit-events"
BODIES: Final = f"{OPERATOR}/billing-events"
NOT_FOUND: Final = (404, "not_found")
INVALID: Final = (422, "validation_failed")
ROUTES: Final = (
    ("GET", f"{OPERATOR}/find?text=x", None),
    ("GET", f"{OPERATOR}/tenants/{{org}}/explanation", None),
    ("POST", f"{OPERATOR}/tenants/{{org}}/suspend", {"reason": "x"}),
    ("POST", f"{OPERATOR}/tenants/{{org}}/resume", {"reason": "x"}),
    ("PUT", f"{CUSTOMERS}/cus_x", {"orgId": "{org}"}),
    ("DELETE", f"{CUSTOMERS}/cus_x", None),
    ("GET", IMPORTED, None),
    ("GET", f"{IMPORTED}/{{org}}", None),
    ("GET", ENDPOINTS, None),
    ("POST", f"{ENDPOINTS}/app/test", None),
    ("POST", f"{ENDPOINTS}/app/enable", None),
    ("POST", f"{ENDPOINTS}/app/resend", None),
    ("POST", f"{TENANTS}/{{org}}/verify-owner-address", None),
    ("GET", AUDIT, None),
    ("GET", f"{BODIES}/evt_x/body", None),
)


@pytest.fixture(scope="module")
async def receiver() -> AsyncIterator[WebhookServer]:
    async with running_webhook_server() as server:
        yield server


@pytest.fixture(scope="module")
async def service(
    shared_database: SharedDatabase,
    receiver: WebhookServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Service]:
    catalog = tmp_path_factory.mktemp("catalog") / "plans.toml"
    url = f"http://127.0.0.1:{receiver.port}/?token=abc"
    endpoint = f'name = "app"\nurl = "{url}"\ntypes = ["tenant.*"]\nsecrets = ["{SECRET}"]\n'
    plans = '[[plans]]\nid = "free"\n'
    catalog.write_text(f"{plans}[[webhooks]]\n{endpoint}allow_private = true\n")
    async with running_service(shared_database.conninfo, TENANTRY_PLANS=str(catalog)) as service:
        yield service


async def get(caller: Caller, path: str) -> Any:
    answer = await caller.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


@cases(("method", "path", "body"), ROUTES)
async def test_route_is_the_operators(
    service: Service, method: str, path: str, body: dict[str, str] | None
) -> None:
    org = await service.organization(stripeCustomerId="cus_x")
    path = path.format(org=org.id)
    named = body and {name: text.format(org=org.id) for name, text in body.items()}
    others = (
        (org.owner, (401, "invalid_credential")),
        (service.user(org=org.id, role="owner"), (401, "invalid_credential")),
        (service.anonymous, (401, "missing_credential")),
    )
    for caller, expected in others:
        assert refusal(await caller.call(method, path, named)) == expected
    answer = await service.operator.call(method, path, named)
    assert answer.status_code in {200, 404}, answer.text
    await service.operator.delete(f"{CUSTOMERS}/cus_x")


async def test_tenant_is_found_by_what_names_it(service: Service) -> None:
    org = await service.organization(stripeCustomerId="cus_found", ownerEmail="found@acme.example")
    characters = f"{org.key.record['start']}...{org.key.record['last4']}"
    expected = {
        org.id: ("id", org.id),
        "cus_found": ("customer", "cus_found"),
        "FOUND@acme.example": ("email", "found@acme.example"),
        org.key.id: ("key", org.key.id),
        characters: ("key", org.key.id),
    }
    for text, (found_by, given) in expected.items():
        answer = await service.operator.get(f"{OPERATOR}/find", text=text)
        [match] = answer.json()["data"]
        found = (match["foundBy"], match["given"], match["tenant"]["id"])
        assert found == (found_by, given, org.id)
        assert (match["key"] or {}).get("id") == (org.key.id if found_by == "key" else None)


async def test_ended_tenant_and_unknown_text_find_nothing(service: Service) -> None:
    org = await service.organization()
    await service.operator.delete(org.path)
    for text in (org.id, "nothing"):
        assert (await service.operator.get(f"{OPERATOR}/find", text=text)).json()["data"] == []


async def test_whole_secret_is_refused_and_not_repeated(service: Service) -> None:
    org = await service.organization()
    secret = org.owner.credential
    assert secret is not None
    answer = await service.operator.get(f"{OPERATOR}/find", text=secret)
    assert refusal(answer) == INVALID
    assert secret not in answer.text


async def test_billing_state_is_explained(service: Service) -> None:
    org = await service.organization(stripeCustomerId="cus_explained")
    path = f"{OPERATOR}/tenants/{org.id}/explanation"
    for number in range(3):
        event = events.updated(org=org.id, customer="cus_explained", event_id=f"evt_{number}")
        await deliver(service.client, events.body(event))
    explained = await get(service.operator, f"{path}?limit=2")
    assert explained["tenant"]["id"] == org.id
    assert (explained["earlier"], len(explained["entries"])) == (1, 2)
    assert explained["customers"] == ["cus_explained"]
    assert (explained["differences"], explained["ended"]) == ([], False)
    await service.operator.delete(org.path)
    assert (await get(service.operator, path))["ended"]


async def test_body_of_an_event_is_the_providers_bytes(service: Service) -> None:
    org = await service.organization(stripeCustomerId="cus_body")
    event = events.updated(org=org.id, customer="cus_body", event_id="evt_body")
    sent = json.dumps(event, indent=3).encode() + b" \r\n"
    await deliver(service.client, sent)
    answer = await service.operator.get(f"{BODIES}/evt_body/body")
    assert (answer.status_code, answer.content) == (200, sent)
    await rows(service.conninfo, "DELETE FROM billing_bodies")
    for event_id in ("evt_body", "evt_unknown"):
        assert refusal(await service.operator.get(f"{BODIES}/{event_id}/body")) == NOT_FOUND


async def test_customer_is_linked_moved_and_unlinked(service: Service) -> None:
    first, second = await service.organization(), await service.organization()
    path = f"{CUSTOMERS}/cus_moving"

    def move(before: str | None, after: str | None) -> dict[str, str | None]:
        return {"customerId": "cus_moving", "movedFrom": before, "movedTo": after}

    linked = await service.operator.put(path, {"orgId": first.id})
    assert (linked.status_code, linked.json()) == (200, move(None, first.id))
    taken = await service.operator.put(path, {"orgId": second.id})
    assert refusal(taken) == (409, "customer_taken")
    moved = await service.operator.put(path, {"orgId": second.id, "move": True})
    assert moved.json() == move(first.id, second.id)
    assert (await get(service.operator, f"{OPERATOR}/tenants/{second.id}"))[
        "stripeCustomerId"
    ] == "cus_moving"
    unlinked = await service.operator.delete(path)
    assert (unlinked.status_code, unlinked.json()) == (200, move(second.id, None))
    assert refusal(await service.operator.delete(path)) == NOT_FOUND


async def test_keys_of_another_system_are_counted_and_listed(service: Service) -> None:
    org = await service.organization()
    key = {"digest": "ab" * 32, "name": "Old", "scopes": ["projects:read"], "externalId": "7"}
    content = {"algorithm": "sha256", "keys": [key]}
    imported = await service.operator.post(f"{org.path}/api-keys/import", content)
    assert imported.status_code == 200, imported.text
    counts = (await get(service.operator, IMPORTED))["data"]
    assert {"orgId": org.id, "used": 0, "unused": 1, "ended": 0} in counts
    path = f"{IMPORTED}/{org.id}"
    [listed] = (await get(service.operator, f"{path}?unused=true"))["data"]
    assert listed["externalId"] == "7"
    await service.operator.delete(f"{OPERATOR}/api-keys/{listed['id']}")
    assert (await get(service.operator, f"{path}?unused=true"))["data"] == []
    assert len((await get(service.operator, path))["data"]) == 1


async def test_address_of_an_owner_is_verified(service: Service) -> None:
    org = await service.organization()
    await org.owner.patch(org.path, {"ownerEmail": "new@acme.example"})
    path = f"{org.path}/owner-address"
    assert await get(org.owner, path) == {"email": "new@acme.example", "verified": False}
    for _ in range(2):
        answer = await service.operator.post(f"{org.path}/verify-owner-address")
        assert answer.json() == {"email": "new@acme.example", "verified": True}
    assert (await get(org.owner, path))["verified"]
    entry = await newest_entry(service, org)
    assert (entry["actorKind"], entry["after"]) == ("operator", {"ownerEmailVerified": True})


async def test_endpoint_is_listed_tested_enabled_and_sent_to_again(
    service: Service, receiver: WebhookServer
) -> None:
    [endpoint] = (await get(service.operator, ENDPOINTS))["data"]
    assert endpoint["name"] == "app"
    assert endpoint["url"] == f"http://127.0.0.1:{receiver.port}/?..."
    assert (endpoint["state"], endpoint["types"]) == ("active", ["tenant.*"])
    tested = await service.operator.post(f"{ENDPOINTS}/app/test")
    assert tested.json() == {"name": "app", "accepted": True, "status": 204, "error": None}
    assert json.loads(receiver.received[-1].body)["type"] == "webhook.test"
    ids = [tested.headers["x-request-id"]]
    for action in ("enable", "resend"):
        answer = await service.operator.post(f"{ENDPOINTS}/app/{action}")
        assert (answer.status_code, answer.json()["name"]) == (200, "app")
        ids.append(answer.headers["x-request-id"])
    # the trail of the operator's people: the token names none
    assert not await rows(
        service.conninfo, "SELECT FROM operator_acts WHERE request_id = ANY(%s)", ids
    )


async def test_audit_trail_of_all_tenants_is_exported(service: Service) -> None:
    first = await service.organization()
    since = service.clock().isoformat().replace("+00:00", "Z")
    second = await service.organization()
    await service.operator.delete(second.path)
    answer = await service.operator.get(AUDIT)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    entries = [json.loads(line) for line in answer.content.splitlines()]
    assert {first.id, second.id} <= {entry["orgId"] for entry in entries}
    later = (await service.operator.get(AUDIT, since=since)).content.splitlines()
    assert {json.loads(line)["orgId"] for line in later} == {second.id}
    own = (await get(first.owner, "/api/v1/audit-events"))["data"]
    assert [entry for entry in entries if entry["orgId"] == first.id] == own


async def test_long_trails_are_exported_whole(service: Service) -> None:
    first, second = await service.organization(), await service.organization()
    await rows(
        service.conninfo,
        "INSERT INTO audit_events (id, org_id, at, action, actor_kind, target_id) "
        "SELECT format('aud_%%s_%%s', org, number), org, now() - number * interval '1 second', "
        "'tenant.exported', 'operator', org "
        "FROM unnest(%s::text[]) AS org, generate_series(1, 1100) AS number",
        [first.id, second.id],
    )
    exported = [
        json.loads(line) for line in (await service.operator.get(AUDIT)).content.splitlines()
    ]
    for org in (first, second):
        ids = [entry["id"] for entry in exported if entry["orgId"] == org.id]
        assert len(ids) == len(set(ids)) > 1100
        assert {f"aud_{org.id}_{number}" for number in range(1, 1101)} <= set(ids)


@cases(
    ("method", "path", "body", "expected"),
    [
        ("GET", f"{OPERATOR}/find", None, INVALID),
        ("GET", f"{OPERATOR}/find?text=", None, INVALID),
        ("GET", f"{OPERATOR}/find?text=%00", None, INVALID),
        ("GET", f"{OPERATOR}/tenants/unknown/explanation", None, NOT_FOUND),
        ("GET", f"{OPERATOR}/tenants/a%20b/explanation", None, NOT_FOUND),
        ("GET", f"{OPERATOR}/tenants/unknown/explanation?limit=0", None, INVALID),
        ("PUT", f"{CUSTOMERS}/cus_1", {"orgId": "unknown"}, NOT_FOUND),
        ("PUT", f"{CUSTOMERS}/cus_1", {"orgId": "a b"}, INVALID),
        ("PUT", f"{CUSTOMERS}/cus_1", {}, INVALID),
        ("PUT", f"{CUSTOMERS}/cus_1", {"orgId": "a", "moves": True}, INVALID),
        ("PUT", f"{CUSTOMERS}/cus%201", {"orgId": "a"}, INVALID),
        ("DELETE", f"{CUSTOMERS}/cus_1", None, NOT_FOUND),
        ("GET", f"{IMPORTED}/unknown", None, NOT_FOUND),
        ("POST", f"{ENDPOINTS}/other/test", None, NOT_FOUND),
        ("POST", f"{ENDPOINTS}/other/enable", None, NOT_FOUND),
        ("POST", f"{ENDPOINTS}/app/resend", {"event": "evt_1"}, NOT_FOUND),
        (
            "POST",
            f"{ENDPOINTS}/app/resend",
            {"event": "evt_1", "since": "2026-11-01T00:00:00Z"},
            INVALID,
        ),
        ("POST", f"{ENDPOINTS}/app/resend", {"since": "2026-11-01T00:00:00"}, INVALID),
        ("POST", f"{TENANTS}/unknown/verify-owner-address", None, NOT_FOUND),
        ("GET", f"{AUDIT}?since=yesterday", None, INVALID),
        ("GET", f"{AUDIT}?since=2026-11-01T00:00:00", None, INVALID),
    ],
)
async def test_what_is_unknown_or_malformed_is_refused(
    service: Service,
    method: str,
    path: str,
    body: dict[str, object] | None,
    expected: tuple[int, str],
) -> None:
    assert refusal(await service.operator.call(method, path, body)) == expected


async def newest_entry(service: Service, org: Organization) -> Any:
    """The newest entry of a tenant's trail, as the operator reads it."""
    entries = await service.operator.call(
        "GET", "/api/v1/audit-events?limit=1", headers={"X-Act-As-Organization": org.id}
    )
    return entries.json()["data"][0]


async def test_reason_of_a_suspension_is_in_the_trail_the_record_and_each_refusal(
    service: Service,
) -> None:
    org = await service.organization()
    wanted = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    reason = "Invoice 2026-114 is unpaid"
    record = (await service.operator.put(org.path, {**wanted, "reason": reason})).json()
    assert (record["suspended"], record["suspensionReason"]) == (True, reason)
    entry = await newest_entry(service, org)
    assert (entry["action"], entry["reason"]) == ("tenant.updated", reason)
    assert entry["after"] == {"suspended": True, "suspensionReason": reason}
    assert await get(service.operator, f"{OPERATOR}/tenants/{org.id}") == record
    detail = f"The organization is suspended: {reason}."
    for caller in (org.owner, service.user(org=org.id, role="owner")):
        for path in (KEYS, PROJECTS, f"{VERIFY}-"):
            answer = await caller.get(path)
            assert refusal(answer) == (403, "org_suspended")
            assert (answer.json()["detail"], answer.json()["reason"]) == (detail, reason)
            assert answer.headers.get("x-problem") in (None, answer.text)
    # the fields that are not given stay, and another reason replaces the first
    assert (await service.operator.put(org.path, wanted)).json()["suspensionReason"] == reason
    other = await service.operator.put(org.path, {**wanted, "reason": "Fraud"})
    assert other.json()["suspensionReason"] == "Fraud"
    assert (await newest_entry(service, org))["after"] == {"suspensionReason": "Fraud"}
    resumed = {**wanted, "suspended": False, "reason": "Paid"}
    assert "suspensionReason" not in (await service.operator.put(org.path, resumed)).json()
    assert (await newest_entry(service, org))["reason"] == "Paid"
    assert (await org.owner.get(KEYS)).status_code == 200
    await service.operator.put(org.path, wanted)
    answer = await org.owner.get(KEYS)
    assert answer.json()["detail"] == "The organization is suspended."
    assert "reason" not in answer.json()


@cases("reason", ["x" * 500, "\u672a\u6255\u3044"])
async def test_long_reason_is_in_no_header(service: Service, reason: str) -> None:
    org = await service.organization()
    wanted = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    assert (await service.operator.put(org.path, {**wanted, "reason": reason})).is_success
    answer = await org.owner.get(f"{VERIFY}-")
    assert answer.json()["reason"] == reason
    in_header = json.loads(answer.headers["x-problem"])
    assert in_header["detail"] == "The organization is suspended."


async def test_reasons_are_in_the_trail(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    first, second = [await service.key(org.owner, org.id, "a:b") for _ in range(2)]
    operator, linked = service.operator, f"{CUSTOMERS}/cus_reason"
    await operator.delete(f"{OPERATOR}/api-keys/{first.id}?reason=by+operator")
    assert (await newest_entry(service, org))["reason"] == "by operator"
    await org.owner.delete(f"{second.path}?reason=by+owner")
    assert (await newest_entry(service, org))["reason"] == "by owner"
    await operator.put(linked, {"orgId": other.id})
    await operator.put(linked, {"orgId": org.id, "move": True, "reason": "merged"})
    assert [(await newest_entry(service, each))["reason"] for each in (org, other)] == [
        "merged",
        "merged",
    ]
    await operator.delete(f"{linked}?reason=wrong+one")
    assert (await newest_entry(service, org))["reason"] == "wrong one"
    await join(service, org, "grace")
    wanted = {"userId": "grace", "ownerEmail": "grace@x.example", "reason": "Ada left"}
    assert (await org.owner.post(f"{org.path}/transfer", wanted)).status_code == 200
    transferred = await newest_entry(service, org)
    assert (transferred["action"], transferred["reason"]) == ("tenant.transferred", "Ada left")
    owner = service.user("grace", org=org.id, role="owner")
    ended = await owner.post(f"{org.path}/end", {"name": org.id, "reason": "We moved"})
    assert ended.status_code == 204, ended.text
    await operator.delete(f"{other.path}?reason=Fraud")
    for each, reason in ((org, "We moved"), (other, "Fraud")):
        trail = (await get(operator, f"{each.path}/export"))["auditEvents"]
        [entry] = [entry for entry in trail if entry["action"] == "tenant.ended"]
        assert entry["reason"] == reason
    exported = (await operator.get(AUDIT)).content.splitlines()
    assert "We moved" in {json.loads(line)["reason"] for line in exported}


@cases("reason", ["", " ", "x" * 501, "a\nb", "a\u202eb", "a\u0000b", 7])
async def test_malformed_reason_changes_nothing(service: Service, reason: object) -> None:
    org = await service.organization(stripeCustomerId="cus_kept")
    wanted = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    owner = service.user(org=org.id, role="owner")
    bodies = (
        (service.operator, "PUT", org.path, wanted),
        (service.operator, "PUT", f"{CUSTOMERS}/cus_new", {"orgId": org.id}),
        (owner, "POST", f"{org.path}/end", {"name": org.id}),
    )
    for caller, method, path, body in bodies:
        answer = await caller.call(method, path, {**body, "reason": reason})
        assert refusal(answer) == INVALID
        assert [fault["location"] for fault in answer.json()["errors"]] == ["reason"]
    if isinstance(reason, str):
        deletions = (org.path, f"{CUSTOMERS}/cus_kept", f"{OPERATOR}/api-keys/{org.key.id}")
        for path in deletions:
            answer = await service.operator.call("DELETE", path, params={"reason": reason})
            assert refusal(answer) == INVALID
        answer = await org.owner.call("DELETE", org.key.path, params={"reason": reason})
        assert refusal(answer) == INVALID
    assert (await org.owner.get(KEYS)).status_code == 200
    await service.operator.delete(f"{CUSTOMERS}/cus_kept")


async def test_ended_tenant_takes_no_customer(service: Service) -> None:
    org = await service.organization()
    await service.operator.delete(org.path)
    answer = await service.operator.put(f"{CUSTOMERS}/cus_late", {"orgId": org.id})
    assert refusal(answer) == (409, "tenant_deleted")
    answer = await service.operator.post(f"{org.path}/verify-owner-address")
    assert refusal(answer) == NOT_FOUND
    assert (await get(service.operator, f"{IMPORTED}/{org.id}"))["data"] == []
    assert refusal(await org.owner.get(KEYS))[0] == 401


async def test_invited_user_does_not_learn_why_an_organization_is_suspended(
    service: Service,
) -> None:
    org = await service.organization()
    await add_member(org.owner, "eve")
    path = f"{OPERATOR}/tenants/{org.id}"
    body = {"reason": "Invoice 2026-114 is unpaid"}
    assert (await service.operator.post(f"{path}/suspend", body)).status_code == 200
    answer = await service.user("eve", asks_for=org.id).get(PROJECTS)
    assert (refusal(answer), "reason" in answer.json()) == ((403, "org_suspended"), False)
    assert "Invoice" not in answer.text
