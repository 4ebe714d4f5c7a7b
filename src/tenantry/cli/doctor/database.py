"""Checks of the database: the server, the schema, and what in the data (billing: next door) needs attention."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec
import psycopg

from tenantry.auth import api_keys_store as api_keys
from tenantry.cli.doctor.billing import LEDGER, TENANTS, BillingTerms, check_ledger, check_tenants
from tenantry.cli.doctor.finding import Finding, Level, error, ok, warning
from tenantry.cli.doctor.server import server_checks
from tenantry.cli.doctor.server_store import be_login
from tenantry.common.clock import Clock
from tenantry.db.connection import Connection
from tenantry.db.database import Lane, for_writes, take_role
from tenantry.db.failover_detection import Succession
from tenantry.db.migrate import newest_revision
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.jobs import checkup_store as checkup
from tenantry.jobs import runs_store as jobs
from tenantry.jobs.checkup_store import Login, OldKey, Server
from tenantry.jobs.runs_store import JobRuns
from tenantry.notifications import notices_store as notices

OLDEST_SERVER: Final = 15
KEY_AGE: Final = timedelta(days=365)
STUCK_SECONDS: Final = 3600.0
LONGEST_DUE: Final = 300.0
HOUR: Final = timedelta(hours=1)
LONGEST_BETWEEN_RUNS: Final = 3 * HOUR

_VERSION_UNIT: Final = 10_000
_DATABASE: Final = "database"
_SCHEMA: Final = "schema"
_ROLES: Final = "database roles"
_MAIL: Final = "mail"
_JOBS: Final = "jobs"
_KEYS: Final = "API keys"
_PEPPER: Final = "API_KEY_PEPPER"
# What PostgreSQL's client says, and what we say instead: its own words may hold parts of a misread DATABASE_URL.
_TROUBLES: Final = (
    ("password authentication failed", "the user or password is refused"),
    ("no password supplied", "the server wants a password"),
    ("failed to resolve host", "the host name is not known"),
    ("could not translate host name", "the host name is not known"),
    ("pg_hba.conf", "the server lets this user not in from here (pg_hba.conf)"),
    ("certificate", "TLS does not work out"),
    ("SSL", "TLS does not work out"),
    ("does not exist", "the database or the user does not exist"),
    ("too many", "the server has no connection free"),
    ("remaining connection slots", "the server has no connection free"),
    ("refused", "nobody listens at that address"),
    ("No such file", "nobody listens at that address"),
    ("starting up", "the server is starting up"),
)


class MailQueue(msgspec.Struct, frozen=True):
    """Notifications that are still to be delivered (the oldest for so many seconds), and those given up."""

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
    clock: Clock | None = None,
    patience: float = checkup.PATIENCE,
) -> list[Finding]:
    """The server, the schema, and what the data says.

    ``sends_mail`` tells whether a mail server is set; ``peppers`` are the ids of those that are set, newest first.
    ``periodic`` are the jobs that run by themselves, ``needed`` is how many connections the set-up may open, and
    ``clock`` this machine's; without them that is left out.
    A check whose statement takes more than ``patience`` seconds is left out, and that is told.
    """
    try:
        lane = Lane(Succession(for_writes(conninfo)))
    except psycopg.ProgrammingError:
        return [_unusable("its address cannot be read")]
    try:
        async with lane.use(autocommit=True) as connection:
            await checkup.be_patient(connection, patience)
            findings = [
                judge_server(await checkup.read_server(connection)),
                judge_revision(await checkup.read_revision(connection), newest_revision()),
            ]
            await be_login(connection)
            for subject, check in server_checks(connection, needed, clock).items():
                findings += await _in_time(subject, check)
            await take_role(connection)
            if findings[1].level is not Level.ERROR:
                findings.append(judge_login(await checkup.read_login(connection)))
                findings += await _check_data(
                    connection, terms, now, sends_mail=sends_mail, peppers=peppers, periodic=periodic
                )
            return findings
    except DatabaseUnavailableError as refusal:
        return [_unusable(_trouble(refusal.__cause__))]
    except psycopg.Error as refusal:
        return [_unusable(f"a question was refused (SQLSTATE {refusal.sqlstate})")]
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
    return [finding for subject, check in checks.items() for finding in await _in_time(subject, check)]


async def _in_time(subject: str, check: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    """What a check finds, or that it took too long: the others go on."""
    try:
        return await check()
    except psycopg.errors.QueryCanceled:
        remedy = "Check again while the database has less to do; VACUUM (ANALYZE) helps where statistics are old."
        return [
            warning(subject, "not looked through: a statement took too long", remedy, why="What is there goes unseen.")
        ]


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
    keys, number = await checkup.read_old_keys(connection, now, now - KEY_AGE)
    return judge_old_keys(keys, number, now)


async def _check_peppers(connection: Connection, now: datetime, peppers: Sequence[str]) -> list[Finding]:
    return judge_peppers(await api_keys.count_by_pepper(connection, now), peppers)


def _unusable(why: str) -> Finding:
    return error(
        _DATABASE,
        f"cannot be used: {why}",
        "Check DATABASE_URL (postgresql://user:password@host:port/database, special characters percent-encoded) "
        "and that the server runs.",
        why="Nothing works without it.",
    )


def _trouble(cause: BaseException | None) -> str:
    if isinstance(cause, TimeoutError):
        return "the server does not answer in time"
    text = str(cause)
    return next((ours for theirs, ours in _TROUBLES if theirs in text), "the connection is refused or breaks off")


def judge_server(server: Server) -> Finding:
    """Whether the server will do: its version, and that it takes writes."""
    if server.is_standby:
        return error(
            _DATABASE,
            f"PostgreSQL {server.version} is a standby, which takes no writes",
            "Name the primary, or both separated by a comma: then the one that takes writes is used.",
            why="No event can be taken in, and no key made or revoked.",
        )
    if server.number < OLDEST_SERVER * _VERSION_UNIT:
        remedy = f"Upgrade the server to PostgreSQL {OLDEST_SERVER} or newer."
        return error(
            _DATABASE, f"PostgreSQL {server.version} is too old", remedy, why="It lacks what our statements need."
        )
    return ok(_DATABASE, f"PostgreSQL {server.version}")


def judge_revision(revision: str | None, newest: str) -> Finding:
    """Whether the schema is the one that this release needs."""
    if revision is None:
        return error(_SCHEMA, "was never made", "Run `tenantry migrate`.", why="Every request fails.")
    if revision < newest:
        return error(
            _SCHEMA,
            f"is at {revision}; this release needs {newest}",
            "Run `tenantry migrate`.",
            why="Requests fail that need what is new.",
        )
    if revision > newest:
        return warning(
            _SCHEMA,
            f"is at {revision}, ahead of this release ({newest})",
            "If you went back by one release, nothing is to be done. If not, install the release that made the schema.",
            why="A release works on the schema of the next one, and of no later one.",
        )
    return ok(_SCHEMA, f"revision {revision}")


def judge_login(login: Login) -> Finding:
    """Whether the database keeps tenants apart, too."""
    if not login.takes_roles:
        return warning(
            _ROLES,
            f"the service works as {login.name}, and nothing but its own statements keeps tenants apart",
            "Make a login for the service, run `tenantry migrate --grant-to LOGIN` as one that may create roles, and "
            "put the login into DATABASE_URL (docs/database-roles.md).",
            why="A statement that forgot the tenant would show another's data.",
        )
    if login.owns_tables:
        return ok(_ROLES, f"requests meet one tenant's rows; {login.name} owns the tables and could undo that")
    if login.reads_by_itself:
        return warning(
            _ROLES,
            f"requests meet one tenant's rows, but {login.name} has privileges of its own from before there were roles",
            f"Once no process of that release runs: REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {login.name}; then "
            f"`tenantry migrate --grant-to {login.name}` again.",
            why="Whoever gets hold of its password may do more than the service needs.",
        )
    return ok(_ROLES, f"requests meet one tenant's rows; {login.name} may nothing by itself")


def judge_queue(queue: MailQueue, *, sends_mail: bool) -> list[Finding]:
    """What waits to be mailed, and what has been given up."""
    findings = []
    if not sends_mail:
        findings.append(
            warning(
                _MAIL,
                f"no mail server is set: mail stays queued ({queue.queued} now)",
                "Set SMTP_URL (smtp://user:password@host:port) and MAIL_FROM.",
                why="Nobody is told that a payment failed, or that a key leaked.",
            )
        )
    elif queue.queued and queue.oldest_seconds > STUCK_SECONDS:
        findings.append(
            warning(
                _MAIL,
                f"notifications queued: {queue.queued}, the oldest for {queue.oldest_seconds / 3600:.1f} h",
                "See that `tenantry worker` runs (or `serve` with RUN_JOBS), and what its log says of the mail server.",
                why="Nobody is told that a payment failed, or that a key leaked.",
            )
        )
    if queue.failed:
        findings.append(
            warning(
                _MAIL,
                f"notifications that could not be delivered and were given up: {queue.failed}",
                "See last_error in the tables notifications and owner_mails; often the owner's address is wrong "
                "(PATCH the tenant).",
                why="Their owners know nothing of it, and no further try is made.",
            )
        )
    return findings


def judge_jobs(due: Mapping[str, float], runs: Sequence[JobRuns], now: datetime, *, workers: int) -> list[Finding]:
    """Jobs that are due for long (seconds, by queue), and those that have not gone well lately.

    ``runs`` are those of the jobs that run by themselves. ``workers`` is how many workers gave a sign of life lately.
    """
    why = "Mails, questions to the provider and the removal of old data wait."
    see = f"See that `tenantry worker` runs (or `serve` with RUN_JOBS; running now: {workers}), and what its log says."
    found = [
        warning(_JOBS, f"in the queue {queue} one has been due for {age / 60:.0f} min", see, why=why)
        for queue, age in sorted(due.items())
        if age > LONGEST_DUE
    ]
    found += [
        warning(_JOBS, f"{run.task} last went well {(now - run.succeeded_at) // HOUR} h ago", see, why=why)
        for run in runs
        if run.succeeded_at and now - run.succeeded_at > LONGEST_BETWEEN_RUNS
    ]
    return found or [ok(_JOBS, "none is due for long")]


def judge_old_keys(keys: Sequence[OldKey], number: int, now: datetime) -> list[Finding]:
    """Active keys that are a year old or more; ``number`` counts also those that are not listed."""
    findings = [
        warning(
            f"API key {key.id}",
            f"{key.name!r} of {key.org_id} is {(now - key.created_at).days} days old",
            "Rotate it (Settings, API keys, or POST /api/v1/api-keys/{id}/rotate) and put the new secret in its place.",
            why="The longer a secret lives, the more places it has been in.",
        )
        for key in keys
    ]
    if number > len(keys):
        message = f"older than a year besides those: {number - len(keys)}"
        findings.append(
            warning(_KEYS, message, "Rotate the ones above, then check again.", why="They are as old as those.")
        )
    return findings or [ok(_KEYS, "no active one is older than a year")]


def judge_peppers(counts: Mapping[str | None, int], peppers: Sequence[str]) -> list[Finding]:
    """Whether each active key is hashed under a pepper that is set, and which older peppers are still needed.

    ``counts`` are active keys by pepper, where it is known; ``peppers`` are those that are set, newest first, or
    nothing where they cannot be read.
    """
    if not peppers:
        return []
    newest, *older = peppers
    lost = sum(number for pepper, number in counts.items() if pepper is not None and pepper not in peppers)
    waiting = sum(number for pepper, number in counts.items() if pepper is None or pepper in older)
    if lost:
        return [
            error(
                _PEPPER,
                f"active keys that nobody can use, since they are hashed under a pepper that is not set: {lost}",
                "Put the former pepper back, behind the new one: API_KEY_PEPPER=new,former.",
                why="Who holds them is refused.",
            )
        ]
    if not older:
        return []
    if waiting:
        return [
            warning(
                _PEPPER,
                f"active keys that still need an older pepper: {waiting}",
                "Keep the older pepper: a key moves to the first one when it is used, or rotate it.",
                why="Without it these keys are refused.",
            )
        ]
    return [ok(_PEPPER, f"every active key is under the first one ({counts.get(newest, 0)}): the others may go")]
