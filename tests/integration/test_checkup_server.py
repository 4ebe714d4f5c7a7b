"""The check-up of the database server, on a real one."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from tenantry.cli.doctor import server_store as server
from tenantry.cli.doctor.database import check_database
from tenantry.cli.doctor.finding import Finding, Level
from tenantry.common.clock import system_clock
from tenantry.db.connection import Connection
from tests.support.findings import billing_terms


@pytest.fixture
async def connection(conninfo: str) -> AsyncIterator[Connection]:
    async with await Connection.connect(conninfo, autocommit=True) as connection:
        yield connection


async def about(conninfo: str, subject: str) -> list[Finding]:
    """What is found about a subject, with this machine's clock and a set-up of one process."""
    findings = await check_database(
        conninfo, billing_terms(), datetime.now(UTC), sends_mail=True, peppers=(), needed=13, clock=system_clock
    )
    return [finding for finding in findings if finding.subject == subject]


async def test_a_server_in_haste_is_told_of_by_each_setting(emptied: str) -> None:
    names = [finding.message for finding in await about(emptied, "durability")]
    assert names == ["fsync is off", "full_page_writes is off", "synchronous_commit is off"]


@pytest.mark.parametrize("subject", ["connections", "clock", "size", "upkeep", "jobs"])
async def test_a_server_in_order(emptied: str, subject: str) -> None:
    assert [finding.level for finding in await about(emptied, subject)] == [Level.OK]


async def test_a_database_that_is_read_only_is_told_of(conninfo: str, connection: Connection) -> None:
    name = connection.info.dbname
    await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    found = [finding.message for finding in await about(conninfo, "database") if finding.level is Level.ERROR]
    assert found == ["is read-only"]


async def test_a_limit_of_the_database_counts(conninfo: str, connection: Connection) -> None:
    await connection.execute(f'ALTER DATABASE "{connection.info.dbname}" CONNECTION LIMIT 12')
    [finding] = await about(conninfo, "connections")
    assert (finding.level, finding.message.endswith("12 to be had (the limit of the database)")) == (
        Level.WARNING, True
    )  # fmt: skip


async def test_an_open_transaction_is_found_by_its_age(conninfo: str, connection: Connection) -> None:
    async with await Connection.connect(conninfo, application_name="forgotten") as other:
        await other.execute("SELECT 1")
        assert await server.old_transactions(connection, timedelta(hours=1)) == []
        [found] = await server.old_transactions(connection, timedelta())
        assert (found.state, found.application) == ("idle in transaction", "forgotten")
        assert found.seconds > 0
    assert await server.old_transactions(connection, timedelta()) == []


async def test_a_table_of_dead_rows_is_found(conninfo: str, connection: Connection) -> None:
    await connection.execute("CREATE TABLE worn (n int) WITH (autovacuum_enabled = off)")
    await connection.execute("INSERT INTO worn SELECT generate_series(1, 10)")
    for _ in range(3):
        await connection.execute("UPDATE worn SET n = n + 1")
    await connection.execute("SELECT pg_stat_force_next_flush()")
    async with await Connection.connect(conninfo, autocommit=True) as other:
        [found] = [table for table in await server.untidy_tables(other, 20, 0.5) if table.name == "worn"]
        assert (found.live, found.dead) == (10, 30)
        assert [table for table in await server.untidy_tables(other, 31, 0.5) if table.name == "worn"] == []


async def test_a_replication_slot_that_nobody_reads_is_found(connection: Connection) -> None:
    name = f"slot_{connection.info.dbname}"
    await connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", (name,))
    try:
        assert name in dict(await server.idle_slots(connection))
    finally:
        await connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))


async def test_sizes_are_those_of_the_biggest_tables(connection: Connection) -> None:
    await connection.execute("CREATE TABLE big AS SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
    size, tables = await server.read_sizes(connection)
    assert tables[0][0] == "big"
    assert size > tables[0][1] > 2_000_000


async def test_a_job_that_is_due_is_told_of_where_its_queue_is_served(conninfo: str, connection: Connection) -> None:
    for queue in ("mail", "provider"):
        await connection.execute(
            "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW(%s, 'x', 0, NULL, NULL, '{}', now() - interval '1 hour')"
            "::procrastinate_job_to_defer_v1])",
            (queue,),
        )
    found = [finding.message for finding in await about(conninfo, "jobs")]
    assert found == [f"in the queue {queue} one has been due for 60 min" for queue in ("mail", "provider")]
    unserved = await check_database(
        conninfo, billing_terms(asks_provider=False), datetime.now(UTC), sends_mail=False, peppers=()
    )
    assert [finding.level for finding in unserved if finding.subject == "jobs"] == [Level.OK]
