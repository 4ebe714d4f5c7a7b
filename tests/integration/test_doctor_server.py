"""The checks of the database server, on a real one."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from tenantry.cli.doctor.database_checks import check_database
from tenantry.db.connection import Connection
from tenantry.installation.findings import Finding, Level
from tests.support.findings import checked_settings


@pytest.fixture
async def connection(conninfo: str) -> AsyncIterator[Connection]:
    async with await Connection.connect(conninfo, autocommit=True) as connection:
        yield connection


async def about(conninfo: str, subject: str) -> list[Finding]:
    """The findings about a subject, for a set-up of one process."""
    findings = await check_database(conninfo, checked_settings(), datetime.now(UTC))
    return [finding for finding in findings if finding.subject == subject]


async def test_a_server_in_order(emptied: str) -> None:
    assert [finding.level for finding in await about(emptied, "connections")] == [Level.OK]


async def test_a_read_only_database_is_an_error(conninfo: str, connection: Connection) -> None:
    name = connection.info.dbname
    await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    [finding] = await about(conninfo, "database")
    assert finding.level is Level.ERROR
    assert "accepts no writes" in finding.message


async def test_a_limit_of_the_database_counts(conninfo: str, connection: Connection) -> None:
    await connection.execute(f'ALTER DATABASE "{connection.info.dbname}" CONNECTION LIMIT 12')
    [finding] = await about(conninfo, "connections")
    assert (
        finding.level,
        finding.message.endswith("12 available (the limit of the database)"),
    ) == (Level.WARNING, True)
