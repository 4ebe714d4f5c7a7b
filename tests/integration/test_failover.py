"""A host of the database that does not answer, and a database that accepts no writes.

`tests/system/test_promoted_standby.py` has a primary that dies and a standby that is promoted.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tests.support import events
from tests.support.database_link import DatabaseLink, database_link
from tests.support.service import KEYS, PROJECTS, TENANTS, Service, refusal, running_service
from tests.support.signing import deliver

AWAY = (503, "database_unavailable")


async def served(call: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """Return the first response that is not a 503 to a repeated request; each 503 has
    ``Retry-After``.
    """
    async with asyncio.timeout(30):
        while (answer := await call()).status_code == 503:
            assert "retry-after" in answer.headers
    return answer


def now(service: Service) -> int:
    return int(service.clock.now.timestamp())


@pytest.fixture
async def first_link(conninfo: str) -> AsyncIterator[DatabaseLink]:
    async with database_link(conninfo) as link:
        yield link


async def test_silent_host_does_not_block_the_next_one(
    conninfo: str, first_link: DatabaseLink
) -> None:
    direct = conninfo_to_dict(conninfo)
    both = make_conninfo(
        conninfo,
        host=f"127.0.0.1,{direct['host']}",
        port=f"{first_link.port},{direct['port']}",
        target_session_attrs="read-write",
    )
    async with running_service(both, DEFAULT_TIMEOUTS) as service:
        org = await service.organization()
        assert (await org.owner.get(PROJECTS)).status_code == 200
        first_link.block()
        await first_link.cut()
        await first_link.restore()
        try:
            assert (await served(lambda: org.owner.get(PROJECTS))).status_code == 200
            assert (await served(lambda: org.owner.get(KEYS))).status_code == 200
        finally:
            first_link.unblock()


async def test_read_only_database_is_unavailable_until_it_accepts_writes(
    conninfo: str, service_on_link: tuple[Service, DatabaseLink]
) -> None:
    service, link = service_on_link
    org = await service.organization(stripeCustomerId="cus_1")
    name = conninfo_to_dict(conninfo)["dbname"]
    await run(conninfo, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await link.cut()
    await link.restore()
    event = events.failed(customer="cus_1")
    answer = await deliver(service.client, event, at=now(service))
    assert (answer.status_code, answer.text, answer.headers["retry-after"]) == (
        503,
        "Service unavailable",
        "1",
    )
    assert (
        refusal(
            await service.operator.put(f"{TENANTS}/new", {"name": "x", "ownerEmail": "a@x.example"})
        )
        == AWAY
    )
    # its requests cannot be counted
    assert refusal(await org.owner.get(PROJECTS)) == (503, "auth_unavailable")
    await run(conninfo, f"SET default_transaction_read_only = off; ALTER DATABASE {name} RESET ALL")
    assert (
        await served(lambda: deliver(service.client, event, at=now(service)))
    ).status_code == 200
    made = await served(
        lambda: service.operator.put(f"{TENANTS}/new", {"name": "x", "ownerEmail": "a@x.example"})
    )
    assert made.status_code == 201
    assert (await served(lambda: org.owner.get(PROJECTS))).status_code == 200


@pytest.fixture
async def service_on_link(first_link: DatabaseLink) -> AsyncIterator[tuple[Service, DatabaseLink]]:
    async with running_service(first_link.conninfo, DEFAULT_TIMEOUTS) as service:
        yield service, first_link


async def run(conninfo: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        for each in statement.split("; "):
            await connection.execute(each)
