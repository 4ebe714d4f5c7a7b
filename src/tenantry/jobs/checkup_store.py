"""What a check-up reads of the database: its version and schema, and what in it needs somebody's attention."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.billing.ledger_store import FORMER_AMBIGUOUS_ORDER
from tenantry.common.clock import from_epoch
from tenantry.db.connection import Connection
from tenantry.db.roles import MAY_TAKE_BY_LOGIN, SERVICE_ROLES, WALL_OF_TENANTS
from tenantry.domain.billing.events import SNAPSHOT, Anomaly

MOST_LISTED: Final = 20
MOST_ASKED: Final = 10_000
"""Tenants whose events are looked at."""

PATIENCE: Final = 30.0
"""Seconds that a statement may take: some look at every tenant."""
BE_PATIENT: Final = "SELECT set_config('statement_timeout', %s, false)"
SERVER: Final = (
    "SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery()"
)
HAS_REVISION: Final = "SELECT to_regclass('alembic_version') IS NOT NULL"
REVISION: Final = "SELECT max(version_num) FROM alembic_version"
LOGIN: Final = f"""
SELECT session_user::text,
       EXISTS ({WALL_OF_TENANTS})
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
# Whatever the provider says of a later second holds whichever of the two came last. An ended tenant has no plan to get
# wrong.
_AMBIGUOUS: Final = [Anomaly.AMBIGUOUS_ORDER.value, FORMER_AMBIGUOUS_ORDER]
TIES: Final = """
WITH ties AS (
       SELECT e.tenant_id,
              EXISTS (SELECT FROM billing_events s
                       WHERE s.tenant_id = e.tenant_id AND s.created >= e.created AND s.arrival > e.arrival
                         AND s.type = %(snapshot)s) AS settled
         FROM billing_events e
        WHERE e.anomalies IS NOT NULL AND e.received_at > %(since)s AND e.anomalies && %(kinds)s
          AND NOT EXISTS (SELECT FROM tenants t WHERE t.id = e.tenant_id AND t.deleted_at IS NOT NULL)),
     unsettled AS (SELECT DISTINCT tenant_id FROM ties WHERE NOT settled)
SELECT (SELECT count(*) FROM ties), (SELECT count(*) FROM ties WHERE settled),
       ARRAY(SELECT tenant_id FROM unsettled ORDER BY tenant_id LIMIT %(most)s), (SELECT count(*) FROM unsettled)
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
OF_THE_DAY: Final = """
SELECT count(DISTINCT tenant_id) FILTER (WHERE %(drift)s = ANY(anomalies)),
       count(*) FILTER (WHERE anomalies && %(ties)s)
  FROM billing_events
 WHERE anomalies IS NOT NULL AND received_at > now() - interval '24 hours'
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


class Login(msgspec.Struct, frozen=True):
    """Who is logged in to the database: whether it takes the roles of `tenantry.db.roles`, and what it may besides."""

    name: str
    takes_roles: bool
    owns_tables: bool
    reads_by_itself: bool


class OldKey(msgspec.Struct, frozen=True):
    """An active key that was made long ago."""

    id: str
    name: str
    org_id: str
    created_at: datetime


class Named(NamedTuple):
    """The first 20 of those concerned, and how many they are in all."""

    first: list[str]
    number: int


class Ties(msgspec.Struct, frozen=True):
    """Events whose place within their second nothing proves: how many, and how many the provider has settled since.

    ``open_tenants`` are the tenants of the others.
    """

    number: int
    settled: int
    open_tenants: Named


class Anomalies(msgspec.Struct, frozen=True):
    """What was unexpected about events: how many there were of each kind, and what is to be known of some kinds.

    ``prices`` are those that no plan has, with the number of their events, the most frequent 20; ``more_prices`` is how
    many there are besides. ``taken`` says of each customer that another tenant has which tenant was named with it.
    ``future`` are events dated ahead of their arrival, ``accounts`` connected accounts that are not listed.
    """

    counts: dict[str, int]
    prices: list[tuple[str, int]]
    more_prices: int
    taken: Named
    ties: Ties
    drifted: Named
    future: Named
    accounts: Named


async def be_patient(connection: Connection, seconds: float) -> None:
    """Let each of the connection's statements take so many seconds."""
    await connection.execute(BE_PATIENT, (f"{round(seconds * 1000)}ms",))


async def read_server(connection: Connection) -> Server:
    """The server's version, and whether it follows another."""
    cursor = await connection.execute(SERVER)
    [row] = await cursor.fetchall()
    return Server(*row)


async def read_login(connection: Connection) -> Login:
    """Who is logged in."""
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
    """The active keys of living tenants that were made at ``made_until`` or before, the oldest 20; and their number."""
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
    """What was unexpected about the events received after ``since``, as far as it still is.

    Prices that are known by now do not count, nor do events of the mode that is right by now (``livemode``, None where
    that is not known), nor connected ``accounts`` that are listed by now.
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
    taken = [(f"{customer_id} for {org_id}", number) for customer_id, org_id, number in await cursor.fetchall()]
    cursor = await connection.execute(TIES, {**window, "kinds": _AMBIGUOUS, "snapshot": SNAPSHOT})
    [(ties, settled, open_tenants, open_number)] = await cursor.fetchall()
    cursor = await connection.execute(FUTURE_DATED, {**window, "kind": Anomaly.FUTURE_DATED.value})
    future = [
        (f"{event_id} of {tenant_id or 'no tenant'}, {from_epoch(created):%Y-%m-%d %H:%M} UTC", number)
        for event_id, tenant_id, created, number in await cursor.fetchall()
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
        taken=_named(taken),
        ties=Ties(ties, settled, Named(open_tenants, open_number)),
        drifted=_named(await cursor.fetchall()),
        future=_named(future),
        accounts=_named(unlisted),
    )


def _named(rows: Sequence[Sequence[Any]]) -> Named:
    return Named([row[0] for row in rows], rows[0][1] if rows else 0)


async def drifts_and_ties_of_the_day(connection: Connection) -> tuple[int, int]:
    """How many tenants had drifted from the provider, and how many events nothing could place, in the last 24 h."""
    cursor = await connection.execute(OF_THE_DAY, {"drift": Anomaly.DRIFT.value, "ties": _AMBIGUOUS})
    [(drifted, ties)] = await cursor.fetchall()
    return drifted, ties


async def tenants_by_mode(connection: Connection, since: int) -> tuple[int, int]:
    """How many living tenants had events of live mode after a second (Unix time), and how many of test mode.

    Of the 10,000 tenants that had the newest events, the newest 20 events of each are looked at.
    """
    cursor = await connection.execute(MODES, {"since": since, "tenants": MOST_ASKED, "most": MOST_LISTED})
    [(live, test)] = await cursor.fetchall()
    return live, test


async def read_unmapped_plans(connection: Connection, known: Collection[str]) -> list[tuple[str, int]]:
    """The plans of living tenants that are none of the ``known`` ones, with the number of their tenants."""
    cursor = await connection.execute(UNMAPPED_PLANS, {"known": list(known)})
    return [(plan, count) for plan, count in await cursor.fetchall()]


async def not_compared(connection: Connection, until: datetime) -> Named:
    """Living tenants that have had a customer since ``until`` and have not been compared with the provider since."""
    cursor = await connection.execute(NOT_COMPARED, {"until": until, "most": MOST_LISTED})
    return _named(await cursor.fetchall())


async def oldest_body(connection: Connection) -> datetime | None:
    """When the oldest raw body came in; None if there is none."""
    cursor = await connection.execute(OLDEST_BODY)
    row = await cursor.fetchone()
    return row[0] if row else None
