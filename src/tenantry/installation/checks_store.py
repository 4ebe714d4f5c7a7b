"""What the checks read from the database."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, LiteralString, NamedTuple

from tenantry.db.connection import Connection
from tenantry.db.foreign_tables import FOREIGN_TABLES, own_tables
from tenantry.db.roles import SERVICE_ROLES
from tenantry.domain.billing.events import SNAPSHOT, Anomaly
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.standby_checks import REGISTRATION_SECONDS

MOST_LISTED: Final = 20

CONNECTION_LIMITS: Final = """
SELECT nullif(d.datconnlimit, -1), nullif(r.rolconnlimit, -1),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
  FROM pg_database d, pg_roles r
 WHERE d.datname = current_database() AND r.rolname = current_user
"""
LOGIN: Final = """
SELECT session_user::text,
       EXISTS (SELECT FROM pg_policy WHERE polname = 'one_tenant' AND polrelid = to_regclass('tenants'))
       AND (SELECT count(*)
              FROM pg_roles
             WHERE rolname = ANY(%(roles)s)
               AND pg_has_role(session_user, oid, CASE WHEN current_setting('server_version_num')::int >= 160000
                                                  THEN 'SET' ELSE 'MEMBER' END)) = %(number)s,
       pg_has_role(session_user, relowner, 'MEMBER')
  FROM pg_class
 WHERE oid = 'api_keys'::regclass
"""
# The index of entries with anomalies bounds what this reads, however big the ledger is; the limit
# does, however many of them there are.
ANOMALIES: Final = """
WITH found AS (
       SELECT kind, tenant_id, received_at,
               CASE kind WHEN 'customer_taken' THEN concat(customer_id, ' for ', org_id)
                         WHEN 'reference_refused' THEN concat(customer_id, ' for ', org_id)
                         WHEN 'unknown_price' THEN document->>'price_id'
                         WHEN 'connected_account' THEN document->>'account'
                         WHEN 'future_dated' THEN concat(id, ' of ', coalesce(tenant_id, 'no tenant'))
                         WHEN 'drift' THEN tenant_id
                         WHEN 'several_plans' THEN tenant_id
                         WHEN 'too_many_subscriptions' THEN tenant_id
                         WHEN 'truncated_items' THEN tenant_id
                         WHEN 'disputed' THEN concat(document->'reversal'->>'id', ' of ', tenant_id)
                         WHEN 'refund_failed' THEN concat(document->'reversal'->>'id', ' of ', tenant_id)
              END AS name
         FROM (SELECT id, org_id, tenant_id, customer_id, document, anomalies, received_at, arrival, payments
                 FROM billing_events
                WHERE anomalies IS NOT NULL AND received_at > %(since)s
                ORDER BY received_at DESC
                LIMIT %(entries)s) AS unexpected
        CROSS JOIN unnest(anomalies) AS kind
         WHERE (kind <> 'unknown_price' OR document->>'price_id' <> ALL(%(prices)s))
           AND (kind <> 'disputed' OR NOT EXISTS (
                 SELECT
                   FROM billing_events later
                  WHERE later.payments && unexpected.payments AND later.tenant_id = unexpected.tenant_id
                    AND later.document->'reversal'->>'id' = unexpected.document->'reversal'->>'id'
                    AND later.outcome = 'applied' AND later.arrival > unexpected.arrival))
           AND (kind <> 'connected_account' OR document->>'account' <> ALL(%(accounts)s))
           AND (kind <> 'wrong_livemode'
                OR (document->>'livemode')::boolean <> %(livemode)s::boolean)),
     named AS (SELECT kind, name, count(*) AS events, max(received_at) AS latest FROM found GROUP BY 1, 2),
     concerned AS (
       SELECT kind, tenant_id, max(received_at) AS latest FROM found WHERE tenant_id IS NOT NULL GROUP BY 1, 2)
SELECT kind, sum(events)::bigint,
       (array_remove(array_agg(name ORDER BY latest DESC, name), NULL))[:%(most)s], count(name),
       ARRAY(SELECT tenant_id FROM concerned
              WHERE concerned.kind = named.kind
              ORDER BY latest DESC, tenant_id
              LIMIT %(most)s)
  FROM named
 GROUP BY kind
"""
# A later snapshot of the provider resolves the ambiguity. A deleted tenant has no plan.
AMBIGUITIES: Final = """
WITH ambiguous AS (
       SELECT e.tenant_id,
              EXISTS (SELECT FROM billing_events s
                       WHERE s.tenant_id = e.tenant_id AND s.created >= e.created AND s.arrival > e.arrival
                         AND s.type = %(snapshot)s) AS resolved
         FROM (SELECT tenant_id, created, arrival, anomalies
                 FROM billing_events
                WHERE anomalies IS NOT NULL AND received_at > %(since)s
                ORDER BY received_at DESC
                LIMIT %(entries)s) AS e
        WHERE %(kind)s = ANY(e.anomalies)
          AND NOT EXISTS (SELECT FROM tenants t WHERE t.id = e.tenant_id AND t.deleted_at IS NOT NULL)),
     open AS (SELECT DISTINCT tenant_id FROM ambiguous WHERE NOT resolved)
SELECT (SELECT count(*) FROM ambiguous), (SELECT count(*) FROM ambiguous WHERE resolved),
       ARRAY(SELECT tenant_id FROM open ORDER BY tenant_id LIMIT %(most)s), (SELECT count(*) FROM open)
"""
REPLAYED: Final = "SELECT coalesce(pg_last_wal_replay_lsn() - '0/0', 0)::bigint"
REGISTERED_STANDBYS: Final = """
SELECT name,
       CASE WHEN expires_at BETWEEN clock_timestamp() AND clock_timestamp() + %(seconds)s * interval '1 second'
            THEN ceil(extract(epoch FROM expires_at - now()))::integer END
  FROM check_standbys
 ORDER BY name
"""

# For `read_names`

# The reason says whether an event waits for a tenant, a customer or a subscription: what stands
# between "Waits: " and " is not known yet.". A regular expression takes ten times as long.
WAITED_FOR: Final = """
SELECT CASE WHEN reason LIKE 'Waits: %% is not known yet.' THEN substr(reason, 8, length(reason) - 25)
            ELSE reason END,
       count(*) OVER ()
  FROM (SELECT document->>'reason' AS reason, received_at
          FROM billing_events
         WHERE outcome = 'parked'
         LIMIT %(entries)s) AS parked
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
# The index by age bounds what this reads: at most 1,000 rows a tenant are kept.
MANY_REJECTIONS: Final = """
SELECT format('%%s: %%s, most often %%s', org_id, sum(number), (array_agg(code ORDER BY number DESC, code))[1]),
       count(*) OVER ()
  FROM (SELECT org_id, code, sum(counted) AS number
          FROM rejections
         WHERE at > %(since)s
         GROUP BY org_id, code) of_codes
 GROUP BY org_id
HAVING sum(number) >= %(least)s
 ORDER BY sum(number) DESC, org_id
 LIMIT %(most)s
"""
UNTRUSTED_PEERS: Final = """
SELECT address, count(*) OVER ()
  FROM rejections
 WHERE at > %(since)s AND code = 'address_not_allowed' AND needed = 'trusted_proxy'
 GROUP BY address
 ORDER BY sum(counted) DESC, address
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
# The ids of removed members whose data was erased have the pepper of their HMAC.
ERASED_BY_PEPPER: Final = r"""
SELECT split_part(m.subject, '_', 2), count(*)
  FROM tenants t
  JOIN memberships m ON m.tenant_id = t.id
 WHERE t.rejects_erased AND m.removed_at IS NOT NULL AND m.subject ~ '^erased_[0-9a-f]{16}_[0-9a-f]{64}$'
 GROUP BY 1
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
    """How many events have an anomaly, what they name (such as their prices), and their tenants."""

    events: int
    names: Names
    tenants: Sequence[str]


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
    values = {"seconds": REGISTRATION_SECONDS}
    return [RegisteredStandby(*row) for row in await connection.fetch(REGISTERED_STANDBYS, values)]


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
    connection: Connection, since: datetime, policy: BillingPolicy, entries: int | None
) -> dict[str, AnomalyCount]:
    """Return the anomalies of events received after ``since``, of the latest so many, by kind;
    names and tenants the latest first.

    Leaves out the prices that a plan has by now, the accounts that are listed by now, and, for the
    wrong mode, events of the policy's mode; without one, all of them.
    """
    parameters = {
        "since": since,
        "prices": policy.catalog.price_ids,
        "accounts": list(policy.accounts),
        "livemode": policy.livemode,
        "most": MOST_LISTED,
        "entries": entries,
    }
    rows = await connection.fetch(ANOMALIES, parameters)
    return {
        kind: AnomalyCount(events, Names(first, number), tenants)
        for kind, events, first, number, tenants in rows
    }


async def read_ambiguities(
    connection: Connection, since: datetime, entries: int | None
) -> tuple[int, int, Names]:
    """Return how many events have an ambiguous order, how many of them a later snapshot of the
    provider has resolved, and the tenants of the others.
    """
    parameters = {
        "since": since,
        "kind": Anomaly.AMBIGUOUS_ORDER.value,
        "snapshot": SNAPSHOT,
        "most": MOST_LISTED,
        "entries": entries,
    }
    [(number, resolved, *tenants)] = await connection.fetch(AMBIGUITIES, parameters)
    return number, resolved, Names(*tenants)


async def read_names(connection: Connection, statement: LiteralString, **parameters: Any) -> Names:  # noqa: ANN401
    """Run a statement of this module that lists names, with the number of all."""
    rows = await connection.fetch(statement, {**parameters, "most": MOST_LISTED})
    return Names([row[0] for row in rows], rows[0][1] if rows else 0)


async def count_erased_by_pepper(connection: Connection) -> dict[str, int]:
    """Count the removed members whose data was erased, by the id of the pepper that rejects
    them.
    """
    return dict(await connection.fetch(ERASED_BY_PEPPER))
