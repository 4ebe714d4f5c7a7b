"""Checks of the database server, the schema, the login, the peppers, and the data."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import psycopg

from tenantry.auth import api_keys_store
from tenantry.common.encoding import shortened
from tenantry.db.connection import Connection
from tenantry.db.foreign_tables import MOST_LISTED
from tenantry.domain.api_keys import KeyFormat, Pepper
from tenantry.installation import checks_store as store
from tenantry.installation.findings import (
    CheckedDatabase,
    Finding,
    Level,
    ok,
    problem,
    problem_if,
)
from tenantry.installation.ledger_checks import check_ledger, check_refusals, check_tenants
from tenantry.installation.outbound_checks import (
    check_jobs,
    check_mails,
    check_webhooks,
    check_writers,
)
from tenantry.installation.standby_checks import check_standbys

OLDEST_SERVER: Final = 15

DataCheck = Callable[[CheckedDatabase], Awaitable[list[Finding]]]
"""A check of a database with a schema."""


async def unless_slow(subject: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    """Return the findings of a check, or one that says that it was canceled."""
    try:
        return await check
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


# Server, schema and roles


def judge_server(server: Mapping[str, str]) -> Finding:
    """Judge whether the server is usable: its version, and that it accepts writes."""
    version = server["server_version"]
    if server.get("transaction_read_only") == "on":
        return problem("database.read_only", version=version)
    if int(server["server_version_num"]) < OLDEST_SERVER * 10_000:
        return problem("database.too_old", version=version, oldest=OLDEST_SERVER)
    return ok("database", f"PostgreSQL {version}")


def judge_revision(revision: str | None, newest: str, foreign: Sequence[str] = ()) -> Finding:
    """Judge whether the schema fits this release; ``foreign`` are the tables of others."""
    if revision is None and foreign:
        return problem("schema.of_others", tables=shortened(foreign, MOST_LISTED))
    if revision is None:
        return problem("schema.missing")
    if revision == newest:
        return ok("schema", f"revision {revision}")
    name = "schema.old" if revision < newest else "schema.new"
    return problem(name, revision=revision, newest=newest)


async def check_login(connection: Connection) -> Finding:
    """Check whether the database isolates tenants, too."""
    login = await store.read_login(connection)
    if not login.takes_roles:
        return problem("database roles.not_used", login=login.name)
    rights = "takes the service's roles"
    if login.owns_tables:
        rights = "owns the tables and could change that"
    return ok("database roles", f"each request sees one tenant's rows; {login.name} {rights}")


# Keys


async def _check_prefixes(database: CheckedDatabase) -> list[Finding]:
    counts = await api_keys_store.count_by_prefix(database.connection, database.now)
    return judge_prefixes(counts, database.settings.key_format)


def judge_prefixes(counts: Mapping[str, int], key_format: KeyFormat) -> list[Finding]:
    """Judge whether each active key's prefix is accepted; ``counts`` are active keys by prefix."""
    lost = {
        prefix: number
        for prefix, number in sorted(counts.items())
        if prefix not in key_format.prefixes
    }
    named = ", ".join(f"{prefix}: {number}" for prefix, number in lost.items())
    return problem_if(lost, "KEY_PREFIX.not_accepted", named=named)


async def _check_imported(database: CheckedDatabase) -> list[Finding]:
    """Check whether active keys of other systems are looked up at all."""
    if database.settings.imported_key_pattern is not None:
        return []
    number = await api_keys_store.count_active_imported(database.connection, database.now)
    return problem_if(number, "IMPORTED_KEY_PATTERN.missing")


async def _check_peppers(database: CheckedDatabase) -> list[Finding]:
    ids = [Pepper(pepper.reveal().encode()).id for pepper in database.settings.peppers]
    counts = Counter(await api_keys_store.count_by_pepper(database.connection, database.now))
    counts.update(await store.count_erased_by_pepper(database.connection))
    return judge_peppers(counts, ids)


def judge_peppers(counts: Mapping[str | None, int], peppers: Sequence[str]) -> list[Finding]:
    """Judge whether each active key's pepper is set, and which older peppers are still needed.

    ``counts`` are active keys by pepper (None: not known), and removed members whose data was
    erased; ``peppers`` are the configured ones,
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


DATA_CHECKS: Final[Mapping[str, DataCheck]] = {
    "standbys": check_standbys,
    "API_KEY_PEPPER": _check_peppers,
    "KEY_PREFIX": _check_prefixes,
    "IMPORTED_KEY_PATTERN": _check_imported,
    "billing ledger": check_ledger,
    "tenants": check_tenants,
    "payment provider": check_refusals,
    "events": check_writers,
    "webhooks": check_webhooks,
    "mail": check_mails,
    "jobs": check_jobs,
}
"""The checks of data, by subject, in the order of the report."""
