"""Outbound events: every change is one, with the object as the API shows it after the change."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, Final

import pytest

from tenantry.domain.outbound_events import EventType
from tests.support import events
from tests.support.app import running_app
from tests.support.catalogs import catalog_file
from tests.support.emptying import SharedDatabase
from tests.support.members import add_member, join, path_of
from tests.support.published_events import (
    CATALOG,
    EVENTS,
    INVITATIONS,
    MAKERS,
    REASON,
    SETTINGS,
    Made,
    RememberingService,
    events_of,
    invite,
    page,
    shown_tenant,
    token_of,
    verified_user,
)
from tests.support.rate_limits import set_plan
from tests.support.secrecy import dump
from tests.support.service import (
    KEYS,
    PROJECTS,
    WHOAMI,
    JsonObject,
    Organization,
    Service,
    identity_settings,
    refusal,
    running_service,
)
from tests.support.signing import deliver

CONSUME: Final = "/api/v1/entitlements/exports/consume"
WRITERS: Final = 8


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[RememberingService]:
    async with running_service(
        shared_database.conninfo, TENANTRY_PLANS=catalog_file(CATALOG), **SETTINGS
    ) as service:
        yield RememberingService(service)


class Changes:
    """A change of each type, made when the first test asks for it."""

    def __init__(self, service: RememberingService) -> None:
        self._service = service
        self._made: dict[EventType, Made] = {}

    async def of(self, event_type: EventType) -> Made:
        if event_type not in self._made:
            self._made[event_type] = await MAKERS[event_type](self._service)
        return self._made[event_type]


@pytest.fixture(scope="module")
def changes(service: RememberingService) -> Changes:
    return Changes(service)


async def types_of(service: Service, org: Organization) -> list[str]:
    return [event["type"] for event in await events_of(service, org)]


@pytest.mark.parametrize("event_type", EventType)
async def test_a_change_is_an_event_with_the_object_that_the_api_shows(
    service: Service, changes: Changes, event_type: EventType
) -> None:
    made = await changes.of(event_type)
    found = await events_of(service, made.org, event_type)
    assert found[-1]["orgId"] == made.org.id
    assert found[-1]["data"] == made.shown


async def test_no_secret_is_in_an_event(service: RememberingService, changes: Changes) -> None:
    for event_type in MAKERS:
        await changes.of(event_type)
    tables = await dump(service.conninfo)
    service.secrets.keep("outbound_events", tables["public.outbound_events"])
    assert len(service.secrets.known) > len(MAKERS)
    assert service.secrets.traces() == []


# The order of an object's events


async def test_the_last_event_of_an_ended_tenant_is_its_end(service: Service) -> None:
    org = await service.organization()
    changed = events.updated(org=org.id, customer=f"cus_{org.id}", subscription_id=f"sub_{org.id}")
    assert (await deliver(service.client, changed)).status_code == 200
    assert (await service.operator.delete(org.path)).status_code == 204
    late = events.deleted(
        org=org.id,
        customer=f"cus_{org.id}",
        subscription_id=f"sub_{org.id}",
        created=events.NOW + 1,
    )
    assert (await deliver(service.client, late)).status_code == 200
    assert (await service.operator.delete(org.path)).status_code == 204
    assert (await types_of(service, org))[-2:] == ["api_key.revoked", "tenant.ended"]


async def test_each_key_of_an_ended_tenant_is_revoked(service: Service) -> None:
    org = await service.organization()
    revoked = await service.key(org.owner, org.id, "projects:read")
    assert (await org.owner.delete(revoked.path)).status_code == 204
    others = [await service.key(org.owner, org.id, "projects:read") for _ in range(2)]
    before = await events_of(service, org)
    assert (await service.operator.delete(org.path)).status_code == 204
    after = (await events_of(service, org))[len(before) :]
    assert {event["data"]["id"] for event in after[:-1]} == {
        org.key.id,
        *(key.id for key in others),
    }
    assert {(event["type"], event["data"]["status"]) for event in after[:-1]} == {
        ("api_key.revoked", "revoked")
    }


async def test_a_suspension_and_its_end_are_events(service: Service) -> None:
    org = await service.organization()
    body = {"name": org.id, "ownerEmail": "owner@x.example"}
    for suspended in (True, True, False):
        answer = await service.operator.put(org.path, {**body, "suspended": suspended})
        assert answer.status_code == 200
    [_, *found] = await events_of(service, org, "tenant.*")
    assert [(each["type"], each["data"]["suspended"]) for each in found] == [
        ("tenant.suspended", True),
        ("tenant.updated", False),
    ]


async def test_a_transfer_is_an_event_of_both_members_and_the_tenant(service: Service) -> None:
    org = await service.organization(ownerId="former-owner")
    successor = await add_member(org.owner, "next-owner", "member")
    user = service.user("next-owner")
    accepted = await user.post(f"/api/v1/memberships/{successor['id']}/accept")
    assert accepted.status_code == 200
    before = await events_of(service, org)
    owner = service.user("former-owner", org=org.id, role="owner")
    body = {"userId": "next-owner", "ownerEmail": "next@x.example"}
    assert (await owner.post(f"{org.path}/transfer", body)).status_code == 200
    [gives, takes, tenant] = (await events_of(service, org))[len(before) :]
    assert (gives["type"], gives["data"]["role"]) == ("member.updated", "owner")
    assert (takes["type"], takes["data"]["role"]) == ("member.updated", "admin")
    assert (tenant["type"], tenant["data"]) == ("tenant.updated", await shown_tenant(service, org))
    assert tenant["data"]["ownerId"] == "next-owner"


async def test_a_field_that_is_cleared_is_an_event_and_an_entry(service: Service) -> None:
    org = await service.organization()
    before = await events_of(service, org, "tenant.*", "audit.*")
    for zone in ("Asia/Tokyo", None):
        assert (await org.owner.patch(org.path, {"timeZone": zone})).status_code == 200
    found = (await events_of(service, org, "tenant.*", "audit.*"))[len(before) :]
    assert [event["type"] for event in found] == ["audit.tenant.updated", "tenant.updated"] * 2
    [_, named, entry, cleared] = [event["data"] for event in found]
    assert (named["timeZone"], "timeZone" in cleared) == ("Asia/Tokyo", False)
    assert (entry["before"], entry["after"]) == ({"timeZone": "Asia/Tokyo"}, {"timeZone": None})


async def test_a_new_tenant_of_a_user_is_an_event_of_both(service: Service) -> None:
    answer = await service.user("founder").post(
        "/api/v1/tenants", {"name": "New", "ownerEmail": "founder@x.example"}
    )
    assert answer.status_code == 201
    org = Organization(answer.json()["id"], None)  # type: ignore[arg-type]  # no key is needed
    assert await types_of(service, org) == ["tenant.created", "member.added"]


async def test_a_customer_that_moves_is_an_event_of_both_tenants(service: Service) -> None:
    first, second = await service.organization(), await service.organization()
    customer = f"cus_moving_{first.id}"
    for org, value in ((first, customer), (first, None), (second, customer)):
        body = {"name": org.id, "ownerEmail": "owner@x.example", "stripeCustomerId": value}
        assert (await service.operator.put(org.path, body)).status_code == 200
    [linked, *unlinked] = await events_of(service, first, "tenant.updated")
    assert linked["data"]["stripeCustomerId"] == customer
    assert {event["data"]["stripeCustomerId"] for event in unlinked} == {None}
    [taken] = await events_of(service, second, "tenant.updated")
    assert taken["data"] == await shown_tenant(service, second)


# What is no event


async def test_a_refused_change_is_no_event(service: Service) -> None:
    org = await service.organization()
    await service.organization(stripeCustomerId=f"cus_{org.id}")
    key = await service.key(org.owner, org.id, "projects:read", "api-keys:write")
    before = await events_of(service, org)
    body = {"orgId": org.id, "name": "more", "scopes": ["tenants:write"]}
    assert refusal(await key.caller.post(KEYS, body)) == (403, "scope_escalation")
    wanted = {"ownerEmail": "owner@x.example", "stripeCustomerId": f"cus_{org.id}"}
    taken = await service.operator.put(org.path, {"name": "Not this", **wanted})
    assert refusal(taken) == (409, "customer_taken")
    assert await events_of(service, org) == before


async def test_an_event_is_rolled_back_with_its_change(service: RememberingService) -> None:
    """The invitation is closed before the plan's limit of members refuses its user."""
    org = await service.organization()
    await join(service, org, "only-member")
    invitation = await invite(org, "one-too-many")
    token = await token_of(service, org, invitation)
    await set_plan(service, org, "narrow")
    before = await events_of(service, org, "invitation.*", "member.*", "audit.*")
    user = verified_user(service, "one-too-many")
    answer = await user.post(f"{INVITATIONS}/accept", {"token": token})
    assert refusal(answer) == (403, "plan_limit_reached")
    assert await events_of(service, org, "invitation.*", "member.*", "audit.*") == before


async def test_a_change_of_nothing_is_no_event(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    member = await add_member(org.owner, "same")
    grant = {"plan": "pro", "reason": REASON}
    assert (await service.operator.put(f"{org.path}/grants/same", grant)).status_code == 200
    before = await events_of(service, org)
    for answer in (
        await org.owner.patch(org.path, {"name": org.id}),
        await org.owner.patch(key.path, {"name": "key"}),
        await org.owner.patch(path_of(member), {"role": "member"}),
        await service.operator.put(f"{org.path}/grants/same", grant),
        await key.caller.get(WHOAMI),
        await service.operator.get(f"{org.path}/export"),
    ):
        assert answer.status_code == 200, answer.text
    assert await events_of(service, org) == before


async def test_a_renewal_is_no_event(service: Service) -> None:
    org = await service.organization()
    names: dict[str, Any] = {
        "org": org.id,
        "customer": f"cus_{org.id}",
        "subscription_id": f"sub_{org.id}",
    }
    assert (await deliver(service.client, events.updated(**names))).status_code == 200
    before = await events_of(service, org)
    renewed = events.updated(
        **names, created=events.NOW + 1, period_end=events.NOW + 2 * events.MONTH
    )
    assert (await deliver(service.client, renewed)).status_code == 200
    assert (await shown_tenant(service, org))["currentPeriodEnd"] == "2026-03-02T12:00:00Z"
    assert await events_of(service, org) == before


# Quotas


async def test_a_quota_is_reached_once_in_its_period(service: Service) -> None:
    org = await service.organization()
    test = await service.key(org.owner, org.id, "projects:read", mode="test")
    assert (await test.caller.post(CONSUME, {"amount": 10})).status_code == 200
    assert (await org.owner.post(CONSUME, {"amount": 9})).status_code == 200
    assert await events_of(service, org, "entitlement.*") == []
    assert (await org.owner.post(CONSUME, {"amount": 1})).status_code == 200
    assert refusal(await org.owner.post(CONSUME, {"amount": 1})) == (403, "quota_exceeded")
    await set_plan(service, org, "pro")
    assert (await org.owner.post(CONSUME, {"amount": 90})).status_code == 200
    [event] = await events_of(service, org, "entitlement.quota_reached")
    assert (event["data"]["used"], event["data"]["limit"]) == (10, 10)


async def test_requests_that_reach_their_quota_are_an_event(service: Service) -> None:
    org = await service.organization()
    await set_plan(service, org, "narrow")
    statuses = [(await org.owner.get(PROJECTS)).status_code for _ in range(12)]
    assert statuses.count(200) == 9  # the first was that for the key
    [event] = await events_of(service, org, "entitlement.*")
    shown = (await org.owner.get("/api/v1/entitlements/calls")).json()
    assert shown["used"] == 10
    assert event["data"] == shown


async def test_many_that_reach_a_quota_together_are_one_event(service: Service) -> None:
    org = await service.organization()
    answers = await asyncio.gather(*(org.owner.post(CONSUME, {"amount": 1}) for _ in range(20)))
    assert sum(answer.status_code == 200 for answer in answers) == 10
    assert len(await events_of(service, org, "entitlement.*")) == 1


# Filters


async def test_entries_of_the_audit_trail_come_on_request_alone(service: Service) -> None:
    org = await service.organization()
    assert not [kind for kind in await types_of(service, org) if kind.startswith("audit.")]
    entries = (await org.owner.get("/api/v1/audit-events")).json()["data"][::-1]
    found = await events_of(service, org, "audit.*")
    assert [event["data"] for event in found] == entries
    assert [event["type"] for event in found] == [f"audit.{entry['action']}" for entry in entries]
    [created] = await events_of(service, org, "audit.api_key.created")
    assert created["data"]["targetId"] == org.key.id


@pytest.mark.parametrize("types", ["tenant", "tenant.*,nothing.*", "*", "tenant.gone", "audit"])
async def test_an_unknown_type_names_its_parameter(service: Service, types: str) -> None:
    answer = await service.operator.get(EVENTS, types=types)
    assert refusal(answer) == (422, "validation_failed")
    assert [fault["location"] for fault in answer.json()["errors"]] == ["types"]


async def test_a_tenant_has_none_of_the_events_of_others(service: Service) -> None:
    first, second = await service.organization(), await service.organization()
    found = await events_of(service, first)
    assert {event["orgId"] for event in found} == {first.id}
    assert {event["orgId"] for event in await events_of(service, second)} == {second.id}
    assert (await page(service, orgId="unknown"))["data"] == []


@pytest.mark.parametrize("kind", ["key", "user", "anonymous"])
async def test_only_the_operator_reads_events(service: Service, kind: str) -> None:
    org = await service.organization()
    caller = {
        "key": org.owner,
        "user": service.user("reading", org=org.id, role="owner"),
        "anonymous": service.anonymous,
    }[kind]
    assert (await caller.get(EVENTS)).status_code in (401, 403)


# Versions


async def test_versions_increase_with_the_states_of_an_object(service: RememberingService) -> None:
    """Two instances of the service change the same objects for eight writers."""
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    member = await add_member(org.owner, "often-changed")
    settings = {
        "TENANTRY_PLANS": catalog_file(CATALOG),
        **SETTINGS,
        **identity_settings(service.issuer),
    }
    async with running_app(service.conninfo, clock=service.clock, **settings) as client:
        other = Service(client, service.clock, service.issuer, service.conninfo)
        callers = [org.owner, other.caller(org.owner.credential)]

        async def write(writer: int) -> None:
            caller = callers[writer % 2]
            for number in range(3):
                name = f"{writer}-{number}"
                role = ("member", "admin")[(writer + number) % 2]
                for path, change in (
                    (org.path, {"name": name}),
                    (key.path, {"name": name}),
                    (path_of(member), {"role": role}),
                ):
                    answer = await caller.patch(path, change)
                    assert answer.status_code == 200, answer.text

        await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    published = await all_events(service, org)
    audited = await all_events(service, org, "audit.*")
    shown_member = (await org.owner.get(path_of(member))).json()
    shown_key = (await org.owner.get(key.path)).json()
    for shown, field in (
        (await shown_tenant(service, org), "name"),
        (shown_key, "name"),
        (shown_member, "role"),
    ):
        states = [each["data"] for each in published if each["data"]["id"] == shown["id"]]
        entries = [each["data"] for each in audited if each["data"]["targetId"] == shown["id"]]
        changes = [entry for entry in entries if entry["before"]]
        # each change begins with the state that the one before it left
        assert all(
            earlier["after"][field] == later["before"][field]
            for earlier, later in pairwise(changes)
        )
        assert [state[field] for state in states[1:]] == [
            change["after"][field] for change in changes
        ]
        assert states[-1] == shown


async def all_events(service: Service, org: Organization, types: str = "") -> list[JsonObject]:
    """All events of a tenant, by version."""
    found = list[JsonObject]()
    after: dict[str, str] = {}
    while data := (part := await page(service, orgId=org.id, types=types, limit=100, **after))[
        "data"
    ]:
        found += data
        after = {"after": part["nextCursor"]}
    return sorted(found, key=lambda event: int(event["version"]))
