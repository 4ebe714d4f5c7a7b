"""Removing expired data: statements that remove up to ``most`` rows of ``until`` or before."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from tenantry.db.connection import Connection
from tenantry.domain.owner_mails import KEY_REMINDER

DELETED_TENANTS_KEPT: Final = timedelta(days=30)  # as in the database's functions
ROWS_PER_STATEMENT: Final = 1000


# Skips rows that another transaction applies now; one that waits for a row finds it no longer
# parked.
IGNORE_PARKED: Final = """
UPDATE billing_events
   SET outcome = 'ignored',
       document = jsonb_set(
           document::jsonb, '{reason}', to_jsonb('its tenant did not become known within 30 days'::text))
 WHERE id IN (
         SELECT id FROM billing_events
          WHERE outcome = 'parked' AND coalesce(parked_at, received_at) <= %(until)s
          LIMIT %(most)s FOR UPDATE SKIP LOCKED)
"""
# Processes remove their own counts; this removes those of killed processes. Counts are kept far
# longer than they are needed, in case a process has a slow clock.
DELETE_COUNTS: Final = """
DELETE FROM request_counts
 WHERE ctid = ANY (ARRAY (
         SELECT ctid FROM request_counts
          WHERE second < floor(extract(epoch FROM %(until)s::timestamptz))::bigint
          LIMIT %(most)s FOR UPDATE SKIP LOCKED))
"""
# By the end of the period: a year's counter stays for the whole year.
DELETE_USAGE: Final = """
DELETE FROM usage_counters
 WHERE ctid = ANY (ARRAY (
         SELECT ctid FROM usage_counters
          WHERE period_end <= floor(extract(epoch FROM %(until)s::timestamptz))::bigint
          ORDER BY period_end
          LIMIT %(most)s FOR UPDATE SKIP LOCKED))
"""

_DELETE_OLD: Final = """
DELETE FROM {table}
 WHERE ctid = ANY (ARRAY (
         SELECT ctid FROM {table}
          WHERE {time} <= %(until)s ORDER BY {time} LIMIT %(most)s FOR UPDATE SKIP LOCKED))
"""
DELETE_USAGE_HOURS: Final = _DELETE_OLD.format(table="usage_hours", time="hour")
DELETE_USAGE_DAYS: Final = _DELETE_OLD.format(table="usage_days", time="day")
# Locks no rows first, which needs the privilege to change them: it waits for another process that
# removes the same rows.
DELETE_OPERATOR_ACTS: Final = """
DELETE FROM operator_acts
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM operator_acts WHERE at <= %(until)s ORDER BY at LIMIT %(most)s))
"""
DELETE_LEDGER_RUNS: Final = _DELETE_OLD.format(table="ledger_runs", time="requested_at")
DELETE_REJECTIONS: Final = _DELETE_OLD.format(table="rejections", time="at")


def _delete(table: str, key: str, time: str, more: str) -> str:
    # Materialized, it is read once; PostgreSQL may read a subquery again for each row.
    return f"""
WITH expired AS MATERIALIZED (
       SELECT {key} FROM {table}
        WHERE {time} <= %(until)s {more} LIMIT %(most)s FOR UPDATE SKIP LOCKED)
DELETE FROM {table}
 WHERE ({key}) IN (SELECT {key} FROM expired)
"""  # noqa: S608  # our own names


DELETE_IDEMPOTENCY_KEYS: Final = _delete(
    "idempotency_keys", "principal, route, key", "created_at", "ORDER BY created_at"
)
DELETE_CONSUMPTION_KEYS: Final = _delete(
    "consumption_keys", "org_id, feature, mode, key", "created_at", "ORDER BY created_at"
)
DELETE_PROFILES: Final = _delete(
    "user_profiles", "org_id, issuer, subject", "seen_at", "ORDER BY seen_at"
)
DELETE_SESSIONS: Final = _delete(
    "dashboard_sessions", "digest", "started_at", "ORDER BY started_at"
)
DELETE_USAGE_WRITERS: Final = _delete(
    "usage_writers", "id", "complete_until", "ORDER BY complete_until"
)
DELETE_INVITATIONS: Final = _delete(
    "invitations",
    "id",
    "coalesce(closed_at, expires_at)",
    "ORDER BY coalesce(closed_at, expires_at)",
)
# Notifications stay: a recovered payment looks for the mail of its failure. Reminders of keys stay
# for a quarter: the next one is due then.
DELETE_MAILS: Final = _delete(
    "mails",
    "id",
    "created_at",
    "AND recipient_id IS NULL AND status IN ('sent', 'failed', 'dropped') "
    f"AND (type <> '{KEY_REMINDER}' OR created_at <= %(until)s - interval '70 days')",
)
# At most the newest 100 are kept: a message may name an object, so they have no other bound.
DELETE_PROVIDER_REFUSALS: Final = """
DELETE FROM provider_refusals
 WHERE last_at <= %(until)s
    OR (operation, code, message) NOT IN (
         SELECT operation, code, message FROM provider_refusals ORDER BY last_at DESC LIMIT 100)
"""
# A reader's cursor that lies before the last removed event has expired. Events are in the order of
# their transactions, so the oldest are at one end of the index.
DELETE_OUTBOUND_EVENTS: Final = """
WITH oldest AS (
       SELECT epoch, xid, version, recorded_at
         FROM outbound_events
        ORDER BY epoch, xid, version
        LIMIT %(most)s),
     gone AS (
       DELETE FROM outbound_events e
        USING oldest
        WHERE (e.epoch, e.xid, e.version) = (oldest.epoch, oldest.xid, oldest.version)
          AND oldest.recorded_at <= %(until)s
       RETURNING e.epoch, e.xid, e.version),
     last AS (SELECT DISTINCT ON (epoch) epoch, xid, version FROM gone ORDER BY epoch, xid DESC, version DESC),
     noted AS (
       UPDATE outbound_epochs o
          SET purged_xid = last.xid, purged_version = last.version
         FROM last
        WHERE o.epoch = last.epoch
          AND (o.purged_xid IS NULL OR (o.purged_xid, o.purged_version) < (last.xid, last.version)))
SELECT FROM gone
"""
# With the event of a delivery there is nothing to send any more.
DELETE_UNDELIVERED_WEBHOOKS: Final = _delete(
    "webhook_deliveries",
    "endpoint, version",
    "created_at",
    "AND status <> 'delivered' ORDER BY created_at",
)
DELETE_DELIVERED_WEBHOOKS: Final = _delete(
    "webhook_deliveries",
    "endpoint, version",
    "created_at",
    "AND status = 'delivered' ORDER BY created_at",
)
# No worker had these endpoints in its plan catalog for so long, nor has this process.
DELETE_WEBHOOKS_OF_REMOVED: Final = """
DELETE FROM webhook_deliveries
 WHERE (endpoint, version) IN (
         SELECT d.endpoint, d.version
           FROM webhook_endpoints e
           JOIN webhook_deliveries d ON d.endpoint = e.name
          WHERE e.seen_at <= %(until)s AND e.name <> ALL (%(endpoints)s)
          LIMIT %(most)s)
"""
DELETE_REMOVED_ENDPOINTS: Final = """
DELETE FROM webhook_endpoints e
 WHERE e.seen_at <= %(until)s AND e.name <> ALL (%(endpoints)s)
   AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.endpoint = e.name)
"""
# Arrival numbers grow with time, so the statement looks at the oldest alone.
DELETE_BODIES: Final = """
WITH oldest AS (SELECT arrival, received_at FROM billing_bodies ORDER BY arrival LIMIT %(most)s)
DELETE FROM billing_bodies b
 USING oldest
 WHERE b.arrival = oldest.arrival AND oldest.received_at <= %(until)s
"""
# The tables that may have many rows of a tenant, biggest first; the other rows go with the tenant's
# own.
PURGE_ROWS: Final = (
    "DELETE FROM mails WHERE id IN (SELECT id FROM mails WHERE tenant_id = %s LIMIT %s)",
    """
    WITH gone AS (DELETE FROM billing_events
                   WHERE id IN (SELECT id FROM billing_events WHERE tenant_id = %s LIMIT %s)
                  RETURNING arrival),
         bodies AS (DELETE FROM billing_bodies b USING gone WHERE b.arrival = gone.arrival)
    SELECT FROM gone
    """,
    "DELETE FROM usage_hours WHERE ctid = ANY (ARRAY (SELECT ctid FROM usage_hours WHERE org_id = %s LIMIT %s))",
    "DELETE FROM usage_days WHERE ctid = ANY (ARRAY (SELECT ctid FROM usage_days WHERE org_id = %s LIMIT %s))",
    "DELETE FROM rejections WHERE ctid = ANY (ARRAY (SELECT ctid FROM rejections WHERE org_id = %s LIMIT %s))",
    "DELETE FROM projects WHERE id IN (SELECT id FROM projects WHERE org_id = %s LIMIT %s)",
    "DELETE FROM api_keys WHERE id IN (SELECT id FROM api_keys WHERE org_id = %s LIMIT %s)",
    "SELECT purge_audit_events(%s, %s)",
)
# New events lock their tenant: while this row is locked, the tenant gets no more rows.
LOCK_DELETED: Final = (
    "SELECT 1 FROM tenants WHERE id = %s AND deleted_at <= %s FOR UPDATE SKIP LOCKED"
)


async def remove_until(
    connection: Connection, statement: str, until: datetime, endpoints: Sequence[str] = ()
) -> int:
    """Run one of the statements; return how many rows it removed, at most `ROWS_PER_STATEMENT`.

    ``endpoints`` are the names of the webhooks that the plan catalog has.
    """
    values = {"until": until, "most": ROWS_PER_STATEMENT, "endpoints": list(endpoints)}
    return (await connection.execute(statement, values)).rowcount


async def purgeable_tenants(connection: Connection, now: datetime) -> list[str]:
    """Return the tenants that were deleted 30 days ago or earlier, at most `ROWS_PER_STATEMENT`."""
    statement = "SELECT id FROM tenants WHERE deleted_at <= %s ORDER BY deleted_at, id LIMIT %s"
    values = (now - DELETED_TENANTS_KEPT, ROWS_PER_STATEMENT)
    return await connection.fetch_column(statement, values)


async def purge_rows(connection: Connection, tenant_id: str) -> int:
    """Delete some of a tenant's rows; return how many, 0 when only the tenant itself remains."""
    limits = tenant_id, ROWS_PER_STATEMENT
    return sum([(await connection.execute(statement, limits)).rowcount for statement in PURGE_ROWS])


async def lock_deleted_tenant(connection: Connection, tenant_id: str, now: datetime) -> bool:
    """Lock a tenant deleted 30 days ago; return False if it is not deleted, or locked by another
    transaction.
    """
    return (
        await connection.fetch_row(LOCK_DELETED, (tenant_id, now - DELETED_TENANTS_KEPT))
        is not None
    )


async def delete_tenant(connection: Connection, tenant_id: str) -> None:
    await connection.execute("SELECT purge_tenant(%s)", (tenant_id,))
