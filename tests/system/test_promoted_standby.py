"""A primary that fails, a promoted standby, and connection strings with both."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from tenantry.cli.doctor.database_checks import check_database
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.migrate import migrate
from tenantry.installation.findings import Finding, Level
from tests.support import events
from tests.support.commands import SECRETS, running
from tests.support.database_server import FAST_SETTINGS, Pair, server_folder
from tests.support.findings import checked_settings, levels, only
from tests.support.patience import patient_database
from tests.support.postgres import as_url
from tests.support.service import KEYS, PROJECTS, Service, refusal, running_service
from tests.support.signing import deliver

AWAY = (503, "database_unavailable")
NOT_KNOWN = (503, "auth_unavailable")
IN_FLIGHT = (409, "idempotency_in_flight")


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary and a synchronous standby, with the service's schema."""
    with server_folder() as folder:
        pair = Pair(folder, FAST_SETTINGS)
        pair.start()
        try:
            pair.demand(synchronous=True)
            migrate(pair.conninfo)
            yield pair
        finally:
            pair.stop()


async def served(call: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """Return the first response that is not a 503 to a repeated request; each 503 has
    ``Retry-After``.
    """
    async with asyncio.timeout(30):
        while (answer := await call()).status_code == 503:
            assert "retry-after" in answer.headers
    return answer


async def ledger(conninfo: str) -> list[str]:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute("SELECT id FROM billing_events ORDER BY id")
        return [row[0] for row in await cursor.fetchall()]


async def test_acknowledged_data_is_on_the_promoted_synchronous_standby(pair: Pair) -> None:
    async with running_service(pair.conninfo) as service:
        org = await service.organization(stripeCustomerId="cus_1")
        kept = await service.key(org.owner, org.id, "projects:read")
        revoked = await service.key(org.owner, org.id, "projects:*")
        sent: list[dict[str, Any]] = [
            events.failed(customer="cus_1", event_id=f"evt_{n}") for n in range(20)
        ]
        answers = await asyncio.gather(
            *(deliver(service.client, event, at=now(service)) for event in sent)
        )
        assert {answer.status_code for answer in answers} == {200}
        assert (await org.owner.delete(revoked.path)).status_code == 204
        pair.fail_over()
        pair.demand(synchronous=False)
        assert (await served(lambda: kept.caller.get(PROJECTS))).status_code == 200
        refused = await served(lambda: revoked.caller.get(PROJECTS))
        assert refusal(refused) == (401, "api_key_revoked")
        again = await served(lambda: deliver(service.client, sent[0], at=now(service)))
        assert (again.status_code, again.text) == (200, "OK")
        added = events.failed(customer="cus_1", event_id="evt_99")
        assert (
            await served(lambda: deliver(service.client, added, at=now(service)))
        ).status_code == 200
        assert (await served(lambda: org.owner.get(KEYS))).status_code == 200
    assert await ledger(pair.conninfo) == sorted([*(event["id"] for event in sent), "evt_99"])


def now(service: Service) -> int:
    return int(service.clock.now.timestamp())


async def test_primary_of_several_hosts_is_used(pair: Pair) -> None:
    both = f"host={pair.standby.sockets},{pair.primary.sockets} user=postgres dbname=postgres"
    migrate(both)
    async with running_service(both) as service:
        org = await service.organization()
        assert (await org.owner.get(PROJECTS)).status_code == 200
    assert Level.ERROR not in levels(await doctor(both))
    assert "standby" in only(await doctor(pair.standby.conninfo), Level.ERROR).message


async def doctor(conninfo: str) -> list[Finding]:
    return await check_database(conninfo, checked_settings(), datetime.now(UTC))


async def run(conninfo: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        for each in statement.split("; "):
            await connection.execute(each)


async def test_data_missing_on_the_standby_is_not_acknowledged(pair: Pair) -> None:
    async with running_service(pair.conninfo) as service:
        org = await service.organization()
        pair.standby.kill()
        try:
            answers = [
                await org.owner.post(PROJECTS, {"name": "a"}, idempotency_key="once")
                for _ in range(2)
            ]
            seen = await org.owner.get(PROJECTS)
        finally:
            pair.standby.start()
        assert {refusal(answer) for answer in answers} <= {AWAY, NOT_KNOWN, IN_FLIGHT}
        assert seen.json()["data"] == []
        await asyncio.to_thread(pair.primary.until, "SELECT count(*) = 1 FROM projects")
        made = await served(lambda: org.owner.post(PROJECTS, {"name": "a"}, idempotency_key="once"))
        assert made.status_code == 201


async def test_returning_primary_is_not_used_beside_the_new_one(pair: Pair) -> None:
    pair.demand(synchronous=False)
    old, hidden = pair.primary, pair.primary.sockets.with_name("hidden")
    database = patient_database(pair.conninfo, pool_size=1)
    await database.open()
    before, between, after = (database.lane() for _ in range(3))
    try:
        assert (
            await place(database.transaction(ACROSS_TENANTS))
            == await place(before.use())
            == str(old.data)
        )
        old.sockets.rename(hidden)
        pair.take_over()
        assert await place(between.use()) == str(pair.primary.data)
        hidden.rename(old.sockets)
        for way in (before, between, after):
            assert await place(way.use()) == str(pair.primary.data)
        assert await place(database.transaction(ACROSS_TENANTS)) == str(pair.primary.data)
    finally:
        await database.close()


async def test_promotion_beside_a_running_primary_is_found_without_a_new_connection(
    pair: Pair,
) -> None:
    async with running_service(pair.conninfo) as service:
        org = await service.organization()
        key = await service.key(org.owner, org.id, "projects:read")
        assert (await key.caller.get(PROJECTS)).status_code == 200
        pair.demand(synchronous=False)
        pair.take_over()
        await run(pair.primary.conninfo, "UPDATE api_keys SET revoked_at = now()")
        async with asyncio.timeout(30):
            while (answer := await key.caller.get(PROJECTS)).status_code != 401:
                assert answer.status_code in {200, 503}
        assert refusal(answer) == (401, "api_key_revoked")


async def place(transaction: AbstractAsyncContextManager[Connection]) -> str:
    """Return the server that a connection string leads to."""
    async with transaction as connection:
        [(folder,)] = await (await connection.execute("SHOW data_directory")).fetchall()
        await connection.rollback()
    return str(folder)


async def test_worker_exits_though_its_last_write_waits_for_the_standby(
    pair: Pair, tmp_path: Path
) -> None:
    settings = {**SECRETS, "DATABASE_URL": as_url(pair.conninfo)}
    async with running("worker", folder=tmp_path, **settings) as command:
        await asyncio.to_thread(
            pair.primary.until, "SELECT count(*) = 1 FROM procrastinate_workers"
        )
        pair.standby.kill()
        assert await command.end(signal.SIGTERM) == 0
