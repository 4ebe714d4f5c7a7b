"""What doctor finds of standbys that may answer checks, on a real primary with a standby."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from psycopg.conninfo import make_conninfo

from tenantry.cli.doctor.database_checks import check_database
from tenantry.installation.findings import Finding, Level
from tests.support.database_server import DatabaseServer, Pair
from tests.support.findings import checked_settings, only
from tests.support.ports import free_port
from tests.support.postgres import as_url
from tests.support.standby_pairs import NAMED, catch_up, migrated_pair

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def shared_pair() -> Iterator[Pair]:
    """A primary and a standby with the service's schema, for tests that leave them as they are."""
    yield from migrated_pair()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The same, for one test."""
    yield from migrated_pair()


async def standbys(pair: Pair, checks_url: str | None = None, user: str = "") -> list[Finding]:
    """What doctor finds of standbys."""
    primary = pair.primary.conninfo + (f" user={user}" if user else "")
    url = checks_url or pair.standby.conninfo + (f" user={user}" if user else "")
    settings = checked_settings(DATABASE_URL=as_url(primary), DATABASE_CHECKS_URL=as_url(url))
    findings = await check_database(primary, settings, NOW)
    return [finding for finding in findings if finding.subject == "standbys"]


def register(pair: Pair, name: str = "near") -> None:
    pair.primary.rows(
        f"INSERT INTO check_standbys VALUES ('{name}', 1, now() + interval '2 minutes')"  # noqa: S608
    )


async def test_lag_and_registration_of_a_standby_are_shown(pair: Pair) -> None:
    register(pair)
    lag, registration = await standbys(pair)
    assert (lag.level, registration.level) == (Level.OK, Level.OK)
    assert re.search(r"\(near\) is \d+ bytes behind", lag.message)
    assert "of the lease of 1.5 s" in lag.message
    assert registration.message.startswith("changes wait for near, registered for 1")


async def test_standby_that_no_process_uses_is_told(shared_pair: Pair) -> None:
    found = only(await standbys(shared_pair), Level.INFO, remedied=False)
    assert found.message == "no process uses one now"


async def test_paused_replay_is_reported(pair: Pair) -> None:
    pair.standby.rows("SELECT pg_wal_replay_pause()")
    pair.standby.until("SELECT pg_get_wal_replay_pause_state() = 'paused'")
    pair.primary.rows("CREATE TABLE example AS SELECT 1 AS value")
    found = only(await standbys(pair), Level.WARNING)
    assert "changes wait 1.6 s for it" in found.message


async def test_changes_that_wait_for_a_standby_which_is_gone_are_reported(
    shared_pair: Pair,
) -> None:
    register(shared_pair, "eu-1")
    found = only(await standbys(shared_pair), Level.WARNING)
    shared_pair.primary.rows("UPDATE check_standbys SET expires_at = NULL")
    ended = only(await standbys(shared_pair), Level.INFO, remedied=False)
    shared_pair.primary.rows("DELETE FROM check_standbys")
    assert "waits for eu-1, and removes its expired registration" in ended.message
    assert found.message.startswith("changes wait 1.6 s for eu-1, registered for 1")
    assert "the primary has no standby 'eu-1'" in found.message


async def test_name_that_the_primary_shows_twice_is_reported(pair: Pair) -> None:
    other = DatabaseServer(pair.standby.sockets.parent.with_name("third"), NAMED)
    other.sockets.parent.mkdir()
    other.follow(pair.primary)
    other.start()
    try:
        pair.primary.until("SELECT count(*) = 2 FROM pg_stat_replication")
        found = only(await standbys(pair), Level.WARNING)
    finally:
        other.stop()
    assert "the primary has 2 standbys 'near'" in found.message


async def test_missing_grant_is_reported(shared_pair: Pair) -> None:
    shared_pair.primary.rows("CREATE ROLE app LOGIN")
    shared_pair.primary.rows("GRANT SELECT ON ALL TABLES IN SCHEMA public TO app")
    catch_up(shared_pair)
    found = only(await standbys(shared_pair, user="app"), Level.WARNING)
    assert "GRANT pg_read_all_stats" in found.message


async def test_standby_that_cannot_be_reached_is_reported(shared_pair: Pair) -> None:
    away = f"host=127.0.0.1 port={free_port()} user=x password=very-secret dbname=postgres"
    found = only(await standbys(shared_pair, away), Level.WARNING)
    assert "no server listens at that address" in found.message
    assert "very-secret" not in repr(found)


async def test_primary_among_the_hosts_is_skipped(shared_pair: Pair) -> None:
    hosts = ",".join(server.host for server in shared_pair.both)
    both = make_conninfo(shared_pair.primary.conninfo, host=hosts)
    primary, standby, _ = await standbys(shared_pair, both)
    assert (primary.level, standby.level) == (Level.INFO, Level.OK)
    assert primary.message.endswith("is the primary: checks skip it")
