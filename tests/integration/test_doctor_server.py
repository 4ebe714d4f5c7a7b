"""The checks of the database server, on a real one."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from tenantry.cli.doctor import Finding, Level
from tenantry.cli.doctor.database_checks import check_database
from tenantry.db.connection import Connection
from tests.support.findings import checked_settings


@pytest.fixture
async def connection(conninfo: str) -> AsyncIterator[Connection]:
    async with await Connection.connect(conninfo, autocommit=True) as connection:
        yield connection


async def about(conninfo: str, subject: str) -> list[Finding]:
    """The findings about a subject, for a set-up of one process."""
    findings = await check_database(conninfo, checked_settings(), datetime.now(UTC))
    return [finding for finding in findings if finding.subject == subject]


async def test_each_setting_that_gives_up_durability_is_reported(emptied: str) -> None:
    names = [finding.message for finding in await about(emptied, "durability")]
    assert names == ["fsync is off", "full_page_writes is off", "synchronous_commit is off"]


@pytest.mark.parametrize("subject", ["connections", "jobs"])
async def test_a_server_in_order(emptied: str, subject: str) -> None:
    assert [finding.level for finding in await about(emptied, subject)] == [Level.OK]


async def test_a_read_only_database_is_an_error(conninfo: str, connection: Connection) -> None:
    name = connection.info.dbname
    await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    found = [
        finding.message
        for finding in await about(conninfo, "database")
        if finding.level is Level.ERROR
    ]
    assert found == ["is read-only"]


async def test_a_limit_of_the_database_counts(conninfo: str, connection: Connection) -> None:
    await connection.execute(f'ALTER DATABASE "{connection.info.dbname}" CONNECTION LIMIT 12')
    [finding] = await about(conninfo, "connections")
    assert (
        finding.level,
        finding.message.endswith("12 available (the limit of the database)"),
    ) == (Level.WARNING, True)


async def test_an_overdue_job_is_reported_where_its_queue_is_served(
    conninfo: str, connection: Connection
) -> None:
    for queue in ("mail", "provider"):
        await connection.execute(
            "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW(%s, 'x', 0, NULL, NULL, '{}', now() - interval '1 hour')"
            "::procrastinate_job_to_defer_v1])",
            (queue,),
        )
    found = [finding.message for finding in await about(conninfo, "jobs")]
    assert found == [
        f"a job in the queue {queue} has been due for 60 min" for queue in ("mail", "provider")
    ]
    unserved = await check_database(
        conninfo, checked_settings(SMTP_URL="", PROVIDER_SECRET_KEY=""), datetime.now(UTC)
    )
    assert [finding.level for finding in unserved if finding.subject == "jobs"] == [Level.OK]
