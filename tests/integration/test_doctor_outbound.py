"""What doctor finds about the feed of changes and the endpoints of webhooks."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenantry.cli.doctor.database_checks import check_database
from tenantry.db.connection import Connection
from tenantry.domain.plans import Catalog
from tenantry.domain.webhook_endpoints import EndpointState
from tenantry.installation.findings import Finding, Level, ok
from tenantry.installation.outbound_checks import judge_endpoint, judge_writer
from tenantry.outbound.events_store import OldestWriter, read_oldest_writer
from tests.support.catalogs import CATALOG
from tests.support.findings import checked_settings, only
from tests.support.outbound_webhooks import Sending
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.webhook_endpoint import answer, endpoint_at, running_webhook_server

NOW = datetime(2026, 11, 2, 9, 45, 10, tzinfo=UTC)


# The feed


@pytest.mark.parametrize(("seconds", "level"), [(29, Level.OK), (30, Level.WARNING)])
def test_a_transaction_that_stays_open_is_a_problem(seconds: int, level: Level) -> None:
    [found] = judge_writer(OldestWriter("process 7", "shop", "psql", seconds))
    assert found.level is level
    assert "process 7, database shop, application psql" in found.message


def test_a_transaction_that_has_just_begun_is_none() -> None:
    assert judge_writer(OldestWriter("process 7", "shop", "psql", 0)) == []
    [hidden] = judge_writer(OldestWriter(seconds=0, is_exact=False))
    assert "at least 0 s" in hidden.message


def test_open_transaction_is_described() -> None:
    oldest = OldestWriter("process 7", "shop", "", 7205)
    found = only(judge_writer(oldest), Level.WARNING)
    assert found.subject == "events"
    expected = "has been open for 2 h: process 7, database shop, application (not set)"
    assert found.message == f"the oldest transaction that writes {expected}"


def test_what_the_login_is_not_shown_is_said() -> None:
    found = only(judge_writer(OldestWriter(seconds=60, is_exact=False)), Level.WARNING)
    expected = "at least 1 min: not shown to this login, database -, application (not set)"
    assert found.message == f"the oldest transaction that writes has been open for {expected}"
    assert "GRANT pg_read_all_stats" in str(found.remedy)


@pytest.fixture
async def connection(emptied: str) -> AsyncIterator[Connection]:
    async with await Connection.connect(emptied, autocommit=True) as connection:
        yield connection


async def test_transaction_that_only_reads_is_not_waited_for(
    connection: Connection, emptied: str
) -> None:
    async with await psycopg.AsyncConnection.connect(emptied) as reader:
        await reader.execute("SELECT count(*) FROM tenants")
        oldest = await read_oldest_writer(connection)
        assert oldest is None or oldest.name != f"process {reader.info.backend_pid}"


async def test_oldest_writing_transaction_of_the_server_is_found(
    connection: Connection, emptied: str, postgres: PostgresServer
) -> None:
    """A transaction in another database holds up the snapshots of this one too."""
    xmin = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text"
    named = make_conninfo(postgres.conninfo, application_name="nightly import")
    async with (
        await psycopg.AsyncConnection.connect(named) as first,
        await psycopg.AsyncConnection.connect(emptied) as second,
    ):
        row = await (await first.execute("SELECT pg_current_xact_id()::text")).fetchone()
        await second.execute("SELECT pg_current_xact_id()")
        oldest = await read_oldest_writer(connection)
        assert oldest is not None
        assert oldest.name == f"process {first.info.backend_pid}"
        assert (oldest.database, oldest.application) == (first.info.dbname, "nightly import")
        assert row is not None
        assert await connection.fetch_value(xmin) == row[0]


# Endpoints


def state(**values: object) -> EndpointState:
    return EndpointState(name="app", **values)  # type: ignore[arg-type]


def test_endpoint_in_order() -> None:
    found = judge_endpoint(state(waiting=2, last_success_at=NOW))
    assert found == [ok("webhooks", "app: 2 events waiting, last success 2026-11-02 09:45")]


def test_endpoint_that_has_sent_nothing_is_in_order() -> None:
    assert judge_endpoint(state()) == [ok("webhooks", "app: 0 events waiting, last success -")]


def test_disabled_endpoint_is_an_error() -> None:
    found = judge_endpoint(state(held=3, failing_since=NOW, disabled_at=NOW, disabled_reason="why"))
    message = only(found, Level.ERROR).message
    assert message == "app has been disabled since 2026-11-02 09:45 UTC: why (3 events held)"


def test_failing_endpoint_is_a_warning() -> None:
    message = only(judge_endpoint(state(waiting=3, failing_since=NOW)), Level.WARNING).message
    assert message == "app has failed since 2026-11-02 09:45 UTC (3 events waiting)"


def test_held_events_of_an_endpoint_that_works_are_a_warning() -> None:
    message = only(judge_endpoint(state(held=1, last_success_at=NOW)), Level.WARNING).message
    assert message == "app: all attempts to send have failed (1 event held)"


async def test_endpoints_of_the_catalog_are_checked(emptied: str) -> None:
    async with (
        running_webhook_server() as server,
        patient_database(emptied, pool_size=2) as database,
    ):
        endpoint = endpoint_at(f"http://127.0.0.1:{server.port}/")
        sending = Sending(database, [endpoint])
        await sending.begin()
        server.response = answer(410)
        await sending.publish()
        await sending.send()
        catalog = Catalog(CATALOG.plans, webhooks=(endpoint,))
        findings = await check_database(emptied, checked_settings(catalog), sending.clock())
    [found] = [finding for finding in findings if finding.subject == "webhooks"]
    assert found.level is Level.ERROR
    assert "the receiver answered 410 Gone (1 event held)" in found.message


def subjects(findings: list[Finding]) -> set[str]:
    return {finding.subject for finding in findings}


async def test_without_endpoints_there_is_no_finding(emptied: str) -> None:
    findings = await check_database(emptied, checked_settings(), NOW)
    assert "webhooks" not in subjects(findings)
