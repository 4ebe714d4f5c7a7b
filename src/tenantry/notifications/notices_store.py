"""Notifications and their delivery."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.owner_mails import (
    KEY_LEAKED,
    OWNER_ADDRESS_CONFIRMATION,
    KeyLeakedData,
    Notification,
    PaymentFailure,
    PendingMail,
)

INSERT: Final = """
INSERT INTO notifications (id, type, recipient_id, tenant_id, channels, data, event_id, created_at, recipient)
SELECT n.id, n.type, n.recipient_id, n.tenant_id, n.channels, n.data, n.event_id, %(now)s,
       (SELECT t.owner_email FROM tenants t WHERE t.id = n.tenant_id)
  FROM json_to_recordset(%(rows)s::json) AS n (
         id uuid, type text, recipient_id text, tenant_id text, channels text[], data jsonb, event_id text)
    ON CONFLICT (event_id) DO NOTHING
RETURNING id
"""
# The release before queued notices of leaked keys here, and without a recipient.
PENDING: Final = """
SELECT n.id, n.attempts, n.created_at, t.name,
       coalesce(n.recipient, CASE WHEN n.type = %(leaked)s THEN t.verified_email END, t.owner_email), n.tenant_id,
       n.data->>'invoiceUrl', e.amount_due, e.amount_remaining, e.currency,
       CASE WHEN n.type = %(leaked)s THEN n.data::text END
  FROM notifications n
  JOIN tenants t ON t.id = n.tenant_id
  LEFT JOIN billing_events e ON e.id = n.event_id
 WHERE n.id = %(id)s AND n.status = 'queued'
"""

# A job goes after its mail is recorded, in another transaction: where that alone survives, nobody is left to deliver.
_FORSAKEN: Final = """
SELECT id
  FROM {table} m
 WHERE status IN ('queued', 'collecting')
   AND NOT EXISTS (SELECT FROM procrastinate_jobs job
                    WHERE job.task_name = %(task)s AND job.status IN ('todo', 'doing')
                      AND job.args->>'notification_id' = m.id::text)
 ORDER BY created_at
 LIMIT %(most)s
   FOR UPDATE SKIP LOCKED
"""
_TABLES: Final = ("notifications", "owner_mails")
FORSAKEN: Final = tuple(_FORSAKEN.format(table=table) for table in _TABLES)
_MARK_SENT: Final = """
UPDATE {table} SET status = 'sent', attempts = attempts + 1, sent_at = %s, last_error = NULL WHERE id = %s
"""
MARK_SENT: Final = {table: _MARK_SENT.format(table=table) for table in _TABLES}
_MARK_ATTEMPT: Final = """
UPDATE {table}
   SET attempts = attempts + 1, last_error = %s, status = CASE WHEN %s THEN {given_up} ELSE status END
 WHERE id = %s
"""
MARK_ATTEMPT: Final = {
    "notifications": _MARK_ATTEMPT.format(table="notifications", given_up="'failed'"),
    # Users choose the address of a confirmation: one that cannot be delivered is not the operator's trouble.
    "owner_mails": _MARK_ATTEMPT.format(
        table="owner_mails", given_up=f"CASE type WHEN '{OWNER_ADDRESS_CONFIRMATION}' THEN 'dropped' ELSE 'failed' END"
    ),
}
_GIVE_UP: Final = "UPDATE {table} SET status = 'failed', last_error = %s WHERE status IN ('queued', 'collecting')"
GIVE_UP: Final = tuple(_GIVE_UP.format(table=table) for table in _TABLES)
_WAITING: Final = """
SELECT status, created_at FROM notifications WHERE status <> 'sent'
 UNION ALL
SELECT CASE status WHEN 'collecting' THEN 'queued' ELSE status END, due_at FROM owner_mails
 WHERE status NOT IN ('sent', 'dropped')
"""
COUNT_BY_STATUS: Final = f"SELECT status, count(*) FROM ({_WAITING}) AS mails GROUP BY status"  # noqa: S608  # our own
OLDEST_QUEUED: Final = f"""
SELECT greatest(coalesce(extract(epoch FROM now() - min(created_at)), 0), 0)::float8
  FROM ({_WAITING}) AS mails
 WHERE status = 'queued'
"""  # noqa: S608  # our own statement


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
    found_id, attempts, created_at, tenant_name, recipient, tenant_id, *payment, leak = row
    about = msgspec.json.decode(leak, type=KeyLeakedData) if leak else PaymentFailure(*payment)
    return PendingMail(found_id, attempts, created_at, tenant_name, recipient, tenant_id, about, in_notifications=True)


async def orphaned(connection: Connection, task: str, most: int) -> list[UUID]:
    """Notifications to be delivered that no job of this name is there for, locked; the oldest of them."""
    found = []
    for statement in FORSAKEN:
        cursor = await connection.execute(statement, {"task": task, "most": most})
        found += [row[0] for row in await cursor.fetchall()]
    return found


async def mark_sent(connection: Connection, mail: PendingMail, now: datetime) -> None:
    """Record that the mail server has taken the mail."""
    await connection.execute(MARK_SENT[_table(mail)], (now, mail.notification_id))


async def mark_attempt(connection: Connection, mail: PendingMail, error: str, *, final: bool) -> None:
    """Record a failed attempt; after a ``final`` one the mail has failed for good."""
    await connection.execute(MARK_ATTEMPT[_table(mail)], (error[:500], final, mail.notification_id))


def _table(mail: PendingMail) -> str:
    return "notifications" if mail.in_notifications else "owner_mails"


async def give_up(connection: Connection, why: str) -> int:
    """Let all that are queued fail for good; returns how many."""
    number = 0
    for statement in GIVE_UP:
        cursor = await connection.execute(statement, (why,))
        number += cursor.rowcount
    return number


async def count_by_status(connection: Connection) -> dict[str, int]:
    """How many notifications are queued, and how many have failed for good."""
    cursor = await connection.execute(COUNT_BY_STATUS)
    return dict(await cursor.fetchall())


async def oldest_queued_seconds(connection: Connection) -> float:
    """For how long the oldest mail that is still to be delivered has been due; 0 if there is none."""
    cursor = await connection.execute(OLDEST_QUEUED)
    row = await cursor.fetchone()
    return float(row[0]) if row else 0.0
