"""Which tenants are to be compared with the provider, what the ledger lacks, and who should have had news."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

import msgspec

from tenantry.db.database import Connection
from tenantry.domain.billing.state import ENDED, NO_SUBSCRIPTION

LINKED: Final = """
SELECT t.id, array_agg(c.id ORDER BY c.linked_at, c.id)
  FROM tenants t
  JOIN customers c ON c.tenant_id = t.id
 WHERE t.deleted_at IS NULL AND t.id > %(after)s AND (%(only)s::text[] IS NULL OR t.id = ANY(%(only)s))
 GROUP BY t.id
 ORDER BY t.id
 LIMIT %(most)s
"""
DUE: Final = """
SELECT t.id, array_agg(c.id ORDER BY c.linked_at, c.id)
  FROM tenants t
  JOIN customers c ON c.tenant_id = t.id
 WHERE t.deleted_at IS NULL AND (t.reconciled_at IS NULL OR t.reconciled_at <= %(until)s)
 GROUP BY t.id
 ORDER BY t.reconciled_at NULLS FIRST, t.id
 LIMIT %(most)s
"""
COMPARED: Final = "UPDATE tenants SET reconciled_at = %s WHERE id = %s"
UNKNOWN_EVENTS: Final = """
SELECT id FROM unnest(%s::text[]) AS asked (id)
 WHERE NOT EXISTS (SELECT 1 FROM billing_events e WHERE e.id = asked.id)
"""
SILENT: Final = """
SELECT id, subscription_status, current_period_end, count(*) OVER ()
  FROM tenants
 WHERE deleted_at IS NULL AND current_period_end < %(ended_until)s AND subscription_status <> ALL(%(over)s)
 ORDER BY current_period_end, id
 LIMIT %(most)s
"""
RECORD_FINDING: Final = """
INSERT INTO billing_findings (name, number, found_at) VALUES (%s, %s, %s)
    ON CONFLICT (name) DO UPDATE SET number = excluded.number, found_at = excluded.found_at
"""


class LinkedTenant(msgspec.Struct, frozen=True):
    """A tenant and the provider's customers that belong to it."""

    id: str
    customers: list[str]


class SilentTenant(msgspec.Struct, frozen=True):
    """A tenant whose paid period has ended (Unix seconds) without a word of what comes next."""

    id: str
    subscription_status: str
    current_period_end: int


async def linked_tenants(
    connection: Connection, after: str, only: Sequence[str] | None, most: int
) -> list[LinkedTenant]:
    """A page of the living tenants that have a customer, by id, ``after`` one; of ``only`` these, if given."""
    cursor = await connection.execute(
        LINKED, {"after": after, "only": None if only is None else list(only), "most": most}
    )
    return [LinkedTenant(*row) for row in await cursor.fetchall()]


async def due_tenants(connection: Connection, until: datetime, most: int) -> list[LinkedTenant]:
    """Living tenants with a customer that were last compared at ``until`` or before, the longest ago first."""
    cursor = await connection.execute(DUE, {"until": until, "most": most})
    return [LinkedTenant(*row) for row in await cursor.fetchall()]


async def mark_compared(connection: Connection, tenant_id: str, now: datetime) -> None:
    """Note that a tenant was compared with the provider."""
    await connection.execute(COMPARED, (now, tenant_id))


async def unknown_events(connection: Connection, ids: Collection[str]) -> set[str]:
    """Those of these event ids that the ledger does not have."""
    cursor = await connection.execute(UNKNOWN_EVENTS, (list(ids),))
    return {row[0] for row in await cursor.fetchall()}


async def silent_tenants(connection: Connection, ended_until: int, most: int) -> tuple[list[SilentTenant], int]:
    """Living tenants whose period ended before a second, their subscription not over; the longest ago; their number."""
    cursor = await connection.execute(
        SILENT, {"ended_until": ended_until, "over": [*ENDED, NO_SUBSCRIPTION], "most": most}
    )
    rows = await cursor.fetchall()
    return [SilentTenant(*row[:3]) for row in rows], rows[0][3] if rows else 0


async def record_finding(connection: Connection, name: str, number: int, now: datetime) -> None:
    """Keep what a check counted, for whoever looks at the metrics."""
    await connection.execute(RECORD_FINDING, (name, number, now))


async def read_findings(connection: Connection) -> dict[str, int]:
    """What the checks last counted."""
    cursor = await connection.execute("SELECT name, number FROM billing_findings")
    return dict(await cursor.fetchall())
