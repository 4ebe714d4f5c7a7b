"""Removing what is past its time, a bounded number of rows a statement."""

from datetime import datetime, timedelta
from typing import Final

from tenantry.db.connection import Connection
from tenantry.db.idempotency_store import KEPT as IDEMPOTENCY_KEPT
from tenantry.domain.sessions import ABSOLUTE as SESSION_LENGTH

PARKED_KEPT: Final = timedelta(days=30)
DELETED_TENANTS_KEPT: Final = timedelta(days=30)  # the database's functions for it say so too
# Far longer than they count: so a process whose clock is slow loses none that it still needs.
REQUEST_COUNTS_KEPT: Final = timedelta(hours=1)
OWNER_MAILS_KEPT: Final = timedelta(days=30)
NAMES_KEPT: Final = timedelta(days=365)
ROWS_PER_STATEMENT: Final = 1000

DELETE_IDEMPOTENCY_KEYS: Final = """
DELETE FROM idempotency_keys
 WHERE (principal, route, key) IN (
         SELECT principal, route, key FROM idempotency_keys
          WHERE created_at <= %s ORDER BY created_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""
# Rows that somebody settles now are skipped; whoever waited for one finds it no longer parked.
EXPIRE_PARKED: Final = """
UPDATE billing_events
   SET outcome = 'ignored', reason = %s
 WHERE id IN (
         SELECT id FROM billing_events
          WHERE outcome = 'parked' AND received_at <= %s LIMIT %s FOR UPDATE SKIP LOCKED)
"""
# Arrival numbers grow with time, so only the oldest are looked at, however many there are.
DELETE_BODIES: Final = """
WITH oldest AS (SELECT arrival, received_at FROM billing_bodies ORDER BY arrival LIMIT %(most)s)
DELETE FROM billing_bodies b
 USING oldest
 WHERE b.arrival = oldest.arrival AND oldest.received_at <= %(until)s
"""
# Processes remove what is past themselves; this is what those leave that are killed.
DELETE_REQUEST_COUNTS: Final = """
DELETE FROM request_counts
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM request_counts WHERE second < %s LIMIT %s FOR UPDATE SKIP LOCKED))
"""
DELETE_NAMES: Final = """
DELETE FROM dashboard_names
 WHERE (org_id, issuer, subject) IN (
         SELECT org_id, issuer, subject FROM dashboard_names
          WHERE seen_at <= %s ORDER BY seen_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""
DELETE_SESSIONS: Final = """
DELETE FROM dashboard_sessions
 WHERE digest IN (
         SELECT digest FROM dashboard_sessions
          WHERE started_at <= %s ORDER BY started_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""
DELETE_OWNER_MAILS: Final = """
DELETE FROM owner_mails
 WHERE id IN (
         SELECT id FROM owner_mails
          WHERE status IN ('sent', 'dropped', 'failed') AND created_at <= %s LIMIT %s FOR UPDATE SKIP LOCKED)
"""
PARKED_TOO_LONG: Final = "its tenant did not become known within 30 days"
PURGEABLE: Final = "SELECT id FROM tenants WHERE deleted_at <= %s ORDER BY deleted_at, id LIMIT %s"
# What a tenant has many of, biggest first; the rest goes with the tenant's own row.
PURGE_ROWS: Final = (
    "DELETE FROM owner_mails WHERE id IN (SELECT id FROM owner_mails WHERE tenant_id = %s LIMIT %s)",
    "DELETE FROM notifications WHERE id IN (SELECT id FROM notifications WHERE tenant_id = %s LIMIT %s)",
    """
    WITH gone AS (DELETE FROM billing_events
                   WHERE id IN (SELECT id FROM billing_events WHERE tenant_id = %s LIMIT %s)
                  RETURNING arrival),
         bodies AS (DELETE FROM billing_bodies b USING gone WHERE b.arrival = gone.arrival)
    SELECT FROM gone
    """,
    "DELETE FROM projects WHERE id IN (SELECT id FROM projects WHERE org_id = %s LIMIT %s)",
    "DELETE FROM api_keys WHERE id IN (SELECT id FROM api_keys WHERE org_id = %s LIMIT %s)",
    "SELECT purge_audit_events(%s, %s)",
)
# Events that come in lock their tenant: once the row is held, the tenant gets no more of anything.
LOCK_DELETED: Final = "SELECT 1 FROM tenants WHERE id = %s AND deleted_at <= %s FOR UPDATE SKIP LOCKED"
DELETE_TENANT: Final = "SELECT purge_tenant(%s)"


async def delete_idempotency_keys(connection: Connection, now: datetime) -> int:
    """Delete kept answers that are older than 24 h; returns how many, at most `ROWS_PER_STATEMENT`."""
    cursor = await connection.execute(DELETE_IDEMPOTENCY_KEYS, (now - IDEMPOTENCY_KEPT, ROWS_PER_STATEMENT))
    return cursor.rowcount


async def expire_parked(connection: Connection, now: datetime) -> int:
    """Let go of events parked for 30 days; returns how many, at most `ROWS_PER_STATEMENT`."""
    cursor = await connection.execute(EXPIRE_PARKED, (PARKED_TOO_LONG, now - PARKED_KEPT, ROWS_PER_STATEMENT))
    return cursor.rowcount


async def delete_bodies(connection: Connection, until: datetime) -> int:
    """Let go of raw bodies received at ``until`` or before; returns how many, at most `ROWS_PER_STATEMENT`."""
    cursor = await connection.execute(DELETE_BODIES, {"until": until, "most": ROWS_PER_STATEMENT})
    return cursor.rowcount


async def delete_request_counts(connection: Connection, now: datetime) -> int:
    """Let go of counts of requests an hour old; returns how many, at most `ROWS_PER_STATEMENT`."""
    until = int((now - REQUEST_COUNTS_KEPT).timestamp())
    cursor = await connection.execute(DELETE_REQUEST_COUNTS, (until, ROWS_PER_STATEMENT))
    return cursor.rowcount


async def delete_names(connection: Connection, now: datetime) -> int:
    """Forget the names of people not seen for a year; returns how many, at most `ROWS_PER_STATEMENT`."""
    cursor = await connection.execute(DELETE_NAMES, (now - NAMES_KEPT, ROWS_PER_STATEMENT))
    return cursor.rowcount


async def delete_sessions(connection: Connection, now: datetime) -> int:
    """Delete sessions of the dashboard that have ended; returns how many, at most `ROWS_PER_STATEMENT`."""
    cursor = await connection.execute(DELETE_SESSIONS, (now - SESSION_LENGTH, ROWS_PER_STATEMENT))
    return cursor.rowcount


async def delete_owner_mails(connection: Connection, now: datetime) -> int:
    """Delete security notices and confirmations of 30 days ago, at most 1,000, that do not wait; returns how many."""
    cursor = await connection.execute(DELETE_OWNER_MAILS, (now - OWNER_MAILS_KEPT, ROWS_PER_STATEMENT))
    return cursor.rowcount


async def purgeable_tenants(connection: Connection, now: datetime) -> list[str]:
    """Tenants that were deleted 30 days ago or earlier, at most `ROWS_PER_STATEMENT`."""
    cursor = await connection.execute(PURGEABLE, (now - DELETED_TENANTS_KEPT, ROWS_PER_STATEMENT))
    return [row[0] for row in await cursor.fetchall()]


async def purge_rows(connection: Connection, tenant_id: str) -> int:
    """Delete some of what a tenant has; returns how many rows, 0 when nothing is left but the tenant itself."""
    deleted = 0
    for statement in PURGE_ROWS:
        cursor = await connection.execute(statement, (tenant_id, ROWS_PER_STATEMENT))
        deleted += cursor.rowcount
    return deleted


async def lock_deleted_tenant(connection: Connection, tenant_id: str, now: datetime) -> bool:
    """Hold the row of a tenant deleted 30 days ago; False if it is not (any more), or is in use just now."""
    cursor = await connection.execute(LOCK_DELETED, (tenant_id, now - DELETED_TENANTS_KEPT))
    return await cursor.fetchone() is not None


async def delete_tenant(connection: Connection, tenant_id: str) -> None:
    """Delete a tenant's row and, with it, its members, customers and whatever else refers to it."""
    await connection.execute(DELETE_TENANT, (tenant_id,))
