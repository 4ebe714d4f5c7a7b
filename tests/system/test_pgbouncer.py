"""The service with PgBouncer in transaction mode between its ordinary work and PostgreSQL."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.db.database import Database
from tests.support.app import OPERATOR_TOKEN
from tests.support.deployment import WORKERS, deployed
from tests.support.pgbouncer import SERVER_CONNECTIONS, PgBouncer, running_pgbouncer
from tests.support.postgres import PostgresServer, as_url
from tests.support.rows import ONE, TWO, add_rows
from tests.support.service import PROJECTS, TENANTS, Organization, Service, refusal, running_service

AT_ONCE: Final = 8
DIRECT: Final = 6
"""Connections of a process that pass the pooler by: four lanes, two of the job queue."""


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[PgBouncer]:
    with running_pgbouncer(postgres.conninfo) as pooler:
        yield pooler


@pytest.fixture
async def database(conninfo: str, pooler: PgBouncer) -> AsyncIterator[Database]:
    database = Database(conninfo, AT_ONCE, pooler.conninfo_of(conninfo))
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def service(conninfo: str, pooler: PgBouncer) -> AsyncIterator[Service]:
    values = {"DATABASE_URL": conninfo, "DATABASE_POOLER_URL": pooler.conninfo_of(conninfo)}
    async with running_service(conninfo, **values) as service:
        yield service


@pytest.fixture
async def org(service: Service) -> Organization:
    return await service.organization()


async def settings_of(database: Database) -> tuple[str, str]:
    async with database.transaction(ACROSS_TENANTS) as connection:
        cursor = await connection.execute(
            "SELECT current_setting('statement_timeout'), current_setting('TimeZone')"
        )
        [(timeout, zone)] = await cursor.fetchall()
    return timeout, zone


async def test_each_transaction_has_its_settings_and_leaves_none_behind(
    conninfo: str, pooler: PgBouncer, database: Database
) -> None:
    with psycopg.connect(
        pooler.conninfo_of(conninfo), autocommit=True, prepare_threshold=None
    ) as plain:
        plain.execute("ALTER ROLE CURRENT_USER SET TimeZone TO 'Asia/Kathmandu'")
        try:
            found = await asyncio.gather(*(settings_of(database) for _ in range(5 * AT_ONCE)))
        finally:
            plain.execute("ALTER ROLE CURRENT_USER RESET TimeZone")
        assert set(found) == {("4s", "UTC")}
        assert plain.execute("SHOW statement_timeout").fetchall() == [("0",)]


def left_behind(conninfo: str, pooler: PgBouncer) -> tuple[bool, str]:
    """Whether a connection of the pooler is in the login's own role, and which tenant is named in
    it.
    """
    with psycopg.connect(
        pooler.conninfo_of(conninfo), autocommit=True, prepare_threshold=None
    ) as plain:
        [(is_itself, tenant_id)] = plain.execute(
            "SELECT current_user = session_user, coalesce(current_setting('tenantry.tenant_id', true), '')"
        ).fetchall()
    return is_itself, tenant_id


async def test_tenants_that_take_turns_on_one_connection_never_see_each_other(
    conninfo: str, pooler: PgBouncer, database: Database
) -> None:
    add_rows(conninfo)

    async def seen(tenant_id: str) -> tuple[str, set[str], int]:
        async with database.transaction(of_tenant(tenant_id)) as connection:
            cursor = await connection.execute("SELECT org_id, pg_backend_pid() FROM projects")
            rows = await cursor.fetchall()
        return tenant_id, {row[0] for row in rows}, rows[0][1]

    found = await asyncio.gather(
        *(seen(tenant_id) for _ in range(5 * AT_ONCE) for tenant_id in (ONE, TWO))
    )
    assert all(owners == {tenant_id} for tenant_id, owners, _ in found)
    used_by = {
        tenant_id: {pid for other, _, pid in found if other == tenant_id}
        for tenant_id in (ONE, TWO)
    }
    assert used_by[ONE] & used_by[TWO]
    assert left_behind(conninfo, pooler) == (True, "")


async def test_a_snapshot_is_one_by_way_of_the_pooler_too(database: Database) -> None:
    async with database.transaction(ACROSS_TENANTS, is_snapshot=True) as connection:
        cursor = await connection.execute("SHOW transaction_isolation")
        assert await cursor.fetchall() == [("repeatable read",)]


async def test_nothing_is_prepared_however_often_it_is_run(
    conninfo: str, pooler: PgBouncer, database: Database
) -> None:
    for number in range(20):
        async with database.transaction(ACROSS_TENANTS) as connection:
            await connection.execute("SELECT %s::int", (number,))
    with psycopg.connect(
        pooler.conninfo_of(conninfo), autocommit=True, prepare_threshold=None
    ) as plain:
        assert plain.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]


async def test_transactions_outnumber_the_servers_connections(database: Database) -> None:
    async def backend() -> int:
        async with database.transaction(ACROSS_TENANTS) as connection:
            cursor = await connection.execute("SELECT pg_backend_pid()")
            [(pid,)] = await cursor.fetchall()
        return int(pid)

    pids = await asyncio.gather(*(backend() for _ in range(5 * AT_ONCE)))
    assert len(set(pids)) <= SERVER_CONNECTIONS


async def test_failed_transaction_is_rolled_back_before_the_next_client(database: Database) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with database.transaction(ACROSS_TENANTS) as connection:
            await connection.execute("SELECT 1 / 0")
    assert await settings_of(database) == ("4s", "UTC")


async def test_failed_transaction_leaves_neither_its_tenant_nor_its_role_behind(
    conninfo: str, pooler: PgBouncer, database: Database
) -> None:
    async def fail() -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with database.transaction(of_tenant(ONE)) as connection:
                await connection.execute("SELECT 1 / 0")

    await asyncio.gather(*(fail() for _ in range(2 * AT_ONCE)))
    for _ in range(SERVER_CONNECTIONS):
        assert left_behind(conninfo, pooler) == (True, "")


async def test_hot_paths_work_without_the_pooler(
    service: Service, org: Organization, pooler: PgBouncer
) -> None:
    key = await service.key(org.owner, org.id, "projects:read")
    assert (await org.owner.post(PROJECTS, {"name": "kept"})).status_code == 201
    pooler.stop()
    assert (await key.caller.get(PROJECTS)).json()["data"][0]["name"] == "kept"
    assert refusal(await org.owner.post(PROJECTS, {"name": "lost"})) == (
        503,
        "database_unavailable",
    )
    pooler.start()
    statuses = [(await org.owner.post(PROJECTS, {"name": "again"})).status_code for _ in range(2)]
    assert statuses[-1] == 201  # the first may find out that its connection is gone


async def test_two_processes_share_the_poolers_connections(
    conninfo: str, pooler: PgBouncer, tmp_path: Path
) -> None:
    by_pooler = {"DATABASE_POOLER_URL": as_url(pooler.conninfo_of(conninfo)), "RUN_JOBS": "true"}
    async with (
        deployed(
            as_url(conninfo),
            tmp_path,
            credential=OPERATOR_TOKEN,
            OPERATOR_TOKEN=OPERATOR_TOKEN,
            **by_pooler,
        ) as deployment,
        deployment.client() as operator,
    ):
        tenants = [f"{TENANTS}/org-{number}" for number in range(20)]
        body = {"name": "Org", "ownerEmail": "owner@x.example"}
        made = await asyncio.gather(*(operator.put(tenant, json=body) for tenant in tenants))
        assert {answer.status_code for answer in made} == {201}
        with psycopg.connect(conninfo) as direct:
            [(connections,)] = direct.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
        assert connections <= SERVER_CONNECTIONS + WORKERS * DIRECT
        pooler.stop()
        assert (await operator.put(tenants[0], json=body)).status_code == 503
        assert await deployment.command.end(signal.SIGTERM) == 0
    assert "Traceback" not in deployment.command.text["err"]
