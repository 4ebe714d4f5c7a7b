"""Giving back what was consumed of a metered feature, over HTTP: by the operator, once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import httpx2
import psycopg
import pytest
from psycopg.types.json import Json

from tenantry.common.clock import Timeouts
from tests.support.app import OPERATOR_TOKEN, running_app
from tests.support.billing import until_blocked
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.postgres import PostgresServer
from tests.support.rate_limits import set_plan
from tests.support.service import Caller, Organization, Service, refusal, running_service

ENTITLEMENTS: Final = "/api/v1/entitlements"
CATALOG: Final = """
[[features]]
id = "sso"
type = "boolean"
[[features]]
id = "exports"
type = "metered"
[[features]]
id = "storage"
type = "metered"
period = "billing"
[[features]]
id = "imports"
type = "metered"

[[plans]]
id = "free"
[plans.features]
exports = 10
storage = 10
[[plans]]
id = "pro"
[plans.features]
exports = 25
[[plans]]
id = "enterprise"
[plans.features]
exports = true
"""
UNKNOWN: Final = (404, "unknown_consumption")
GIVEN_BACK: Final = (409, "consumption_given_back")
EXCEEDED: Final = (403, "quota_exceeded")
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as service:
            yield service


@pytest.fixture
async def org(service: Service) -> Organization:
    return await service.organization()


@pytest.fixture
def operator(service: Service, org: Organization) -> Caller:
    return acting(service, org)


def acting(service: Service, org: Organization, **headers: str) -> Caller:
    """The operator, who acts for the tenant."""
    return service.caller(OPERATOR_TOKEN, X_Act_As_Organization=org.id, **headers)


async def consume(
    caller: Caller, amount: int, key: str, feature: str = "exports"
) -> httpx2.Response:
    return await caller.post(f"{ENTITLEMENTS}/{feature}/consume", {"amount": amount}, key)


async def give_back(caller: Caller, key: str, feature: str = "exports") -> httpx2.Response:
    return await caller.delete(f"{ENTITLEMENTS}/{feature}/consumptions/{encoded(key)}")


def encoded(key: str) -> str:
    """The key as a segment of a path that no client takes for one of dots."""
    return quote(key, safe="").replace(".", "%2E")


async def used(caller: Caller, feature: str = "exports") -> int:
    answer = await caller.get(f"{ENTITLEMENTS}/{feature}")
    assert answer.status_code == 200, answer.text
    number: int = answer.json()["used"]
    return number


async def change(service: Service, statement: Any, *values: object) -> None:
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(statement, values)


async def test_consumption_is_given_back_whole(org: Organization, operator: Caller) -> None:
    await consume(org.owner, 2, "other")
    await consume(org.owner, 5, "job-1")
    answer = await give_back(operator, "job-1")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"used": 2, "remaining": 8, "resetsAt": "2026-02-01T00:00:00Z"}
    assert await used(org.owner) == 2


async def test_again_the_answer_is_the_same(org: Organization, operator: Caller) -> None:
    await consume(org.owner, 5, "job-1")
    first = await give_back(operator, "job-1")
    await consume(org.owner, 4, "job-2")
    again = await give_back(operator, "job-1")
    assert (again.status_code, again.text) == (200, first.text)
    assert await used(org.owner) == 4


async def test_given_back_quota_is_consumed_again(org: Organization, operator: Caller) -> None:
    await consume(org.owner, 10, "job-1")
    assert refusal(await consume(org.owner, 1, "job-2")) == EXCEEDED
    await give_back(operator, "job-1")
    assert (await consume(org.owner, 10, "job-2")).json()["remaining"] == 0


async def test_key_given_back_is_not_consumed(org: Organization, operator: Caller) -> None:
    await consume(org.owner, 5, "job-1")
    await give_back(operator, "job-1")
    for amount in (5, 6):  # whatever the body
        for caller in (org.owner, operator):
            assert refusal(await consume(caller, amount, "job-1")) == GIVEN_BACK
    assert await used(org.owner) == 0


@pytest.mark.parametrize("consumer", ["key", "user", "operator"])
async def test_whichever_credential_consumed(
    service: Service, org: Organization, operator: Caller, consumer: str
) -> None:
    callers = {"key": org.owner, "user": service.user(org=org.id), "operator": operator}
    assert (await consume(callers[consumer], 3, "job-1")).status_code == 200
    assert (await give_back(operator, "job-1")).json()["used"] == 0


async def test_only_the_operator_gives_back(service: Service, org: Organization) -> None:
    await consume(org.owner, 5, "job-1")
    owner = service.user("first", org=org.id, role="owner")
    for caller in (org.owner, owner, service.user(org=org.id)):
        for key in ("job-1", "job-2"):
            assert refusal(await give_back(caller, key)) == (403, "operator_required")
    assert refusal(await give_back(service.anonymous, "job-1")) == (401, "missing_credential")
    assert refusal(await give_back(service.operator, "job-1")) == (400, "organization_required")
    assert await used(org.owner) == 5


async def test_unknown_consumption(service: Service, org: Organization, operator: Caller) -> None:
    other = await service.organization()
    await consume(org.owner, 5, "job-1")
    assert refusal(await consume(org.owner, 6, "refused")) == EXCEEDED
    for caller, key, feature in (
        (operator, "job-2", "exports"),
        (operator, "JOB-1", "exports"),
        (operator, "refused", "exports"),
        (operator, "job-1", "storage"),
        (operator, "job-1", "sso"),
        (operator, "job-1", "missing"),
        (acting(service, other), "job-1", "exports"),
        (acting(service, org, X_Act_In_Mode="test"), "job-1", "exports"),
    ):
        assert refusal(await give_back(caller, key, feature)) == UNKNOWN, (key, feature)
    assert await used(org.owner) == 5


async def test_test_mode_is_given_back_apart(service: Service, org: Organization) -> None:
    testing = acting(service, org, X_Act_In_Mode="test")
    for caller in (org.owner, testing):
        await consume(caller, 5, "job-1")
    assert (await give_back(testing, "job-1")).json()["used"] == 0
    assert (await used(org.owner), await used(testing)) == (5, 0)


@cases(
    "key",
    [
        "a/b",
        "/",
        "///",
        "//a//b/",
        "/" * 255,
        "a%2Fb",
        "%2F",
        "%",
        "a?b#c",
        "a+b",
        ".",
        "..",
        "a/../b",
        "consume",
        "".join(map(chr, range(0x21, 0x7F))),
        "svc_live_abcdefghijklmnopqrstuvwxyz",
    ],
)
async def test_every_key_is_found_in_its_path(service: Service, key: str) -> None:
    org = await service.organization()
    assert (await consume(org.owner, 5, key)).status_code == 200
    answer = await give_back(acting(service, org), key)
    assert answer.status_code == 200, answer.text
    assert await used(org.owner) == 0


@cases("sent", ["a/b", "a//b", "/a%2Fb", "a%2Fb/", "a%2Fb/c"])
async def test_slash_that_is_not_encoded_is_another_address(service: Service, sent: str) -> None:
    org = await service.organization()
    await consume(org.owner, 5, "a/b")
    path = f"{ENTITLEMENTS}/exports/consumptions/{sent}"
    assert refusal(await acting(service, org).delete(path)) == (404, "not_found")
    assert await used(org.owner) == 5


@cases("sent", ["a%20b", "%C3%A4", "%FF", "%0A", "a" * 256])
async def test_what_cannot_be_a_key_is_unknown(service: Service, sent: str) -> None:
    org = await service.organization()
    path = f"{ENTITLEMENTS}/exports/consumptions/{sent}"
    assert refusal(await acting(service, org).delete(path)) == UNKNOWN


async def test_requests_of_one_moment_at_two_processes_give_back_once(
    service: Service, org: Organization, operator: Caller
) -> None:
    await consume(org.owner, 2, "other")
    await consume(org.owner, 5, "job-1")
    catalog = catalog_file(CATALOG)
    async with running_app(
        service.conninfo,
        clock=service.clock,
        TENANTRY_PLANS=catalog,
        OPERATOR_TOKEN=OPERATOR_TOKEN,
    ) as client:
        there = Caller(client, OPERATOR_TOKEN, X_Act_As_Organization=org.id)
        answers = await asyncio.gather(
            *(give_back(caller, "job-1") for caller in (operator, there) * 5)
        )
    assert Counter((each.status_code, each.text) for each in answers) == {
        (200, answers[0].text): 10
    }
    assert await used(org.owner) == 2


async def test_giving_back_waits_for_the_consumption(
    service: Service, org: Organization, operator: Caller
) -> None:
    async with await psycopg.AsyncConnection.connect(service.conninfo) as other:
        await other.execute(LOCK, (f"usage of {org.id} live exports",))
        consuming = asyncio.create_task(consume(org.owner, 5, "job-1"))
        await until_blocked(service.conninfo)
        returning = asyncio.create_task(give_back(operator, "job-1"))
        await until_blocked(service.conninfo, 2)
        await other.rollback()
    assert (await consuming).json()["used"] == 5
    assert (await returning).json()["used"] == 0
    assert await used(org.owner) == 0


async def test_consumption_that_waits_for_giving_back_has_what_it_gave(
    service: Service, org: Organization, operator: Caller
) -> None:
    await consume(org.owner, 10, "job-1")
    async with await psycopg.AsyncConnection.connect(service.conninfo) as other:
        await other.execute(LOCK, (f"usage of {org.id} live exports",))
        returning = asyncio.create_task(give_back(operator, "job-1"))
        await until_blocked(service.conninfo)
        requests = [asyncio.create_task(consume(org.owner, 10, f"job-{n}")) for n in (1, 2)]
        await until_blocked(service.conninfo, 2)
        await other.rollback()
    assert (await returning).status_code == 200
    repeated, new = [await request for request in requests]
    assert refusal(repeated) == GIVEN_BACK
    assert (new.status_code, await used(org.owner)) == (200, 10)


async def test_ended_period_gets_it_back_and_the_new_one_does_not(
    service: Service, org: Organization, operator: Caller
) -> None:
    january = service.clock.now
    service.clock.now = datetime(2026, 1, 31, 23, tzinfo=UTC)
    try:
        owner = service.user("first", org=org.id, role="owner")
        await consume(owner, 2, "other")
        await consume(owner, 5, "job-1")
        service.clock.advance(hours=2)
        owner = service.user("first", org=org.id, role="owner")
        await consume(owner, 3, "job-2")
        answer = await give_back(operator, "job-1")
        assert answer.json() == {"used": 3, "remaining": 7, "resetsAt": "2026-03-01T00:00:00Z"}
        assert await used(owner) == 3
    finally:
        service.clock.now = january
    assert await used(org.owner) == 2


async def test_period_that_a_subscription_began_keeps_its_use(
    service: Service, org: Organization, operator: Caller
) -> None:
    await consume(org.owner, 5, "job-1", "storage")
    start = int(service.clock.now.timestamp()) - 60
    periods = Json([{"period": [start, start + 30 * 86400]}])
    await change(service, "UPDATE tenants SET billing_periods = %s WHERE id = %s", periods, org.id)
    await consume(org.owner, 4, "job-2", "storage")
    assert (await give_back(operator, "job-1", "storage")).json()["used"] == 4
    assert (await give_back(operator, "job-2", "storage")).json()["used"] == 0
    await change(service, "UPDATE tenants SET billing_periods = NULL WHERE id = %s", org.id)
    assert await used(org.owner, "storage") == 0


async def test_day_after_the_consumption_it_is_unknown(
    service: Service, org: Organization, operator: Caller
) -> None:
    began = service.clock.now
    await consume(org.owner, 5, "job-1")
    await consume(org.owner, 3, "job-2")
    try:
        service.clock.now = began + timedelta(hours=23, minutes=59)
        assert (await give_back(operator, "job-1")).json()["used"] == 3
        service.clock.now = began + timedelta(hours=24, seconds=1)
        for key in ("job-1", "job-2"):
            assert refusal(await give_back(operator, key)) == UNKNOWN
    finally:
        service.clock.now = began
    assert await used(org.owner) == 3


async def test_key_consumed_again_after_a_day_is_given_back_again(
    service: Service, org: Organization, operator: Caller
) -> None:
    began = service.clock.now
    await consume(org.owner, 5, "job-1")
    await give_back(operator, "job-1")
    try:
        service.clock.now = began + timedelta(hours=25)
        assert (await consume(operator, 4, "job-1")).json()["used"] == 4
        assert (await consume(operator, 4, "job-1")).json()["used"] == 4
        assert (await give_back(operator, "job-1")).json()["used"] == 0
        assert (await give_back(operator, "job-1")).json()["used"] == 0
    finally:
        service.clock.now = began
    assert await used(org.owner) == 0


async def test_limit_of_the_answer_is_the_present_one(
    service: Service, org: Organization, operator: Caller
) -> None:
    await set_plan(service, org, "pro")
    for key, amount in (("a", 9), ("b", 8), ("c", 7)):
        await consume(org.owner, amount, key)
    await set_plan(service, org, "free")
    lowered = (await give_back(operator, "c")).json()
    assert (lowered["used"], lowered["remaining"]) == (17, 0)
    await set_plan(service, org, "enterprise")
    raised = (await give_back(operator, "b")).json()
    assert (raised["used"], raised["remaining"]) == (9, None)


async def test_feature_that_the_tenant_lost_is_given_back(
    service: Service, org: Organization, operator: Caller
) -> None:
    grant = {"features": {"imports": 60}, "reason": "pilot"}
    assert (await service.operator.put(f"{org.path}/grants/pilot", grant)).is_success
    await consume(org.owner, 50, "job-1", "imports")
    await consume(org.owner, 5, "job-2", "imports")
    assert (await service.operator.delete(f"{org.path}/grants/pilot")).is_success
    answer = (await give_back(operator, "job-1", "imports")).json()
    assert (answer["used"], answer["remaining"]) == (5, 0)


async def test_only_what_was_taken_of_a_full_counter_is_given_back(
    service: Service, org: Organization, operator: Caller
) -> None:
    await set_plan(service, org, "enterprise")
    await consume(org.owner, 1, "first")
    most = 2**53 - 1
    await change(service, "UPDATE usage_counters SET used = %s WHERE org_id = %s", most - 3, org.id)
    assert (await consume(org.owner, 5, "job-1")).json()["used"] == most
    assert (await give_back(operator, "job-1")).json()["used"] == most - 3


async def test_suspended_tenant_gets_it_back(
    service: Service, org: Organization, operator: Caller
) -> None:
    await consume(org.owner, 5, "job-1")
    suspended = {"name": "n", "ownerEmail": "o@x.example", "suspended": True}
    await service.operator.put(org.path, suspended)
    assert (await give_back(operator, "job-1")).json()["used"] == 0


async def test_quota_reached_again_is_published_once(
    service: Service, org: Organization, operator: Caller
) -> None:
    for key in ("job-1", "job-2"):
        await consume(org.owner, 10, key)
        await give_back(operator, key)
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        found = await connection.execute(
            "SELECT count(*) FROM outbound_events WHERE org_id = %s AND type = %s",
            (org.id, "entitlement.quota_reached"),
        )
        assert await found.fetchone() == (1,)


async def test_database_away_is_503(service: Service) -> None:
    soon = Timeouts(connect=0.3)
    async with running_app("host=/nowhere", soon, OPERATOR_TOKEN=OPERATOR_TOKEN) as client:
        caller = Caller(client, OPERATOR_TOKEN, X_Act_As_Organization="acme")
        assert refusal(await give_back(caller, "job-1")) == (503, "auth_unavailable")
