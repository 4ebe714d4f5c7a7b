"""Checks of the database: the server, the schema, the login, and the data that needs attention."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import psycopg

from tenantry.auth import api_keys_store as api_keys
from tenantry.cli.doctor import Finding, Level, Subject
from tenantry.cli.doctor import doctor_store as store
from tenantry.cli.doctor.billing_checks import LEDGER, TENANTS, BillingTerms, check_ledger, check_tenants
from tenantry.cli.doctor.doctor_store import DatabaseLogin
from tenantry.db.connection import Connection
from tenantry.db.database import Lane, for_writes, take_role
from tenantry.db.failover_detection import FailoverDetector
from tenantry.db.migrate import newest_revision
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.jobs import runs_store as jobs
from tenantry.jobs.runs_store import JobRuns
from tenantry.notifications import mails_store as mails

OLDEST_SERVER: Final = 15
KEY_AGE: Final = timedelta(days=365)
STUCK_SECONDS: Final = 3600.0
LONGEST_DUE: Final = 300.0
LONGEST_CONFIRMATION: Final = timedelta(seconds=2)
"""How long a healthy synchronous standby lets a commit wait, at most."""
HOUR: Final = timedelta(hours=1)
LONGEST_BETWEEN_RUNS: Final = 3 * HOUR

_DATABASE: Final = Subject("database")
_SCHEMA: Final = Subject("schema")
_ROLES: Final = Subject("database roles")
_DURABILITY: Final = Subject("durability")
_CONNECTIONS: Final = Subject("connections")
_MAIL: Final = Subject("mail")
_JOBS: Final = Subject("jobs")
_KEYS: Final = Subject("API keys")
_PEPPER: Final = Subject("API_KEY_PEPPER")
_LOSING: Final = {
    "fsync": "After a crash of the machine the whole database may be unusable.",
    "full_page_writes": "After a crash of the machine pages may be torn and their content lost.",
    "synchronous_commit": "The last acknowledged events and revocations before a crash are lost.",
}
_SETTINGS: Final = (
    *_LOSING,
    "in_hot_standby",
    "max_connections",
    "reserved_connections",
    "server_encoding",
    "server_version",
    "server_version_num",
    "superuser_reserved_connections",
    "transaction_read_only",
)
# Messages of PostgreSQL's client, and ours, because its messages may contain parts of a malformed DATABASE_URL.
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

_UNUSABLE: Final = _DATABASE.error(
    "cannot be used: {trouble}",
    "Nothing works without it.",
    "Check DATABASE_URL (postgresql://user:password@host:port/database, special characters percent-encoded) and that "
    "the server runs.",
)
_STANDBY: Final = _DATABASE.error(
    "PostgreSQL {version} is a standby, which accepts no writes",
    "No event can be stored, and no key created or revoked.",
    "Name the primary, or both separated by a comma: then the one that accepts writes is used.",
)
_TOO_OLD: Final = _DATABASE.error(
    "PostgreSQL {version} is too old",
    "It lacks features that tenantry needs.",
    f"Upgrade the server to PostgreSQL {OLDEST_SERVER} or newer.",
)
_READ_ONLY: Final = _DATABASE.error(
    "is read-only",
    "Every write fails with 503 or 500.",
    "Find out who has set default_transaction_read_only: managed databases do when a disk is nearly full.",
)
_ENCODING: Final = _DATABASE.error(
    "has the encoding {encoding}",
    "Names and events with characters outside that encoding are rejected.",
    "Create a database with ENCODING 'UTF8' TEMPLATE template0, and move the data there.",
)
_NO_SCHEMA: Final = _SCHEMA.error("does not exist", "Every request fails.", "Run `tenantry migrate`.")
_OLD_SCHEMA: Final = _SCHEMA.error(
    "is at {revision}; this release needs {newest}",
    "Requests that need the new schema fail.",
    "Run `tenantry migrate`.",
)
_NEW_SCHEMA: Final = _SCHEMA.warning(
    "is at {revision}, ahead of this release ({newest})",
    "A release works on the schema of the next one, and of no later one.",
    "If you went back by one release, do nothing. Otherwise install the release that made the schema.",
)
_NO_ROLES: Final = _ROLES.warning(
    "the service works as {login}, and only its own statements isolate tenants from each other",
    "A statement that forgot the tenant would show another tenant's data.",
    "Create a login for the service, run `tenantry migrate --grant-to LOGIN` as a user who may create roles, and put "
    "the login into DATABASE_URL (docs/database-roles.md).",
)
_OLD_PRIVILEGES: Final = _ROLES.warning(
    "each request sees one tenant's rows, but {login} still has privileges from before roles were introduced",
    "A stolen password allows more than the service needs.",
    "Once no process of that release runs: REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {login}; then "
    "`tenantry migrate --grant-to {login}` again.",
)
_LOSES: Final = _DURABILITY.warning("{name} is off", "{why}", "ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();")
_UNCONFIRMED: Final = _DURABILITY.error(
    "commits wait for a synchronous standby, {number} now",
    "Nothing is acknowledged without it: every change is answered 503, and waiting requests hold connections.",
    "Bring the standby back. Or, if a failover may lose commits from now on: ALTER SYSTEM SET "
    "synchronous_standby_names = ''; SELECT pg_reload_conf(); and set it again once the standby has caught up.",
)
_TOO_FEW_CONNECTIONS: Final = _CONNECTIONS.warning(
    "{counts}",
    "Under load, processes get no connection and answer 503.",
    "Raise max_connections (PostgreSQL restarts for it) or the limit named, lower WORKERS or DATABASE_POOL_SIZE, or "
    "use a pooler (DATABASE_POOLER_URL). Count each instance and each `tenantry worker`.",
)
_NO_MAIL_SERVER: Final = _MAIL.warning(
    "no mail server is set: mail stays queued ({queued} now)",
    _UNINFORMED,
    "Set SMTP_URL (smtp://user:password@host:port) and MAIL_FROM.",
)
_MAIL_LATE: Final = _MAIL.warning(
    "mails queued: {queued}, the oldest for {hours:.1f} h",
    _UNINFORMED,
    "Check that `tenantry worker` runs (or `serve` with RUN_JOBS), and its log for the mail server's answers.",
)
_MAIL_FAILED: Final = _MAIL.warning(
    "mails given up after all attempts: {number}",
    "Their recipients are not informed, and no further attempt is made.",
    "See last_error in the tables notifications and owner_mails; often the owner's address is wrong (PATCH the "
    "tenant).",
)
_JOB_DUE: Final = _JOBS.warning(
    "a job in the queue {queue} has been due for {minutes:.0f} min",
    "Mails, provider requests and data retention are delayed.",
    "Check that `tenantry worker` runs (or `serve` with RUN_JOBS; running now: {workers}), and its log.",
)
_JOB_FAILS: Final = _JOB_DUE._replace(message="{task} last succeeded {hours} h ago")
_OLD_KEY: Final = _KEYS.warning(
    "{name!r} of {org_id} is {days} days old",
    "The longer a secret is used, the more copies of it exist.",
    "Rotate it (Settings, API keys, or POST /api/v1/api-keys/{{id}}/rotate) and replace the old secret.",
)
_MORE_OLD_KEYS: Final = _KEYS.warning(
    "more keys older than a year: {number}", "They are as old.", "Rotate the ones above, then check again."
)
_UNUSABLE_KEYS: Final = _PEPPER.error(
    "active keys hashed with a pepper that is not set: {number}",
    "These keys are rejected.",
    "Add the former pepper after the new one: API_KEY_PEPPER=new,former.",
)
_PEPPER_NEEDED: Final = _PEPPER.warning(
    "active keys that still need an older pepper: {number}",
    "Without it these keys are rejected.",
    "Keep the older pepper: a key moves to the first one at its next use, or rotate it.",
)


async def check_database(
    conninfo: str,
    terms: BillingTerms,
    now: datetime,
    *,
    sends_mail: bool,
    peppers: Sequence[str],
    periodic: Collection[str] = (),
    needed: int | None = None,
    statement_timeout: float = 30.0,
) -> list[Finding]:
    """Check the server, the schema and the data.

    ``sends_mail``: whether a mail server is set. ``peppers`` are the ids of the configured ones, newest first.
    ``periodic`` are the scheduled jobs. ``needed`` is how many connections the set-up may open, None if not known.
    Skips a check, with a warning, if a statement takes more than ``statement_timeout`` seconds.
    """
    try:
        lane = Lane(FailoverDetector(for_writes(conninfo)))
    except psycopg.ProgrammingError:
        return [_UNUSABLE.found(trouble="the address cannot be parsed")]
    unserved = {name for name, is_served in (("mail", sends_mail), ("provider", terms.asks_provider)) if not is_served}
    try:
        async with lane.use(autocommit=True) as connection:
            await store.set_statement_timeout(connection, statement_timeout)
            schema = judge_revision(await store.read_revision(connection), newest_revision())
            await store.reset_role(connection)
            settings = await store.read_settings(connection, _SETTINGS)
            check_server = partial(_check_server, connection, settings, needed)
            findings = [judge_server(settings), schema, *await _check_in_time(_DURABILITY, check_server)]
            await take_role(connection)
            if schema.level is Level.ERROR:
                return findings
            findings.append(judge_login(await store.read_login(connection)))
            for subject, check in (
                (_MAIL, partial(_check_mail, connection, sends_mail=sends_mail)),
                (_JOBS, partial(_check_jobs, connection, now, unserved, periodic)),
                (_KEYS, partial(_check_old_keys, connection, now)),
                (_PEPPER, partial(_check_peppers, connection, now, peppers)),
                (LEDGER, partial(check_ledger, connection, terms, now)),
                (TENANTS, partial(check_tenants, connection, terms, now)),
            ):
                findings += await _check_in_time(subject, check)
            return findings
    except DatabaseUnavailableError as error:
        return [_UNUSABLE.found(trouble=_trouble(error.__cause__))]
    except psycopg.Error as error:
        return [_UNUSABLE.found(trouble=f"a query failed (SQLSTATE {error.sqlstate})")]
    finally:
        await lane.close()


async def _check_in_time(subject: Subject, check: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    """Return the findings of a check, or one that says that it was canceled."""
    try:
        return await check()
    except psycopg.errors.QueryCanceled:
        remedy = "Check again while the database is less busy; VACUUM (ANALYZE) helps where statistics are old."
        return [subject.warning("skipped: a query took too long", "Problems there stay unnoticed.", remedy).found()]


def _trouble(cause: BaseException | None) -> str:
    if isinstance(cause, TimeoutError):
        return "the server does not answer in time"
    text = str(cause)
    return next((ours for theirs, ours in _TROUBLES if theirs in text), "the connection is refused or breaks off")


async def _check_server(connection: Connection, settings: Mapping[str, str], needed: int | None) -> list[Finding]:
    unconfirmed = await store.count_unconfirmed(connection, LONGEST_CONFIRMATION)
    found = [*judge_writing(settings), *_UNCONFIRMED.found_if(unconfirmed), *judge_durability(settings)]
    if needed is not None:
        found.append(judge_connections(settings, *await store.read_connection_limits(connection), needed))
    return found


def judge_server(settings: Mapping[str, str]) -> Finding:
    """Judge whether the server is usable: its version, and that it accepts writes."""
    version = settings["server_version"]
    if settings.get("in_hot_standby") == "on":
        return _STANDBY.found(version=version)
    if int(settings["server_version_num"]) < OLDEST_SERVER * 10_000:
        return _TOO_OLD.found(version=version)
    return _DATABASE.ok(f"PostgreSQL {version}")


def judge_revision(revision: str | None, newest: str) -> Finding:
    if revision is None:
        return _NO_SCHEMA.found()
    if revision == newest:
        return _SCHEMA.ok(f"revision {revision}")
    return (_OLD_SCHEMA if revision < newest else _NEW_SCHEMA).found(revision=revision, newest=newest)


def judge_login(login: DatabaseLogin) -> Finding:
    """Judge whether the database isolates tenants, too."""
    if not login.takes_roles:
        return _NO_ROLES.found(login=login.name)
    if login.owns_tables:
        return _ROLES.ok(f"each request sees one tenant's rows; {login.name} owns the tables and could change that")
    if login.has_own_privileges:
        return _OLD_PRIVILEGES.found(login=login.name)
    return _ROLES.ok(f"each request sees one tenant's rows; {login.name} has no privileges without a role")


def judge_writing(settings: Mapping[str, str]) -> list[Finding]:
    is_read_only = settings.get("transaction_read_only") == "on" and settings.get("in_hot_standby") != "on"
    encoding = settings.get("server_encoding", "UTF8")
    return [*_READ_ONLY.found_if(is_read_only), *_ENCODING.found_if(encoding != "UTF8", encoding=encoding)]


def judge_durability(settings: Mapping[str, str]) -> list[Finding]:
    """Judge whether the server's settings may lose acknowledged changes."""
    found = [_LOSES._replace(why=why).found(name=name) for name, why in _LOSING.items() if settings.get(name) == "off"]
    return found or [_DURABILITY.ok("acknowledged changes are on disk")]


def judge_connections(
    settings: Mapping[str, str], of_database: int | None, of_user: int | None, number: int, needed: int
) -> Finding:
    """Judge whether the set-up can open the connections that it needs; ``number`` are open now."""
    reserved = sum(int(settings.get(name, 0)) for name in ("superuser_reserved_connections", "reserved_connections"))
    bounds = {
        "max_connections, less those reserved": int(settings["max_connections"]) - reserved,
        "the limit of the database": of_database,
        "the limit of the user": of_user,
    }
    what, most = min(((what, limit) for what, limit in bounds.items() if limit is not None), key=lambda bound: bound[1])
    counts = f"this set-up needs up to {needed}, {number} open now, {most} available ({what})"
    return _CONNECTIONS.ok(counts) if needed <= most else _TOO_FEW_CONNECTIONS.found(counts=counts)


async def _check_mail(connection: Connection, *, sends_mail: bool) -> list[Finding]:
    counts, oldest = await mails.count_by_status(connection), await mails.oldest_queued_seconds(connection)
    return judge_queue(counts.get("queued", 0), counts.get("failed", 0), oldest, sends_mail=sends_mail)


def judge_queue(queued: int, failed: int, oldest_seconds: float, *, sends_mail: bool) -> list[Finding]:
    """Report queued and failed mail; the oldest queued one is so many seconds old."""
    is_late = queued and oldest_seconds > STUCK_SECONDS
    return [
        *_NO_MAIL_SERVER.found_if(not sends_mail, queued=queued),
        *_MAIL_LATE.found_if(sends_mail and is_late, queued=queued, hours=oldest_seconds / 3600),
        *_MAIL_FAILED.found_if(failed),
    ]


async def _check_jobs(
    connection: Connection, now: datetime, unserved: Collection[str], periodic: Collection[str]
) -> list[Finding]:
    due = {queue: age for queue, age in (await jobs.longest_due(connection)).items() if queue not in unserved}
    runs = [run for run in await jobs.read_runs(connection) if run.task in periodic]
    return judge_jobs(due, runs, now, workers=await jobs.count_workers(connection))


def judge_jobs(due: Mapping[str, float], runs: Sequence[JobRuns], now: datetime, *, workers: int) -> list[Finding]:
    """Report overdue jobs (seconds, by queue), and scheduled jobs without a recent success.

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
    return found or [_JOBS.ok("none is overdue")]


async def _check_old_keys(connection: Connection, now: datetime) -> list[Finding]:
    keys, number = await store.read_old_keys(connection, now, now - KEY_AGE)
    found = [
        _OLD_KEY._replace(subject=f"API key {key.id}").found(
            name=key.name, org_id=key.org_id, days=(now - key.created_at).days
        )
        for key in keys
    ]
    found += _MORE_OLD_KEYS.found_if(number - len(keys))
    return found or [_KEYS.ok("no active one is older than a year")]


async def _check_peppers(connection: Connection, now: datetime, peppers: Sequence[str]) -> list[Finding]:
    return judge_peppers(await api_keys.count_by_pepper(connection, now), peppers)


def judge_peppers(counts: Mapping[str | None, int], peppers: Sequence[str]) -> list[Finding]:
    """Judge whether each active key's pepper is set, and which older peppers are still needed.

    ``counts`` are active keys by pepper (None: not known); ``peppers`` are the configured ones, newest first, or
    nothing if they cannot be read.
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
    return [_PEPPER.ok(f"every active key uses the first one ({counts.get(newest, 0)}): you can remove the others")]
