"""Checks of the database: the server, the schema, the login, and the data that needs attention."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec
import psycopg

from tenantry.auth import api_keys_store as api_keys
from tenantry.cli.doctor import doctor_store as store
from tenantry.cli.doctor.billing_checks import LEDGER, TENANTS, BillingTerms, check_ledger, check_tenants
from tenantry.cli.doctor.doctor_store import ConnectionLimits, Login, OldKey, Server
from tenantry.cli.doctor.findings import Finding, Level, Problem, ok
from tenantry.db.connection import Connection
from tenantry.db.database import Lane, for_writes, take_role
from tenantry.db.failover_detection import FailoverDetector
from tenantry.db.migrate import newest_revision
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.jobs import runs_store as jobs
from tenantry.jobs.runs_store import JobRuns
from tenantry.notifications import notices_store as notices

OLDEST_SERVER: Final = 15
KEY_AGE: Final = timedelta(days=365)
STUCK_SECONDS: Final = 3600.0
LONGEST_DUE: Final = 300.0
LONGEST_CONFIRMATION: Final = timedelta(seconds=2)
"""How long a healthy synchronous standby lets a commit wait, at most."""
HOUR: Final = timedelta(hours=1)
LONGEST_BETWEEN_RUNS: Final = 3 * HOUR

_VERSION_UNIT: Final = 10_000
_DATABASE: Final = "database"
_SCHEMA: Final = "schema"
_ROLES: Final = "database roles"
_DURABILITY: Final = "durability"
_CONNECTIONS: Final = "connections"
_MAIL: Final = "mail"
_JOBS: Final = "jobs"
_KEYS: Final = "API keys"
_PEPPER: Final = "API_KEY_PEPPER"
_LOSING: Final = {
    "fsync": "After a crash of the machine the whole database may be unusable.",
    "full_page_writes": "After a crash of the machine pages may be torn and their content lost.",
    "synchronous_commit": "The last acknowledged events and revocations before a crash are lost.",
}
_ASKED: Final = (
    *_LOSING,
    "in_hot_standby",
    "max_connections",
    "reserved_connections",
    "server_encoding",
    "superuser_reserved_connections",
    "transaction_read_only",
)
# What PostgreSQL's client says, and what we say instead: its own words may contain parts of a misread DATABASE_URL.
_TROUBLES: Final = (
    ("password authentication failed", "the user or password is rejected"),
    ("no password supplied", "the server requires a password"),
    ("failed to resolve host", "the host name is not known"),
    ("could not translate host name", "the host name is not known"),
    ("pg_hba.conf", "the server accepts no connection of this user from here (pg_hba.conf)"),
    ("certificate", "the TLS handshake fails"),
    ("SSL", "the TLS handshake fails"),
    ("does not exist", "the database or the user does not exist"),
    ("too many", "the server has no connection free"),
    ("remaining connection slots", "the server has no connection free"),
    ("refused", "no server listens at that address"),
    ("No such file", "no server listens at that address"),
    ("starting up", "the server is starting up"),
)
_UNINFORMED: Final = "Owners do not learn of failed payments or leaked keys."

_UNUSABLE: Final = Problem(
    _DATABASE,
    "cannot be used: {trouble}",
    "Nothing works without it.",
    "Check DATABASE_URL (postgresql://user:password@host:port/database, special characters percent-encoded) and that "
    "the server runs.",
    Level.ERROR,
)
_STANDBY: Final = Problem(
    _DATABASE,
    "PostgreSQL {version} is a standby, which accepts no writes",
    "No event can be stored, and no key created or revoked.",
    "Name the primary, or both separated by a comma: then the one that accepts writes is used.",
    Level.ERROR,
)
_TOO_OLD: Final = Problem(
    _DATABASE,
    "PostgreSQL {version} is too old",
    "It lacks features that tenantry needs.",
    f"Upgrade the server to PostgreSQL {OLDEST_SERVER} or newer.",
    Level.ERROR,
)
_READ_ONLY: Final = Problem(
    _DATABASE,
    "is read-only",
    "Every write fails with 503 or 500.",
    "Find out who has set default_transaction_read_only: managed databases do when a disk is nearly full.",
    Level.ERROR,
)
_ENCODING: Final = Problem(
    _DATABASE,
    "has the encoding {encoding}",
    "Names and events with characters outside that encoding are rejected.",
    "Create a database with ENCODING 'UTF8' TEMPLATE template0, and move the data there.",
    Level.ERROR,
)
_NO_SCHEMA: Final = Problem(_SCHEMA, "does not exist", "Every request fails.", "Run `tenantry migrate`.", Level.ERROR)
_OLD_SCHEMA: Final = Problem(
    _SCHEMA,
    "is at {revision}; this release needs {newest}",
    "Requests that need the new schema fail.",
    "Run `tenantry migrate`.",
    Level.ERROR,
)
_NEW_SCHEMA: Final = Problem(
    _SCHEMA,
    "is at {revision}, ahead of this release ({newest})",
    "A release works on the schema of the next one, and of no later one.",
    "If you went back by one release, do nothing. Otherwise install the release that made the schema.",
)
_NO_ROLES: Final = Problem(
    _ROLES,
    "the service works as {login}, and only its own statements isolate tenants from each other",
    "A statement that forgot the tenant would show another tenant's data.",
    "Create a login for the service, run `tenantry migrate --grant-to LOGIN` as a user who may create roles, and put "
    "the login into DATABASE_URL (docs/database-roles.md).",
)
_OLD_PRIVILEGES: Final = Problem(
    _ROLES,
    "each request sees one tenant's rows, but {login} still has privileges from before roles were introduced",
    "A stolen password allows more than the service needs.",
    "Once no process of that release runs: REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {login}; then "
    "`tenantry migrate --grant-to {login}` again.",
)
_LOSES: Final = Problem(_DURABILITY, "{name} is off", "{why}", "ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();")
_UNCONFIRMED: Final = Problem(
    _DURABILITY,
    "commits wait for a synchronous standby, {number} now",
    "Nothing is acknowledged without it: every change is answered 503, and waiting requests hold connections.",
    "Bring the standby back. Or, if a failover may lose commits from now on: ALTER SYSTEM SET "
    "synchronous_standby_names = ''; SELECT pg_reload_conf(); and set it again once the standby has caught up.",
    Level.ERROR,
)
_TOO_FEW_CONNECTIONS: Final = Problem(
    _CONNECTIONS,
    "{counts}",
    "Under load, processes get no connection and answer 503.",
    "Raise max_connections (PostgreSQL restarts for it) or the limit named, lower WORKERS or DATABASE_POOL_SIZE, or "
    "use a pooler (DATABASE_POOLER_URL). Count each instance and each `tenantry worker`.",
)
_NO_MAIL_SERVER: Final = Problem(
    _MAIL,
    "no mail server is set: mail stays queued ({queued} now)",
    _UNINFORMED,
    "Set SMTP_URL (smtp://user:password@host:port) and MAIL_FROM.",
)
_MAIL_LATE: Final = Problem(
    _MAIL,
    "mails queued: {queued}, the oldest for {hours:.1f} h",
    _UNINFORMED,
    "Check that `tenantry worker` runs (or `serve` with RUN_JOBS), and its log for the mail server's answers.",
)
_MAIL_FAILED: Final = Problem(
    _MAIL,
    "mails given up after all attempts: {number}",
    "Their recipients are not informed, and no further attempt is made.",
    "See last_error in the tables notifications and owner_mails; often the owner's address is wrong (PATCH the "
    "tenant).",
)
_JOB_DUE: Final = Problem(
    _JOBS,
    "a job in the queue {queue} has been due for {minutes:.0f} min",
    "Mails, provider requests and data retention are delayed.",
    "Check that `tenantry worker` runs (or `serve` with RUN_JOBS; running now: {workers}), and its log.",
)
_JOB_FAILS: Final = _JOB_DUE._replace(message="{task} last succeeded {hours} h ago")
_MORE_OLD_KEYS: Final = Problem(
    _KEYS, "more keys older than a year: {number}", "They are as old.", "Rotate the ones above, then check again."
)
_UNUSABLE_KEYS: Final = Problem(
    _PEPPER,
    "active keys hashed with a pepper that is not set: {number}",
    "These keys are rejected.",
    "Add the former pepper after the new one: API_KEY_PEPPER=new,former.",
    Level.ERROR,
)
_PEPPER_NEEDED: Final = Problem(
    _PEPPER,
    "active keys that still need an older pepper: {number}",
    "Without it these keys are rejected.",
    "Keep the older pepper: a key moves to the first one at its next use, or rotate it.",
)


class MailQueue(msgspec.Struct, frozen=True):
    """How many mails are queued (the oldest for so many seconds), and how many were given up."""

    queued: int
    failed: int
    oldest_seconds: float


async def check_database(
    conninfo: str,
    terms: BillingTerms,
    now: datetime,
    *,
    sends_mail: bool,
    peppers: Sequence[str],
    periodic: Collection[str] = (),
    needed: int | None = None,
    statement_timeout: float = store.STATEMENT_TIMEOUT,
) -> list[Finding]:
    """Check the server, the schema and the data.

    ``sends_mail``: whether a mail server is set. ``peppers`` are the ids of those that are set, newest first.
    ``periodic`` are the scheduled jobs. ``needed`` is how many connections the set-up may open, None if not known.
    A check with a statement that takes more than ``statement_timeout`` seconds is skipped with a warning.
    """
    try:
        lane = Lane(FailoverDetector(for_writes(conninfo)))
    except psycopg.ProgrammingError:
        return [_UNUSABLE.found(trouble="the address cannot be parsed")]
    try:
        async with lane.use(autocommit=True) as connection:
            await store.set_statement_timeout(connection, statement_timeout)
            server = judge_server(await store.read_server(connection))
            schema = judge_revision(await store.read_revision(connection), newest_revision())
            await store.reset_role(connection)
            findings = [server, schema, *await _check_in_time(_DURABILITY, partial(_check_server, connection, needed))]
            await take_role(connection)
            if schema.level is not Level.ERROR:
                findings.append(judge_login(await store.read_login(connection)))
                findings += await _check_data(
                    connection, terms, now, sends_mail=sends_mail, peppers=peppers, periodic=periodic
                )
            return findings
    except DatabaseUnavailableError as refusal:
        return [_UNUSABLE.found(trouble=_trouble(refusal.__cause__))]
    except psycopg.Error as refusal:
        return [_UNUSABLE.found(trouble=f"a query failed (SQLSTATE {refusal.sqlstate})")]
    finally:
        await lane.close()


async def _check_data(
    connection: Connection,
    terms: BillingTerms,
    now: datetime,
    *,
    sends_mail: bool,
    peppers: Sequence[str],
    periodic: Collection[str],
) -> list[Finding]:
    unserved = {name for name, is_served in (("mail", sends_mail), ("provider", terms.asks_provider)) if not is_served}
    checks = {
        _MAIL: partial(_check_mail, connection, sends_mail=sends_mail),
        _JOBS: partial(_check_jobs, connection, now, unserved, periodic),
        _KEYS: partial(_check_old_keys, connection, now),
        _PEPPER: partial(_check_peppers, connection, now, peppers),
        LEDGER: partial(check_ledger, connection, terms, now),
        TENANTS: partial(check_tenants, connection, terms, now),
    }
    return [finding for subject, check in checks.items() for finding in await _check_in_time(subject, check)]


async def _check_in_time(subject: str, check: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    """The findings of a check, or one that says that it was canceled; the others continue."""
    try:
        return await check()
    except psycopg.errors.QueryCanceled:
        remedy = "Check again while the database is less busy; VACUUM (ANALYZE) helps where statistics are old."
        return [Problem(subject, "skipped: a query took too long", "Problems there stay unnoticed.", remedy).found()]


async def _check_server(connection: Connection, needed: int | None) -> list[Finding]:
    settings = await store.read_settings(connection, _ASKED)
    unconfirmed = await store.count_unconfirmed(connection, LONGEST_CONFIRMATION)
    found = [*judge_writing(settings), *_UNCONFIRMED.found_if(unconfirmed), *judge_durability(settings)]
    if needed is not None:
        found.append(judge_connections(settings, await store.read_connection_limits(connection), needed))
    return found


async def _check_mail(connection: Connection, *, sends_mail: bool) -> list[Finding]:
    counts = await notices.count_by_status(connection)
    oldest = await notices.oldest_queued_seconds(connection)
    return judge_queue(MailQueue(counts.get("queued", 0), counts.get("failed", 0), oldest), sends_mail=sends_mail)


async def _check_jobs(
    connection: Connection, now: datetime, unserved: Collection[str], periodic: Collection[str]
) -> list[Finding]:
    due = {queue: age for queue, age in (await jobs.longest_due(connection)).items() if queue not in unserved}
    runs = [run for run in await jobs.read_runs(connection) if run.task in periodic]
    return judge_jobs(due, runs, now, workers=await jobs.count_workers(connection))


async def _check_old_keys(connection: Connection, now: datetime) -> list[Finding]:
    keys, number = await store.read_old_keys(connection, now, now - KEY_AGE)
    return judge_old_keys(keys, number, now)


async def _check_peppers(connection: Connection, now: datetime, peppers: Sequence[str]) -> list[Finding]:
    return judge_peppers(await api_keys.count_by_pepper(connection, now), peppers)


def _trouble(cause: BaseException | None) -> str:
    if isinstance(cause, TimeoutError):
        return "the server does not answer in time"
    text = str(cause)
    return next((ours for theirs, ours in _TROUBLES if theirs in text), "the connection is refused or breaks off")


def judge_server(server: Server) -> Finding:
    """Whether the server is usable: its version, and that it accepts writes."""
    if server.is_standby:
        return _STANDBY.found(version=server.version)
    if server.number < OLDEST_SERVER * _VERSION_UNIT:
        return _TOO_OLD.found(version=server.version)
    return ok(_DATABASE, f"PostgreSQL {server.version}")


def judge_revision(revision: str | None, newest: str) -> Finding:
    """Whether the schema is the one that this release needs."""
    if revision is None:
        return _NO_SCHEMA.found()
    if revision == newest:
        return ok(_SCHEMA, f"revision {revision}")
    return (_OLD_SCHEMA if revision < newest else _NEW_SCHEMA).found(revision=revision, newest=newest)


def judge_login(login: Login) -> Finding:
    """Whether the database isolates tenants, too."""
    if not login.takes_roles:
        return _NO_ROLES.found(login=login.name)
    if login.owns_tables:
        return ok(_ROLES, f"each request sees one tenant's rows; {login.name} owns the tables and could change that")
    if login.reads_by_itself:
        return _OLD_PRIVILEGES.found(login=login.name)
    return ok(_ROLES, f"each request sees one tenant's rows; {login.name} has no privileges without a role")


def judge_writing(settings: Mapping[str, str]) -> list[Finding]:
    """Whether the database accepts writes, in UTF-8."""
    is_read_only = settings.get("transaction_read_only") == "on" and settings.get("in_hot_standby") != "on"
    encoding = settings.get("server_encoding", "UTF8")
    return [*_READ_ONLY.found_if(is_read_only), *_ENCODING.found_if(encoding != "UTF8", encoding=encoding)]


def judge_durability(settings: Mapping[str, str]) -> list[Finding]:
    """Whether settings of the server may lose what was acknowledged."""
    found = [_LOSES._replace(why=why).found(name=name) for name, why in _LOSING.items() if settings.get(name) == "off"]
    return found or [ok(_DURABILITY, "acknowledged changes are on disk")]


def judge_connections(settings: Mapping[str, str], limits: ConnectionLimits, needed: int) -> Finding:
    """Whether so many connections can be opened."""
    reserved = sum(int(settings.get(name, 0)) for name in ("superuser_reserved_connections", "reserved_connections"))
    bounds = {
        "max_connections, less those reserved": int(settings["max_connections"]) - reserved,
        "the limit of the database": limits.of_database,
        "the limit of the user": limits.of_user,
    }
    what, most = min(((what, limit) for what, limit in bounds.items() if limit is not None), key=lambda bound: bound[1])
    counts = f"this set-up needs up to {needed}, {limits.open} open now, {most} available ({what})"
    return ok(_CONNECTIONS, counts) if needed <= most else _TOO_FEW_CONNECTIONS.found(counts=counts)


def judge_queue(queue: MailQueue, *, sends_mail: bool) -> list[Finding]:
    """Which mails wait, and which were given up."""
    is_late = queue.queued and queue.oldest_seconds > STUCK_SECONDS
    return [
        *_NO_MAIL_SERVER.found_if(not sends_mail, queued=queue.queued),
        *_MAIL_LATE.found_if(sends_mail and is_late, queued=queue.queued, hours=queue.oldest_seconds / 3600),
        *_MAIL_FAILED.found_if(queue.failed),
    ]


def judge_jobs(due: Mapping[str, float], runs: Sequence[JobRuns], now: datetime, *, workers: int) -> list[Finding]:
    """Jobs that are overdue (seconds, by queue), and scheduled jobs that have not succeeded lately.

    ``workers`` is how many workers are alive.
    """
    found = [
        _JOB_DUE.found(queue=queue, minutes=age / 60, workers=workers)
        for queue, age in sorted(due.items())
        if age > LONGEST_DUE
    ]
    found += [
        _JOB_FAILS.found(task=run.task, hours=(now - run.succeeded_at) // HOUR, workers=workers)
        for run in runs
        if run.succeeded_at and now - run.succeeded_at > LONGEST_BETWEEN_RUNS
    ]
    return found or [ok(_JOBS, "none is overdue")]


def judge_old_keys(keys: Sequence[OldKey], number: int, now: datetime) -> list[Finding]:
    """Active keys that are a year old or more; ``number`` counts also those that are not listed."""
    found = [
        Problem(
            f"API key {key.id}",
            "{name!r} of {org_id} is {days} days old",
            "The longer a secret is used, the more copies of it exist.",
            "Rotate it (Settings, API keys, or POST /api/v1/api-keys/{{id}}/rotate) and replace the old secret.",
        ).found(name=key.name, org_id=key.org_id, days=(now - key.created_at).days)
        for key in keys
    ]
    found += _MORE_OLD_KEYS.found_if(number - len(keys))
    return found or [ok(_KEYS, "no active one is older than a year")]


def judge_peppers(counts: Mapping[str | None, int], peppers: Sequence[str]) -> list[Finding]:
    """Whether each active key is hashed with a pepper that is set, and which older peppers are still needed.

    ``counts`` are active keys by pepper, where it is known; ``peppers`` are those that are set, newest first, or
    nothing where they cannot be read.
    """
    if not peppers:
        return []
    newest, *older = peppers
    lost = sum(number for pepper, number in counts.items() if pepper is not None and pepper not in peppers)
    waiting = sum(number for pepper, number in counts.items() if pepper is None or pepper in older)
    if lost:
        return [_UNUSABLE_KEYS.found(number=lost)]
    if waiting or not older:
        return _PEPPER_NEEDED.found_if(waiting if older else 0)
    return [ok(_PEPPER, f"every active key uses the first one ({counts.get(newest, 0)}): you can remove the others")]
