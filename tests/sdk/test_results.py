"""What calls return: fields and values that the client does not know yet, raw responses, pages."""

import copy
import json
import pickle
from datetime import UTC, datetime
from typing import Any, Final

import httpx2
import msgspec
import pytest

from tenantry_sdk import (
    ApiKey,
    AuditEvent,
    BillingEvent,
    Member,
    Membership,
    NewApiKey,
    Page,
    Project,
    Secret,
    Tenant,
    Whoami,
    errors,
    webhooks,
)
from tenantry_sdk._response import Response
from tests.sdk.sdk_support import Flavour, Served, answered_by
from tests.support.app import WEBHOOK_SECRET
from tests.support.cases import cases
from tests.support.issuer import NOW

KEY: Final[dict[str, Any]] = {
    "id": "key_1",
    "orgId": "acme",
    "name": "CI",
    "scopes": ["projects:read"],
    "accessLevel": "SCOPED",
    "mode": "live",
    "expiresAt": None,
    "status": "active",
    "start": "svc_live_0123",
    "last4": "JKLM",
    "createdAt": "2026-03-01T12:00:00Z",
    "createdBy": "key_0",
    "lastUsedAt": None,
    "revokedAt": None,
    "rotatedFrom": None,
    "supersededBy": None,
}
ACCESS: Final = {"state": "full", "plan": "pro", "until": None, "reason": "Because.", "since": 5}
TENANT: Final[dict[str, Any]] = {
    "id": "acme",
    "name": "Acme",
    "plan": "pro",
    "subscriptionStatus": "active",
    "currentPeriodEnd": "2026-12-01T00:00:00Z",
    "cancelAtPeriodEnd": False,
    "cancelAt": None,
    "endsAt": None,
    "seats": None,
    "stripeCustomerId": None,
    "ownerId": None,
    "createdAt": "2026-03-01T12:00:00.25Z",
    "updatedAt": "2026-03-01T12:00:00Z",
    "access": ACCESS,
    "region": {"name": "eu"},
}


def answer(document: object, **headers: str) -> Response:
    return Response(200, headers, msgspec.json.encode(document))


def test_unknown_fields_are_kept_at_every_level() -> None:
    tenant: Tenant = answer(TENANT).parse(Tenant)
    assert tenant.extra_fields == {"region": {"name": "eu"}}
    assert tenant.access.extra_fields == {"since": 5}
    page: Page[Tenant] = answer({"data": [TENANT], "nextCursor": None, "total": 1}).parse(
        Page[Tenant]
    )
    assert (page.extra_fields, page.data[0].extra_fields["region"]) == (
        {"total": 1},
        {"name": "eu"},
    )


def test_dictionary_is_what_the_service_sent() -> None:
    tenant: Tenant = answer(TENANT).parse(Tenant)
    missing = {"cancelAt": None, "endsAt": None, "seats": None, "timeZone": None}
    assert tenant.to_dict() == {**TENANT, **missing, "createdAt": "2026-03-01T12:00:00.250000Z"}
    json.dumps(tenant.to_dict())
    page: Page[ApiKey] = answer({"data": [KEY], "nextCursor": "c"}).parse(Page[ApiKey])
    assert page.to_dict()["nextCursor"] == "c"
    assert KEY.items() <= page.to_dict()["data"][0].items()


def test_dictionary_of_a_new_key_does_not_show_its_secret() -> None:
    key: NewApiKey = answer({**KEY, "secret": "svc_live_x"}).parse(NewApiKey)
    assert key.to_dict()["secret"] == Secret("svc_live_x")
    assert "svc_live_x" not in str(key.to_dict())
    with pytest.raises(TypeError):
        json.dumps(key.to_dict())


def pickled(one: object) -> Any:
    return pickle.loads(pickle.dumps(one))  # noqa: S301  # our own bytes


@cases("copied", [copy.copy, copy.deepcopy, pickled])
def test_copies_keep_unknown_fields_and_the_response(copied: Any) -> None:
    page: Page[Tenant] = answer(
        {"data": [TENANT], "nextCursor": None}, **{"x-request-id": "4f2a"}
    ).parse(Page[Tenant])
    for one in (copied(page.data[0]), copied(page).data[0]):
        assert one == page.data[0]
        assert one.to_dict() == page.data[0].to_dict()
        assert one.response.request_id == "4f2a"


def test_record_that_did_not_come_from_the_service_has_no_response() -> None:
    whoami = Project(
        id="p",
        org_id="o",
        name="n",
        description=None,
        mode="live",
        created_at=datetime.now(UTC),
        updated_at=datetime.now(UTC),
    )
    assert not hasattr(whoami, "response")
    assert whoami.extra_fields == {}
    assert whoami.to_dict()["orgId"] == "o"


@cases(
    ("kind", "document", "fields"),
    [
        (
            ApiKey,
            {**KEY, "status": "paused", "mode": "sandbox", "accessLevel": "READ"},
            ("status", "mode"),
        ),
        (
            Tenant,
            {**TENANT, "subscriptionStatus": "frozen", "access": {**ACCESS, "state": "half"}},
            (),
        ),
        (
            Member,
            {
                "id": "m",
                "orgId": "o",
                "userId": "u",
                "role": "auditor",
                "status": "asleep",
                "removedAt": None,
                "createdAt": KEY["createdAt"],
                "updatedAt": KEY["createdAt"],
            },
            ("role", "status"),
        ),
        (
            Membership,
            {"id": "m", "orgId": "o", "orgName": "O", "role": "auditor", "status": "x"},
            ("role", "status"),
        ),
        (
            BillingEvent,
            {
                "id": "e",
                "type": "t",
                "created": KEY["createdAt"],
                "receivedAt": KEY["createdAt"],
                "livemode": None,
                "outcome": "postponed",
                "reason": "r",
                "before": None,
                "after": None,
                "anomalies": [],
                "reversal": None,
            },
            ("outcome",),
        ),
        (
            AuditEvent,
            {
                "id": "a",
                "orgId": "o",
                "at": KEY["createdAt"],
                "action": "key.painted",
                "actorKind": "robot",
                "actorId": None,
                "onBehalfOf": None,
                "reason": None,
                "address": None,
                "requestId": None,
                "targetId": "t",
                "before": None,
                "after": None,
            },
            ("action",),
        ),
        (
            Whoami,
            {
                "kind": "robot",
                "id": "i",
                "orgId": "o",
                "mode": "live",
                "scopes": [],
                "accessLevel": "ROOT",
                "plan": "p",
                "subscriptionStatus": "x",
                "access": ACCESS,
                "expiresAt": None,
            },
            ("kind",),
        ),
    ],
)
def test_unknown_values_are_passed_on(
    kind: Any, document: dict[str, Any], fields: tuple[str, ...]
) -> None:
    record = answer(document).parse(kind)
    assert document.items() <= {**record.to_dict(), "createdAt": document.get("createdAt")}.items()
    assert [getattr(record, field) for field in fields] == [document[field] for field in fields]


def test_records_are_equal_by_their_known_fields() -> None:
    assert answer(TENANT).parse(Tenant) == answer({**TENANT, "region": None}).parse(Tenant)
    assert answer(TENANT).parse(Tenant) != answer({**TENANT, "name": "Other"}).parse(Tenant)


def test_event_keeps_the_fields_that_the_client_does_not_know() -> None:
    body = json.dumps({"id": "evt_1", "type": "x", "data": {}, "api_version": "2027-01-01"})
    event = webhooks.verify_provider_event(
        body, {"Provider-Signature": webhooks.sign_provider_event(body, "whsec_x")}, "whsec_x"
    )
    assert event.extra_fields == {"api_version": "2027-01-01"}
    assert event.to_dict()["api_version"] == "2027-01-01"


async def test_every_record_comes_with_its_response(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        made = await owner.projects.create(name="First")
        page = await owner.projects.list().first_page()
        shown = await owner.projects.get(made.id)
        nested = (await owner.tenants.get(organization.id)).access
    assert (made.response.status_code, made.response.headers["location"].endswith(made.id)) == (
        201,
        True,
    )
    assert json.loads(made.response.content)["name"] == "First"
    assert page.data[0].response is page.response
    assert nested is not None
    ids = [one.response.request_id for one in (made, page, shown, nested)]
    assert None not in ids
    assert len(set(ids)) == 4


async def test_pages_lead_to_the_next_one(unlimited: Served, flavour: Flavour) -> None:
    organization = await unlimited.service.organization()
    async with flavour.client_of(unlimited, organization) as owner:
        made = [(await owner.projects.create(name=f"Project {number}")).id for number in range(5)]
        page = await owner.projects.list(limit=2).first_page()
        found = [project.id for project in page.data]
        while page.has_next:
            page = await page.next()
            found += [project.id for project in page.data]
        with pytest.raises(RuntimeError, match="no next page"):
            await page.next()
    assert found == made[::-1]
    assert (page.next_cursor, len(page.data)) == (None, 1)


async def test_next_page_has_the_filters_and_options_of_the_first(flavour: Flavour) -> None:
    seen: list[httpx2.Request] = []

    def upstream(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(
            200, json={"data": [], "nextCursor": "c2" if len(seen) == 1 else None}
        )

    async with answered_by(flavour, upstream) as client:
        page = await client.api_keys.list(
            status="active", limit=1, headers={"X-Trace": "1"}
        ).first_page()
        await page.next()
    assert [dict(request.url.params) for request in seen] == [
        {"status": "active", "limit": "1"},
        {"status": "active", "limit": "1", "cursor": "c2"},
    ]
    assert [request.headers["x-trace"] for request in seen] == ["1", "1"]


async def test_trail_is_exported_as_lines(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        exported = await owner.audit_events.export(action="api_key.created")
        listed = [entry async for entry in owner.audit_events.list(action="api_key.created")]
    lines = [json.loads(line) for line in exported.content.splitlines()]
    assert [line["id"] for line in lines] == [entry.id for entry in listed]
    assert len(lines) == 1


async def test_event_is_delivered_with_its_signature(served: Served, flavour: Flavour) -> None:
    body = json.dumps(
        {"id": f"evt_{flavour.name}", "type": "nothing.of.interest", "data": {"object": {}}}
    )
    async with flavour.client(base_url=served.url) as client:
        delivered = await client.billing.events.deliver(
            body, webhooks.sign_provider_event(body, WEBHOOK_SECRET, at=NOW)
        )
        with pytest.raises(errors.BadRequestError, match="Invalid signature"):
            await client.billing.events.deliver(
                body, webhooks.sign_provider_event(body, "whsec_another", at=NOW)
            )
    assert delivered.content == b"OK"
