"""What `doctor` reads from the database."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, LiteralString, NamedTuple

from tenantry.db.connection import Connection
from tenantry.db.foreign_tables import FOREIGN_TABLES, own_tables
from tenantry.db.roles import MAY_TAKE_BY_LOGIN, SERVICE_ROLES, TENANT_POLICY_EXISTS
from tenantry.db.standby_waits import REGISTRATION_IS_VALID
from tenantry.domain.billing.events import SNAPSHOT, Anomaly
from tenantry.domain.billing.state import BillingPolicy

MOST_LISTED: Final = 20

CONNECTION_LIMITS: Final = """
SELECT nullif(d.datconnlimit, -1), nullif(r.rolconnlimit, -1),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
  FROM pg_database d, pg_roles r
 WHERE d.datname = current_database() AND r.rolname = current_user
"""
LOGIN: Final = f"""
SELECT session_user::text,
       EXISTS ({TENANT_POLICY_EXISTS})
       AND (SELECT count(*) FROM pg_roles WHERE rolname = ANY(%(roles)s) AND {MAY_TAKE_BY_LOGIN}) = %(number)s,
       pg_has_role(session_user, relowner, 'MEMBER')
  FROM pg_class
 WHERE oid = 'api_keys'::regclass
"""  # noqa: S608  # our own names
# The index of entries with anomalies bounds what this reads, however big the ledger is.
ANOMALIES: Final = """
SELECT kind, sum(events)::bigint,
       (array_remove(array_agg(name ORDER BY latest DESC, name), NULL))[:%(most)s], count(name)
  FROM (SELECT kind,
               CASE kind WHEN 'customer_taken' THEN concat(customer_id, ' for ', org_id)
                         WHEN 'reference_refused' THEN concat(customer_id, ' for ', org_id)
                         WHEN 'unknown_price' THEN document->>'price_id'
                         WHEN 'connected_account' THEN document->>'account'
                         WHEN 'future_dated' THEN concat(id, ' of ', coalesce(tenant_id, 'no tenant'))
                         WHEN 'drift' THEN tenant_id
                         WHEN 'several_plans' THEN tenant_id
                         WHEN 'too_many_subscriptions' THEN tenant_id
                         WHEN 'truncated_items' THEN tenant_id
                END AS name,
               count(*) AS events, max(received_at) AS latest
          FROM billing_events
         CROSS JOIN unnest(anomalies) AS kind
         WHERE anomalies IS NOT NULL AND received_at > %(since)s
           AND (kind <> 'unknown_price' OR document->>'price_id' <> ALL(%(prices)s))
           AND (kind <> 'connected_account' OR document->>'account' <> ALL(%(accounts)s))
           AND (kind <> 'wrong_livemode'
                OR (document->>'livemode')::boolean <> %(livemode)s::boolean)
         GROUP BY 1, 2) named
 GROUP BY kind
"""
# A later snapshot of the provider resolves the ambiguity. A deleted tenant has no plan.
AMBIGUITIES: Final = """
WITH ambiguous AS (
       SELECT e.tenant_id,
              EXISTS (SELECT FROM billing_events s
                       WHERE s.tenant_id = e.tenant_id AND s.created >= e.created AND s.arrival > e.arrival
                         AND s.type = %(snapshot)s) AS resolved
         FROM billing_events e
        WHERE e.anomalies IS NOT NULL AND e.received_at > %(since)s AND %(kind)s = ANY(e.anomalies)
          AND NOT EXISTS (SELECT FROM tenants t WHERE t.id = e.tenant_id AND t.deleted_at IS NOT NULL)),
     open AS (SELECT DISTINCT tenant_id FROM ambiguous WHERE NOT resolved)
SELECT (SELECT count(*) FROM ambiguous), (SELECT count(*) FROM ambiguous WHERE resolved),
       ARRAY(SELECT tenant_id FROM open ORDER BY tenant_id LIMIT %(most)s), (SELECT count(*) FROM open)
"""
REPLAYED: Final = "SELECT coalesce(pg_last_wal_replay_lsn() - '0/0', 0)::bigint"
REGISTERED_STANDBYS: Final = f"""
SELECT name, CASE WHEN {REGISTRATION_IS_VALID} THEN ceil(extract(epoch FROM expires_at - now()))::integer END
  FROM check_standbys
 ORDER BY name
"""  # noqa: S608  # our own expression

# For `read_names`

# The reason says whether an event waits for a tenant, a customer or a subscription.
WAITED_FOR: Final = """
SELECT coalesce(substring(reason FROM '^Waits: (.*) is not known yet\\.$'), reason), count(*) OVER ()
  FROM (SELECT document->>'reason' AS reason, received_at
          FROM billing_events
         WHERE outcome = 'parked') AS parked
 GROUP BY 1
 ORDER BY max(received_at) DESC, 1
 LIMIT %(most)s
"""
UNMAPPED_PLANS: Final = """
SELECT format('%%s: %%s', plan, count(*)), count(*) OVER ()
  FROM tenants
 WHERE deleted_at IS NULL AND plan <> ALL(%(known)s)
 GROUP BY plan
 ORDER BY count(*) DESC, plan
 LIMIT %(most)s
"""
UNKNOWN_ROLES: Final = """
SELECT format('%%s: %%s', role, count(*)), count(*) OVER ()
  FROM memberships
 WHERE removed_at IS NULL AND role <> ALL(%(known)s)
 GROUP BY role
 ORDER BY count(*) DESC, role
 LIMIT %(most)s
"""
NOT_COMPARED: Final = """
SELECT t.id, count(*) OVER ()
  FROM tenants t
 WHERE t.deleted_at IS NULL AND (t.reconciled_at IS NULL OR t.reconciled_at <= %(until)s)
   AND EXISTS (SELECT FROM customers c WHERE c.tenant_id = t.id AND c.gone_by IS NULL AND c.linked_at <= %(until)s)
 ORDER BY t.reconciled_at NULLS FIRST, t.id
 LIMIT %(most)s
"""
ALL_CUSTOMERS_GONE: Final = """
SELECT t.id, count(*) OVER ()
  FROM tenants t
 WHERE t.deleted_at IS NULL AND t.subscription_status <> ALL(%(over)s)
   AND (SELECT bool_and(c.gone_by IS NOT NULL) FROM customers c WHERE c.tenant_id = t.id)
 ORDER BY t.id
 LIMIT %(most)s
"""


class ConnectionLimits(NamedTuple):
    """How many connections may be open; None: unlimited."""

    of_database: int | None
    of_user: int | None
    open_now: int


class RegisteredStandby(NamedTuple):
    """A standby that changes wait for, and the seconds until its registration expires; None: it has
    expired, or was ended.
    """

    name: str
    seconds_left: int | None


class Login(NamedTuple):
    """The login of `DATABASE_URL`, and whether it takes the service's roles and owns the tables."""

    name: str
    takes_roles: bool
    owns_tables: bool


class Names(NamedTuple):
    """The first 20 names, and the number of all."""

    first: Sequence[str]
    number: int

    def __str__(self) -> str:
        more = self.number - len(self.first)
        return ", ".join(self.first) + (f" and {more} more" if more else "")

    @property
    def counted(self) -> str:
        return f"{self.number} ({self})"


class AnomalyCount(NamedTuple):
    """How many events have an anomaly, and what they name (such as their prices)."""

    events: int
    names: Names


async def reset_role(connection: Connection) -> None:
    """Give up the session's role: PostgreSQL shows the login its own sessions and limits only."""
    await connection.execute("SELECT set_config('role', 'none', false)")


async def read_settings(connection: Connection) -> dict[str, str]:
    """Read the server's settings, as they are for this session."""
    return dict(await connection.fetch("SELECT name, setting FROM pg_settings"))


async def read_connection_limits(connection: Connection) -> ConnectionLimits:
    """Return how many connections the database and the user may open."""
    [row] = await connection.fetch(CONNECTION_LIMITS)
    return ConnectionLimits(*row)


async def read_login(connection: Connection) -> Login:
    """Return what the session's login may do."""
    parameters = {"roles": list(SERVICE_ROLES), "number": len(SERVICE_ROLES)}
    [row] = await connection.fetch(LOGIN, parameters)
    return Login(*row)


async def read_registered_standbys(connection: Connection) -> list[RegisteredStandby]:
    """Return the standbys that changes wait for."""
    return [RegisteredStandby(*row) for row in await connection.fetch(REGISTERED_STANDBYS)]


async def read_replayed(connection: Connection) -> int:
    """Return how far a standby has replayed the log, in bytes."""
    return int(await connection.fetch_value(REPLAYED))


async def read_revision(connection: Connection) -> str | None:
    """Return the schema's revision; None for a database that was never migrated."""
    if not await connection.fetch_value("SELECT to_regclass('tenantry_version') IS NOT NULL"):
        return None
    revision = await connection.fetch_value("SELECT max(version_num) FROM tenantry_version")
    return str(revision) if revision else None


async def read_foreign_tables(connection: Connection, *, is_migrated: bool) -> list[str]:
    """Return the names of tables of others: of all tables, if the database was never migrated."""
    rows = await connection.fetch(FOREIGN_TABLES, {"own": own_tables() if is_migrated else []})
    return [row[0] for row in rows]


async def read_anomalies(
    connection: Connection, since: datetime, policy: BillingPolicy
) -> dict[str, AnomalyCount]:
    """Return the anomalies of events received after ``since``, by kind; the names the latest first.

    Leaves out the prices that a plan has by now, the accounts that are listed by now, and, for the
    wrong mode, events of the policy's mode; without one, all of them.
    """
    parameters = {
        "since": since,
        "prices": policy.catalog.price_ids,
        "accounts": list(policy.accounts),
        "livemode": policy.livemode,
        "most": MOST_LISTED,
    }
    rows = await connection.fetch(ANOMALIES, parameters)
    return {
        kind: AnomalyCount(events, Names(first, number)) for kind, events, first, number in rows
    }


async def read_ambiguities(connection: Connection, since: datetime) -> tuple[int, int, Names]:
    """Return how many events have an ambiguous order, how many of them a later snapshot of the
    provider has resolved, and the tenants of the others.
    """
    parameters = {
        "since": since,
        "kind": Anomaly.AMBIGUOUS_ORDER.value,
        "snapshot": SNAPSHOT,
        "most": MOST_LISTED,
    }
    [(number, resolved, *tenants)] = await connection.fetch(AMBIGUITIES, parameters)
    return number, resolved, Names(*tenants)


async def read_names(connection: Connection, statement: LiteralString, **parameters: Any) -> Names:  # noqa: ANN401
    """Run a statement of this module that lists names, with the number of all."""
    rows = await connection.fetch(statement, {**parameters, "most": MOST_LISTED})
    return Names([row[0] for row in rows], rows[0][1] if rows else 0)
