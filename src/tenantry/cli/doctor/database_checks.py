"""Checks of the connection to the database, and all of its data."""

import asyncio
from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import Final

import psycopg

from tenantry.common.encoding import shortened
from tenantry.db.connection import Connection
from tenantry.db.database import Lane, for_writes, has_several_hosts, take_role
from tenantry.db.failover_detection import FailoverDetector
from tenantry.db.foreign_tables import MOST_LISTED
from tenantry.db.migrate import newest_revision
from tenantry.db.pooler_detection import keeps_sessions
from tenantry.db.sessions import UnusableEncodingError
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.installation import checks_store as store
from tenantry.installation.connection_troubles import trouble_of
from tenantry.installation.data_checks import (
    DATA_CHECKS,
    check_login,
    judge_revision,
    judge_server,
    unless_slow,
)
from tenantry.installation.findings import (
    CheckedDatabase,
    Finding,
    Level,
    ok,
    problem,
    problem_if,
)
from tenantry.settings import Settings, SettingsError

_RESERVED: Final = ("superuser_reserved_connections", "reserved_connections")


async def check_database(
    conninfo: str,
    settings: Settings,
    now: datetime,
    *,
    statement_timeout: float = 30.0,
) -> list[Finding]:
    """Check the connection, the schema and the data.

    Leaves out a check that needs a faulty setting. Skips one, with a warning, if a statement takes
    more than ``statement_timeout`` seconds.
    """
    limit = str(round(statement_timeout * 1000))
    try:
        lane = Lane(FailoverDetector(for_writes(conninfo)), {"statement_timeout": limit})
    except psycopg.ProgrammingError:
        return [problem("database.unusable", trouble="the address cannot be parsed")]
    if await _is_transaction_pooler(conninfo):
        return [problem("database.transaction_pooler")]
    try:
        async with lane.use(autocommit=True) as connection:
            return await _check_all(CheckedDatabase(connection, settings, now), settings)
    except DatabaseUnavailableError as error:
        if isinstance(error.__cause__, UnusableEncodingError):
            return [problem("database.encoding", encoding=error.__cause__.encoding)]
        return [problem("database.unusable", trouble=trouble_of(error.__cause__))]
    except psycopg.Error as error:
        return [problem("database.unusable", trouble=f"a query failed (SQLSTATE {error.sqlstate})")]
    finally:
        await lane.close()


async def _is_transaction_pooler(conninfo: str) -> bool:
    try:
        return not await asyncio.to_thread(keeps_sessions, for_writes(conninfo))
    except psycopg.Error:  # the other checks report it
        return False


async def _check_all(database: CheckedDatabase, settings: Settings) -> list[Finding]:
    connection = database.connection
    revision = await store.read_revision(connection)
    foreign = await store.read_foreign_tables(connection, is_migrated=revision is not None)
    schema = judge_revision(revision, newest_revision(), foreign)
    await store.reset_role(connection)
    server = await store.read_settings(connection)
    findings = [judge_server(server), schema]
    findings += await _run("connections", _check_connections(connection, settings, server))
    await take_role(connection)
    if schema.level is Level.ERROR:
        return findings
    findings += problem_if(foreign, "schema.foreign_tables", tables=shortened(foreign, MOST_LISTED))
    findings.append(await check_login(connection))
    for subject, check in DATA_CHECKS.items():
        findings += await _run(subject, check(database))
    return findings


async def _run(subject: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    """Return the findings of a check; none if a setting is faulty."""
    try:
        return await unless_slow(subject, check)
    except SettingsError:  # reported already
        return []


async def _check_connections(
    connection: Connection, settings: Settings, server: Mapping[str, str]
) -> list[Finding]:
    watching = settings.workers if has_several_hosts(settings.database_url or "") else 0
    limits = await store.read_connection_limits(connection)
    return [judge_connections(server, limits, settings.connections + watching)]


def judge_connections(
    server: Mapping[str, str],
    limits: store.ConnectionLimits,
    needed: int,
) -> Finding:
    """Judge whether the set-up can open the connections that it needs."""
    reserved = sum(int(server.get(name, 0)) for name in _RESERVED)
    bounds = {
        "max_connections, less those reserved": int(server["max_connections"]) - reserved,
        "the limit of the database": limits.of_database,
        "the limit of the user": limits.of_user,
    }
    known = {what: limit for what, limit in bounds.items() if limit is not None}
    lowest = min(known, key=known.__getitem__)
    counts = (
        f"one `tenantry serve` needs up to {needed}, {limits.open_now} open now, "
        f"{known[lowest]} available ({lowest})"
    )
    if needed > known[lowest]:
        return problem("connections.too_few", counts=counts)
    return ok("connections", counts)
