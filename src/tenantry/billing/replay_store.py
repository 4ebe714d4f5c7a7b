"""Reading whole histories from the ledger: in the order of its index, a page at a time."""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.billing.ledger_store import ACCOUNT_COLUMNS, FACT_NAMES, REPLACEABLE, to_account, to_event, unpack
from tenantry.db.connection import Connection
from tenantry.domain.billing.events import FOLDED_TYPES, BillingEvent
from tenantry.domain.billing.ledger import BillingAccount, ReceivedEvent
from tenantry.domain.billing.state import BillingState

ROWS_PER_FETCH: Final = 1000
UNREADABLE: Final = BillingState(plan="unreadable")
"""Replaces a stored state that cannot be decoded; it never equals a folded one."""

# The index has the events in their order: without a sort, the first page comes as fast as the last.
BY_INDEX: Final = (
    "SELECT set_config(name, 'off', true) FROM unnest(ARRAY['enable_sort', 'enable_seqscan']) AS setting (name)"
)
READ_ACCOUNTS: Final = f"SELECT {ACCOUNT_COLUMNS} FROM tenants WHERE id = ANY(%s) ORDER BY id"  # noqa: S608  # our own
LOCK_ACCOUNTS: Final = f"{READ_ACCOUNTS} FOR NO KEY UPDATE"
TENANTS_PAGE: Final = "SELECT id FROM tenants WHERE id > %s ORDER BY id LIMIT %s"
COUNT_ENTRIES: Final = "SELECT count(*) FROM billing_events WHERE tenant_id = %s"
COUNT_TENANTS: Final = "SELECT count(*) FROM tenants"
KNOWN_TENANTS: Final = "SELECT id FROM tenants WHERE id = ANY(%s)"
# For each tenant its newest events first: a recent event is found soon.
WITH_NEWS: Final = """
SELECT wanted.id
  FROM unnest(%s::text[]) AS wanted (id)
 CROSS JOIN LATERAL (
         SELECT FROM billing_events e
          WHERE e.tenant_id = wanted.id AND e.received_at >= %s
          ORDER BY e.created DESC LIMIT 1) AS news
"""
_FOLDED: Final = "outcome IN ('applied', 'late', 'no_change')"
FOLDED_EVENTS: Final = f"""
SELECT tenant_id, {", ".join(FACT_NAMES)}
  FROM billing_events
 WHERE tenant_id = ANY(%s) AND created >= %s AND {_FOLDED} AND type = ANY(%s)
 ORDER BY tenant_id, created, arrival
"""  # noqa: S608  # the names of our own columns
SECOND_BEFORE_NEWEST: Final = """
SELECT created
  FROM billing_events
 WHERE tenant_id = %s
 ORDER BY created DESC, arrival DESC
OFFSET %s LIMIT 1
"""
# As `ledger_store.READ_EVENTS`, but the oldest such beginning.
BEGINNING_AFTER: Final = f"""
SELECT created
  FROM billing_events
 WHERE tenant_id = %(tenant)s AND created > %(second)s AND {_FOLDED} AND type <> 'checkout.session.completed'
 GROUP BY created
HAVING count(*) = 1 AND bool_and(type = ANY(%(full_state_types)s) AND subscription_id IS NOT NULL)
 ORDER BY created
 LIMIT 1
"""  # noqa: S608  # our own condition
PARKED: Final = """
SELECT tenant_id, count(*)
  FROM (SELECT org_id AS tenant_id
          FROM billing_events
         WHERE outcome = 'parked' AND org_id = ANY(%(tenants)s)
         UNION ALL
        SELECT c.tenant_id
          FROM customers c
          JOIN billing_events e ON e.outcome = 'parked' AND e.org_id IS NULL AND e.customer_id = c.id
         WHERE c.tenant_id = ANY(%(tenants)s)) AS waiting
 GROUP BY tenant_id
"""
# All these entries have an anomaly, so the index of anomalies has them in this order.
REPLACEABLE_ENTRIES: Final = f"""
SELECT event_body(id), received_at, {", ".join(FACT_NAMES)}
  FROM billing_events
 WHERE anomalies IS NOT NULL AND {REPLACEABLE} AND received_at >= %(since)s
   AND (received_at, arrival) > (%(received)s, %(arrival)s)
 ORDER BY received_at, arrival
 LIMIT %(most)s
"""  # noqa: S608  # our own condition

_state_decoder: Final = msgspec.json.Decoder(BillingState)


async def replaceable_entries(
    connection: Connection, since: datetime, after: tuple[datetime, int], most: int
) -> list[ReceivedEvent]:
    """Return the next entries, received since a moment, that a valid event of their id replaces, with bodies if stored.

    ``after`` is the time and arrival number of the last entry before them.
    """
    received, arrival = after
    values = {"since": since, "received": received, "arrival": arrival, "most": most}
    return [
        ReceivedEvent(to_event(facts), received_at, unpack(body) if body is not None else None)
        for body, received_at, *facts in await connection.fetch(REPLACEABLE_ENTRIES, values)
    ]


async def tenants_after(connection: Connection, after: str, limit: int) -> list[str]:
    """Return the next tenants by id, ended ones included."""
    return [row[0] for row in await connection.fetch(TENANTS_PAGE, (after, limit))]


async def count_tenants(connection: Connection) -> int:
    return int(await connection.fetch_value(COUNT_TENANTS))


async def known_tenants(connection: Connection, tenants: Sequence[str]) -> set[str]:
    return {row[0] for row in await connection.fetch(KNOWN_TENANTS, (list(tenants),))}


async def tenants_with_news(connection: Connection, tenants: Sequence[str], since: datetime) -> list[str]:
    """Return those of these tenants that have an event received at this moment or later."""
    return [row[0] for row in await connection.fetch(WITH_NEWS, (list(tenants), since))]


async def read_accounts(connection: Connection, tenants: Sequence[str], *, lock: bool = False) -> list[BillingAccount]:
    """Return accounts by id; with ``lock`` lock them until the transaction ends."""
    statement = LOCK_ACCOUNTS if lock else READ_ACCOUNTS
    return [to_account(row, _state) for row in await connection.fetch(statement, (list(tenants),))]


def _state(text: str) -> BillingState:
    try:
        return _state_decoder.decode(text)
    except msgspec.DecodeError:
        return UNREADABLE


async def count_entries(connection: Connection, tenant_id: str) -> int:
    return int(await connection.fetch_value(COUNT_ENTRIES, (tenant_id,)))


async def parked_for(connection: Connection, tenants: Collection[str]) -> dict[str, int]:
    """Count the parked events of each of these tenants, which could be applied."""
    return dict(await connection.fetch(PARKED, {"tenants": list(tenants)}))


@asynccontextmanager
async def folded_events(
    connection: Connection, tenants: Sequence[str], since: int = -1
) -> AsyncIterator[AsyncIterator[tuple[str, BillingEvent]]]:
    """Open a stream of the events that the fold of these tenants applies, with their tenants, from a second on.

    They are sorted by tenant, ``created`` and arrival. At most `ROWS_PER_FETCH` are in memory at a time. The
    transaction must continue until the block ends.
    """
    await connection.execute(BY_INDEX)
    async with connection.cursor("folded_events") as cursor:
        cursor.itersize = ROWS_PER_FETCH
        await cursor.execute(FOLDED_EVENTS, (list(tenants), since, sorted(FOLDED_TYPES)), binary=True)
        yield _events(cursor)


async def _events(rows: AsyncIterator[Sequence[Any]]) -> AsyncGenerator[tuple[str, BillingEvent], None]:
    async for tenant_id, *facts in rows:
        yield tenant_id, to_event(facts)


async def second_before_newest(connection: Connection, tenant_id: str, most: int) -> int | None:
    """Return the second of the newest event that is not among a ledger's newest ``most``; None if there is none."""
    second: int | None = await connection.fetch_value(SECOND_BEFORE_NEWEST, (tenant_id, most))
    return second


async def beginning_after(
    connection: Connection, tenant_id: str, second: int, full_state_types: Collection[str]
) -> int | None:
    """Return the oldest second after this one whose only event is a full-state event."""
    await connection.execute(BY_INDEX)
    values = {"tenant": tenant_id, "second": second, "full_state_types": list(full_state_types)}
    found: int | None = await connection.fetch_value(BEGINNING_AFTER, values)
    return found
