"""Checks of the database: the server, the schema, the login, and the data that needs attention."""

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import psycopg

from tenantry.auth import api_keys_store
from tenantry.billing import ledger_queries_store as billing
from tenantry.billing import reconcile_store as reconcile
from tenantry.cli.doctor import Finding, Level, ok, problem, problem_if
from tenantry.cli.doctor import doctor_store as store
from tenantry.cli.doctor.doctor_store import Names
from tenantry.db.connection import Connection
from tenantry.db.database import Lane, for_writes, has_several_hosts, take_role
from tenantry.db.failover_detection import FailoverDetector
from tenantry.db.foreign_tables import listed
from tenantry.db.job_names import MAIL, PERIODIC, PROVIDER
from tenantry.db.migrate import newest_revision
from tenantry.db.pooler_detection import keeps_sessions
from tenantry.domain.api_keys import Pepper
from tenantry.domain.billing.events import Anomaly
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.jobs import runs_store as jobs
from tenantry.jobs.runs_store import JobRuns
from tenantry.notifications import mail_delivery_store as mails
from tenantry.settings import Settings, SettingsError

OLDEST_SERVER: Final = 15
KEY_AGE: Final = timedelta(days=365)
STUCK_SECONDS: Final = 3600.0
LONGEST_DUE: Final = 300.0
LONGEST_CONFIRMATION: Final = timedelta(seconds=2)
"""How long a healthy synchronous standby lets a commit wait, at most."""
HOUR: Final = timedelta(hours=1)
LONGEST_BETWEEN_RUNS: Final = 3 * HOUR
LEDGER_PERIOD: Final = timedelta(days=30)
"""How old the events are at most; the texts name it."""
BODIES_GRACE: Final = timedelta(days=2)
"""How long raw bodies may outlive their retention: the job that removes them may not have run for a
while.
"""
COMPARISONS_MISSED: Final = 3

_DURABLE: Final = ("fsync", "full_page_writes", "synchronous_commit")
# Messages of PostgreSQL's client, and ours, because its messages may contain parts of a malformed
# DATABASE_URL.
_TROUBLES: Final = {
    "password authentication failed": "the user or password is rejected",
    "no password supplied": "the server requires a password",
    "failed to resolve host|could not translate host name": "the host name is not known",
    r"pg_hba\.conf": "the server accepts no connection of this user from here (pg_hba.conf)",
    "certificate|SSL": "the TLS handshake fails",
    "does not exist": "the database or the user does not exist",
    "too many|remaining connection slots": "the server has no connection free",
    "refused|No such file": "no server listens at that address",
    "starting up": "the server is starting up",
}
_ELSEWHERE: Final = frozenset({Anomaly.IGNORED_LIVEMODE, Anomaly.AMBIGUOUS_ORDER, Anomaly.DRIFT})
"""Anomalies that are no problem of the ledger, or that another check reports."""
_MODES: Final = {True: "live", False: "test"}


async def check_database(
    conninfo: str, settings: Settings, now: datetime, *, statement_timeout: float = 30.0
) -> list[Finding]:
    """Check the server, the schema and the data.

    Leaves out a check that needs a faulty setting. Skips one, with a warning, if a statement takes
    more than ``statement_timeout`` seconds.
    """
    try:
        limit = str(round(statement_timeout * 1000))
        lane = Lane(FailoverDetector(for_writes(conninfo)), {"statement_timeout": limit})
    except psycopg.ProgrammingError:
        return [problem("database.unusable", trouble="the address cannot be parsed")]
    if await _is_transaction_pooler(conninfo):
        return [problem("database.transaction_pooler")]
    try:
        async with lane.use(autocommit=True) as connection:
            revision = await store.read_revision(connection)
            foreign = await store.read_foreign_tables(connection, is_migrated=revision is not None)
            schema = judge_revision(revision, newest_revision(), foreign)
            await store.reset_role(connection)
            server = await store.read_settings(connection)
            findings = [
                judge_server(server),
                schema,
                *judge_writing(server),
                *judge_durability(server),
            ]
            findings += await _run("durability", _check_confirmation(connection))
            findings += await _run("connections", _check_connections(connection, server, settings))
            await take_role(connection)
            if schema.level is Level.ERROR:
                return findings
            findings += problem_if(foreign, "schema.foreign_tables", tables=listed(foreign))
            findings.append(await _check_login(connection))
            findings += await _run("mail", _check_mail(connection, settings))
            findings += await _run("jobs", _check_jobs(connection, settings, now))
            findings += await _run("API keys", _check_old_keys(connection, now))
            findings += await _run("API_KEY_PEPPER", _check_peppers(connection, settings, now))
            findings += await _run("billing ledger", _check_ledger(connection, settings, now))
            findings += await _run("tenants", _check_tenants(connection, settings, now))
            return findings
    except DatabaseUnavailableError as error:
        return [problem("database.unusable", trouble=_trouble(error.__cause__))]
    except psycopg.Error as error:
        return [problem("database.unusable", trouble=f"a query failed (SQLSTATE {error.sqlstate})")]
    finally:
        await lane.close()


async def _is_transaction_pooler(conninfo: str) -> bool:
    try:
        return not await asyncio.to_thread(keeps_sessions, for_writes(conninfo))
    except psycopg.Error:  # the other checks report it
        return False


async def _run(subject: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    """Return the findings of a check, or one that says that it was canceled; none if a setting is
    faulty.
    """
    try:
        return await check
    except SettingsError:  # reported already
        return []
    except psycopg.errors.QueryCanceled:
        message, why = "skipped: a query took too long", "Problems there stay unnoticed."
        remedy = "Check again while the database is less busy; VACUUM (ANALYZE) helps where statistics are old."
        return [Finding(Level.WARNING, subject, message, remedy, why)]


def _trouble(cause: BaseException | None) -> str:
    if isinstance(cause, TimeoutError):
        return "the server does not answer in time"
    found = (ours for theirs, ours in _TROUBLES.items() if re.search(theirs, str(cause)))
    return next(found, "the connection is refused or breaks off")


def judge_server(server: Mapping[str, str]) -> Finding:
    """Judge whether the server is usable: its version, and that it accepts writes."""
    version = server["server_version"]
    if server.get("in_hot_standby") == "on":
        return problem("database.standby", version=version)
    if int(server["server_version_num"]) < OLDEST_SERVER * 10_000:
        return problem("database.too_old", version=version, oldest=OLDEST_SERVER)
    return ok("database", f"PostgreSQL {version}")


def judge_revision(revision: str | None, newest: str, foreign: Sequence[str] = ()) -> Finding:
    """Judge whether the schema fits this release; ``foreign`` are the tables of others."""
    if revision is None:
        return (
            problem("schema.of_others", tables=listed(foreign))
            if foreign
            else problem("schema.missing")
        )
    if revision == newest:
        return ok("schema", f"revision {revision}")
    return problem(
        "schema.old" if revision < newest else "schema.new", revision=revision, newest=newest
    )


async def _check_login(connection: Connection) -> Finding:
    """Check whether the database isolates tenants, too."""
    login, takes_roles, owns_tables, has_own_privileges = await store.read_login(connection)
    if not takes_roles:
        return problem("database roles.not_used", login=login)
    if has_own_privileges and not owns_tables:
        return problem("database roles.own_privileges", login=login)
    rights = (
        "owns the tables and could change that"
        if owns_tables
        else "has no privileges without a role"
    )
    return ok("database roles", f"each request sees one tenant's rows; {login} {rights}")


def judge_writing(server: Mapping[str, str]) -> list[Finding]:
    is_read_only = (
        server.get("transaction_read_only") == "on" and server.get("in_hot_standby") != "on"
    )
    encoding = server.get("server_encoding", "UTF8")
    return [
        *problem_if(is_read_only, "database.read_only"),
        *problem_if(encoding != "UTF8", "database.encoding", encoding=encoding),
    ]


def judge_durability(server: Mapping[str, str]) -> list[Finding]:
    """Judge whether the server's settings may lose acknowledged changes."""
    found = [problem(f"durability.{name}") for name in _DURABLE if server.get(name) == "off"]
    return found or [ok("durability", "acknowledged changes are on disk")]


async def _check_confirmation(connection: Connection) -> list[Finding]:
    return problem_if(
        await store.count_unconfirmed(connection, LONGEST_CONFIRMATION), "durability.unconfirmed"
    )


async def _check_connections(
    connection: Connection, server: Mapping[str, str], settings: Settings
) -> list[Finding]:
    watching = settings.workers if has_several_hosts(settings.database_url or "") else 0
    limits = await store.read_connection_limits(connection)
    return [judge_connections(server, *limits, settings.connections + watching)]


def judge_connections(
    server: Mapping[str, str],
    of_database: int | None,
    of_user: int | None,
    number: int,
    needed: int,
) -> Finding:
    """Judge whether the set-up can open the connections that it needs; ``number`` are open now."""
    reserved = sum(
        int(server.get(name, 0))
        for name in ("superuser_reserved_connections", "reserved_connections")
    )
    bounds = {
        "max_connections, less those reserved": int(server["max_connections"]) - reserved,
        "the limit of the database": of_database,
        "the limit of the user": of_user,
    }
    what, most = min(
        ((what, limit) for what, limit in bounds.items() if limit is not None),
        key=lambda bound: bound[1],
    )
    counts = (
        f"one `tenantry serve` needs up to {needed}, {number} open now, {most} available ({what})"
    )
    return (
        ok("connections", counts)
        if needed <= most
        else problem("connections.too_few", counts=counts)
    )


async def _check_mail(connection: Connection, settings: Settings) -> list[Finding]:
    return judge_queue(*await mails.read_queue(connection), sends_mail=settings.smtp is not None)


def judge_queue(
    queued: int, failed: int, oldest_seconds: float, *, sends_mail: bool
) -> list[Finding]:
    """Report queued and failed mail; the oldest queued one is so many seconds old."""
    is_late = queued and oldest_seconds > STUCK_SECONDS
    return [
        *problem_if(not sends_mail, "mail.no_server", queued=queued),
        *problem_if(
            sends_mail and is_late, "mail.late", queued=queued, hours=oldest_seconds / 3600
        ),
        *problem_if(failed, "mail.failed"),
    ]


async def _check_jobs(connection: Connection, settings: Settings, now: datetime) -> list[Finding]:
    is_served = {
        MAIL: settings.smtp is not None,
        PROVIDER: settings.provider_secret_key is not None,
    }
    due = await jobs.longest_due(connection)
    runs = [run for run in await jobs.read_runs(connection) if run.task in PERIODIC]
    due = {queue: seconds for queue, seconds in due.items() if is_served.get(queue, True)}
    return judge_jobs(due, runs, now, workers=await jobs.count_workers(connection))


def judge_jobs(
    due: Mapping[str, float], runs: Sequence[JobRuns], now: datetime, *, workers: int
) -> list[Finding]:
    """Report overdue jobs (seconds, by queue), and scheduled jobs without a recent success.

    ``workers`` is how many workers are alive.
    """
    found = [
        problem("jobs.due", queue=queue, minutes=seconds / 60, workers=workers)
        for queue, seconds in sorted(due.items())
        if seconds > LONGEST_DUE
    ]
    found += [
        problem(
            "jobs.failing", task=run.task, hours=(now - run.succeeded_at) // HOUR, workers=workers
        )
        for run in runs
        if run.succeeded_at and now - run.succeeded_at > LONGEST_BETWEEN_RUNS
    ]
    return found or [ok("jobs", "none is overdue")]


async def _check_old_keys(connection: Connection, now: datetime) -> list[Finding]:
    keys = await store.read_names(connection, store.OLD_KEYS, now=now, created_until=now - KEY_AGE)
    found = problem_if(keys.number, "API keys.old", listed=keys.counted)
    return found or [ok("API keys", "no active one is older than a year")]


async def _check_peppers(
    connection: Connection, settings: Settings, now: datetime
) -> list[Finding]:
    ids = [Pepper(pepper.reveal().encode()).id for pepper in settings.peppers]
    return judge_peppers(await api_keys_store.count_by_pepper(connection, now), ids)


def judge_peppers(counts: Mapping[str | None, int], peppers: Sequence[str]) -> list[Finding]:
    """Judge whether each active key's pepper is set, and which older peppers are still needed.

    ``counts`` are active keys by pepper (None: not known); ``peppers`` are the configured ones,
    newest first.
    """
    newest, *older = peppers
    lost = sum(
        number for pepper, number in counts.items() if pepper is not None and pepper not in peppers
    )
    waiting = sum(number for pepper, number in counts.items() if pepper is None or pepper in older)
    if lost:
        return [problem("API_KEY_PEPPER.missing", number=lost)]
    if waiting or not older:
        return problem_if(waiting if older else 0, "API_KEY_PEPPER.needed")
    number = counts.get(newest, 0)
    return [
        ok(
            "API_KEY_PEPPER",
            f"every active key uses the first one ({number}): no key needs the others",
        )
    ]


async def _check_ledger(connection: Connection, settings: Settings, now: datetime) -> list[Finding]:
    """Report anomalies of the ledger's last 30 days, parked events of any age, and raw bodies kept
    for too long.
    """
    anomalies = await store.read_anomalies(connection, now - LEDGER_PERIOD, settings.billing)
    ours = settings.billing.livemode
    modes = {"ours": _MODES[ours], "theirs": _MODES[not ours]} if ours is not None else {}
    waited_for = await store.read_names(connection, store.WAITED_FOR)
    found = problem_if(
        await billing.count_parked(connection), "billing ledger.parked", listed=waited_for
    )
    found += [
        problem(
            f"billing ledger.{kind}",
            number=anomalies[kind][0],
            listed=anomalies[kind][1].counted,
            **modes,
        )
        for kind in Anomaly
        if kind in anomalies and kind not in _ELSEWHERE
    ]
    found += await _check_ambiguities(connection, settings, now)
    kept, oldest = timedelta(days=settings.raw_body_days), await store.oldest_body(connection)
    if oldest and oldest < now - kept - BODIES_GRACE:
        found.append(problem("billing ledger.old_bodies", days=kept.days, age=(now - oldest).days))
    found = found or [ok("billing ledger", "no anomaly in the last 30 days")]
    if Anomaly.DRIFT in anomalies:
        found.append(problem("tenants.drift", listed=anomalies[Anomaly.DRIFT][1].counted))
    return found


async def _check_ambiguities(
    connection: Connection, settings: Settings, now: datetime
) -> list[Finding]:
    """Report events of one second in an ambiguous order; a later snapshot of the provider resolves
    them.
    """
    number, resolved, tenants = await store.read_ambiguities(connection, now - LEDGER_PERIOD)
    text = f"events in the last 30 days in an ambiguous order within their second: {number}"
    if not number:
        return []
    if resolved == number:
        return [ok("billing ledger", f"{text}, all resolved by the provider")]
    name = "billing ledger.ambiguous_order" + (
        "" if settings.provider_secret_key else "_without_key"
    )
    return [problem(name, what=text, resolved=resolved, tenants=tenants)]


async def _check_tenants(
    connection: Connection, settings: Settings, now: datetime
) -> list[Finding]:
    """Report tenants without billing events, with unknown plans, and not compared with the
    provider.
    """
    latest = now - timedelta(hours=settings.stale_tenant_hours)
    stale = Names(
        *await reconcile.stale_tenants(connection, int(latest.timestamp()), store.MOST_LISTED)
    )
    known = [plan.id for plan in settings.billing.catalog.plans]
    plans = await store.read_names(connection, store.UNMAPPED_PLANS, known=known)
    found = [
        *problem_if(
            stale.number, "tenants.stale", hours=settings.stale_tenant_hours, listed=stale.counted
        ),
        *problem_if(plans.number, "tenants.unmapped_plan", listed=plans.counted),
    ]
    if settings.provider_secret_key and settings.reconcile_hours:
        hours = COMPARISONS_MISSED * settings.reconcile_hours
        missed = await store.read_names(
            connection, store.NOT_COMPARED, until=now - timedelta(hours=hours)
        )
        found += problem_if(
            missed.number, "tenants.not_compared", hours=hours, listed=missed.counted
        )
    return found or [ok("tenants", "each has a plan of the catalog and current billing events")]
