"""The tenants whose access has ended by time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.access import AccessPhase

# Two indexes find the first end of each tenant's access, and the last one; a third one the few
# tenants with ends between these. The ledger has those that are recorded. A tenant that another
# transaction holds is left to the next run.
ENDED: Final = """
WITH ended AS (
       SELECT id, (access->0->>'until')::bigint AS at
         FROM tenants
        WHERE (access->0->>'until')::bigint BETWEEN %(since)s AND %(until)s
        UNION
       SELECT id, (access->-2->>'until')::bigint
         FROM tenants
        WHERE (access->-2->>'until')::bigint BETWEEN %(since)s AND %(until)s
        UNION
       SELECT id, (phase->>'until')::bigint
         FROM tenants
        CROSS JOIN LATERAL json_array_elements(access) AS phase
        WHERE json_array_length(access) > 3
          AND (phase->>'until')::bigint BETWEEN %(since)s AND %(until)s)
SELECT t.id, t.access::text, ended.at, nextval('billing_arrivals')
  FROM tenants t
  JOIN ended USING (id)
 WHERE t.deleted_at IS NULL
   AND NOT EXISTS (SELECT FROM billing_events e WHERE e.id = 'access_ended_' || t.id || '_' || ended.at)
 ORDER BY t.id, ended.at
 LIMIT %(most)s
   FOR NO KEY UPDATE OF t SKIP LOCKED
"""
# The statement above looks at the ledger before it locks: another run may have recorded an end, and
# committed, in between.
RECORDED: Final = "SELECT id FROM billing_events WHERE id = ANY(%s)"
_phases: Final = msgspec.json.Decoder(tuple[AccessPhase, ...])


class EndedAccess(NamedTuple):
    """A tenant with the phases of its access, one of which ended at ``at``; ``arrival`` numbers the
    entry of that.
    """

    tenant_id: str
    phases: tuple[AccessPhase, ...]
    at: int
    arrival: int

    @property
    def entry_id(self) -> str:
        return f"access_ended_{self.tenant_id}_{self.at}"

    @property
    def is_current(self) -> bool:
        """Whether the access still ends then: an event may have changed it just before the lock."""
        return any(phase.until == self.at for phase in self.phases)


async def lock_ended(
    connection: Connection, since: datetime, until: datetime, most: int
) -> Sequence[EndedAccess]:
    """Lock and return up to ``most`` tenants whose access ended between two moments without an
    entry of that. A tenant that another transaction holds is left out.
    """
    values = {"since": int(since.timestamp()), "until": int(until.timestamp()), "most": most}
    rows = await connection.fetch(ENDED, values)
    locked = [
        EndedAccess(tenant_id, _phases.decode(access), at, arrival)
        for tenant_id, access, at, arrival in rows
    ]
    names = [each.entry_id for each in locked]
    recorded = set(await connection.fetch_column(RECORDED, (names,)))
    return [each for each in locked if each.is_current and each.entry_id not in recorded]
