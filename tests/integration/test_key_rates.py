"""Keys with a limit of their own of requests in a minute."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tests.support.app import running_app
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.in_process import FASTAPI, FLASK, MIDDLEWARE, SERVICE
from tests.support.in_process import running_app as app_beside
from tests.support.postgres import PostgresServer
from tests.support.rate_limits import CATALOG, rate_headers, set_plan, tenant_of
from tests.support.service import KEYS, VERIFY, Caller, Service, refusal, running_service

ANYTHING: Final = f"{VERIFY}-"
LIMITED: Final = (429, "rate_limited")


@pytest.fixture(scope="module")
async def limited_service(postgres: PostgresServer) -> AsyncIterator[Service]:
    """A service whose catalog has limits."""
    with postgres.database() as conninfo:
        async with running_service(
            conninfo, DEFAULT_TIMEOUTS, TENANTRY_PLANS=catalog_file(CATALOG)
        ) as service:
            yield service


async def statuses(caller: Caller, times: int) -> list[int]:
    """Of so many requests, one after the other."""
    return [(await caller.get(ANYTHING)).status_code for _ in range(times)]


@cases("kind", [SERVICE, MIDDLEWARE, FASTAPI, FLASK])
async def test_limit_counts_by_every_road_without_one_in_the_catalog(
    service: Service, kind: str
) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", requestsPerMinute=2)
    other = await service.key(org.owner, org.id, "projects:read")
    async with app_beside(kind, service) as app:
        caller = app.caller(key.caller.credential)
        answers = [await caller.get(app.path()) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert refusal(answers[2]) == LIMITED
        assert answers[2].json()["detail"] == "The credential's 2 requests per minute are used up."
        assert answers[2].headers["RateLimit-Policy"].endswith('"key";q=2;w=60')
        assert int(answers[2].headers["Retry-After"]) > 0
        assert (await app.caller(other.caller.credential).get(app.path())).status_code == 200


@cases(
    ("plan", "own", "policy"),
    [
        ("keyed", 2, '"tenant";q=5;w=60, "key";q=2;w=60'),
        ("keyed", 4, '"tenant";q=5;w=60, "key";q=3;w=60'),
        ("keyed", None, '"tenant";q=5;w=60, "key";q=3;w=60'),
        ("boundless", 1_000_000, '"key";q=1000000;w=60'),
        ("boundless", None, None),
    ],
)
async def test_lower_limit_of_key_and_catalog_counts(
    limited_service: Service, plan: str, own: int | None, policy: str | None
) -> None:
    org = await tenant_of(limited_service)
    key = await limited_service.key(org.owner, org.id, "a:b", requestsPerMinute=own)
    assert key.record["requestsPerMinute"] == own
    await set_plan(limited_service, org, plan)
    assert rate_headers(await key.caller.get(ANYTHING))[0] == policy


async def test_changed_limit_counts_from_the_next_request_on_in_every_process(
    fresh_service: Service,
) -> None:
    service = fresh_service
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b", requestsPerMinute=100)
    async with running_app(service.conninfo, clock=service.clock) as client:
        beside = Caller(client, key.caller.credential)
        assert await statuses(key.caller, 3) == await statuses(beside, 3) == [200] * 3
        await org.owner.patch(key.path, {"requestsPerMinute": 6})
        assert await statuses(key.caller, 2) == await statuses(beside, 2) == [429] * 2
        await org.owner.patch(key.path, {"requestsPerMinute": None})
        assert await statuses(key.caller, 9) == await statuses(beside, 9) == [200] * 9


async def test_processes_share_the_limit(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b", requestsPerMinute=5)
    async with running_app(service.conninfo, clock=service.clock) as client:
        callers = [key.caller, Caller(client, key.caller.credential)]
        answers = await asyncio.gather(*(callers[n % 2].get(ANYTHING) for n in range(40)))
    assert Counter(answer.status_code for answer in answers) == {200: 5, 429: 35}


async def test_rotation_copies_it(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b", requestsPerMinute=7)
    rotated = await org.owner.post(f"{key.path}/rotate")
    assert rotated.json()["requestsPerMinute"] == 7


async def test_audit_names_the_field(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b")
    await org.owner.patch(key.path, {"requestsPerMinute": 120})
    [event, _] = (await org.owner.get(f"/api/v1/audit-events?targetId={key.id}")).json()["data"]
    assert (event["before"], event["after"]) == (
        {"requestsPerMinute": None},
        {"requestsPerMinute": 120},
    )


@cases("value", [0, -1, 1_000_001, 1.5, "120", True, [1]])
async def test_it_is_a_whole_number_in_bounds(service: Service, value: object) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b")
    body = {"orgId": org.id, "name": "one", "scopes": ["a:b"], "requestsPerMinute": value}
    for answer in (
        await org.owner.post(KEYS, body),
        await org.owner.patch(key.path, {"requestsPerMinute": value}),
    ):
        assert refusal(answer) == (422, "validation_failed")
        assert answer.json()["errors"][0]["location"] == "requestsPerMinute"
