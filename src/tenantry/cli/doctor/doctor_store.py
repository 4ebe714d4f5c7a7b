"""What `doctor` reads from the database."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString, NamedTuple

from tenantry.billing.ledger_queries_store import FORMER_AMBIGUOUS_ORDER
from tenantry.db.connection import Connection
from tenantry.db.roles import MAY_TAKE_BY_LOGIN, SERVICE_ROLES, TENANT_POLICY_EXISTS
from tenantry.domain.billing.events import SNAPSHOT, Anomaly

MOST_LISTED: Final = 20
MOST_TENANTS_READ: Final = 10_000
"""How many tenants' events are read."""

SET_STATEMENT_TIMEOUT: Final = "SELECT set_config('statement_timeout', %s, false)"
RESET_ROLE: Final = "SELECT set_config('role', 'none', false)"
SETTINGS: Final = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
CONNECTION_LIMITS: Final = """
SELECT d.datconnlimit, r.rolconnlimit,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
  FROM pg_database d, pg_roles r
 WHERE d.datname = current_database() AND r.rolname = current_user
"""
# Only a superuser sees what sessions of other users wait for.
UNCONFIRMED: Final = """
SELECT count(*)
  FROM pg_stat_activity
 WHERE wait_event = 'SyncRep' AND state_change < clock_timestamp() - %(longest)s
"""
HAS_REVISION: Final = "SELECT to_regclass('alembic_version') IS NOT NULL"
REVISION: Final = "SELECT max(version_num) FROM alembic_version"
LOGIN: Final = f"""
SELECT session_user::text,
       EXISTS ({TENANT_POLICY_EXISTS})
       AND (SELECT count(*) FROM pg_roles WHERE rolname = ANY(%(roles)s) AND {MAY_TAKE_BY_LOGIN}) = %(number)s,
       pg_has_role(session_user, relowner, 'MEMBER'),
       has_table_privilege(session_user, oid, 'SELECT')
  FROM pg_class
 WHERE oid = 'api_keys'::regclass
"""  # noqa: S608  # our own names
OLD_KEYS: Final = """
SELECT k.id, k.name, k.org_id, k.created_at, count(*) OVER ()
  FROM api_keys k
  JOIN tenants t ON t.id = k.org_id AND t.deleted_at IS NULL
 WHERE k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > %(now)s) AND k.created_at <= %(created_until)s
 ORDER BY k.created_at, k.id
 LIMIT %(most)s
"""
# The index of entries with anomalies bounds what these read, however big the ledger is.
ANOMALIES: Final = """
SELECT kind, count(*)
  FROM billing_events
 CROSS JOIN unnest(anomalies) AS kind
 WHERE anomalies IS NOT NULL AND received_at > %(since)s
   AND (kind <> %(wrong_livemode)s OR livemode = NOT %(livemode)s::boolean)
 GROUP BY kind
"""
_OF_KIND: Final = """
  FROM billing_events
 WHERE anomalies IS NOT NULL AND received_at > %(since)s AND %(kind)s = ANY(anomalies)
"""
UNKNOWN_PRICES: Final = f"""
SELECT price_id, count(*), count(*) OVER () {_OF_KIND} AND price_id <> ALL(%(known)s)
 GROUP BY price_id ORDER BY count(*) DESC, price_id LIMIT %(most)s
"""  # our own text, here and below
TAKEN_CUSTOMERS: Final = f"""
SELECT concat(customer_id, ' for ', org_id), count(*) OVER () {_OF_KIND}
 GROUP BY customer_id, org_id ORDER BY customer_id, org_id LIMIT %(most)s
"""
FUTURE_DATED: Final = f"""
SELECT format('%%s of %%s, %%s UTC', id, coalesce(tenant_id, 'no tenant'),
              to_char(to_timestamp(created) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')),
       count(*) OVER () {_OF_KIND}
 ORDER BY created DESC, id LIMIT %(most)s
"""
ACCOUNTS: Final = f"""
SELECT account, count(*) OVER () {_OF_KIND} AND account <> ALL(%(listed)s)
 GROUP BY account ORDER BY count(*) DESC, account LIMIT %(most)s
"""
DRIFTED: Final = f"""
SELECT tenant_id, count(*) OVER () {_OF_KIND}
 GROUP BY tenant_id ORDER BY max(received_at) DESC, tenant_id LIMIT %(most)s
"""
# A later snapshot of the provider resolves the ambiguity. A deleted tenant has no plan.
_AMBIGUOUS: Final = [Anomaly.AMBIGUOUS_ORDER.value, FORMER_AMBIGUOUS_ORDER]
AMBIGUITIES: Final = """
WITH ambiguous AS (
       SELECT e.tenant_id,
              EXISTS (SELECT FROM billing_events s
                       WHERE s.tenant_id = e.tenant_id AND s.created >= e.created AND s.arrival > e.arrival
                         AND s.type = %(snapshot)s) AS resolved
         FROM billing_events e
        WHERE e.anomalies IS NOT NULL AND e.received_at > %(since)s AND e.anomalies && %(kinds)s
          AND NOT EXISTS (SELECT FROM tenants t WHERE t.id = e.tenant_id AND t.deleted_at IS NOT NULL)),
     open AS (SELECT DISTINCT tenant_id FROM ambiguous WHERE NOT resolved)
SELECT (SELECT count(*) FROM ambiguous), (SELECT count(*) FROM ambiguous WHERE resolved),
       ARRAY(SELECT tenant_id FROM open ORDER BY tenant_id LIMIT %(most)s), (SELECT count(*) FROM open)
"""
# By tenant, because the ledger has no index on the time alone: a month of a tenant is a few entries, but a million
# tenants are too many to ask about.
MODES: Final = """
SELECT count(DISTINCT t.id) FILTER (WHERE e.livemode), count(DISTINCT t.id) FILTER (WHERE NOT e.livemode)
  FROM (SELECT id FROM tenants
         WHERE deleted_at IS NULL AND tip_created > %(since)s
         ORDER BY tip_created DESC LIMIT %(tenants)s) t
 CROSS JOIN LATERAL (
         SELECT livemode FROM billing_events
          WHERE tenant_id = t.id AND created > %(since)s AND livemode IS NOT NULL
          ORDER BY created DESC, arrival DESC LIMIT %(most)s) e
"""
UNMAPPED_PLANS: Final = """
SELECT plan, count(*)
  FROM tenants
 WHERE deleted_at IS NULL AND plan <> ALL(%(known)s)
 GROUP BY plan
 ORDER BY count(*) DESC, plan
"""
NOT_COMPARED: Final = """
SELECT t.id, count(*) OVER ()
  FROM tenants t
 WHERE t.deleted_at IS NULL AND (t.reconciled_at IS NULL OR t.reconciled_at <= %(until)s)
   AND EXISTS (SELECT FROM customers c WHERE c.tenant_id = t.id AND c.linked_at <= %(until)s)
 ORDER BY t.reconciled_at NULLS FIRST, t.id
 LIMIT %(most)s
"""
OLDEST_BODY: Final = "SELECT received_at FROM billing_bodies ORDER BY arrival LIMIT 1"


class DatabaseLogin(NamedTuple):
    name: str
    takes_roles: bool
    owns_tables: bool
    has_own_privileges: bool


class OldKey(NamedTuple):
    id: str
    name: str
    org_id: str
    created_at: datetime


class TopNames(NamedTuple):
    """The first 20 names, and the number of all."""

    first: list[str]
    number: int

    def __str__(self) -> str:
        more = self.number - len(self.first)
        return ", ".join(self.first) + (f" and {more} more" if more else "")

    @property
    def counted(self) -> str:
        return f"{self.number} ({self})"


async def set_statement_timeout(connection: Connection, seconds: float) -> None:
    await connection.execute(SET_STATEMENT_TIMEOUT, (f"{round(seconds * 1000)}ms",))


async def reset_role(connection: Connection) -> None:
    """Give up the session's role: PostgreSQL shows the login its own sessions and limits only."""
    await connection.execute(RESET_ROLE)


async def read_settings(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """Read the server's settings, as they are for this session; omits unknown ones."""
    cursor = await connection.execute(SETTINGS, (list(names),))
    return dict(await cursor.fetchall())


async def read_connection_limits(connection: Connection) -> tuple[int | None, int | None, int]:
    """Return the limits of the database and the user (None: unlimited), and how many connections are open."""
    of_database, of_user, number = await _one(connection, CONNECTION_LIMITS)
    return of_database if of_database >= 0 else None, of_user if of_user >= 0 else None, number


async def count_unconfirmed(connection: Connection, longest: timedelta) -> int:
    """Count commits that a synchronous standby has not confirmed for longer than this."""
    return int((await _one(connection, UNCONFIRMED, longest=longest))[0])


async def read_login(connection: Connection) -> DatabaseLogin:
    return DatabaseLogin(*await _one(connection, LOGIN, roles=list(SERVICE_ROLES), number=len(SERVICE_ROLES)))


async def read_revision(connection: Connection) -> str | None:
    """Return the schema's revision; None for a database that was never migrated."""
    [exists] = await _one(connection, HAS_REVISION)
    revision = (await _one(connection, REVISION))[0] if exists else None
    return str(revision) if revision else None


async def read_old_keys(connection: Connection, now: datetime, created_until: datetime) -> tuple[list[OldKey], int]:
    """Return the oldest 20 active keys created until a time, and the number of all."""
    parameters = {"now": now, "created_until": created_until, "most": MOST_LISTED}
    rows = await (await connection.execute(OLD_KEYS, parameters)).fetchall()
    return [OldKey(*row[:4]) for row in rows], rows[0][4] if rows else 0


async def count_anomalies(connection: Connection, since: datetime, *, livemode: bool | None) -> dict[str, int]:
    """Count the anomalies of events received after ``since``, by kind.

    Without events of another mode than ``livemode``; None counts none of them.
    """
    parameters = {"since": since, "wrong_livemode": Anomaly.WRONG_LIVEMODE.value, "livemode": livemode}
    return dict(await (await connection.execute(ANOMALIES, parameters)).fetchall())


async def read_names(
    connection: Connection, statement: LiteralString, since: datetime, kind: Anomaly, **more: object
) -> TopNames:
    """Run a statement of this module that lists events of one kind, received after ``since``."""
    parameters = {"since": since, "kind": kind.value, "most": MOST_LISTED, **more}
    return _top(await (await connection.execute(statement, parameters)).fetchall())


async def read_unknown_prices(
    connection: Connection, since: datetime, known: Collection[str]
) -> tuple[list[tuple[str, int]], int]:
    """Return the 20 most frequent prices that no plan has, with the number of their events; and how many more."""
    parameters = {"since": since, "kind": Anomaly.UNKNOWN_PRICE.value, "most": MOST_LISTED, "known": list(known)}
    rows = await (await connection.execute(UNKNOWN_PRICES, parameters)).fetchall()
    return [(price, count) for price, count, _ in rows], rows[0][2] - len(rows) if rows else 0


async def read_ambiguities(connection: Connection, since: datetime) -> tuple[int, int, TopNames]:
    """Return how many events have an ambiguous order, how many of them a later snapshot of the provider has resolved,
    and the tenants of the others.
    """
    number, resolved, tenants, tenant_count = await _one(
        connection, AMBIGUITIES, since=since, kinds=_AMBIGUOUS, snapshot=SNAPSHOT, most=MOST_LISTED
    )
    return number, resolved, TopNames(tenants, tenant_count)


async def tenants_by_mode(connection: Connection, since: int) -> tuple[int, int]:
    """Count the tenants with events of live mode after a second (Unix time), and those with events of test mode.

    Reads the newest 20 events of each of the 10,000 tenants that had the newest events.
    """
    live, test = await _one(connection, MODES, since=since, tenants=MOST_TENANTS_READ, most=MOST_LISTED)
    return live, test


async def read_unmapped_plans(connection: Connection, known: Collection[str]) -> list[tuple[str, int]]:
    """Return the plans of tenants that are not ``known``, with the number of their tenants."""
    return await (await connection.execute(UNMAPPED_PLANS, {"known": list(known)})).fetchall()


async def not_compared(connection: Connection, until: datetime) -> TopNames:
    """Return the tenants that had a customer at ``until``, and no comparison with the provider since."""
    return _top(await (await connection.execute(NOT_COMPARED, {"until": until, "most": MOST_LISTED})).fetchall())


async def oldest_body(connection: Connection) -> datetime | None:
    """Return when the oldest raw body was received; None if there is none."""
    row = await (await connection.execute(OLDEST_BODY)).fetchone()
    return row[0] if row else None


async def _one(connection: Connection, statement: LiteralString, **parameters: object) -> tuple[Any, ...]:
    rows: list[tuple[Any, ...]] = await (await connection.execute(statement, parameters)).fetchall()
    return rows[0]


def _top(rows: Sequence[Sequence[Any]]) -> TopNames:
    return TopNames([row[0] for row in rows], rows[0][1] if rows else 0)
