"""Which events have lately come into a tenant's ledger, by their arrival numbers."""

from collections.abc import Mapping
from typing import Final

from tenantry.db.connection import Connection

NEWEST: Final = "SELECT coalesce(max(arrival), 0) FROM billing_events WHERE tenant_id = %s"
# Of each tenant its part of one index is read, and nothing else.
AFTER: Final = """
SELECT watched.tenant_id, news.arrival
  FROM unnest(%s::text[], %s::bigint[]) AS watched (tenant_id, since)
 CROSS JOIN LATERAL (
         SELECT max(e.arrival) AS arrival
           FROM billing_events e
          WHERE e.tenant_id = watched.tenant_id AND e.arrival > watched.since) AS news
 WHERE news.arrival IS NOT NULL
"""


async def newest_arrival(connection: Connection, tenant_id: str) -> int:
    """The arrival number of the event that came last into a tenant's ledger; 0 where there is none."""
    cursor = await connection.execute(NEWEST, (tenant_id,))
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def arrivals_after(connection: Connection, watched: Mapping[str, int]) -> dict[str, int]:
    """Of tenants with an event after the arrival given for each: the arrival of the last one."""
    cursor = await connection.execute(AFTER, (list(watched), list(watched.values())))
    return dict(await cursor.fetchall())
