"""Mails to owner addresses that are not payment notices: security notices, their digests, and confirmations."""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.owner_mails import (
    DIGEST_DETAILS,
    KEY_LEAKED,
    NOTICES_PER_HOUR,
    OWNER_ADDRESS_CONFIRMATION,
    SECURITY_DIGEST,
    AddressChangedData,
    DigestData,
    KeyLeakedData,
    SecurityNotice,
)

LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
LATEST_NOTICES: Final = """
SELECT due_at FROM owner_mails
 WHERE tenant_id = %(tenant)s AND due_at > %(since)s AND type <> %(confirmation)s
 ORDER BY due_at DESC LIMIT %(most)s
"""
COUNT_CONFIRMATIONS: Final = """
SELECT count(*) FILTER (WHERE created_at > %(hour)s AND tenant_id = %(tenant)s),
       count(*) FILTER (WHERE created_at > %(hour)s AND limit_key = %(key)s),
       count(*) FILTER (WHERE limit_key = %(key)s)
  FROM owner_mails
 WHERE type = %(confirmation)s
   AND ((tenant_id = %(tenant)s AND due_at > %(hour)s) OR (limit_key = %(key)s AND created_at > %(day)s))
"""
INSERT: Final = """
INSERT INTO owner_mails (id, tenant_id, type, recipient, limit_key, data, status, created_at, due_at)
VALUES (%(id)s, %(tenant)s, %(type)s, %(recipient)s, %(key)s, %(data)s, %(status)s, %(now)s, %(due)s)
"""
# The row's lock decides between this and a worker that has begun to deliver the digest.
ADD_TO_DIGEST: Final = """
UPDATE owner_mails
   SET data = CASE WHEN jsonb_array_length(data->'leaked') + jsonb_array_length(data->'changed') < %(most)s
                   THEN jsonb_set(data, ARRAY[%(list)s::text], (data->%(list)s) || %(notice)s::jsonb)
                   ELSE jsonb_set(data, '{more}', to_jsonb((data->>'more')::int + 1)) END
 WHERE tenant_id = %(tenant)s AND recipient = %(recipient)s AND status = 'collecting'
"""
READ_PENDING: Final = """
SELECT m.type, m.status, m.attempts, m.created_at, m.due_at, t.name, m.recipient, m.tenant_id, m.data::text,
       t.owner_email, t.verified_email, t.deleted_at IS NOT NULL
  FROM owner_mails m
  JOIN tenants t ON t.id = m.tenant_id
 WHERE m.id = %s AND m.status IN ('collecting', 'queued')
   FOR NO KEY UPDATE OF m
"""
FIND_CONFIRMATION: Final = """
SELECT m.tenant_id, m.recipient
  FROM owner_mails m
 WHERE m.digest = %s AND m.expires_at > %s
"""


class PendingRow(msgspec.Struct, frozen=True):
    """A mail that is not yet delivered, and its tenant's owner address as it is now."""

    type: str
    status: str
    attempts: int
    created_at: datetime
    due_at: datetime
    tenant_name: str
    recipient: str
    tenant_id: str
    data: str
    owner_email: str
    verified_email: str | None
    tenant_deleted: bool

    @property
    def about(self) -> KeyLeakedData | AddressChangedData | DigestData:
        """What a notice or a digest says."""
        kinds: dict[str, Any] = {KEY_LEAKED: KeyLeakedData, SECURITY_DIGEST: DigestData}
        about: KeyLeakedData | AddressChangedData | DigestData = msgspec.json.decode(
            self.data, type=kinds.get(self.type, AddressChangedData)
        )
        return about


async def lock_name(connection: Connection, name: str) -> None:
    """Wait for other transactions that have locked this name, until this one ends."""
    await connection.execute(LOCK, (name,))


async def latest_notices(connection: Connection, tenant_id: str, since: datetime) -> list[datetime]:
    """When a tenant's latest security notices after ``since`` were or are due, newest first; as many as an hour has."""
    cursor = await connection.execute(
        LATEST_NOTICES,
        {"tenant": tenant_id, "since": since, "confirmation": OWNER_ADDRESS_CONFIRMATION, "most": NOTICES_PER_HOUR},
    )
    return [row[0] for row in await cursor.fetchall()]


async def count_confirmations(
    connection: Connection, tenant_id: str, limit_key: str, *, hour: datetime, day: datetime
) -> tuple[int, int, int]:
    """Confirmations since ``hour`` for a tenant, and to an address since ``hour`` and since ``day``."""
    cursor = await connection.execute(
        COUNT_CONFIRMATIONS,
        {"tenant": tenant_id, "key": limit_key, "hour": hour, "day": day, "confirmation": OWNER_ADDRESS_CONFIRMATION},
    )
    row = await cursor.fetchone()
    return (row[0], row[1], row[2]) if row else (0, 0, 0)


async def insert(
    connection: Connection,
    *,
    mail_id: UUID,
    tenant_id: str,
    mail_type: str,
    recipient: str,
    limit_key: str,
    data: msgspec.Struct | None,
    now: datetime,
    due_at: datetime | None = None,
) -> None:
    """Store a mail to be delivered; one with ``due_at`` is a digest, which collects notices until then."""
    await connection.execute(
        INSERT,
        {
            "id": mail_id,
            "tenant": tenant_id,
            "type": mail_type,
            "recipient": recipient,
            "key": limit_key,
            "data": "{}" if data is None else msgspec.json.encode(data).decode(),
            "status": "queued" if due_at is None else "collecting",
            "now": now,
            "due": due_at or now,
        },
    )


async def add_to_digest(connection: Connection, tenant_id: str, recipient: str, notice: SecurityNotice) -> bool:
    """Add a notice to the digest that collects for this recipient; False if there is none."""
    cursor = await connection.execute(
        ADD_TO_DIGEST,
        {
            "tenant": tenant_id,
            "recipient": recipient,
            "list": "leaked" if isinstance(notice, KeyLeakedData) else "changed",
            "notice": msgspec.json.encode([notice]).decode(),
            "most": DIGEST_DETAILS,
        },
    )
    return cursor.rowcount > 0


async def read_pending(connection: Connection, mail_id: UUID) -> PendingRow | None:
    """The mail to send, locked; None if it has been delivered, given up or dropped."""
    cursor = await connection.execute(READ_PENDING, (mail_id,))
    row = await cursor.fetchone()
    return PendingRow(*row) if row else None


async def set_status(connection: Connection, mail_id: UUID, status: str) -> None:
    """Close a digest (``queued``), or drop a mail that is no longer needed (``dropped``)."""
    await connection.execute("UPDATE owner_mails SET status = %s WHERE id = %s", (status, mail_id))


async def set_link(connection: Connection, mail_id: UUID, digest: bytes, expires_at: datetime) -> None:
    """Store the hash of the token that a confirmation is about to be sent with; a former one ends."""
    await connection.execute(
        "UPDATE owner_mails SET digest = %s, expires_at = %s WHERE id = %s", (digest, expires_at, mail_id)
    )


async def find_confirmation(connection: Connection, digest: bytes, now: datetime) -> tuple[str, str] | None:
    """The tenant and the address that a link confirms; None for a link that is unknown, used or expired."""
    cursor = await connection.execute(FIND_CONFIRMATION, (digest, now))
    row = await cursor.fetchone()
    return (row[0], row[1]) if row else None


async def end_links(connection: Connection, tenant_id: str) -> None:
    """Make every confirmation link of a tenant invalid."""
    await connection.execute(
        "UPDATE owner_mails SET digest = NULL WHERE tenant_id = %s AND digest IS NOT NULL", (tenant_id,)
    )
