"""Changes that wait until a standby has replayed them."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from psycopg.conninfo import make_conninfo

from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.migrate import grant, migrate
from tenantry.db.standby_waits import CommittedChange, commit_change
from tests.support.checking_standbys import register
from tests.support.database_server import FAST_SETTINGS, Pair, server_folder
from tests.support.guarded_events import written_by_test
from tests.support.patience import patient_database

STANDBY = "walreceiver"
"""The name of a standby that sets no `application_name`."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    """A primary and its asynchronous standby, with the service's schema."""
    with server_folder() as folder:
        pair = Pair(folder, FAST_SETTINGS)
        pair.start()
        try:
            migrate(pair.conninfo)
            yield pair
        finally:
            pair.stop()


@pytest.fixture
async def pair(servers: Pair) -> Pair:
    """Both servers, with the standby registered."""
    servers.primary.rows("DELETE FROM tenants; DELETE FROM check_standbys")
    await register(servers.primary.conninfo, STANDBY)
    return servers


@pytest.fixture
async def database(pair: Pair) -> AsyncIterator[Database]:
    async with patient_database(pair.primary.conninfo, pool_size=2) as database:
        yield database


async def add_tenant(connection: Connection, tenant_id: str) -> None:
    await written_by_test(connection)
    await connection.execute(
        "INSERT INTO tenants (id, name, owner_id, owner_email) VALUES (%s, '', '', '')",
        (tenant_id,),
    )


async def committed(connection: Connection) -> CommittedChange:
    return await commit_change(connection, entering=[connection.entering(ACROSS_TENANTS)])


async def test_standby_has_every_change_that_was_acknowledged(
    pair: Pair, database: Database
) -> None:
    async with await Connection.connect(pair.standby.conninfo, autocommit=True) as standby:
        for number in range(50):
            async with database.change(of_tenant(f"org-{number}")) as connection:
                await add_tenant(connection, f"org-{number}")
            assert await standby.fetch_count("SELECT count(*) FROM tenants") == number + 1


async def test_change_waits_while_the_standby_replays_nothing(
    pair: Pair, database: Database
) -> None:
    async def change() -> None:
        async with database.change(of_tenant("acme")) as connection:
            await add_tenant(connection, "acme")

    pair.standby.rows("SELECT pg_wal_replay_pause()")
    try:
        changing = asyncio.create_task(change())
        found = 0
        while not found:
            async with database.transaction(ACROSS_TENANTS) as connection:
                found = await connection.fetch_count("SELECT count(*) FROM tenants")
        assert not changing.done()
    finally:
        pair.standby.rows("SELECT pg_wal_replay_resume()")
    await changing
    pair.standby.until("SELECT count(*) = 1 FROM tenants")


async def test_change_is_seen_as_replayed_while_all_connections_of_the_pool_are_in_use(
    pair: Pair,
) -> None:
    async with patient_database(pair.primary.conninfo, pool_size=1) as database:
        async with database.transaction(of_tenant("acme")) as connection:
            await add_tenant(connection, "acme")
            change = await committed(connection)
        async with database.transaction(ACROSS_TENANTS):
            assert await database.standby_waits.wait(change)


async def test_change_that_another_primary_knows_nothing_of_is_not_taken_for_replayed(
    database: Database,
) -> None:
    async with database.transaction(of_tenant("acme")) as connection:
        change = await committed(connection)
    former = CommittedChange(change.committed_at, change.standbys, change.timeline + 1, change.lsn)
    assert not await database.standby_waits.wait(former)


@pytest.mark.parametrize("may_see", [True, False])
async def test_login_needs_to_see_how_far_standbys_are(pair: Pair, *, may_see: bool) -> None:
    login = f"login_that_sees_{may_see}".lower()
    pair.primary.rows(f"CREATE ROLE {login} LOGIN")
    grant(pair.primary.conninfo, login)
    if may_see:
        pair.primary.rows(f"GRANT pg_read_all_stats TO {login}")
    conninfo = make_conninfo(pair.primary.conninfo, user=login)
    async with patient_database(conninfo, pool_size=2) as database:
        async with database.transaction(of_tenant("acme")) as connection:
            await add_tenant(connection, "acme")
            change = await committed(connection)
        assert change.standbys == (STANDBY,)
        assert await database.standby_waits.wait(change) is may_see
