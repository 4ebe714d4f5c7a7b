"""Checks that a standby answers: when it does, and when the primary is asked instead."""

import asyncio
import logging
from collections.abc import Iterator, Sequence

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenantry.db.connection import Connection
from tenantry.db.standby_store import read_position
from tenantry.db.statements import TEXT, Statement
from tenantry.domain.standby_checks import (
    EXTENSION_INTERVAL,
    EXTENSION_TRUSTED,
    LEASE,
    NEARER_HOST_INTERVAL,
    CheckSource,
)
from tenantry.in_process.tenantry import AsgiAuthenticator
from tests.support.app import PEPPER
from tests.support.database_server import FAST_SETTINGS, DatabaseServer, Pair
from tests.support.imported_keys import SanctumToken, imported
from tests.support.postgres import as_url
from tests.support.senders import bearer
from tests.support.service import PROJECTS, Service, running_service
from tests.support.standby_lookups import Lookups, MovableClock, lookups
from tests.support.standby_pairs import NAMED, catch_up, migrated_pair

STANDBY = CheckSource.STANDBY
REST = 10.0
"""Seconds after which a process surely tries an unusable standby again."""
RETRY = 5.0
"""Seconds after which a process surely registers a standby again."""
ATTEMPTS = 30
VALID = "SELECT name FROM check_standbys WHERE expires_at > now()"
KEY_LOOKUPS = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE query LIKE '%JOIN api_keys k%' AND query NOT LIKE '%pg_stat%'"
)


@pytest.fixture(scope="module")
def shared_pair() -> Iterator[Pair]:
    """A primary and a standby with the service's schema, for tests that leave them as they are."""
    yield from migrated_pair()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The same, for one test."""
    yield from migrated_pair()


async def on(pair: Pair, found: Lookups) -> None:
    await found.until(STANDBY)
    [[name, timeline, is_valid]] = pair.primary.rows(
        "SELECT name, timeline, expires_at > now() FROM check_standbys"
    )
    assert (name, timeline, is_valid) == ("near", 1, True)


async def test_registered_standby_answers(shared_pair: Pair) -> None:
    async with lookups(shared_pair.primary.conninfo, shared_pair.standby.conninfo) as found:
        await on(shared_pair, found)
        assert found.standbys.lag_bytes() is not None


async def test_standby_that_has_not_replayed_the_position_is_not_believed(pair: Pair) -> None:
    clock = MovableClock()
    async with lookups(pair.primary.conninfo, pair.standby.conninfo, clock) as found:
        await on(pair, found)
        pair.primary.rows("CREATE TABLE example AS SELECT 1 AS value")
        catch_up(pair)
        pair.standby.rows("SELECT pg_wal_replay_pause()")
        pair.standby.until("SELECT pg_get_wal_replay_pause_state() = 'paused'")
        pair.primary.rows("UPDATE example SET value = 2")
        clock.move(LEASE)
        assert await found.value("SELECT value FROM example") == 2
        await found.until(CheckSource.BEHIND)
        pair.standby.rows("SELECT pg_wal_replay_resume()")
        await found.until(STANDBY)
        assert await found.value("SELECT value FROM example") == 2


async def test_primary_answers_while_the_standby_is_away(pair: Pair) -> None:
    async with lookups(pair.primary.conninfo, pair.standby.conninfo) as found:
        await on(pair, found)
        pair.standby.kill()
        assert await found.source() in {CheckSource.ERROR, CheckSource.NO_CONNECTION}
        assert await found.source() is CheckSource.NO_CONNECTION
        pair.standby.start()
        await found.until(STANDBY)


async def test_farther_standby_answers_while_the_nearest_is_away(shared_pair: Pair) -> None:
    hosts = f"{shared_pair.standby.sockets.parent},{shared_pair.standby.sockets}"
    both = make_conninfo(shared_pair.standby.conninfo, host=hosts)
    async with lookups(shared_pair.primary.conninfo, both) as found:
        await found.until(STANDBY)


async def test_farther_standby_answers_while_lookups_at_the_nearest_fail(
    shared_pair: Pair,
) -> None:
    clock = MovableClock()
    hosts = f"{shared_pair.standby.sockets},{shared_pair.standby.sockets}"
    both = make_conninfo(shared_pair.standby.conninfo, host=hosts)
    async with lookups(shared_pair.primary.conninfo, both, clock) as found:
        await found.until(STANDBY)
        await found.until_host(0)
        await found.value("SELECT pg_current_wal_lsn()::text")  # an error on a standby
        assert found.sources[-1] is CheckSource.ERROR
        await found.until_host(1)
        await found.until(STANDBY)
        clock.move(NEARER_HOST_INTERVAL)
        await found.until_host(0)


async def test_nearer_standby_is_used_again_when_it_is_back(shared_pair: Pair) -> None:
    clock = MovableClock()
    near = shared_pair.standby.sockets.with_name("near")
    hosts = f"{near},{shared_pair.standby.sockets}"
    both = make_conninfo(shared_pair.standby.conninfo, host=hosts)
    async with lookups(shared_pair.primary.conninfo, both, clock) as found:
        await found.until(STANDBY)
        near.symlink_to(shared_pair.standby.sockets)
        clock.move(NEARER_HOST_INTERVAL)
        await found.until_host(0)
        await found.until(STANDBY)


async def test_primary_answers_when_the_standby_does_not(pair: Pair) -> None:
    async with lookups(pair.primary.conninfo, pair.standby.conninfo) as found:
        await on(pair, found)
        for backend in pair.standby.backends():
            backend.suspend()
        assert await found.source() is CheckSource.ERROR
        for backend in pair.standby.backends():
            backend.resume()


async def test_malformed_lookup_does_not_cost_the_standby(shared_pair: Pair) -> None:
    malformed = Statement("SELECT $1", TEXT)("a\0b")
    async with lookups(shared_pair.primary.conninfo, shared_pair.standby.conninfo) as found:
        await on(shared_pair, found)
        with pytest.raises(psycopg.DataError):
            await found.lane.look_up([malformed], 1)
        assert await found.source() is STANDBY


async def test_registration_is_extended_while_the_standby_is_used(shared_pair: Pair) -> None:
    clock = MovableClock()
    async with lookups(shared_pair.primary.conninfo, shared_pair.standby.conninfo, clock) as found:
        await on(shared_pair, found)
        [[expiry]] = shared_pair.primary.rows("SELECT expires_at::text FROM check_standbys")
        clock.move(EXTENSION_INTERVAL)
        extended = f"SELECT expires_at > '{expiry}' FROM check_standbys"  # noqa: S608  # a time
        await asyncio.to_thread(shared_pair.primary.until, extended)
        clock.move(EXTENSION_TRUSTED)
        assert await found.source() is CheckSource.UNREGISTERED
        await found.until(STANDBY)


async def test_standby_is_registered_again_after_its_registration_was_ended(
    shared_pair: Pair,
) -> None:
    clock = MovableClock()
    async with lookups(shared_pair.primary.conninfo, shared_pair.standby.conninfo, clock) as found:
        await on(shared_pair, found)
        shared_pair.primary.rows("UPDATE check_standbys SET expires_at = NULL")
        await found.until(CheckSource.UNREGISTERED)
        clock.move(RETRY)
        await found.until(STANDBY)
        assert shared_pair.primary.rows(VALID) == [("near",)]


async def test_standby_that_the_primary_no_longer_sees_is_left(pair: Pair) -> None:
    clock = MovableClock()
    async with lookups(pair.primary.conninfo, pair.standby.conninfo, clock) as found:
        await on(pair, found)
        pair.standby.rows("ALTER SYSTEM SET primary_conninfo = 'host=/nowhere'")
        pair.standby.rows("SELECT pg_reload_conf()")
        pair.primary.until("SELECT count(*) = 0 FROM pg_stat_replication")
        clock.move(EXTENSION_INTERVAL)
        await found.until(CheckSource.NO_CONNECTION)


async def test_promoted_standby_is_not_believed(pair: Pair) -> None:
    async with lookups(pair.primary.conninfo, pair.standby.conninfo) as found:
        await on(pair, found)
        pair.take_over()
        await found.value("SELECT 1")
        assert found.sources[-1] is not STANDBY


async def test_standby_that_follows_the_promoted_one_answers(pair: Pair) -> None:
    third = follower(pair, (*FAST_SETTINGS, "cluster_name=third"))
    try:
        async with lookups(pair.primary.conninfo, third.conninfo) as found:
            await found.until(STANDBY)
        pair.fail_over()
        source = f"host={pair.primary.sockets} user=postgres"
        third.rows(f"ALTER SYSTEM SET primary_conninfo = '{source}'")
        third.rows("SELECT pg_reload_conf()")
        third.until("SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE received_tli = 2")
        async with lookups(pair.primary.conninfo, third.conninfo) as found:
            await found.until(STANDBY)
    finally:
        third.stop()


async def test_lookup_has_a_later_snapshot_than_the_state_of_the_standby(pair: Pair) -> None:
    pair.standby.rows("ALTER SYSTEM SET default_transaction_isolation = 'repeatable read'")
    pair.standby.rows("SELECT pg_reload_conf()")
    pair.standby.until("SELECT current_setting('transaction_isolation') = 'repeatable read'")
    async with lookups(pair.primary.conninfo, pair.standby.conninfo) as found:
        await on(pair, found)
        isolation = await found.value("SELECT current_setting('transaction_isolation')")
        assert (found.sources[-1], isolation) == (STANDBY, "read committed")


async def test_standbys_of_one_name_are_not_used(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    other = follower(pair, NAMED)
    try:
        async with lookups(pair.primary.conninfo, pair.standby.conninfo) as found:
            await refused(found, caplog)
    finally:
        other.stop()
    assert "the primary has 2 standbys 'near'" in caplog.messages[0]
    assert pair.primary.rows("SELECT name FROM check_standbys") == []


async def test_standby_is_not_used_for_another_database(
    shared_pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = make_conninfo(shared_pair.standby.conninfo, dbname="template1")
    async with lookups(shared_pair.primary.conninfo, elsewhere) as found:
        await refused(found, caplog)
    assert "its database is 'template1', that of DATABASE_URL is 'postgres'" in caplog.messages[0]


async def test_standby_with_the_default_name_needs_a_slot(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    nameless = follower(pair, FAST_SETTINGS)
    try:
        async with lookups(pair.primary.conninfo, nameless.conninfo) as found:
            await refused(found, caplog)
            assert "set cluster_name on it" in caplog.messages[0]
            pair.primary.rows("SELECT pg_create_physical_replication_slot('third')")
            nameless.rows("ALTER SYSTEM SET primary_slot_name = 'third'")
            nameless.rows("SELECT pg_reload_conf()")
            await found.until(STANDBY)
    finally:
        nameless.stop()


async def test_standby_of_a_standby_with_the_same_name_is_not_used(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.standby.rows("SELECT pg_create_physical_replication_slot('third')")
    source = f"primary_conninfo=host={pair.standby.sockets} user=postgres"
    cascaded = follower(pair, (*NAMED, source, "primary_slot_name=third"))
    try:
        async with lookups(pair.primary.conninfo, cascaded.conninfo) as found:
            await refused(found, caplog)
    finally:
        cascaded.stop()
    assert "does not use the slot 'third'" in caplog.messages[0]


async def test_standby_of_a_standby_without_a_slot_is_not_taken_for_one_with_a_slot(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.primary.rows("SELECT pg_create_physical_replication_slot('first')")
    pair.standby.rows("ALTER SYSTEM SET primary_slot_name = 'first'")
    pair.standby.rows("SELECT pg_reload_conf()")
    pair.primary.until("SELECT bool_or(active) FROM pg_replication_slots")
    source = f"primary_conninfo=host={pair.standby.sockets} user=postgres"
    cascaded = follower(pair, (*NAMED, source))
    try:
        async with lookups(pair.primary.conninfo, cascaded.conninfo) as found:
            await refused(found, caplog)
        async with lookups(pair.primary.conninfo, pair.standby.conninfo) as found:
            await found.until(STANDBY)
    finally:
        cascaded.stop()
    assert "has a slot, this one none" in caplog.messages[0]


def follower(pair: Pair, options: Sequence[str]) -> DatabaseServer:
    """A third server, which replicates from the primary unless an option says otherwise."""
    folder = pair.standby.sockets.parent.with_name("third")
    folder.mkdir()
    server = DatabaseServer(folder, options)
    server.follow(pair.primary)
    server.start()
    server.until("SELECT count(*) = 1 FROM pg_stat_wal_receiver")
    return server


async def refused(found: Lookups, caplog: pytest.LogCaptureFixture) -> None:
    """Wait for the warning that a standby is not used; until then, the primary answers."""
    with caplog.at_level(logging.WARNING):
        while not caplog.messages:
            assert await found.source() is CheckSource.NO_CONNECTION


async def test_each_unusable_standby_is_logged_once(
    shared_pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    clock = MovableClock()
    primary = shared_pair.primary
    unusable = f"host={primary.sockets},{primary.data} user=postgres dbname=postgres"
    async with lookups(primary.conninfo, unusable, clock) as found:
        with caplog.at_level(logging.WARNING):
            while len(caplog.messages) < 2:
                await found.source()
            for _ in range(ATTEMPTS):
                clock.move(REST)
                await found.source()
    assert ["place 1" in text for text in caplog.messages] == [True, False]


@pytest.mark.parametrize("role", ["pg_read_all_stats", "pg_monitor"])
async def test_login_without_statistics_does_not_use_standbys(
    shared_pair: Pair, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    login = f"member_of_{role}"
    shared_pair.primary.rows(f"CREATE ROLE {login} LOGIN")
    shared_pair.primary.rows(f"GRANT SELECT, INSERT, UPDATE ON check_standbys TO {login}")
    catch_up(shared_pair)
    primary, standby = (
        make_conninfo(server.conninfo, user=login)
        for server in (shared_pair.primary, shared_pair.standby)
    )
    async with lookups(primary, standby) as found:
        await refused(found, caplog)
    assert "GRANT pg_read_all_stats" in caplog.messages[0]
    shared_pair.primary.rows(f"ALTER ROLE {login} NOINHERIT")
    shared_pair.primary.rows(f"GRANT {role} TO {login}")
    catch_up(shared_pair)
    async with lookups(primary, standby) as found:
        await found.until(STANDBY)


async def test_service_counts_its_checks_by_their_source(shared_pair: Pair) -> None:
    async with running_service(shared_pair.primary.conninfo, **addresses(shared_pair)) as service:
        org = await service.organization()
        key = await service.key(org.owner, org.id, "projects:read")
        async with asyncio.timeout(30):
            while not await counted(service, "standby"):
                assert (await key.caller.get(PROJECTS)).status_code == 200
        assert "tenantry_check_position_age_seconds" in await scraped(service)


async def test_first_use_of_a_partly_hashed_key_is_decided_by_the_primary(pair: Pair) -> None:
    values = {**addresses(pair), "IMPORTED_KEY_PATTERN": r"\d+\|(?P<secret>.+)"}
    async with running_service(pair.primary.conninfo, **values) as service:
        org = await service.organization()
        token = SanctumToken("x" * 40)
        await imported(service, org.id, token.member())
        catch_up(pair)
        async with asyncio.timeout(30):
            while not await counted(service, "standby"):
                assert (await org.owner.get(PROJECTS)).status_code == 200
        pair.standby.rows("SELECT pg_wal_replay_pause()")
        try:
            answers = [
                await service.caller(token.key(number)).get(PROJECTS) for number in (1, 2, 1)
            ]
            assert [answer.status_code for answer in answers] == [200, 401, 200]
        finally:
            pair.standby.rows("SELECT pg_wal_replay_resume()")


async def test_middleware_checks_on_a_standby(pair: Pair) -> None:
    async with running_service(pair.primary.conninfo) as service:
        org = await service.organization()
        key = await service.key(org.owner, org.id, "projects:read")
        values = {"API_KEY_PEPPER": PEPPER, **addresses(pair)}
        async with AsgiAuthenticator.from_values(values, clock=service.clock) as tenantry:
            sender = bearer(key.caller.credential)
            async with asyncio.timeout(30):
                while pair.standby.rows(KEY_LOOKUPS) == [(0,)]:
                    admitted = await tenantry.authenticate(sender)
                    assert admitted.principal.id == key.id


def addresses(pair: Pair) -> dict[str, str]:
    return {
        "DATABASE_URL": as_url(pair.primary.conninfo),
        "DATABASE_CHECKS_URL": as_url(pair.standby.conninfo),
    }


async def scraped(service: Service) -> str:
    return (await service.client.get("/metrics")).text


async def counted(service: Service, source: str) -> float:
    lines = (await scraped(service)).splitlines()
    name = f'tenantry_checks_total{{source="{source}"}} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


async def test_standby_has_no_position(shared_pair: Pair) -> None:
    async with await Connection.connect(shared_pair.standby.conninfo) as connection:
        with pytest.raises(psycopg.OperationalError):
            await read_position(connection)
