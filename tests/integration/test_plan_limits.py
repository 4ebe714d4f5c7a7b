"""A plan's limits hold under concurrent requests."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.support.catalogs import catalog_file
from tests.support.postgres import PostgresServer
from tests.support.service import KEYS, PROJECTS, Service, refusal, running_service

CATALOG = """
[[plans]]
id = "free"
[plans.limits]
projects = 2
api_keys = 4
[[plans]]
id = "boundless"
"""


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(
            conninfo, TENANTRY_PLANS=catalog_file(CATALOG), DATABASE_POOL_SIZE="10"
        ) as service:
            yield service


async def test_projects_are_limited_in_each_mode(service: Service) -> None:
    org = await service.organization()
    test = await service.key(org.owner, org.id, "OWNER", mode="test")
    for caller in (org.owner, test.caller):
        for _ in range(2):
            assert (await caller.post(PROJECTS, {"name": "a"})).status_code == 201
        assert refusal(await caller.post(PROJECTS, {"name": "a"})) == (403, "plan_limit_reached")


async def test_deleting_a_project_makes_room(service: Service) -> None:
    org = await service.organization()
    made = [(await org.owner.post(PROJECTS, {"name": "a"})).json()["id"] for _ in range(2)]
    await org.owner.delete(f"{PROJECTS}/{made[0]}")
    assert (await org.owner.post(PROJECTS, {"name": "a"})).status_code == 201


async def test_active_keys_are_limited(service: Service) -> None:
    org = await service.organization()
    body = {"orgId": org.id, "name": "x", "scopes": ["a:b"]}
    keys = [await service.key(org.owner, org.id, "a:b") for _ in range(3)]
    assert refusal(await org.owner.post(KEYS, body)) == (409, "key_limit_reached")
    await org.owner.delete(keys[0].path)
    assert (await org.owner.post(KEYS, body)).status_code == 201


async def test_expired_keys_do_not_count(service: Service) -> None:
    org = await service.organization()
    for _ in range(3):
        await service.key(org.owner, org.id, "a:b", expiresAt="2026-01-01T12:00:01Z")
    service.clock.advance(seconds=2)
    await service.key(org.owner, org.id, "a:b")


async def test_rotation_is_possible_at_the_limit(service: Service) -> None:
    org = await service.organization()
    keys = [await service.key(org.owner, org.id, "a:b") for _ in range(3)]
    assert (await org.owner.post(f"{keys[0].path}/rotate")).status_code == 201


async def test_keys_in_their_overlap_do_not_count_but_are_no_more_than_the_limit(
    service: Service,
) -> None:
    org = await service.organization()
    keys = [await service.key(org.owner, org.id, "a:b") for _ in range(3)]
    overlap = {"overlapSeconds": 3600}
    path = keys[0].path
    for _ in range(4):
        answer = await org.owner.post(f"{path}/rotate", overlap)
        assert answer.status_code == 201
        path = f"{KEYS}/{answer.json()['id']}"
    assert refusal(await org.owner.post(f"{path}/rotate", overlap)) == (409, "key_limit_reached")
    assert (await org.owner.post(f"{path}/rotate")).status_code == 201
    body = {"orgId": org.id, "name": "x", "scopes": ["a:b"]}
    assert refusal(await org.owner.post(KEYS, body)) == (409, "key_limit_reached")


async def test_projects_made_at_once_stay_within_the_limit(service: Service) -> None:
    org = await service.organization()
    answers = await asyncio.gather(*(org.owner.post(PROJECTS, {"name": "a"}) for _ in range(12)))
    assert Counter(answer.status_code for answer in answers) == {201: 2, 403: 10}
    assert len((await org.owner.get(PROJECTS)).json()["data"]) == 2


async def test_keys_made_at_once_stay_within_the_limit(service: Service) -> None:
    org = await service.organization()
    body = {"orgId": org.id, "name": "x", "scopes": ["a:b"]}
    answers = await asyncio.gather(*(org.owner.post(KEYS, body) for _ in range(12)))
    assert Counter(answer.status_code for answer in answers) == {201: 3, 409: 9}
    assert len((await org.owner.get(KEYS, status="active")).json()["data"]) == 4


async def test_one_tenants_objects_do_not_count_for_another(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    for _ in range(2):
        await org.owner.post(PROJECTS, {"name": "a"})
    assert (await other.owner.post(PROJECTS, {"name": "a"})).status_code == 201
