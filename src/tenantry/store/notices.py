"""Notifications and their delivery."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.notices import KEY_LEAKED, KeyLeakedData, Notification, PendingMail

INSERT: Final = """
INSERT INTO notifications (id, type, recipient_id, tenant_id, channels, data, event_id, created_at)
SELECT n.id, n.type, n.recipient_id, n.tenant_id, n.channels, n.data, n.event_id, %(now)s
  FROM json_to_recordset(%(rows)s::json) AS n (
         id uuid, type text, recipient_id text, tenant_id text, channels text[], data jsonb, event_id text)
    ON CONFLICT (event_id) DO NOTHING
RETURNING id
"""
PENDING: Final = """
SELECT n.id, n.attempts, n.created_at, t.name, t.owner_email, n.data->>'invoiceUrl',
       e.amount_due, e.currency, n.tenant_id, CASE WHEN n.type = %(leaked)s THEN n.data::text END
  FROM notifications n
  JOIN tenants t ON t.id = n.tenant_id
  LEFT JOIN billing_events e ON e.id = n.event_id
 WHERE n.id = %(id)s AND n.status = 'queued'
"""

# A job goes after its mail is recorded, in another transaction: where that alone survives, nobody is left to deliver.
FORSAKEN: Final = """
SELECT id
  FROM notifications
 WHERE status = 'queued'
   AND NOT EXISTS (SELECT FROM procrastinate_jobs job
                    WHERE job.task_name = %(task)s AND job.status IN ('todo', 'doing')
                      AND job.args->>'notification_id' = notifications.id::text)
 ORDER BY created_at
 LIMIT %(most)s
   FOR UPDATE SKIP LOCKED
"""


async def insert(connection: Connection, notices: Sequence[tuple[Notification, str]], now: datetime) -> list[UUID]:
    """Store notifications, each with the id of the event that it is about; at most one per event.

    Returns the ids of those that are new.
    """
    rows = [
        {
            "id": notice.id,
            "type": notice.type,
            "recipient_id": notice.recipient_id,
            "tenant_id": notice.tenant_id,
            "channels": notice.channels,
            "data": notice.data,
            "event_id": event_id,
        }
        for notice, event_id in notices
    ]
    cursor = await connection.execute(INSERT, {"rows": msgspec.json.encode(rows).decode(), "now": now})
    return [row[0] for row in await cursor.fetchall()]


async def read_pending(connection: Connection, notification_id: UUID) -> PendingMail | None:
    """The mail to send, or None if it has been delivered or given up."""
    cursor = await connection.execute(PENDING, {"id": notification_id, "leaked": KEY_LEAKED})
    row = await cursor.fetchone()
    if row is None:
        return None
    mail = PendingMail(*row[:-1])
    return msgspec.structs.replace(mail, leak=row[-1] and msgspec.json.decode(row[-1], type=KeyLeakedData))


async def forsaken(connection: Connection, task: str, most: int) -> list[UUID]:
    """Notifications to be delivered that no job of this name is there for, locked; the oldest of them."""
    cursor = await connection.execute(FORSAKEN, {"task": task, "most": most})
    return [row[0] for row in await cursor.fetchall()]


async def mark_sent(connection: Connection, notification_id: UUID, now: datetime) -> None:
    """Record that the mail server has taken the mail."""
    await connection.execute(
        "UPDATE notifications SET status = 'sent', attempts = attempts + 1, sent_at = %s, last_error = NULL "
        "WHERE id = %s",
        (now, notification_id),
    )


async def mark_attempt(connection: Connection, notification_id: UUID, error: str, *, final: bool) -> None:
    """Record a failed attempt; after a ``final`` one the notification has failed for good."""
    await connection.execute(
        "UPDATE notifications SET attempts = attempts + 1, last_error = %s, "
        "status = CASE WHEN %s THEN 'failed' ELSE status END WHERE id = %s",
        (error[:500], final, notification_id),
    )


async def give_up(connection: Connection, why: str) -> int:
    """Let all that are queued fail for good; returns how many."""
    cursor = await connection.execute(
        "UPDATE notifications SET status = 'failed', last_error = %s WHERE status = 'queued'", (why,)
    )
    return cursor.rowcount


async def count_by_status(connection: Connection) -> dict[str, int]:
    """How many notifications are queued, and how many have failed for good."""
    cursor = await connection.execute(
        "SELECT status, count(*) FROM notifications WHERE status <> 'sent' GROUP BY status"
    )
    return dict(await cursor.fetchall())


async def oldest_queued_seconds(connection: Connection) -> float:
    """The age of the oldest notification that is still to be delivered; 0 if there is none."""
    cursor = await connection.execute(
        "SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 FROM notifications "
        "WHERE status = 'queued'"
    )
    row = await cursor.fetchone()
    return float(row[0]) if row else 0.0
