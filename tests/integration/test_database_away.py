"""Without its database the service answers 503: never 401, never success, never a hang."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Final

import httpx2
import pytest

from tenantry.common.clock import Timeouts
from tenantry.db.connection import OF_PEOPLE
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tests.support.database_link import DatabaseLink, database_link
from tests.support.logs import watched
from tests.support.service import (
    KEYS,
    PROJECTS,
    SHORT_TIMEOUTS,
    TENANTS,
    VERIFY,
    WHOAMI,
    Organization,
    Service,
    refusal,
    running_service,
)

BODY: Final = {"name": "x", "ownerEmail": "a@x.example"}
INVALID: Final = (401, "invalid_credential")
AUTH: Final = (503, "auth_unavailable")
DATABASE: Final = (503, "database_unavailable")


@pytest.fixture
async def link(conninfo: str) -> AsyncIterator[DatabaseLink]:
    async with database_link(conninfo) as link:
        yield link


@pytest.fixture
async def service(link: DatabaseLink) -> AsyncIterator[Service]:
    async with running_service(link.conninfo, SHORT_TIMEOUTS) as service:
        yield service


async def answers_of(
    service: Service, org: Organization
) -> dict[str, tuple[httpx2.Response, tuple[int, str]]]:
    """What callers of every kind get on hot and ordinary routes, all at once, and what they should
    get.
    """
    user = service.user(org=org.id, role="owner")
    calls = {
        "key, hot": (org.owner.get(PROJECTS), AUTH),
        "key, gateway check": (org.owner.get(f"{VERIFY}projects:read"), AUTH),
        "key, ordinary": (org.owner.get(KEYS), AUTH),
        "key, body": (org.owner.post(PROJECTS, {"name": "a"}), AUTH),
        "unknown key": (
            service.caller(f"{org.owner.credential}"[:-7] + "0000000").get(WHOAMI),
            INVALID,
        ),
        "token, hot": (user.get(PROJECTS), AUTH),
        "token, ordinary": (user.get(TENANTS), AUTH),
        "token, new tenant": (service.user("new").post(TENANTS, BODY), AUTH),
        "operator": (service.operator.put(f"{TENANTS}/new", BODY), DATABASE),
        "missing": (service.anonymous.get(PROJECTS), (401, "missing_credential")),
    }
    answers = await asyncio.gather(*(call for call, _ in calls.values()))
    return {
        name: (answer, expected)
        for (name, (_, expected)), answer in zip(calls.items(), answers, strict=True)
    }


def check(answers: dict[str, tuple[httpx2.Response, tuple[int, str]]]) -> None:
    for name, (answer, expected) in answers.items():
        assert refusal(answer) == expected, name
        assert ("retry-after" in answer.headers) == (expected[0] == 503), name


async def test_refused_connections_are_503_until_the_database_returns(
    link: DatabaseLink, service: Service
) -> None:
    org = await service.organization()
    assert (await org.owner.get(PROJECTS)).status_code == 200
    await link.cut()
    anonymous = service.anonymous
    answers, health, ready, metrics = await asyncio.gather(
        answers_of(service, org),
        anonymous.get("/healthz"),
        anonymous.get("/readyz"),
        anonymous.get("/metrics"),
    )
    check(answers)
    assert health.status_code == 200
    assert (ready.status_code, ready.json()["waitingFor"]) == (503, ["database"])
    assert metrics.status_code == 200
    assert "\ntenantry_database_up 0.0\n" in metrics.text
    await link.restore()
    assert (await org.owner.get(PROJECTS)).status_code == 200


async def test_database_that_does_not_answer_is_503(link: DatabaseLink, service: Service) -> None:
    org = await service.organization()
    assert (await org.owner.get(PROJECTS)).status_code == 200
    link.block()
    answers, health = await asyncio.gather(
        answers_of(service, org), service.anonymous.get("/healthz")
    )
    check(answers)
    assert health.status_code == 200
    link.unblock()


async def test_service_starts_without_its_database(conninfo: str) -> None:
    async with database_link(conninfo) as link:
        await link.cut()
        async with running_service(link.conninfo, SHORT_TIMEOUTS) as service:
            health, ready, refused = await asyncio.gather(
                service.anonymous.get("/healthz"),
                service.anonymous.get("/readyz"),
                service.operator.put(f"{TENANTS}/new", BODY),
            )
            assert (health.status_code, ready.status_code) == (200, 503)
            assert refusal(refused) == DATABASE
            await link.restore()


@pytest.mark.thorough
async def test_connection_that_fails_after_its_caller_timed_out_is_not_logged(
    link: DatabaseLink,
) -> None:
    database = Database(link.conninfo, pool_size=1, timeouts=Timeouts(connect=0.2))
    lane = database.lane()
    link.block()
    with watched("asyncio") as log:
        with pytest.raises(DatabaseUnavailableError):
            async with lane.use():
                pass
        connecting = [task for task in asyncio.all_tasks() if "Lane._connect" in repr(task)]
        assert len(connecting) == 1
        await link.cut()
        await asyncio.wait(connecting)
        connecting.clear()
        gc.collect()
        assert log.lines == []
    await database.close()


async def test_a_request_after_a_restart_does_not_wait_for_each_lost_connection(
    link: DatabaseLink,
) -> None:
    async with Database(link.conninfo, pool_size=4, timeouts=Timeouts(connect=0.9)) as database:
        await use_at_once(database, 4)
        await link.cut()
        await link.restore()
        async with database.transaction(OF_PEOPLE) as connection:
            assert await connection.fetch_value("SELECT 1") == 1


async def use_at_once(database: Database, count: int) -> None:
    """Use so many of the pool's connections at the same time."""
    all_in = asyncio.Barrier(count)

    async def use() -> None:
        async with database.transaction(OF_PEOPLE):
            await all_in.wait()

    await asyncio.gather(*(use() for _ in range(count)))
