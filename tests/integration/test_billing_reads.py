"""What a tenant may read of plans and of its billing ledger."""

from typing import Any

from tests.support import events
from tests.support.catalogs import catalog_file
from tests.support.service import PROJECTS, Organization, Service, refusal, running_service
from tests.support.signing import deliver

PLANS = "/api/v1/plans"
LEDGER = "/api/v1/billing/events"


async def upgraded(
    service: Service, org: Organization, created: int = events.NOW
) -> dict[str, Any]:
    """A delivered event that brings the tenant to the plan `pro`."""
    thing = events.subscription(org=org.id, customer=None, subscription_id=f"sub_{org.id}")
    event = events.event("customer.subscription.updated", thing, created=created)
    answer = await deliver(service.client, event)
    assert (answer.status_code, answer.text) == (200, "OK")
    return event


async def test_plans_are_listed_with_their_prices_and_limits(conninfo: str) -> None:
    catalog = catalog_file(
        '[[plans]]\nid = "free"\nname = "Free"\n[plans.limits]\nprojects = 3\napi_keys = 0\n'
        '[[plans]]\nid = "pro"\nstripe_price_id = ["price_1", "price_2"]\n[plans.limits]\nrequests_per_minute = 9\n'
    )
    async with running_service(conninfo, TENANTRY_PLANS=catalog) as service:
        await service.operator.put(
            "/api/v1/tenants/acme", {"name": "Acme", "ownerEmail": "a@x.example"}
        )
        listed = await service.user(org="acme").get(PLANS)
    assert listed.json() == {
        "data": [
            {
                "id": "free",
                "name": "Free",
                "stripePriceId": None,
                "limits": {"projects": 3, "apiKeys": 0},
            },
            {
                "id": "pro",
                "name": "pro",
                "stripePriceId": "price_1",
                "limits": {"requestsPerMinute": 9},
            },
        ],
        "nextCursor": None,
    }


async def test_plans_have_features_where_the_catalog_has_any(conninfo: str) -> None:
    catalog = catalog_file(
        '[[features]]\nid = "sso"\ntype = "boolean"\n[[features]]\nid = "seats"\ntype = "limit"\n'
        '[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\n[plans.features]\nsso = true\nseats = 5\n'
    )
    async with running_service(conninfo, TENANTRY_PLANS=catalog) as service:
        org = await service.organization()
        listed = await org.owner.get(PLANS)
    assert [plan["features"] for plan in listed.json()["data"]] == [{}, {"sso": True, "seats": 5}]


async def test_any_credential_reads_the_plans(service: Service) -> None:
    org = await service.organization()
    nothing = await service.key(org.owner, org.id, "nothing:here")
    assert (await nothing.caller.get(PLANS)).status_code == 200
    assert refusal(await service.anonymous.get(PLANS)) == (401, "missing_credential")


async def test_entry_says_what_an_event_did(service: Service) -> None:
    org = await service.organization()
    event = await upgraded(service, org)
    entry = (await org.owner.get(f"{LEDGER}/{event['id']}")).json()
    before = {
        "plan": "free",
        "subscriptionStatus": "none",
        "currentPeriodEnd": None,
        "cancelAtPeriodEnd": False,
    }
    after = {
        **before,
        "plan": "pro",
        "subscriptionStatus": "active",
        "currentPeriodEnd": "2026-01-31T12:00:00Z",
    }
    assert entry == {
        "id": event["id"],
        "type": "customer.subscription.updated",
        "created": "2026-01-01T12:00:00Z",
        "receivedAt": entry["receivedAt"],
        "livemode": False,
        "outcome": "applied",
        "reason": entry["reason"],
        "before": before,
        "after": after,
        "anomalies": [],
        "reversal": None,
    }
    assert entry["receivedAt"].endswith("Z")
    assert (await org.owner.get(LEDGER)).json() == {"data": [entry], "nextCursor": None}
    tenant = (await org.owner.get(org.path)).json()
    assert {name: tenant[name] for name in after} == after


async def test_ledger_is_paged_newest_first_also_within_a_second(service: Service) -> None:
    org = await service.organization()
    ids = [(await upgraded(service, org, events.NOW + second))["id"] for second in (0, 2, 1, 1)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await org.owner.get(LEDGER, limit=1, **cursor)).json()
        seen += [entry["id"] for entry in page["data"]]
        if page["nextCursor"] is None:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert seen == [ids[1], ids[3], ids[2], ids[0]]


async def test_ledger_of_another_tenant_answers_as_a_missing_one(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    event = await upgraded(service, other)
    answers = [
        await org.owner.get(f"{LEDGER}/{event_id}") for event_id in (event["id"], "evt_missing")
    ]
    for answer in answers:
        assert refusal(answer) == (404, "not_found")
    assert {**answers[0].json(), "requestId": ""} == {**answers[1].json(), "requestId": ""}
    assert (await org.owner.get(LEDGER)).json()["data"] == []


async def test_ledger_needs_its_scope(service: Service) -> None:
    org = await service.organization()
    reader = (await service.key(org.owner, org.id, "billing:read")).caller
    writer = (await service.key(org.owner, org.id, "billing:write")).caller
    assert (await reader.get(LEDGER)).status_code == 200
    for path in (LEDGER, f"{LEDGER}/evt_1"):
        assert refusal(await writer.get(path)) == (403, "insufficient_scope")
    assert refusal(await reader.get(PROJECTS)) == (403, "insufficient_scope")


async def test_cursor_of_another_list_is_refused_or_harmless(service: Service) -> None:
    org = await service.organization()
    for name in "ab":
        await org.owner.post(PROJECTS, {"name": name})
    cursor = (await org.owner.get(PROJECTS, limit=1)).json()["nextCursor"]
    assert refusal(await org.owner.get(LEDGER, cursor=cursor)) == (400, "invalid_cursor")


async def test_new_plan_counts_at_the_next_request(service: Service) -> None:
    org = await service.organization()
    for name in "abc":
        await org.owner.post(PROJECTS, {"name": name})
    assert refusal(await org.owner.post(PROJECTS, {"name": "d"})) == (403, "plan_limit_reached")
    await upgraded(service, org)
    assert (await org.owner.post(PROJECTS, {"name": "d"})).status_code == 201
    assert (await org.owner.get("/api/v1/auth/verify/-")).headers["x-plan"] == "pro"
