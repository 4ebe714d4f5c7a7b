"""Read what the database holds at the end of a run: the ledger, the audit trail and the working
keys.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from typing import Final, NamedTuple

import psycopg

from bench.torture.load import KEY_NAME, Change
from tenantry.billing.replay import ReplayService, Selection
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.settings import load_for_admin

# Without checkouts: each creates a session at the provider, and clients do not repeat them.
_ENTRIES: Final = """
SELECT action, target_id, count(*) FROM audit_events WHERE org_id = ANY(%s) AND action NOT LIKE 'billing.%%'
 GROUP BY action, target_id
"""
_LIVE: Final = "SELECT id FROM api_keys WHERE name = %s AND revoked_at IS NULL"


class LedgerState(NamedTuple):
    """The ledger, compared with the stored state."""

    events: set[str]
    """Ids of the provider's events, without snapshots."""
    folded: int
    """Tenants whose ledger was folded again."""
    differing: int
    """Tenants whose stored state differs from that fold."""


class AuditState(NamedTuple):
    """The changes that took effect."""

    entries: Counter[Change]
    live: set[str]
    """Ids of the load's keys that are not revoked."""

    def unconfirmed(self, confirmed: Iterable[Change]) -> Counter[Change]:
        """Return the changes that took effect more often than answers confirmed."""
        return self.entries - Counter(set(confirmed))


async def read_ledger(conninfo: str) -> LedgerState:
    """Read the ledger's ids and fold every ledger again."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute(
            r"SELECT id FROM billing_events WHERE id NOT LIKE 'snapshot\_%'"
        )
        ids = {row[0] for row in await cursor.fetchall()}
    database = Database(conninfo, pool_size=2)
    await database.open()
    try:
        policy = load_for_admin({}, needs_pepper=False).billing
        folded = differing = 0
        async with aclosing(
            ReplayService(database, policy, system_clock).run(Selection(), dry_run=True)
        ) as chunks:
            async for chunk in chunks:
                folded += chunk.tenants
                differing += sum(not checked.is_right for checked in chunk.checked)
    finally:
        await database.close()
    return LedgerState(ids, folded, differing)


def read_audit(conninfo: str, tenants: Iterable[str]) -> AuditState:
    """Read the audit trail of these tenants and the load's working keys."""
    with psycopg.connect(conninfo) as connection:
        entries = connection.execute(_ENTRIES, (list(tenants),)).fetchall()
        live = connection.execute(_LIVE, (KEY_NAME,)).fetchall()
    return AuditState(
        Counter({(action, target): count for action, target, count in entries}),
        {row[0] for row in live},
    )
