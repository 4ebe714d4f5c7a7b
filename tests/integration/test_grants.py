"""Grants: what the operator gives a tenant by contract, and how long it counts."""

import asyncio
import io
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import pytest
from rich.console import Console

from tenantry.billing.access_ends import record_access_ends
from tenantry.billing.ledger_queries import OperatorLedger
from tenantry.cli.billing import show
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tests.support import events
from tests.support.billing import Provider, rows
from tests.support.catalogs import catalog_file
from tests.support.emptying import SharedDatabase
from tests.support.patience import patient_database
from tests.support.replays import POLICY, replay_one
from tests.support.service import (
    TENANTS,
    VERIFY,
    WHOAMI,
    Organization,
    Service,
    refusal,
    running_service,
)

CATALOG: Final = """
[[features]]
id = "sso"
type = "boolean"
[[features]]
id = "exports"
type = "metered"
[[plans]]
id = "free"
[plans.limits]
projects = 1
[[plans]]
id = "pro"
stripe_price_id = "price_pro"
[plans.limits]
projects = 10
[plans.features]
exports = 100
[[plans]]
id = "business"
stripe_price_id = "price_business"
"""
EARLIER: Final = events.NOW - 86_400
LEDGER: Final = "/api/v1/billing/events"
REASON: Final = "Contract 2027-014"
SENTENCE: Final = "By contract: Contract 2027-014."


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(
        shared_database.conninfo, TENANTRY_PLANS=catalog_file(CATALOG)
    ) as service:
        yield service


async def grant(
    service: Service, org: Organization, name: str = "contract", **terms: Any
) -> dict[str, Any]:
    """Set a grant, and return it."""
    answer = await service.operator.put(f"{org.path}/grants/{name}", {"reason": REASON, **terms})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def record_of(service: Service, org: Organization) -> dict[str, Any]:
    return dict((await service.operator.get(f"/api/v1/operator/tenants/{org.id}")).json())


async def types_of(org: Organization) -> list[str]:
    """The types of the tenant's ledger, oldest first."""
    entries = (await org.owner.get(LEDGER, limit=100)).json()["data"]
    return [entry["type"] for entry in entries][::-1]


async def test_a_grant_gives_its_plan_and_leaves_the_status(service: Service) -> None:
    org = await service.organization()
    given = await grant(service, org, plan="pro")
    assert given == {
        "name": "contract",
        "plan": "pro",
        "features": {},
        "limits": {},
        "until": None,
        "reason": REASON,
        "setAt": given["setAt"],
        "endedAt": None,
    }
    record = await record_of(service, org)
    assert (record["plan"], record["subscriptionStatus"]) == ("pro", "none")
    assert record["currentPeriodEnd"] is None
    assert record["access"] == {"state": "full", "plan": "pro", "until": None, "reason": SENTENCE}
    assert await types_of(org) == ["tenantry.grant.set"]


async def test_limits_and_features_count_without_a_plan(service: Service) -> None:
    org = await service.organization()
    given = await grant(service, org, limits={"projects": 2}, features={"sso": True, "exports": 5})
    assert (given["limits"], given["features"]) == (
        {"projects": 2},
        {"exports": 5, "sso": True},
    )
    for number in range(2):
        assert (await org.owner.post("/api/v1/projects", {"name": f"{number}"})).status_code == 201
    third = await org.owner.post("/api/v1/projects", {"name": "3"})
    assert refusal(third) == (403, "plan_limit_reached")
    exports = (await org.owner.get("/api/v1/entitlements/exports")).json()
    assert (exports["granted"], exports["limit"], exports["source"]) == (True, 5, "grant")
    sso = (await org.owner.get("/api/v1/entitlements/sso")).json()
    assert (sso["granted"], sso["source"]) == (True, "grant")
    assert (await record_of(service, org))["access"]["state"] == "none"


@pytest.mark.parametrize(
    ("terms", "location"),
    [
        ({}, "plan"),
        ({"plan": "gold"}, "plan"),
        ({"plan": "free"}, "plan"),
        ({"plan": "pro", "until": "2020-01-01T00:00:00Z"}, "until"),
        ({"plan": "pro", "until": "9999-12-31T23:59:59-05:00"}, "until"),
        ({"features": {"unknown": True}}, "features"),
        ({"features": {"sso": 3}}, "features"),
        ({"features": {"exports": False}}, "features"),
        ({"limits": {"seats": 3}}, "limits"),
        ({"limits": {"projects": -1}}, "limits"),
        ({"plan": "pro", "reason": ""}, "reason"),
        ({"plan": "pro", "reason": "  "}, "reason"),
        ({"plan": "pro", "reason": "r" * 501}, "reason"),
        ({"plan": "pro", "reason": "two\nlines"}, "reason"),
        ({"plan": "pro", "reason": "a \u202e mark"}, "reason"),
        ({"plan": "pro", "more": 1}, "more"),
    ],
)
async def test_terms_are_checked(service: Service, terms: dict[str, Any], location: str) -> None:
    org = await service.organization()
    answer = await service.operator.put(f"{org.path}/grants/contract", {"reason": REASON, **terms})
    assert refusal(answer) == (422, "validation_failed")
    assert [fault["location"].split(".")[0] for fault in answer.json()["errors"]] == [location]
    assert await types_of(org) == []


async def test_only_the_operator_sees_and_sets_grants(service: Service) -> None:
    org = await service.organization()
    terms = {"plan": "pro", "reason": REASON}
    assert refusal(await org.owner.put(f"{org.path}/grants/contract", terms))[0] == 401
    assert refusal(await org.owner.get(f"{org.path}/grants"))[0] == 401
    assert refusal(await org.owner.delete(f"{org.path}/grants/contract"))[0] == 401


async def test_the_same_terms_again_change_nothing(service: Service) -> None:
    org = await service.organization()
    first = await grant(service, org, plan="pro", until="2099-01-01T00:00:00Z")
    assert await grant(service, org, plan="pro", until="2099-01-01T00:00:00Z") == first
    assert await types_of(org) == ["tenantry.grant.set"]
    trail = (await org.owner.get("/api/v1/audit-events", action="grant.set")).json()["data"]
    assert [(entry["actorKind"], entry["targetId"]) for entry in trail] == [
        ("operator", "contract")
    ]
    assert trail[0]["after"]["plan"] == "pro"


async def test_a_number_of_one_and_no_limit_are_different_terms(service: Service) -> None:
    org = await service.organization()
    for value, limit in ((1, 1), (True, None), (1, 1)):
        given = await grant(service, org, features={"exports": value})
        assert given["features"]["exports"] is value
        exports = (await org.owner.get("/api/v1/entitlements/exports")).json()
        assert (exports["granted"], exports["limit"]) == (True, limit)
    trail = (await org.owner.get("/api/v1/audit-events", action="grant.set")).json()["data"]
    changes = [
        [(entry[moment] or {}).get("features") for moment in ("before", "after")]
        for entry in trail[:2]
    ]
    assert str(changes) == str(
        [[{"exports": True}, {"exports": 1}], [{"exports": 1}, {"exports": True}]]
    )


async def test_a_grant_is_ended_once_and_can_be_set_again(service: Service) -> None:
    org = await service.organization()
    path = f"{org.path}/grants/contract"
    await grant(service, org, plan="pro")
    ended = (await service.operator.delete(path)).json()
    assert ended["endedAt"] is not None
    assert (await service.operator.delete(path)).json() == ended
    assert (await service.operator.get(f"{org.path}/grants")).json()["data"] == []
    record = await record_of(service, org)
    assert (record["plan"], record["access"]["state"]) == ("free", "none")
    again = await grant(service, org, plan="pro")
    assert (again["endedAt"], (await record_of(service, org))["plan"]) == (None, "pro")
    assert await types_of(org) == [
        "tenantry.grant.set",
        "tenantry.grant.ended",
        "tenantry.grant.set",
    ]
    trail = (await org.owner.get("/api/v1/audit-events", limit=10)).json()["data"]
    actions = [entry["action"] for entry in trail if entry["targetId"] == "contract"]
    assert actions == ["grant.set", "grant.ended", "grant.set"]


async def test_unknown_tenants_and_grants_are_not_found(service: Service) -> None:
    org = await service.organization()
    assert refusal(await service.operator.delete(f"{org.path}/grants/none")) == (404, "not_found")
    terms = {"plan": "pro", "reason": REASON}
    for path in (f"{TENANTS}/nobody", f"{TENANTS}/no body"):
        assert refusal(await service.operator.put(f"{path}/grants/a", terms)) == (404, "not_found")
        assert refusal(await service.operator.get(f"{path}/grants")) == (404, "not_found")
    await service.operator.delete(org.path)
    answer = await service.operator.put(f"{org.path}/grants/a", terms)
    assert refusal(answer) == (409, "tenant_deleted")


async def test_two_operators_at_once_leave_one_of_their_grants(service: Service) -> None:
    org = await service.organization()
    plans = ["pro", "business"] * 4
    await asyncio.gather(*(grant(service, org, plan=plan) for plan in plans))
    [listed] = (await service.operator.get(f"{org.path}/grants")).json()["data"]
    record = await record_of(service, org)
    assert listed["plan"] == record["plan"] == record["access"]["plan"]
    entries = (await org.owner.get(LEDGER, limit=100)).json()["data"]
    assert f"gives plan {listed['plan']}" in entries[0]["reason"]
    assert not any(entry["anomalies"] for entry in entries)


async def test_a_tenant_has_fifty_grants_and_ended_ones_make_room(service: Service) -> None:
    org = await service.organization()
    for number in range(50):
        await grant(service, org, f"g{number}", limits={"projects": number + 1})
    path, terms = f"{org.path}/grants/one-more", {"plan": "pro", "reason": REASON}
    assert refusal(await service.operator.put(path, terms)) == (409, "grant_limit_reached")
    await grant(service, org, "g3", limits={"projects": 99})  # a change is no further grant
    await service.operator.delete(f"{org.path}/grants/g7")
    await grant(service, org, "one-more", plan="pro")
    listed = (await service.operator.get(f"{org.path}/grants")).json()["data"]
    assert len(listed) == 50
    assert {"g3", "one-more"} <= {each["name"] for each in listed}


async def test_a_grant_ends_at_its_second_without_a_job(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    end = (service.clock.now + timedelta(days=30)).replace(microsecond=0)
    await grant(service, org, plan="pro", until=end.isoformat())
    service.clock.now = end - timedelta(milliseconds=100)
    before = (await org.owner.get(f"{VERIFY}-")).headers
    assert (before["x-access"], before["x-effective-plan"], before["x-plan"]) == (
        "full",
        "pro",
        "pro",
    )
    service.clock.now = end
    after = (await org.owner.get(f"{VERIFY}-")).headers
    assert (after["x-access"], after["x-effective-plan"], after["x-plan"]) == (
        "none",
        "free",
        "free",
    )
    assert (await org.owner.get(WHOAMI)).json()["plan"] == "free"
    record = await record_of(service, org)
    assert (record["plan"], record["access"]["reason"]) == (
        "free",
        "The contract contract has ended.",
    )
    assert (await service.operator.get(f"{org.path}/grants")).json()["data"] == []
    for plan, listed in (("pro", []), ("free", [org.id])):
        page = await service.operator.get("/api/v1/operator/tenants", search=org.id, plan=plan)
        assert [tenant["id"] for tenant in page.json()["data"]] == listed


async def test_the_job_records_the_end_of_a_grant_once(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    end = (service.clock.now + timedelta(days=30)).replace(microsecond=0)
    await grant(service, org, plan="pro", until=end.isoformat())
    await grant(service, org, "trial", limits={"projects": 5}, until=end.isoformat())
    service.clock.now = end + timedelta(minutes=1)
    async with patient_database(service.conninfo, 1) as database:
        runs = [await record_ends(service, database) for _ in range(2)]
    assert runs == [1, 0]
    [entry, *_] = (await org.owner.get(LEDGER)).json()["data"]
    assert (entry["type"], entry["reason"]) == (
        "tenantry.access.ended",
        "Access to plan pro has ended. The contract contract has ended.",
    )


async def record_ends(service: Service, database: Database) -> int:
    """How many ends of access the job records."""
    return await record_access_ends(
        database, Outbox(), POLICY.catalog, service.clock, asks_provider=False
    )


async def test_the_job_records_every_end_of_several_grants(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    begun = service.clock.now.replace(microsecond=0)
    ends = [(begun + timedelta(days=days)).isoformat() for days in (1, 2, 3)]
    await grant(service, org, "better", plan="business", until=ends[0])
    await grant(service, org, plan="pro", until=ends[1])
    await grant(service, org, "more", limits={"projects": 5}, until=ends[2])
    service.clock.now = begun + timedelta(days=3, minutes=1)
    async with patient_database(service.conninfo, 1) as database:
        assert await record_ends(service, database) == 3
    reasons = [entry["reason"] for entry in (await org.owner.get(LEDGER)).json()["data"][:3]]
    assert [reason.partition(".")[0] for reason in reversed(reasons)] == [
        "Access to plan business has ended, and that to plan pro counts",
        "Access to plan pro has ended",
        "Granted features or limits have ended",
    ]


async def test_a_change_comes_after_the_last_one_whatever_the_clock_says(
    fresh_service: Service,
) -> None:
    service = fresh_service
    org = await service.organization()
    await grant(service, org, plan="pro")
    service.clock.now -= timedelta(seconds=90)  # as on another machine
    ended = (await service.operator.delete(f"{org.path}/grants/contract")).json()
    again = await grant(service, org, plan="business")
    assert ended["endedAt"] == again["setAt"]
    assert (await record_of(service, org))["plan"] == "business"
    assert not any(entry["anomalies"] for entry in (await org.owner.get(LEDGER)).json()["data"])


async def test_a_plan_that_leaves_the_catalog_has_the_limits_of_free(
    fresh_service: Service,
) -> None:
    org = await fresh_service.organization()
    await grant(fresh_service, org, plan="business")
    catalog = catalog_file('[[plans]]\nid = "free"\n[plans.limits]\nprojects = 1\n')
    async with running_service(fresh_service.conninfo, TENANTRY_PLANS=catalog) as later:
        owner = later.caller(org.owner.credential)
        assert (await owner.post("/api/v1/projects", {"name": "one"})).status_code == 201
        assert refusal(await owner.post("/api/v1/projects", {"name": "two"}))[0] == 403


async def test_an_ended_tenant_keeps_its_grants_in_the_export(service: Service) -> None:
    org = await service.organization()
    await grant(service, org, plan="pro")
    await service.operator.delete(org.path)
    exported = (await service.operator.get(f"{org.path}/export")).json()
    assert [entry["type"] for entry in exported["billingEvents"]] == ["tenantry.grant.set"]


async def test_grants_are_no_subscriptions_in_sql(service: Service) -> None:
    org = await service.organization()
    await grant(service, org, plan="pro")
    found = "SELECT id FROM subscriptions WHERE tenant_id = %s"
    assert await rows(service.conninfo, found, org.id) == []


@pytest.mark.parametrize("mode", SubscriptionRule)
async def test_grants_count_beside_subscriptions_and_survive_a_change_of_the_setting(
    conninfo: str, mode: SubscriptionRule
) -> None:
    """Grants and events of the provider come in turns, before and after the setting changes."""
    other = next(rule for rule in SubscriptionRule if rule is not mode)
    async with running_service(conninfo, SUBSCRIPTIONS=mode.value) as service:
        provider = Provider(service)
        subscriber = await provider.subscriber()
        path = f"{TENANTS}/{subscriber.id}/grants"
        names = {**subscriber.names, "price": "price_business"}
        await service.operator.put(f"{path}/contract", {"plan": "pro", "reason": REASON})
        await provider.send(events.updated(**names, status="incomplete", created=EARLIER))
        assert (await provider.tenant(subscriber))["access"]["plan"] == "pro"
        await provider.send(events.updated(**names, created=EARLIER + 60))
        assert (await provider.tenant(subscriber))["access"]["plan"] == "business"
        before = (await service.operator.get(path)).json()
    async with running_service(conninfo, SUBSCRIPTIONS=other.value) as service:
        provider = Provider(service)
        owner = service.caller(subscriber.organization and subscriber.organization.owner.credential)
        assert (await service.operator.get(path)).json() == before
        same = await service.operator.put(f"{path}/contract", {"plan": "pro", "reason": REASON})
        assert same.json() == before["data"][0]
        late = events.updated(**names, status="trialing", created=EARLIER + 30)
        await provider.send(late, events.deleted(**names, created=EARLIER + 90))
        record = (await owner.get(f"{TENANTS}/{subscriber.id}")).json()
        assert (record["access"]["plan"], record["access"]["reason"]) == ("pro", SENTENCE)
        await service.operator.delete(f"{path}/contract")
        record = (await owner.get(f"{TENANTS}/{subscriber.id}")).json()
        assert (record["access"]["state"], record["subscriptionStatus"]) == ("none", "canceled")
        policy = BillingPolicy(POLICY.catalog, other)
        assert (await replay_one(provider, subscriber, policy=policy, dry_run=True)).is_right


async def test_an_event_of_the_provider_with_our_type_is_no_grant(service: Service) -> None:
    provider = Provider(service)
    subscriber = await provider.subscriber()
    forged = events.updated(**subscriber.names) | {"type": "tenantry.grant.set"}
    await provider.send(forged)
    assert (await provider.tenant(subscriber))["plan"] == "free"
    assert (await service.operator.get(f"{TENANTS}/{subscriber.id}/grants")).json()["data"] == []


async def test_the_explanation_names_grants_and_says_what_ends(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    begun = service.clock.now.replace(microsecond=0)
    until = (begun + timedelta(days=30)).isoformat().replace("+00:00", "Z")
    soon = (begun + timedelta(days=7)).isoformat().replace("+00:00", "Z")
    await grant(service, org, plan="pro", until=until)
    await grant(service, org, "more", limits={"projects": 50}, until=soon, reason="A migration")
    async with patient_database(service.conninfo, 1) as database:
        explanation = await OperatorLedger(database, POLICY, lambda: begun).explain(org.id, 10)
    screen = io.StringIO()
    show(explanation, Console(file=screen, width=100_000))
    lines = [" ".join(line.split()) for line in screen.getvalue().splitlines()]
    assert "plan pro, no subscription, grant contract, grant more, no customer" in lines
    assert "plan pro" in lines[lines.index("The state now") :]
    start = lines.index("Grants")
    assert lines[start : lines.index("", lines.index("", start) + 1)] == [
        "Grants",
        f"contract plan pro, until {until}",
        "Contract 2027-014",
        f"more projects 50, until {soon}",
        "A migration",
        "",
        "Access full, limits of plan pro",
        SENTENCE,
        f"{soon} grant more: granted features or limits end.",
        f"{until} grant contract: plan pro ends, then the limits of plan free count. The contract contract has ended.",
    ]
