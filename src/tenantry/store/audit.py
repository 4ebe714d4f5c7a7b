"""The audit trail. It is only ever added to; the database sees to that as well."""

from psycopg.types.json import Jsonb

from tenantry.db.database import Connection
from tenantry.domain.audit import AuditEvent


async def insert(connection: Connection, event: AuditEvent) -> None:
    """Add an entry."""
    await connection.execute(
        "INSERT INTO audit_events (id, org_id, at, action, actor_kind, actor_id, address, request_id, target_id, "
        "before, after) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            event.id,
            event.org_id,
            event.at,
            event.action,
            event.actor_kind,
            event.actor_id,
            event.address,
            event.request_id,
            event.target_id,
            event.before and Jsonb(event.before),
            event.after and Jsonb(event.after),
        ),
    )
