"""What the database says at the end of a run, and whether folding every ledger again finds what is stored."""

from collections import Counter
from contextlib import aclosing
from typing import NamedTuple

import psycopg

from tenantry.billing.replay import ReplayService, Selection
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.settings import load_for_admin


class Books(NamedTuple):
    """The ledger and the counters of its database."""

    entries: set[str]
    """Ids of events in the ledger; what the provider was asked for is not among them."""
    outcomes: Counter[str]
    deadlocks: int
    commits: int
    differing: int
    """Tenants whose folded ledger is not what is stored."""
    folded: int


async def read_books(conninfo: str) -> Books:
    """Read them."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        rows = await (
            await connection.execute(r"SELECT id, outcome FROM billing_events WHERE id NOT LIKE 'snapshot\_%'")
        ).fetchall()
        cursor = await connection.execute(
            "SELECT deadlocks, xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
        [(deadlocks, commits)] = await cursor.fetchall()
    entries = {str(event_id) for event_id, _ in rows}
    assert len(entries) == len(rows)
    database = Database(conninfo, pool_size=2)
    await database.open()
    try:
        policy = load_for_admin({}, needs_pepper=False).billing
        folded = differing = 0
        async with aclosing(ReplayService(database, policy, system_clock).run(Selection(), dry_run=True)) as chunks:
            async for chunk in chunks:
                folded += chunk.tenants
                differing += sum(not checked.is_right for checked in chunk.checked)
    finally:
        await database.close()
    return Books(entries, Counter(str(outcome) for _, outcome in rows), deadlocks, commits, differing, folded)
