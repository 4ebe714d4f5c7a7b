"""The service with PgBouncer in session mode at DATABASE_URL: every session has tenantry's
settings.
"""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tenantry.cli.doctor.database_checks import check_database
from tenantry.common.clock import Timeouts, system_clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.installation.findings import Level
from tests.support.app import OPERATOR_TOKEN
from tests.support.command_runner import invoke
from tests.support.commands import SECRETS
from tests.support.deployment import deployed
from tests.support.findings import checked_settings
from tests.support.pgbouncer import PgBouncer, running_pgbouncer
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import TENANTS

CONNECTIONS: Final = 60
"""More than two processes of the service and a command need."""
DROPS_OPTIONS: Final = "ignore_startup_parameters = extra_float_digits,options"
"""What many guides recommend: PgBouncer then drops options without a word."""


@pytest.fixture(scope="module", params=["", DROPS_OPTIONS], ids=["as it comes", "drops options"])
def pooler(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[PgBouncer]:
    with running_pgbouncer(
        postgres.conninfo, mode="session", connections=CONNECTIONS, more=request.param
    ) as pooler:
        yield pooler


async def shown(connection: psycopg.AsyncConnection[Any]) -> tuple[str, ...]:
    cursor = await connection.execute(
        "SELECT current_setting('statement_timeout'), current_setting('TimeZone'),"
        " current_setting('idle_in_transaction_session_timeout')"
    )
    [row] = await cursor.fetchall()
    return tuple(row)


async def test_every_kind_of_session_has_the_settings(conninfo: str, pooler: PgBouncer) -> None:
    pooled = pooler.conninfo_of(conninfo)
    async with Database(pooled, 2) as database:
        async with database.transaction(ACROSS_TENANTS) as connection:
            ordinary = await shown(connection)
        async with database.lane({"work_mem": "5MB"}).use() as connection:
            of_lane = await shown(connection)
            planned = await connection.fetch(
                "SELECT current_setting('enable_seqscan'), current_setting('work_mem')"
            )
    assert {ordinary, of_lane} == {("4s", "UTC", "10s")}
    assert planned == [("off", "5MB")]


async def test_long_statement_ends(conninfo: str, pooler: PgBouncer) -> None:
    async with Database(
        pooler.conninfo_of(conninfo), 2, timeouts=Timeouts(statement=0.1)
    ) as database:
        with pytest.raises(DatabaseUnavailableError) as of_pool:
            async with database.transaction(ACROSS_TENANTS) as connection:
                await connection.execute("SELECT pg_sleep(60)")
        with pytest.raises(DatabaseUnavailableError) as of_lane:
            async with database.lane().use() as connection:
                await connection.execute("SELECT pg_sleep(60)")
    for caught in (of_pool, of_lane):
        assert isinstance(caught.value.__cause__, psycopg.errors.QueryCanceled)


async def test_service_migrates_serves_and_runs_jobs(
    postgres: PostgresServer, pooler: PgBouncer, tmp_path: Path
) -> None:
    with postgres.database(migrated=False) as conninfo:
        url = as_url(pooler.conninfo_of(conninfo))
        values = {"OPERATOR_TOKEN": OPERATOR_TOKEN, "RUN_JOBS": "true", "DATABASE_POOL_SIZE": "2"}
        async with (
            deployed(url, tmp_path, credential=OPERATOR_TOKEN, **values) as deployment,
            deployment.client() as operator,
        ):
            body = {"name": "Org", "ownerEmail": "owner@x.example"}
            made = await asyncio.gather(
                *(operator.put(f"{TENANTS}/org-{one}", json=body) for one in range(20))
            )
            assert {answer.status_code for answer in made} == {201}
            findings = await check_database(
                url, checked_settings(OPERATOR_TOKEN=OPERATOR_TOKEN), system_clock()
            )
            assert [finding for finding in findings if finding.level is Level.ERROR] == []
            assert await deployment.command.end(signal.SIGTERM) == 0
        assert "Traceback" not in deployment.command.text["err"]


async def test_doctor_finds_transaction_mode(postgres: PostgresServer, conninfo: str) -> None:
    with running_pgbouncer(postgres.conninfo, more=DROPS_OPTIONS) as pooler:
        [finding] = await check_database(
            pooler.conninfo_of(conninfo), checked_settings(), system_clock()
        )
    assert (finding.level, finding.message) == (
        Level.ERROR,
        "DATABASE_URL leads to a pooler in transaction mode",
    )


@pytest.mark.parametrize("command", ["migrate", "serve", "serve --no-migrate", "worker"])
def test_transaction_mode_is_rejected(
    postgres: PostgresServer, conninfo: str, tmp_path: Path, command: str
) -> None:
    with running_pgbouncer(postgres.conninfo, more=DROPS_OPTIONS) as pooler:
        url = as_url(pooler.conninfo_of(conninfo))
        done = invoke(*command.split(), folder=tmp_path, DATABASE_URL=url, PORT="0", **SECRETS)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("DATABASE_URL: it leads to a pooler in transaction mode")
