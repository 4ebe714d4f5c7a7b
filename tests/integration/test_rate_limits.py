"""Rate limits over HTTP: counted requests, rejections and headers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final

import httpx2
import psycopg
import pytest

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tests.support.app import running_app
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.postgres import PostgresServer
from tests.support.rate_limits import CATALOG, rate_headers, set_plan, tenant_of
from tests.support.service import (
    KEYS,
    PROJECTS,
    TENANTS,
    VERIFY,
    WHOAMI,
    Caller,
    Service,
    refusal,
    running_service,
)

ANYTHING: Final = f"{VERIFY}-"
LIMITED: Final = (429, "rate_limited")


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    """Shared: each test creates separate tenants, and may move the clock."""
    with postgres.database() as conninfo:
        async with running_service(
            conninfo, DEFAULT_TIMEOUTS, TENANTRY_PLANS=catalog_file(CATALOG)
        ) as service:
            yield service


@pytest.fixture
async def limited_service(conninfo: str) -> AsyncIterator[Service]:
    """The same on a database of this test's own."""
    async with running_service(
        conninfo, DEFAULT_TIMEOUTS, TENANTRY_PLANS=catalog_file(CATALOG)
    ) as service:
        yield service


def running_beside(service: Service) -> AbstractAsyncContextManager[httpx2.AsyncClient]:
    """Another process of the service."""
    return running_app(service.conninfo, clock=service.clock, TENANTRY_PLANS=catalog_file(CATALOG))


async def statuses(caller: Caller, times: int) -> list[int]:
    """Of so many requests, one after the other."""
    return [(await caller.get(ANYTHING)).status_code for _ in range(times)]


async def statuses_at_once(*callers: Caller, times: int) -> Counter[int]:
    """Of so many requests of each, all at once."""
    answers = await asyncio.gather(
        *(caller.get(ANYTHING) for _ in range(times) for caller in callers)
    )
    return Counter(answer.status_code for answer in answers)


async def test_the_limit_is_accepted_and_the_next_request_gets_retry_after(
    service: Service,
) -> None:
    org = await tenant_of(service)
    answers = [await org.owner.get(ANYTHING) for _ in range(6)]
    policy = '"tenant";q=5;w=60'
    assert [rate_headers(answer) for answer in answers] == [
        (policy, '"tenant";r=4;t=61', None),
        (policy, '"tenant";r=3;t=61', None),
        (policy, '"tenant";r=2;t=61', None),
        (policy, '"tenant";r=1;t=61', None),
        (policy, '"tenant";r=0;t=61', None),
        (policy, '"tenant";r=0;t=61', "61"),
    ]
    assert [answer.status_code for answer in answers[:5]] == [200] * 5
    assert refusal(answers[5]) == LIMITED
    assert answers[5].json()["detail"] == "The organization's 5 requests per minute are used up."


async def test_window_slides(service: Service) -> None:
    org = await tenant_of(service)
    assert await statuses(org.owner, 2) == [200, 200]
    service.clock.advance(seconds=30)
    assert await statuses(org.owner, 4) == [200, 200, 200, 429]
    service.clock.advance(seconds=30)
    assert (await org.owner.get(ANYTHING)).headers["retry-after"] == "1"
    service.clock.advance(seconds=1)
    assert await statuses(org.owner, 3) == [200, 200, 429]
    assert (await org.owner.get(ANYTHING)).headers["retry-after"] == "30"


async def test_request_after_retry_after_is_accepted(service: Service) -> None:
    org = await tenant_of(service)
    for _ in range(12):
        answer = await org.owner.get(ANYTHING)
        if answer.status_code == 429:
            service.clock.advance(seconds=int(answer.headers["retry-after"]))
            assert (await org.owner.get(ANYTHING)).status_code == 200
        service.clock.advance(seconds=7)


async def test_concurrent_requests_are_accepted_up_to_the_limit(service: Service) -> None:
    org = await tenant_of(service)
    assert await statuses_at_once(org.owner, times=50) == {200: 5, 429: 45}


async def test_keys_and_users_of_a_tenant_are_counted_together(service: Service) -> None:
    org = await tenant_of(service)
    reader = await service.key(org.owner, org.id, "projects:read")
    user = service.user(org=org.id)
    service.clock.advance(seconds=61)
    assert await statuses_at_once(org.owner, reader.caller, user, times=10) == {200: 5, 429: 25}


async def test_each_key_and_user_has_its_own_limit(service: Service) -> None:
    org = await tenant_of(service, "keys_alone")
    reader = await service.key(org.owner, org.id, "projects:read")
    service.clock.advance(seconds=61)
    for caller in (
        org.owner,
        reader.caller,
        service.user(org=org.id),
        service.user("user_2", org=org.id),
    ):
        answers = [await caller.get(ANYTHING) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert rate_headers(answers[2]) == ('"key";q=2;w=60', '"key";r=0;t=61', "61")


async def test_request_must_pass_both_limits(service: Service) -> None:
    org = await tenant_of(service, "keyed")
    reader = (await service.key(org.owner, org.id, "projects:read")).caller
    service.clock.advance(seconds=61)
    assert await statuses(org.owner, 4) == [200, 200, 200, 429]
    answers = [await reader.get(ANYTHING) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    policy = '"tenant";q=5;w=60, "key";q=3;w=60'
    assert rate_headers(answers[0]) == (policy, '"tenant";r=1;t=61, "key";r=2;t=61', None)
    assert rate_headers(answers[2]) == (policy, '"tenant";r=0;t=61, "key";r=1;t=61', "61")


async def test_wait_is_as_long_as_the_longer_of_both(service: Service) -> None:
    org = await tenant_of(service, "halved")
    reader = (await service.key(org.owner, org.id, "projects:read")).caller
    service.clock.advance(seconds=61)
    assert await statuses(reader, 2) == [200, 200]
    service.clock.advance(seconds=30)
    assert await statuses(org.owner, 2) == [200, 200]
    service.clock.advance(seconds=10)
    assert (await reader.get(ANYTHING)).headers["retry-after"] == "21"
    assert (await org.owner.get(ANYTHING)).headers["retry-after"] == "51"
    service.clock.advance(seconds=51)
    assert await statuses(org.owner, 1) == [200]


async def test_request_that_the_tenants_limit_refuses_does_not_count_for_the_key(
    service: Service,
) -> None:
    org = await tenant_of(service, "keyed")
    reader = (await service.key(org.owner, org.id, "projects:read")).caller
    service.clock.advance(seconds=61)
    await statuses(org.owner, 3)
    assert await statuses_at_once(reader, times=10) == {200: 2, 429: 8}
    await set_plan(service, org, "keys_alone")
    assert await statuses(reader, 1) == [429]
    service.clock.advance(seconds=61)
    assert await statuses(reader, 3) == [200, 200, 429]


async def test_limit_of_one_tenant_does_not_affect_another(service: Service) -> None:
    first, second = await tenant_of(service), await tenant_of(service)
    assert await statuses_at_once(first.owner, times=20) == {200: 5, 429: 15}
    assert await statuses(second.owner, 6) == [200] * 5 + [429]


async def test_two_processes_accept_no_more_than_one(service: Service) -> None:
    org = await tenant_of(service)
    async with running_beside(service) as other:
        twin = Caller(other, org.owner.credential)
        assert await statuses_at_once(org.owner, twin, times=25) == {200: 5, 429: 45}
        service.clock.advance(seconds=61)
        mixed = [await caller.get(ANYTHING) for _ in range(3) for caller in (org.owner, twin)]
        assert [answer.status_code for answer in mixed] == [200] * 5 + [429]


async def test_requests_beyond_a_keys_limit_do_not_count_for_the_tenant(service: Service) -> None:
    org = await tenant_of(service, "keyed")
    reader = await service.key(org.owner, org.id, "projects:read")
    service.clock.advance(seconds=61)
    async with running_beside(service) as other:
        assert await statuses_at_once(org.owner, times=10) == {200: 3, 429: 7}
        assert await statuses_at_once(Caller(other, reader.caller.credential), times=10) == {
            200: 2,
            429: 8,
        }


async def test_shares_of_one_process_are_missing_elsewhere_until_returned(service: Service) -> None:
    org = await tenant_of(service, "wide")
    async with running_beside(service) as other:
        twin = Caller(other, org.owner.credential)
        assert await statuses(org.owner, 5) == [200] * 5
        assert await statuses_at_once(twin, times=1000) == {200: 993, 429: 7}
        service.clock.advance(seconds=1)
        assert await statuses(org.owner, 3) == [200, 200, 429]


async def test_change_of_plan_takes_effect_at_the_next_request(service: Service) -> None:
    org = await tenant_of(service)
    assert await statuses(org.owner, 6) == [200] * 5 + [429]
    await set_plan(service, org, "larger")
    answer = await org.owner.get(ANYTHING)
    assert rate_headers(answer) == ('"tenant";q=7;w=60', '"tenant";r=1;t=61', None)
    await set_plan(service, org, "free")
    answer = await org.owner.get(ANYTHING)
    assert refusal(answer) == LIMITED
    service.clock.advance(seconds=61)
    assert await statuses(org.owner, 6) == [200] * 5 + [429]
    await set_plan(service, org, "boundless")
    assert await statuses(org.owner, 2) == [200, 200]


async def test_wait_after_a_lowered_limit_is_as_long_as_it_takes(service: Service) -> None:
    org = await tenant_of(service, "larger")
    for _ in range(7):
        await org.owner.get(ANYTHING)
        service.clock.advance(seconds=1)
    await set_plan(service, org, "free")
    refused = await org.owner.get(ANYTHING)
    assert refused.headers["retry-after"] == "56"
    service.clock.advance(seconds=55)
    assert await statuses(org.owner, 1) == [429]
    service.clock.advance(seconds=1)
    assert await statuses(org.owner, 1) == [200]


async def test_limit_of_zero_rejects_every_request(service: Service) -> None:
    org = await tenant_of(service, "closed")
    refused = await org.owner.get(ANYTHING)
    assert refusal(refused) == LIMITED
    assert rate_headers(refused) == ('"tenant";q=0;w=60', '"tenant";r=0;t=60', "60")


async def test_without_a_limit_there_are_no_headers(service: Service) -> None:
    org = await tenant_of(service, "boundless")
    answers = [await org.owner.get(path) for path in (ANYTHING, PROJECTS, WHOAMI)]
    assert [rate_headers(answer) for answer in answers] == [(None, None, None)] * 3


HEADERS: Final = ('"tenant";q=5;w=60', '"tenant";r=4;t=61', None)


@cases(
    ("method", "path", "body", "status"),
    [
        ("GET", PROJECTS, None, 200),
        ("GET", f"{PROJECTS}/", None, 200),
        ("GET", ANYTHING, None, 200),
        ("GET", WHOAMI, None, 200),
        ("POST", PROJECTS, {"name": "a"}, 201),
        ("GET", f"{PROJECTS}?limit=0", None, 422),
        ("GET", f"{PROJECTS}/unknown", None, 404),
        ("GET", f"{PROJECTS}?cursor=%00", None, 400),
        ("POST", PROJECTS, {"unknown": 1}, 422),
        ("POST", TENANTS, {"name": "a"}, 403),
    ],
)
async def test_every_authenticated_answer_has_the_remaining_count(
    service: Service, method: str, path: str, body: object, status: int
) -> None:
    org = await tenant_of(service)
    answer = await org.owner.call(method, path, body)
    assert (answer.status_code, rate_headers(answer)) == (status, HEADERS)


@cases("path", [PROJECTS, f"{PROJECTS}/", f"{VERIFY}projects:read", KEYS])
async def test_missing_scope_counts_and_has_the_remaining_count(
    service: Service, path: str
) -> None:
    org = await tenant_of(service)
    caller = (await service.key(org.owner, org.id, "other:read")).caller
    service.clock.advance(seconds=61)
    answers = [await caller.get(path) for _ in range(6)]
    assert refusal(answers[0]) == (403, "insufficient_scope")
    assert rate_headers(answers[0]) == HEADERS
    assert [answer.status_code for answer in answers] == [403] * 5 + [429]


@cases("path", [PROJECTS, f"{PROJECTS}/", WHOAMI, ANYTHING])
async def test_refusal_is_the_same_on_every_kind_of_route(service: Service, path: str) -> None:
    org = await tenant_of(service)
    await statuses(org.owner, 5)
    answer = await org.owner.get(path)
    assert refusal(answer) == LIMITED
    assert rate_headers(answer) == ('"tenant";q=5;w=60', '"tenant";r=0;t=61', "61")


async def test_unauthenticated_requests_do_not_count(service: Service) -> None:
    org = await tenant_of(service)
    revoked = await service.key(org.owner, org.id, "projects:read")
    await org.owner.delete(revoked.path)
    service.clock.advance(seconds=61)
    for caller in (revoked.caller, service.anonymous, service.caller("nonsense")):
        for _ in range(6):
            answer = await caller.get(ANYTHING)
            assert answer.status_code == 401
            assert rate_headers(answer) == (None, None, None)
    for path in ("/healthz", "/api/v1/openapi.json", "/nowhere"):
        assert rate_headers(await org.owner.get(path)) == (None, None, None)
    assert await statuses(org.owner, 6) == [200] * 5 + [429]


async def test_refused_requests_do_not_count(service: Service) -> None:
    org = await tenant_of(service)
    await statuses(org.owner, 5)
    service.clock.advance(seconds=40)
    await statuses(org.owner, 20)
    service.clock.advance(seconds=21)
    assert await statuses(org.owner, 6) == [200] * 5 + [429]


async def test_rejections_are_counted_by_the_kind_of_limit(limited_service: Service) -> None:
    tenant, key = await tenant_of(limited_service), await tenant_of(limited_service, "keys_alone")
    await statuses(tenant.owner, 7)
    await statuses(key.owner, 3)
    metrics = (await limited_service.anonymous.get("/metrics")).text
    assert 'tenantry_rate_limited_total{policy="tenant"} 2.0' in metrics
    assert 'tenantry_rate_limited_total{policy="key"} 1.0' in metrics


async def test_requests_that_cannot_be_counted_are_rejected(limited_service: Service) -> None:
    org = await tenant_of(limited_service)
    async with await psycopg.AsyncConnection.connect(limited_service.conninfo) as connection:
        await connection.execute("LOCK TABLE request_counts")
        answers: list[httpx2.Response] = await asyncio.gather(
            *(org.owner.get(path) for path in (ANYTHING, PROJECTS, WHOAMI))
        )
    for answer in answers:
        assert refusal(answer) == (503, "auth_unavailable")
        assert rate_headers(answer) == (None, None, "1")


async def test_flood_above_the_limit_does_not_reach_the_database(service: Service) -> None:
    org = await tenant_of(service)
    assert await statuses_at_once(org.owner, times=6) == {200: 5, 429: 1}
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("LOCK TABLE request_counts")
        assert await statuses_at_once(org.owner, times=200) == {429: 200}
