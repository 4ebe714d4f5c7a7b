"""Changes that wait for the standbys that answer checks, seen from the primary."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import LiteralString

import psycopg
import pytest

from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.standby_store import read_position, register_standby
from tenantry.db.standby_waits import CommittedChange, commit_change
from tenantry.domain.standby_checks import CHANGE_WAIT
from tests.support import events
from tests.support.checking_standbys import register
from tests.support.guarded_events import written_by_test
from tests.support.patience import patient_database
from tests.support.service import Service
from tests.support.signing import deliver

ACME = of_tenant("acme")
_ONLY_FLUSHED = """
CREATE FUNCTION only_flushed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        RAISE EXCEPTION 'a registration that a crash may undo';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER only_flushed AFTER INSERT ON check_standbys FOR EACH ROW EXECUTE FUNCTION only_flushed();
"""


@pytest.fixture
async def database(conninfo: str) -> AsyncIterator[Database]:
    async with patient_database(conninfo, pool_size=1) as database:
        yield database


async def add_tenant(connection: Connection) -> None:
    await written_by_test(connection)
    await connection.execute(
        "INSERT INTO tenants (id, name, owner_id, owner_email) VALUES ('acme', '', '', '')"
    )


async def add_projects(connection: Connection, *ids: str) -> None:
    for project_id in ids:
        await connection.execute(
            "INSERT INTO projects (id, org_id, mode, name, created_at, updated_at) "
            "VALUES (%s, 'acme', 'live', 'one name', now(), now())",
            (project_id,),
        )


async def committed(connection: Connection) -> CommittedChange:
    return await commit_change(connection, entering=[connection.entering(ACROSS_TENANTS)])


async def count(conninfo: str, table: LiteralString) -> int:
    async with await Connection.connect(conninfo) as connection:
        return await connection.fetch_count(f"SELECT count(*) FROM {table}")  # noqa: S608


async def test_change_waits_for_no_standby_where_none_is_registered(database: Database) -> None:
    async with database.transaction(ACME) as connection:
        change = await committed(connection)
    assert change.standbys == ()
    assert await database.standby_waits.wait(change)


async def test_expired_registrations_are_waited_for_once_and_removed(
    conninfo: str, database: Database
) -> None:
    """A step of the primary's clock makes a registration look expired, or valid for too long."""
    for name, seconds in {"past": -1, "future": 3600, "extended": -1, "valid": 60}.items():
        await register(conninfo, name, seconds=seconds)
    async with database.transaction(ACME) as connection:
        change = await committed(connection)
    assert set(change.standbys or ()) == {"past", "future", "extended", "valid"}
    waiting = asyncio.create_task(database.standby_waits.wait(change))
    async with await Connection.connect(conninfo, autocommit=True) as connection:
        ended = "SELECT name FROM check_standbys WHERE expires_at IS NULL"
        while len(await connection.fetch_column(ended)) < 3:
            assert not waiting.done()
        await register_standby(connection, "extended")
        await waiting
        async with asyncio.timeout(30):
            while await connection.fetch_column(ended):
                pass
        left = await connection.fetch_column("SELECT name FROM check_standbys ORDER BY name")
    assert left == ["extended", "valid"]


async def test_registration_that_was_ended_is_not_shown_with_the_position(conninfo: str) -> None:
    for name, seconds in {"valid": 60, "expired": -1, "of another timeline": 60}.items():
        await register(conninfo, name, seconds=seconds, timeline=1 + ("another" in name))
    async with await Connection.connect(conninfo, autocommit=True) as connection:
        assert set((await read_position(connection)).registrations) == {"valid", "expired"}
        await connection.execute("UPDATE check_standbys SET expires_at = NULL")
        assert (await read_position(connection)).registrations == {}
        await register_standby(connection, "expired")
        assert set((await read_position(connection)).registrations) == {"expired"}


async def test_standby_that_is_registered_before_the_commit_is_waited_for(
    conninfo: str, database: Database
) -> None:
    async with database.transaction(ACME) as connection:
        await register(conninfo, "late")
        change = await committed(connection)
    assert change.standbys == ("late",)


async def test_registration_is_flushed_whatever_the_server_is_set_to(conninfo: str) -> None:
    async with await Connection.connect(conninfo, autocommit=True) as owner:
        await owner.execute(_ONLY_FLUSHED)
    async with await Connection.connect(conninfo) as connection:
        await connection.execute("SET synchronous_commit = off")
        await connection.commit()
        await register_standby(connection, "near")
        assert "near" in (await read_position(connection)).registrations


async def test_registered_standby_that_is_gone_costs_the_longest_wait(
    conninfo: str, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await register(conninfo, "gone")
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        async with database.change(ACME) as connection:
            await add_tenant(connection)
    assert time.monotonic() - begun >= CHANGE_WAIT
    assert "standby 'gone' is not connected to the primary" in caplog.text


async def test_change_that_waits_holds_neither_a_connection_nor_its_turn(
    conninfo: str, database: Database
) -> None:
    await register(conninfo, "gone")
    turn = asyncio.Semaphore(1)

    async def change() -> None:
        async with database.change(ACME, turn=turn) as connection:
            await add_tenant(connection)

    changing = asyncio.create_task(change())
    found = 0
    while not found:
        async with database.transaction(ACME) as connection:
            found = await connection.fetch_count("SELECT count(*) FROM tenants")
    assert (changing.done(), turn.locked()) == (False, False)
    await changing


async def test_committed_change_stays_when_the_standbys_cannot_be_read(
    conninfo: str, database: Database
) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as owner:
        await owner.execute("REVOKE SELECT ON check_standbys FROM tenantry_batch")
    async with database.transaction(ACME) as connection:
        await connection.execute("SET LOCAL synchronous_commit = local")
        await add_tenant(connection)
        change = await committed(connection)
    assert change.standbys is None
    assert await count(conninfo, "tenants") == 1


async def test_triggers_find_a_change_that_waits_for_no_standby(database: Database) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match=r"without Database\.change"):
        async with database.transaction(ACME) as connection:
            await add_tenant(connection)


async def test_failed_commit_is_an_error(conninfo: str, database: Database) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as owner:
        await owner.execute(
            "ALTER TABLE projects ADD CONSTRAINT one_name UNIQUE (name) "
            "DEFERRABLE INITIALLY DEFERRED"
        )
    async with database.change(ACME) as connection:
        await add_tenant(connection)
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with database.change(ACME) as connection:
            await add_projects(connection, "proj_1", "proj_2")
    assert await count(conninfo, "projects") == 0
    async with database.change(ACME) as connection:
        await add_projects(connection, "proj_1")
    assert await count(conninfo, "projects") == 1


@pytest.mark.parametrize(("given", "used"), [("off", "local"), ("remote_write", "remote_write")])
async def test_change_is_in_the_log_before_others_see_it(
    conninfo: str, given: str, used: str
) -> None:
    options = f"{conninfo} options='-c synchronous_commit={given}'"
    async with (
        patient_database(options, pool_size=1) as database,
        database.change(ACME) as connection,
    ):
        assert await connection.fetch_value("SHOW synchronous_commit") == used


async def test_repeated_revocation_waits_as_the_first_one(
    fresh_service: Service, conninfo: str
) -> None:
    org = await fresh_service.organization()
    key = await fresh_service.key(org.owner, org.id, "projects:read")
    first = await org.owner.delete(key.path)
    await register(conninfo, "gone")
    begun = time.monotonic()
    again = await org.owner.delete(key.path)
    assert time.monotonic() - begun >= CHANGE_WAIT
    assert (first.status_code, again.status_code) == (204, 204)


async def test_events_that_change_access_wait_and_others_do_not(
    fresh_service: Service, conninfo: str
) -> None:
    paying = await fresh_service.organization(stripeCustomerId="cus_1")
    await fresh_service.organization(stripeCustomerId="cus_2")
    await register(conninfo, "gone")
    upgrade = events.updated(org=paying.id, customer="cus_1", event_id="evt_1")
    payment = events.succeeded(customer="cus_2", event_id="evt_2")
    sending = [
        asyncio.create_task(deliver(fresh_service.client, event, at=now(fresh_service)))
        for event in (upgrade, payment)
    ]
    begun = time.monotonic()
    await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in sending] == [False, True]
    answers = await asyncio.gather(*sending)
    assert time.monotonic() - begun >= CHANGE_WAIT
    assert [answer.status_code for answer in answers] == [200, 200]


async def test_duplicate_of_an_event_waits_as_its_first_delivery(
    fresh_service: Service, conninfo: str
) -> None:
    await fresh_service.organization(stripeCustomerId="cus_1")
    event = events.succeeded(customer="cus_1", event_id="evt_1")
    first = await deliver(fresh_service.client, event, at=now(fresh_service))
    await register(conninfo, "gone")
    begun = time.monotonic()
    again = await deliver(fresh_service.client, event, at=now(fresh_service))
    assert time.monotonic() - begun >= CHANGE_WAIT
    assert (first.status_code, again.status_code) == (200, 200)


def now(service: Service) -> int:
    return int(service.clock.now.timestamp())
