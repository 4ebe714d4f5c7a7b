"""Entitlements over HTTP: what a tenant has, and consuming metered features."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import httpx2
import psycopg
import pytest
from psycopg.types.json import Json

from tenantry.domain.entitlements import UsagePeriod
from tests.support import events
from tests.support.app import OPERATOR_TOKEN
from tests.support.billing import until_blocked
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.members import add_member, path_of
from tests.support.postgres import PostgresServer
from tests.support.rate_limits import set_plan
from tests.support.service import (
    KEYS,
    PROJECTS,
    Caller,
    Organization,
    Service,
    refusal,
    running_service,
)
from tests.support.signing import deliver

ENTITLEMENTS: Final = "/api/v1/entitlements"
CATALOG: Final = """
[[features]]
id = "sso"
type = "boolean"
[[features]]
id = "seats"
type = "limit"
[[features]]
id = "exports"
type = "metered"
[[features]]
id = "storage"
type = "metered"
period = "billing"
[[features]]
id = "calls"
type = "metered"
counts = "requests"

[[plans]]
id = "free"
[plans.features]
exports = 10
storage = 10
calls = true
[[plans]]
id = "pro"
[plans.features]
sso = true
seats = 5
exports = 25
calls = true
[[plans]]
id = "enterprise"
stripe_price_id = "price_enterprise"
[plans.features]
seats = 10
storage = 100
exports = true
calls = true
[[addons]]
id = "more"
stripe_price_id = "price_more"
"""
EXCEEDED: Final = (403, "quota_exceeded")
JANUARY: Final = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as service:
            yield service


@pytest.fixture
async def org(service: Service) -> Organization:
    return await service.organization()


async def consume(
    caller: Caller, amount: object = 1, key: str | None = None, feature: str = "exports"
) -> httpx2.Response:
    return await caller.post(f"{ENTITLEMENTS}/{feature}/consume", {"amount": amount}, key)


async def get(caller: Caller, feature: str = "exports") -> dict[str, Any]:
    answer = await caller.get(f"{ENTITLEMENTS}/{feature}")
    assert answer.status_code == 200, answer.text
    entitlement: dict[str, Any] = answer.json()
    return entitlement


def operator_of(service: Service, org: Organization) -> Caller:
    """The operator, who acts for the tenant."""
    return service.caller(OPERATOR_TOKEN, X_Act_As_Organization=org.id)


async def set_billing_period(service: Service, org: Organization, period: UsagePeriod) -> None:
    """Change what an event of the provider changes."""
    async with await psycopg.AsyncConnection.connect(
        service.conninfo, autocommit=True
    ) as connection:
        await connection.execute(
            "UPDATE tenants SET billing_periods = %s WHERE id = %s",
            (Json([{"period": period}]), org.id),
        )


async def test_list_has_every_feature_of_the_catalog(service: Service, org: Organization) -> None:
    answer = await org.owner.get(ENTITLEMENTS)
    assert answer.status_code == 200
    page = answer.json()
    assert page["nextCursor"] is None
    assert [(each["feature"], each["granted"]) for each in page["data"]] == [
        ("sso", False),
        ("seats", False),
        ("exports", True),
        ("storage", True),
        ("calls", True),
    ]


async def test_each_type_says_what_the_tenant_has(service: Service, org: Organization) -> None:
    await set_plan(service, org, "pro")
    assert await get(org.owner, "sso") == {
        "feature": "sso",
        "type": "boolean",
        "granted": True,
        "limit": None,
        "used": None,
        "remaining": None,
        "resetsAt": None,
        "source": "plan",
    }
    seats = await get(org.owner, "seats")
    assert (seats["type"], seats["limit"], seats["used"], seats["remaining"]) == (
        "limit",
        5,
        None,
        None,
    )
    await consume(org.owner, 5)
    exports = await get(org.owner)
    assert (exports["limit"], exports["used"], exports["remaining"]) == (25, 5, 20)


async def test_denied_feature_has_a_limit_of_zero(service: Service, org: Organization) -> None:
    seats = await get(org.owner, "seats")
    assert (seats["granted"], seats["limit"], seats["source"]) == (False, 0, None)


async def test_feature_without_a_limit_has_none(service: Service, org: Organization) -> None:
    await set_plan(service, org, "enterprise")
    assert (await get(org.owner))["limit"] is None
    consumed = (await consume(org.owner, 1_000_000_000)).json()
    assert (consumed["used"], consumed["remaining"]) == (1_000_000_000, None)


async def test_consumed_amount_is_counted_until_the_limit(org: Organization) -> None:
    first = await consume(org.owner, 7)
    assert first.status_code == 200
    assert first.json() == {"used": 7, "remaining": 3, "resetsAt": "2026-02-01T00:00:00Z"}
    refused = await consume(org.owner, 4)
    assert refusal(refused) == EXCEEDED
    assert "retry-after" not in refused.headers
    assert (await consume(org.owner, 3)).json()["remaining"] == 0
    assert refusal(await consume(org.owner)) == EXCEEDED


async def test_request_that_is_refused_counts_nothing(org: Organization) -> None:
    assert refusal(await consume(org.owner, 11)) == EXCEEDED
    assert (await get(org.owner))["used"] == 0


@cases("amount", [0, -1, 1_000_000_001, 1.5, "1", None, True])
async def test_amount_is_a_whole_number_in_bounds(org: Organization, amount: object) -> None:
    assert refusal(await consume(org.owner, amount)) == (422, "validation_failed")


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        ("missing", (404, "unknown_feature")),
        ("sso", (409, "feature_not_metered")),
        ("seats", (409, "feature_not_metered")),
        ("calls", (409, "feature_not_metered")),
    ],
)
async def test_only_metered_features_are_consumed(
    org: Organization, feature: str, expected: tuple[int, str]
) -> None:
    assert refusal(await consume(org.owner, feature=feature)) == expected


async def test_unknown_feature_has_no_entitlement(org: Organization) -> None:
    answer = await org.owner.get(f"{ENTITLEMENTS}/missing")
    assert refusal(answer) == (404, "unknown_feature")


async def test_feature_that_the_plan_lacks_is_not_consumed(
    service: Service, org: Organization
) -> None:
    await set_plan(service, org, "pro")
    answer = await consume(org.owner, feature="storage")
    assert refusal(answer) == (403, "feature_not_granted")


async def test_any_credential_may_consume(service: Service, org: Organization) -> None:
    without_scopes = await service.key(org.owner, org.id, "nothing:read")
    assert (await consume(without_scopes.caller)).status_code == 200
    assert (await consume(service.user(org=org.id))).status_code == 200
    assert refusal(await consume(service.anonymous)) == (401, "missing_credential")


async def test_operator_consumes_for_the_tenant(service: Service, org: Organization) -> None:
    operator = operator_of(service, org)
    assert (await consume(org.owner, 4, "job-1")).json()["used"] == 4
    assert (await consume(operator, 4, "job-1")).json()["used"] == 4
    assert (await consume(operator, 6, "job-2")).json()["used"] == 10
    assert refusal(await consume(operator)) == EXCEEDED


async def test_requests_of_the_operator_count_in_no_quota(
    service: Service, org: Organization
) -> None:
    await org.owner.get(PROJECTS)
    before = (await get(org.owner, "calls"))["used"]
    operator = operator_of(service, org)
    for path in (PROJECTS, f"{PROJECTS}/", KEYS):
        assert (await operator.get(path)).status_code == 200
    assert (await get(org.owner, "calls"))["used"] == before


async def test_test_mode_is_counted_apart(service: Service, org: Organization) -> None:
    testing = await service.key(org.owner, org.id, "nothing:read", mode="test")
    await consume(org.owner, 10)
    assert (await consume(testing.caller, 10)).json()["used"] == 10
    assert refusal(await consume(testing.caller)) == EXCEEDED


async def test_upgrade_keeps_the_count_and_a_smaller_plan_leaves_nothing(
    service: Service, org: Organization
) -> None:
    await set_plan(service, org, "pro")
    await consume(org.owner, 20)
    await set_plan(service, org, "enterprise")
    assert (await consume(org.owner)).json()["used"] == 21
    await set_plan(service, org, "free")
    cut = await get(org.owner)
    assert (cut["limit"], cut["used"], cut["remaining"]) == (10, 21, 0)
    assert refusal(await consume(org.owner)) == EXCEEDED


async def test_new_month_is_a_new_row(service: Service, org: Organization) -> None:
    await consume(org.owner, 10)
    january = service.clock.now
    service.clock.now = datetime(2026, 2, 1, tzinfo=UTC)
    try:
        owner = service.user("first", org=org.id, role="owner")
        assert (await consume(owner, 4)).json() == {
            "used": 4,
            "remaining": 6,
            "resetsAt": "2026-03-01T00:00:00Z",
        }
    finally:
        service.clock.now = january
    assert (await get(org.owner))["used"] == 10


async def test_late_renewal_does_not_change_the_period(service: Service, org: Organization) -> None:
    now = int(service.clock.now.timestamp())
    ended = UsagePeriod(now - 31 * 86400, now - 60)
    await set_billing_period(service, org, ended)
    late = (await consume(org.owner, 4, feature="storage")).json()
    assert late["used"] == 4
    await set_billing_period(service, org, UsagePeriod(ended.end, ended.end + 30 * 86400))
    renewed = await get(org.owner, "storage")
    assert renewed["used"] == 4
    assert datetime.fromisoformat(renewed["resetsAt"]).timestamp() == ended.end + 30 * 86400


def subscription_event(org: Organization, second: int, **facts: Any) -> dict[str, Any]:
    known = {"org": org.id, "customer": "cus_1", "price": "price_enterprise"}
    return events.updated(**{**known, "created": events.NOW + second, **facts})


@pytest.mark.parametrize("subscriptions", ["any", "each"])
async def test_billing_period_is_that_of_the_plan_item_of_a_subscription_that_gives_access(
    conninfo: str, subscriptions: str
) -> None:
    async with running_service(
        conninfo, TENANTRY_PLANS=catalog_file(CATALOG), SUBSCRIPTIONS=subscriptions
    ) as service:
        org = await service.organization()
        granted = {"features": {"seats": 50, "storage": 60}, "reason": "pilot"}
        await service.operator.put(f"{org.path}/grants/pilot", granted)
        await consume(org.owner, 60, feature="storage")
        statuses = ["incomplete", "incomplete_expired", "unpaid", "canceled"]
        for number, status in enumerate(statuses):
            abandoned = f"sub_{number}"
            event = subscription_event(org, number, status=status, subscription_id=abandoned)
            assert (await deliver(service.client, event)).status_code == 200
            storage = await get(org.owner, "storage")
            assert (storage["used"], storage["resetsAt"]) == (60, "2026-02-01T00:00:00Z"), status
        year, month = events.NOW + 300 * 86400, events.NOW + 10 * 86400
        for second, end in ((20, month), (30, month + events.MONTH)):
            event = subscription_event(org, second, period_end=year, subscription_id="sub_paid")
            addon = subscription_event(org, second, period_end=end, price="price_more")
            items = event["data"]["object"]["items"]["data"]
            items[:0] = addon["data"]["object"]["items"]["data"]
            assert (await deliver(service.client, event)).status_code == 200
            storage = await get(org.owner, "storage")
            assert storage["used"] == (0 if second == 20 else 10)
            assert datetime.fromisoformat(storage["resetsAt"]).timestamp() == year
            await consume(org.owner, 10, feature="storage")
        storage, seats = await get(org.owner, "storage"), await get(org.owner, "seats")
    of_plan = subscriptions == "each"  # SPEC 3: the first item decides the plan
    assert (storage["limit"], storage["source"]) == ((100, "plan") if of_plan else (60, "grant"))
    assert (seats["limit"], seats["source"]) == (50, "grant")


async def test_tenant_without_a_billing_period_has_the_month(org: Organization) -> None:
    assert (await get(org.owner, "storage"))["resetsAt"] == "2026-02-01T00:00:00Z"


async def test_idempotency_key_counts_once(org: Organization) -> None:
    first = await consume(org.owner, 6, "job-1")
    assert first.status_code == 200
    await consume(org.owner, 1)
    again = await consume(org.owner, 6, "job-1")
    assert again.json() == first.json()
    assert (await get(org.owner))["used"] == 7


async def test_idempotency_key_counts_once_whichever_credential_sends_it(
    service: Service, org: Organization
) -> None:
    key = await service.key(org.owner, org.id, "nothing:read")
    rotated = (await org.owner.post(f"{key.path}/rotate", {"overlapSeconds": 60})).json()["secret"]
    callers = [key.caller, service.caller(rotated), service.user(org=org.id), org.owner]
    answers = [await consume(caller, 6, "job-1") for caller in callers]
    assert Counter((answer.status_code, answer.text) for answer in answers) == {
        (200, answers[0].text): len(callers)
    }
    for caller in callers:
        assert refusal(await consume(caller, 2, "job-1")) == (422, "idempotency_mismatch")
    assert (await get(org.owner))["used"] == 6


async def test_idempotency_key_of_another_mode_feature_or_tenant_is_another_one(
    service: Service, org: Organization
) -> None:
    testing = await service.key(org.owner, org.id, "nothing:read", mode="test")
    other = await service.organization()
    for caller in (org.owner, testing.caller, other.owner):
        for feature in ("exports", "storage"):
            await consume(caller, 6, "job-1", feature)
            assert (await get(caller, feature))["used"] == 6


async def test_idempotency_key_counts_once_among_requests_of_one_moment(
    service: Service, org: Organization
) -> None:
    callers = [org.owner, service.user(org=org.id)] * 10
    answers = await asyncio.gather(*(consume(caller, 3, "job-2") for caller in callers))
    assert Counter(answer.text for answer in answers) == {answers[0].text: 20}
    assert (await get(org.owner))["used"] == 3


async def test_idempotency_key_of_another_amount_is_refused(org: Organization) -> None:
    await consume(org.owner, 1, "job-3")
    assert refusal(await consume(org.owner, 2, "job-3")) == (422, "idempotency_mismatch")


async def test_refused_request_may_be_repeated_after_an_upgrade(
    service: Service, org: Organization
) -> None:
    assert refusal(await consume(org.owner, 12, "job-4")) == EXCEEDED
    await set_plan(service, org, "pro")
    assert (await consume(org.owner, 12, "job-4")).json()["used"] == 12


async def test_requests_of_one_moment_are_decided_in_order(org: Organization) -> None:
    answers = await asyncio.gather(*(consume(org.owner, amount) for amount in [4, 4, 4, 2, 1]))
    assert [answer.status_code for answer in answers] == [200, 200, 403, 200, 403]
    assert (await get(org.owner))["used"] == 10


async def test_consuming_waits_for_another_process_that_consumes(
    service: Service, org: Organization
) -> None:
    lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
    async with await psycopg.AsyncConnection.connect(service.conninfo) as other:
        await other.execute(lock, (f"usage of {org.id} live exports",))
        waiting = asyncio.create_task(consume(org.owner, 10))
        await until_blocked(service.conninfo)
        await other.execute(
            "INSERT INTO usage_counters (org_id, feature, mode, period_start, period_end, used) "
            "VALUES (%s, 'exports', 'live', %s, %s, 1)",
            (org.id, *(int(moment.timestamp()) for moment in JANUARY)),
        )
        await other.commit()
        assert refusal(await waiting) == EXCEEDED


@pytest.mark.parametrize(
    "lost", ["revoked", "disabled", "suspended", "suspended, operator", "removed"]
)
async def test_caller_that_loses_access_while_it_waits_consumes_nothing(
    service: Service, org: Organization, lost: str
) -> None:
    key = await service.key(org.owner, org.id, "projects:read")
    member = await add_member(org.owner, "waiting", "admin")
    user = service.user("waiting", asks_for=org.id)
    assert (await consume(user, 1, key="first")).status_code == 200
    settings = {"name": "n", "ownerEmail": "o@x.example", "suspended": True}
    losses = {
        "revoked": (key.caller, org.owner.delete(key.path), (401, "api_key_revoked")),
        "disabled": (
            key.caller,
            org.owner.patch(key.path, {"enabled": False}),
            (401, "api_key_disabled"),
        ),
        "suspended": (key.caller, service.operator.put(org.path, settings), (403, "org_suspended")),
        "suspended, operator": (
            operator_of(service, org),
            service.operator.put(org.path, settings),
            (403, "org_suspended"),
        ),
        "removed": (user, org.owner.delete(path_of(member)), (403, "no_organization")),
    }
    caller, loss, refused = losses.pop(lost)
    for _, unused, _ in losses.values():
        unused.close()
    lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
    async with await psycopg.AsyncConnection.connect(service.conninfo) as other:
        await other.execute(lock, (f"usage of {org.id} live exports",))
        requests = [asyncio.create_task(consume(caller, 1, key=each)) for each in ("first", "new")]
        await until_blocked(service.conninfo)
        assert (await loss).is_success
    assert [refusal(await request) for request in requests] == [refused, refused]
    await service.operator.put(org.path, {**settings, "suspended": False})
    assert (await get(org.owner))["used"] == 1


async def test_requests_above_the_quota_are_a_metric(service: Service, org: Organization) -> None:
    await consume(org.owner, 11)
    metrics = (await service.client.get("/metrics")).text
    assert 'tenantry_quota_exceeded_total{feature="exports"} ' in metrics


async def test_export_has_the_use(service: Service, org: Organization) -> None:
    await consume(org.owner, 2)
    export = await service.operator.get(f"{org.path}/export")
    assert {
        "feature": "exports",
        "mode": "live",
        "periodStart": "2026-01-01T00:00:00Z",
        "periodEnd": "2026-02-01T00:00:00Z",
        "used": 2,
    } in export.json()["usage"]
