"""Which events have lately come into a tenant's ledger, by their arrival numbers.

Only those of the days before the tenant's newest count, for the provider sends an event for three days at most; and of
these the newest `MOST_LOOKED_AT`, for more are not looked through for a page. The ledger's index has a tenant's events
by the second of their creation, so that no more of a long ledger is read than that.
"""

from collections.abc import Mapping
from typing import Final

from tenantry.db.connection import Connection
from tenantry.db.pagination import MOST_LOOKED_AT

_SECONDS: Final = 4 * 86_400
_LATELY: Final = f"""
        SELECT arrival
          FROM billing_events
         WHERE tenant_id = t.id AND created > coalesce(t.tip_created, 0) - {_SECONDS}
         ORDER BY created DESC, arrival DESC
         LIMIT {MOST_LOOKED_AT}
"""  # noqa: S608  # our own numbers
NEWEST: Final = f"""
SELECT coalesce(max(lately.arrival), 0)
  FROM tenants t
 CROSS JOIN LATERAL ({_LATELY}) AS lately
 WHERE t.id = %s
"""  # noqa: S608  # our own statement
AFTER: Final = f"""
SELECT watched.tenant_id, news.arrival
  FROM unnest(%s::text[], %s::bigint[]) AS watched (tenant_id, since)
  JOIN tenants t ON t.id = watched.tenant_id
 CROSS JOIN LATERAL (
         SELECT max(lately.arrival) AS arrival
           FROM ({_LATELY}) AS lately
          WHERE lately.arrival > watched.since) AS news
 WHERE news.arrival IS NOT NULL
"""  # noqa: S608  # our own statement


async def newest_arrival(connection: Connection, tenant_id: str) -> int:
    """The arrival number of the event that came last into a tenant's ledger; 0 where there is none."""
    cursor = await connection.execute(NEWEST, (tenant_id,))
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def arrivals_after(connection: Connection, watched: Mapping[str, int]) -> dict[str, int]:
    """Of tenants with an event after the arrival given for each: the arrival of the last one."""
    cursor = await connection.execute(AFTER, (list(watched), list(watched.values())))
    return dict(await cursor.fetchall())
