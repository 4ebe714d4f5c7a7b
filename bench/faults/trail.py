"""What the database says of the load's changes: the audit trail of its tenants, and their keys that still work."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import psycopg

from bench.faults.load import KEY_NAME, Change

# Without checkouts: each makes a session at the provider, and is not sent again until it is answered.
_ENTRIES: Final = """
SELECT action, target_id, count(*) FROM audit_events WHERE org_id = ANY(%s) AND action NOT LIKE 'billing.%%'
 GROUP BY action, target_id
"""
_LIVE: Final = "SELECT id FROM api_keys WHERE name = %s AND revoked_at IS NULL"


class Trail(NamedTuple):
    """What was carried out."""

    entries: Counter[Change]
    """How often each change was."""
    live: set[str]
    """Ids of the load's keys that are not revoked."""

    def untold(self, told: Iterable[Change]) -> Counter[Change]:
        """What was carried out more often than callers were told, which is once for each of these."""
        return self.entries - Counter(set(told))


def read_trail(conninfo: str, tenants: Iterable[str]) -> Trail:
    """Read it."""
    with psycopg.connect(conninfo) as connection:
        entries = connection.execute(_ENTRIES, (list(tenants),)).fetchall()
        live = connection.execute(_LIVE, (KEY_NAME,)).fetchall()
    return Trail(Counter({(action, target): count for action, target, count in entries}), {row[0] for row in live})
