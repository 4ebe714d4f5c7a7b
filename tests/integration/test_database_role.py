"""The service as a database role that owns nothing."""

import os
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.db.database import Database
from tenantry.db.migrate import grant
from tenantry.kit.clock import system_clock
from tenantry.services.retention import RetentionService
from tests.support.postgres import PostgresServer
from tests.support.service import KEYS, PROJECTS, Service, running_service

ROLE: Final = f"tenantry_app_{os.getpid()}"


@pytest.fixture
def role(postgres: PostgresServer) -> Iterator[str]:
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(ROLE)))
        yield ROLE
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(ROLE)))


@pytest.fixture
async def service(postgres: PostgresServer, role: str) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        grant(conninfo, role)
        async with running_service(make_conninfo(conninfo, user=role)) as service:
            yield service


async def test_service_works_and_its_changes_are_in_the_trail(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:*")
    assert (await key.caller.post(PROJECTS, {"name": "one"})).status_code == 201
    assert (await organization.owner.get(KEYS)).status_code == 200
    assert (await organization.owner.delete(key.path)).status_code == 204
    trail = (await organization.owner.get("/api/v1/audit-events", targetId=key.id)).json()["data"]
    assert [entry["action"] for entry in trail] == ["api_key.revoked", "api_key.created"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_events SET actor_id = 'somebody else'",
        "DELETE FROM audit_events",
        "TRUNCATE audit_events",
        "ALTER TABLE audit_events DISABLE TRIGGER ALL",
        "DROP TRIGGER audit_events_are_kept ON audit_events",
        "CREATE OR REPLACE FUNCTION keep_audit_events() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
        "SET session_replication_role = replica",
        "UPDATE alembic_version SET version_num = '0001'",
    ],
)
async def test_role_cannot_alter_the_trail_nor_what_guards_it(service: Service, statement: str) -> None:
    await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await connection.execute(statement)


async def test_retention_removes_an_ended_tenant_with_its_trail(postgres: PostgresServer, service: Service) -> None:
    organization = await service.organization()
    await ended(postgres, service, organization.id, timedelta(days=31))
    database = Database(service.conninfo, pool_size=1)
    await database.open()
    removed = await RetentionService(database, timedelta(days=90), system_clock).run()
    async with database.transaction() as connection:
        left = await (await connection.execute("SELECT count(*) FROM audit_events")).fetchone()
    await database.close()
    assert (removed.tenants, left) == (1, (0,))


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM tenants",
        "UPDATE tenants SET deleted_at = now() - interval '31 days'",
        "UPDATE tenants SET deleted_at = now() + interval '31 days'",
        "UPDATE tenants SET id = 'another'",
    ],
)
async def test_role_gets_rid_of_no_trail_by_way_of_its_tenant(service: Service, statement: str) -> None:
    await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ForeignKeyViolation)):
            await connection.execute(statement)


@pytest.mark.parametrize("ended_since", [None, timedelta(days=29)])
async def test_role_purges_no_tenant_before_its_time(
    postgres: PostgresServer, service: Service, ended_since: timedelta | None
) -> None:
    organization = await service.organization()
    if ended_since is not None:
        await ended(postgres, service, organization.id, ended_since)
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("CREATE TEMP TABLE tenants (id text, deleted_at timestamptz)")
        await connection.execute("SELECT purge_audit_events(%s, 1000), purge_tenant(%s)", (organization.id,) * 2)
        cursor = await connection.execute("SELECT count(*) > 0 FROM audit_events")
        assert await cursor.fetchone() == (True,)


async def ended(postgres: PostgresServer, service: Service, tenant_id: str, since: timedelta) -> None:
    """As if the tenant had ended so long ago."""
    owner = conninfo_to_dict(postgres.conninfo)["user"]
    async with await psycopg.AsyncConnection.connect(make_conninfo(service.conninfo, user=owner)) as connection:
        await connection.execute("UPDATE tenants SET deleted_at = now() - %s WHERE id = %s", (since, tenant_id))
