"""Checks of the database: the connection, the schema, the login, the peppers, and the data."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from typing import Final

import psycopg

from tenantry.auth import api_keys_store
from tenantry.cli.doctor import Finding, Level, ok, problem, problem_if
from tenantry.cli.doctor import doctor_store as store
from tenantry.cli.doctor.connection_troubles import trouble_of
from tenantry.cli.doctor.ledger_checks import check_ledger, check_refusals, check_tenants
from tenantry.cli.doctor.outbound_checks import check_webhooks, check_writers
from tenantry.cli.doctor.standby_checks import check_standbys
from tenantry.db.connection import Connection
from tenantry.db.database import Lane, for_writes, has_several_hosts, take_role
from tenantry.db.failover_detection import FailoverDetector
from tenantry.db.foreign_tables import listed
from tenantry.db.migrate import newest_revision
from tenantry.db.pooler_detection import keeps_sessions
from tenantry.db.sessions import UnusableEncodingError
from tenantry.domain.api_keys import KeyFormat, Pepper
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.settings import Settings, SettingsError

OLDEST_SERVER: Final = 15
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
            return await _check_all(connection, settings, now)
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


async def _check_all(
    connection: Connection,
    settings: Settings,
    now: datetime,
) -> list[Finding]:
    revision = await store.read_revision(connection)
    foreign = await store.read_foreign_tables(connection, is_migrated=revision is not None)
    schema = judge_revision(revision, newest_revision(), foreign)
    await store.reset_role(connection)
    server = await store.read_settings(connection)
    findings = [judge_server(server), schema]
    findings += await _run("connections", _check_connections(connection, server, settings))
    await take_role(connection)
    if schema.level is Level.ERROR:
        return findings
    findings += problem_if(foreign, "schema.foreign_tables", tables=listed(foreign))
    findings.append(await _check_login(connection))
    findings += await _run("standbys", check_standbys(connection, settings))
    findings += await _run("API_KEY_PEPPER", _check_peppers(connection, settings, now))
    findings += await _run("KEY_PREFIX", _check_prefixes(connection, settings, now))
    findings += await _run("IMPORTED_KEY_PATTERN", _check_imported(connection, settings, now))
    findings += await _run("billing ledger", check_ledger(connection, settings, now))
    findings += await _run("tenants", check_tenants(connection, settings, now))
    findings += await _run("payment provider", check_refusals(connection, now))
    findings += await _run("events", check_writers(connection))
    findings += await _run("webhooks", check_webhooks(connection, settings))
    return findings


async def _run(subject: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    """Return the findings of a check, or one that says that it was canceled; none if a setting is
    faulty.
    """
    try:
        return await check
    except SettingsError:  # reported already
        return []
    except psycopg.errors.QueryCanceled:
        return [
            Finding(
                Level.WARNING,
                subject,
                "skipped: a query took too long",
                "Check again while the database is less busy; VACUUM (ANALYZE) helps where statistics are old.",
                "Problems there stay unnoticed.",
            )
        ]


# Connection


def judge_server(server: Mapping[str, str]) -> Finding:
    """Judge whether the server is usable: its version, and that it accepts writes."""
    version = server["server_version"]
    if server.get("transaction_read_only") == "on":
        return problem("database.read_only", version=version)
    if int(server["server_version_num"]) < OLDEST_SERVER * 10_000:
        return problem("database.too_old", version=version, oldest=OLDEST_SERVER)
    return ok("database", f"PostgreSQL {version}")


async def _check_connections(
    connection: Connection,
    server: Mapping[str, str],
    settings: Settings,
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


# Schema and roles


def judge_revision(revision: str | None, newest: str, foreign: Sequence[str] = ()) -> Finding:
    """Judge whether the schema fits this release; ``foreign`` are the tables of others."""
    if revision is None and foreign:
        return problem("schema.of_others", tables=listed(foreign))
    if revision is None:
        return problem("schema.missing")
    if revision == newest:
        return ok("schema", f"revision {revision}")
    name = "schema.old" if revision < newest else "schema.new"
    return problem(name, revision=revision, newest=newest)


async def _check_login(connection: Connection) -> Finding:
    """Check whether the database isolates tenants, too."""
    login = await store.read_login(connection)
    if not login.takes_roles:
        return problem("database roles.not_used", login=login.name)
    rights = "takes the service's roles"
    if login.owns_tables:
        rights = "owns the tables and could change that"
    return ok("database roles", f"each request sees one tenant's rows; {login.name} {rights}")


# Keys


async def _check_prefixes(
    connection: Connection,
    settings: Settings,
    now: datetime,
) -> list[Finding]:
    return judge_prefixes(
        await api_keys_store.count_by_prefix(connection, now), settings.key_format
    )


def judge_prefixes(counts: Mapping[str, int], key_format: KeyFormat) -> list[Finding]:
    """Judge whether each active key's prefix is accepted; ``counts`` are active keys by prefix."""
    lost = {
        prefix: number
        for prefix, number in sorted(counts.items())
        if prefix not in key_format.prefixes
    }
    named = ", ".join(f"{prefix}: {number}" for prefix, number in lost.items())
    return problem_if(lost, "KEY_PREFIX.not_accepted", named=named)


async def _check_imported(
    connection: Connection,
    settings: Settings,
    now: datetime,
) -> list[Finding]:
    """Check whether active keys of other systems are looked up at all."""
    if settings.imported_key_pattern is not None:
        return []
    number = await api_keys_store.count_active_imported(connection, now)
    return problem_if(number, "IMPORTED_KEY_PATTERN.missing")


async def _check_peppers(
    connection: Connection,
    settings: Settings,
    now: datetime,
) -> list[Finding]:
    ids = [Pepper(pepper.reveal().encode()).id for pepper in settings.peppers]
    return judge_peppers(await api_keys_store.count_by_pepper(connection, now), ids)


def judge_peppers(counts: Mapping[str | None, int], peppers: Sequence[str]) -> list[Finding]:
    """Judge whether each active key's pepper is set, and which older peppers are still needed.

    ``counts`` are active keys by pepper (None: not known); ``peppers`` are the configured ones,
    newest first.
    """
    newest, *older = peppers
    if lost := _count_others(counts, (None, *peppers)):
        return [problem("API_KEY_PEPPER.missing", number=lost)]
    if not older:
        return []
    if waiting := _count_others(counts, (newest,)):
        return [problem("API_KEY_PEPPER.needed", number=waiting)]
    number = counts.get(newest, 0)
    text = f"every active key uses the first one ({number}): no key needs the others"
    return [ok("API_KEY_PEPPER", text)]


def _count_others(counts: Mapping[str | None, int], peppers: Sequence[str | None]) -> int:
    """Count the keys of all other peppers."""
    return sum(number for pepper, number in counts.items() if pepper not in peppers)
