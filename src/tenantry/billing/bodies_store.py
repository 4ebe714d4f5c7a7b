"""The raw bodies of events, as they came in, for as long as they are kept.

They are compressed (zlib's format, RFC 1950): JSON of a few KiB comes to a third of a page, where it took a whole one.
"""

import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from isal import isal_zlib

from tenantry.db.connection import Connection
from tenantry.db.statements import BIGINTS, BLOBS, MOMENT, BoundStatement, Statement

INSERT_BODIES: Final = Statement(
    """
INSERT INTO billing_bodies (arrival, received_at, body)
SELECT arrival, $1, body FROM unnest($2, $3) AS kept (arrival, body)
""",
    MOMENT, BIGINTS, BLOBS,
)  # fmt: skip
_FASTEST: Final = 0
_ZLIB: Final = b"\x78"
"""The first byte of zlib's header, which no JSON text begins with: bodies of before they were compressed have none."""


def pack(body: bytes) -> bytes:
    """A body as it is stored."""
    return isal_zlib.compress(body, _FASTEST)


def unpack(packed: bytes) -> bytes:
    """The body that is stored so."""
    return zlib.decompress(packed) if packed.startswith(_ZLIB) else packed


def insert_bodies(kept: Sequence[tuple[int, bytes]], now: datetime) -> list[BoundStatement]:
    """Write raw bodies, each with its event's arrival number."""
    return [INSERT_BODIES(now, [arrival for arrival, _ in kept], [pack(body) for _, body in kept])] if kept else []


async def find_body(connection: Connection, event_id: str) -> tuple[bool, bytes | None]:
    """Whether there is such an event, and its raw body if that is still kept."""
    cursor = await connection.execute("SELECT event_body(e.id) FROM billing_events e WHERE e.id = %s", (event_id,))
    row = await cursor.fetchone()
    return row is not None, unpack(row[0]) if row and row[0] is not None else None


async def find_body_of_tenant(connection: Connection, tenant_id: str, event_id: str) -> bytes | None:
    """The raw body of an event in a tenant's ledger, if that is still kept."""
    cursor = await connection.execute(
        "SELECT tenant_event_body(e.id) FROM billing_events e WHERE e.tenant_id = %s AND e.id = %s",
        (tenant_id, event_id),
    )
    row = await cursor.fetchone()
    return unpack(row[0]) if row and row[0] is not None else None
