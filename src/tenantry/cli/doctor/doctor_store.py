"""What `doctor` reads from the database: the server, the schema, and the data that needs attention."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.billing.ledger_queries_store import FORMER_AMBIGUOUS_ORDER
from tenantry.common.clock import from_epoch
from tenantry.db.connection import Connection
from tenantry.db.roles import MAY_TAKE_BY_LOGIN, SERVICE_ROLES, TENANT_POLICY_EXISTS
from tenantry.domain.billing.events import SNAPSHOT, Anomaly

MOST_LISTED: Final = 20
MOST_TENANTS_READ: Final = 10_000
"""How many tenants' events are read."""

STATEMENT_TIMEOUT: Final = 30.0
"""Seconds that a statement may take: some read every tenant."""
SET_STATEMENT_TIMEOUT: Final = "SELECT set_config('statement_timeout', %s, false)"
SERVER: Final = (
    "SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery()"
)
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
       AND (SELECT count(*) FROM pg_roles WHERE rolname = ANY(%s) AND {MAY_TAKE_BY_LOGIN}) = %s,
       pg_has_role(session_user, relowner, 'MEMBER'),
       has_table_privilege(session_user, oid, 'SELECT')
  FROM pg_class
 WHERE oid = 'api_keys'::regclass
"""  # noqa: S608  # our own names
OLD_KEYS: Final = """
SELECT k.id, k.name, k.org_id, k.created_at, count(*) OVER ()
  FROM api_keys k
  JOIN tenants t ON t.id = k.org_id AND t.deleted_at IS NULL
 WHERE k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > %(now)s) AND k.created_at <= %(made_until)s
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
UNKNOWN_PRICES: Final = """
SELECT price_id, count(*), count(*) OVER ()
  FROM billing_events
 WHERE anomalies IS NOT NULL AND received_at > %(since)s
   AND %(kind)s = ANY(anomalies) AND price_id <> ALL(%(known)s)
 GROUP BY price_id
 ORDER BY count(*) DESC, price_id
 LIMIT %(most)s
"""
TAKEN_CUSTOMERS: Final = """
SELECT customer_id, org_id, count(*) OVER ()
  FROM billing_events
 WHERE anomalies IS NOT NULL AND received_at > %(since)s AND %(kind)s = ANY(anomalies)
 GROUP BY customer_id, org_id
 ORDER BY customer_id, org_id
 LIMIT %(most)s
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
FUTURE_DATED: Final = """
SELECT id, tenant_id, created, count(*) OVER ()
  FROM billing_events
 WHERE anomalies IS NOT NULL AND received_at > %(since)s AND %(kind)s = ANY(anomalies)
 ORDER BY created DESC, id
 LIMIT %(most)s
"""
ACCOUNTS: Final = """
SELECT account, count(*) OVER ()
  FROM billing_events
 WHERE anomalies IS NOT NULL AND received_at > %(since)s AND %(kind)s = ANY(anomalies) AND account <> ALL(%(listed)s)
 GROUP BY account
 ORDER BY count(*) DESC, account
 LIMIT %(most)s
"""
DRIFTED: Final = """
SELECT tenant_id, count(*) OVER ()
  FROM billing_events
 WHERE anomalies IS NOT NULL AND received_at > %(since)s AND %(kind)s = ANY(anomalies)
 GROUP BY tenant_id
 ORDER BY max(received_at) DESC, tenant_id
 LIMIT %(most)s
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


class Server(msgspec.Struct, frozen=True):
    """A PostgreSQL server; ``number`` is its version as ``server_version_num`` has it (180001 is 18.1)."""

    number: int
    version: str
    is_standby: bool = False


class ConnectionLimits(msgspec.Struct, frozen=True):
    """How many connections the database and the user may have (None: unlimited), and how many are open."""

    of_database: int | None
    of_user: int | None
    open: int


class Login(msgspec.Struct, frozen=True):
    """The login of the service: whether it takes the roles of `tenantry.db.roles`, and its other privileges."""

    name: str
    takes_roles: bool
    owns_tables: bool
    reads_by_itself: bool


class OldKey(msgspec.Struct, frozen=True):
    """An active key that was created long ago."""

    id: str
    name: str
    org_id: str
    created_at: datetime


class Listed(NamedTuple):
    """The first 20 names, and how many there are in all."""

    first: list[str]
    number: int


class Ambiguities(msgspec.Struct, frozen=True):
    """Events in an ambiguous order: how many, and how many a later snapshot of the provider has resolved.

    ``open_tenants`` are the tenants of the others.
    """

    number: int
    resolved: int
    open_tenants: Listed


class Anomalies(msgspec.Struct, frozen=True):
    """The number of anomalies of each kind, and details of some kinds.

    ``prices`` are those that no plan has, with the number of their events, the most frequent 20; ``more_prices`` counts
    the others. ``taken`` names each customer of another tenant with the tenant that an event named. ``future`` are
    events dated after their arrival, ``accounts`` connected accounts that are not listed.
    """

    counts: dict[str, int]
    prices: list[tuple[str, int]]
    more_prices: int
    taken: Listed
    ambiguities: Ambiguities
    drifted: Listed
    future: Listed
    accounts: Listed


async def set_statement_timeout(connection: Connection, seconds: float) -> None:
    """Let each statement of the connection take so many seconds."""
    await connection.execute(SET_STATEMENT_TIMEOUT, (f"{round(seconds * 1000)}ms",))


async def read_server(connection: Connection) -> Server:
    """The server's version, and whether it is a standby."""
    cursor = await connection.execute(SERVER)
    [row] = await cursor.fetchall()
    return Server(*row)


async def reset_role(connection: Connection) -> None:
    """Give up the session's role: PostgreSQL shows the login its own sessions and limits only."""
    await connection.execute(RESET_ROLE)


async def read_settings(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """The server's settings of these names, as they are for this session, without those that it does not have."""
    cursor = await connection.execute(SETTINGS, (list(names),))
    return dict(await cursor.fetchall())


async def read_connection_limits(connection: Connection) -> ConnectionLimits:
    """The limits of connections, and how many are open."""
    cursor = await connection.execute(CONNECTION_LIMITS)
    [(of_database, of_user, number)] = await cursor.fetchall()
    return ConnectionLimits(of_database if of_database >= 0 else None, of_user if of_user >= 0 else None, number)


async def count_unconfirmed(connection: Connection, longest: timedelta) -> int:
    """How many commits a synchronous standby has not confirmed for longer than this."""
    cursor = await connection.execute(UNCONFIRMED, {"longest": longest})
    [(number,)] = await cursor.fetchall()
    return int(number)


async def read_login(connection: Connection) -> Login:
    """The current login."""
    cursor = await connection.execute(LOGIN, (list(SERVICE_ROLES), len(SERVICE_ROLES)))
    [row] = await cursor.fetchall()
    return Login(*row)


async def read_revision(connection: Connection) -> str | None:
    """The schema's revision; None for a database that was never migrated."""
    cursor = await connection.execute(HAS_REVISION)
    if not (await cursor.fetchall())[0][0]:
        return None
    cursor = await connection.execute(REVISION)
    [(revision,)] = await cursor.fetchall()
    return str(revision) if revision else None


async def read_old_keys(connection: Connection, now: datetime, made_until: datetime) -> tuple[list[OldKey], int]:
    """The oldest 20 active keys that were created at ``made_until`` or before, and how many there are."""
    cursor = await connection.execute(OLD_KEYS, {"now": now, "made_until": made_until, "most": MOST_LISTED})
    rows = await cursor.fetchall()
    return [OldKey(*row[:4]) for row in rows], rows[0][4] if rows else 0


async def read_anomalies(
    connection: Connection,
    since: datetime,
    known_prices: Collection[str],
    *,
    livemode: bool | None,
    accounts: Collection[str] = (),
) -> Anomalies:
    """Anomalies of the events received after ``since``.

    Without prices, modes (``livemode``, None if not known) and ``accounts`` that the settings have accepted since.
    """
    window = {"since": since, "most": MOST_LISTED}
    cursor = await connection.execute(
        ANOMALIES, {**window, "wrong_livemode": Anomaly.WRONG_LIVEMODE.value, "livemode": livemode}
    )
    counts = dict(await cursor.fetchall())
    cursor = await connection.execute(
        UNKNOWN_PRICES, {**window, "kind": Anomaly.UNKNOWN_PRICE.value, "known": list(known_prices)}
    )
    prices = await cursor.fetchall()
    cursor = await connection.execute(TAKEN_CUSTOMERS, {**window, "kind": Anomaly.CUSTOMER_TAKEN.value})
    taken = [(f"{customer_id} for {org_id}", total) for customer_id, org_id, total in await cursor.fetchall()]
    cursor = await connection.execute(AMBIGUITIES, {**window, "kinds": _AMBIGUOUS, "snapshot": SNAPSHOT})
    [(number, resolved, open_tenants, open_number)] = await cursor.fetchall()
    cursor = await connection.execute(FUTURE_DATED, {**window, "kind": Anomaly.FUTURE_DATED.value})
    future = [
        (f"{event_id} of {tenant_id or 'no tenant'}, {from_epoch(created):%Y-%m-%d %H:%M} UTC", total)
        for event_id, tenant_id, created, total in await cursor.fetchall()
    ]
    cursor = await connection.execute(
        ACCOUNTS, {**window, "kind": Anomaly.CONNECTED_ACCOUNT.value, "listed": list(accounts)}
    )
    unlisted = await cursor.fetchall()
    cursor = await connection.execute(DRIFTED, {**window, "kind": Anomaly.DRIFT.value})
    return Anomalies(
        counts=counts,
        prices=[(price, count) for price, count, _ in prices],
        more_prices=prices[0][2] - len(prices) if prices else 0,
        taken=_listed(taken),
        ambiguities=Ambiguities(number, resolved, Listed(open_tenants, open_number)),
        drifted=_listed(await cursor.fetchall()),
        future=_listed(future),
        accounts=_listed(unlisted),
    )


def _listed(rows: Sequence[Sequence[Any]]) -> Listed:
    return Listed([row[0] for row in rows], rows[0][1] if rows else 0)


async def tenants_by_mode(connection: Connection, since: int) -> tuple[int, int]:
    """How many tenants had events of live mode after a second (Unix time), and how many of test mode.

    Reads the newest 20 events of each of the 10,000 tenants that had the newest events.
    """
    cursor = await connection.execute(MODES, {"since": since, "tenants": MOST_TENANTS_READ, "most": MOST_LISTED})
    [(live, test)] = await cursor.fetchall()
    return live, test


async def read_unmapped_plans(connection: Connection, known: Collection[str]) -> list[tuple[str, int]]:
    """The plans of tenants that are not ``known``, with the number of their tenants."""
    cursor = await connection.execute(UNMAPPED_PLANS, {"known": list(known)})
    return [(plan, count) for plan, count in await cursor.fetchall()]


async def not_compared(connection: Connection, until: datetime) -> Listed:
    """Tenants with a customer since ``until`` that have not been compared with the provider since."""
    cursor = await connection.execute(NOT_COMPARED, {"until": until, "most": MOST_LISTED})
    return _listed(await cursor.fetchall())


async def oldest_body(connection: Connection) -> datetime | None:
    """When the oldest raw body came in; None if there is none."""
    cursor = await connection.execute(OLDEST_BODY)
    row = await cursor.fetchone()
    return row[0] if row else None
