"""Reading whole histories from the ledger, however long: in the order of its index, a page at a time."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.billing.bodies_store import unpack
from tenantry.billing.ledger_store import ACCOUNT_COLUMNS, FACT_NAMES, REPLACEABLE, to_account, to_event
from tenantry.db.connection import Connection
from tenantry.domain.billing.events import FOLDED_TYPES, BillingEvent
from tenantry.domain.billing.ledger import Account, Arrival
from tenantry.domain.billing.state import BillingState

ROWS_PER_FETCH: Final = 1000
UNREADABLE: Final = BillingState(plan="unreadable")
"""Stands for a stored state that is none, so that it never equals a folded one."""

# The index has the events in their order: nothing is sorted, so that the first page comes as fast as the last.
BY_INDEX: Final = (
    "SELECT set_config(name, 'off', true) FROM unnest(ARRAY['enable_sort', 'enable_seqscan']) AS setting (name)"
)
READ_ACCOUNTS: Final = f"SELECT {ACCOUNT_COLUMNS} FROM tenants WHERE id = ANY(%s) ORDER BY id"  # noqa: S608  # our own
LOCK_ACCOUNT: Final = f"SELECT {ACCOUNT_COLUMNS} FROM tenants WHERE id = %s FOR NO KEY UPDATE"  # noqa: S608  # our own
TENANTS_PAGE: Final = "SELECT id FROM tenants WHERE id > %s ORDER BY id LIMIT %s"
COUNT_TENANTS: Final = "SELECT count(*) FROM tenants"
KNOWN_TENANTS: Final = "SELECT id FROM tenants WHERE id = ANY(%s)"
# For each tenant its newest events first: where there is news, it is found soon.
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
 WHERE tenant_id = ANY(%s) AND {_FOLDED} AND type = ANY(%s)
 ORDER BY tenant_id, created, arrival
"""  # noqa: S608  # the names of our own columns
FOLDED_EVENTS_SINCE: Final = f"""
SELECT tenant_id, {", ".join(FACT_NAMES)}
  FROM billing_events
 WHERE tenant_id = %s AND created >= %s AND {_FOLDED} AND type = ANY(%s)
 ORDER BY created, arrival
"""  # noqa: S608  # the names of our own columns
SECOND_BEFORE_NEWEST: Final = """
SELECT created
  FROM billing_events
 WHERE tenant_id = %s
 ORDER BY created DESC, arrival DESC
OFFSET %s LIMIT 1
"""
# As for a late event (`READ_EVENTS` in `ledger_store`), but the oldest such beginning.
BEGINNING_AFTER: Final = f"""
SELECT r.created
  FROM billing_events r
 WHERE r.tenant_id = %(tenant)s AND r.created > %(second)s AND r.type = ANY(%(telling)s) AND r.{_FOLDED}
   AND r.subscription_id IS NOT NULL
   AND NOT EXISTS (
         SELECT FROM billing_events o
          WHERE o.tenant_id = r.tenant_id AND o.created = r.created AND o.id <> r.id AND o.{_FOLDED}
            AND o.type <> 'checkout.session.completed')
 ORDER BY r.created
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
# Entries that give way all have an anomaly, so the index of those has them in this order.
GIVING_WAY: Final = f"""
SELECT event_body(id), received_at, {", ".join(FACT_NAMES)}
  FROM billing_events
 WHERE anomalies IS NOT NULL AND {REPLACEABLE} AND received_at >= %(since)s
   AND (received_at, arrival) > (%(received)s, %(arrival)s)
 ORDER BY received_at, arrival
 LIMIT %(most)s
"""  # noqa: S608  # our own condition

_state_decoder: Final = msgspec.json.Decoder(BillingState)


async def entries_giving_way(
    connection: Connection, since: datetime, after: tuple[datetime, int], most: int
) -> list[Arrival]:
    """The next entries, received since a moment, that give way to a valid event of their id, with the raw body if kept.

    ``after`` is the time and the arrival number of the last one before them.
    """
    received, arrival = after
    values = {"since": since, "received": received, "arrival": arrival, "most": most}
    cursor = await connection.execute(GIVING_WAY, values)
    return [
        Arrival(to_event(facts), received_at, unpack(body) if body is not None else None)
        for body, received_at, *facts in await cursor.fetchall()
    ]


async def tenants_after(connection: Connection, after: str, limit: int) -> list[str]:
    """The next tenants by id, ended ones included."""
    cursor = await connection.execute(TENANTS_PAGE, (after, limit))
    return [row[0] for row in await cursor.fetchall()]


async def count_tenants(connection: Connection) -> int:
    """How many tenants there are, ended ones included."""
    cursor = await connection.execute(COUNT_TENANTS)
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def known_tenants(connection: Connection, tenants: Sequence[str]) -> set[str]:
    """Those of these tenants that exist."""
    cursor = await connection.execute(KNOWN_TENANTS, (list(tenants),))
    return {row[0] for row in await cursor.fetchall()}


async def tenants_with_news(connection: Connection, tenants: Sequence[str], since: datetime) -> list[str]:
    """Those of these tenants that have an event received at this moment or later."""
    cursor = await connection.execute(WITH_NEWS, (list(tenants), since))
    return [row[0] for row in await cursor.fetchall()]


async def read_accounts(connection: Connection, tenants: Sequence[str]) -> list[Account]:
    """Accounts in the order of their ids, not locked."""
    cursor = await connection.execute(READ_ACCOUNTS, (list(tenants),))
    return [to_account(row, _state) for row in await cursor.fetchall()]


async def lock_account(connection: Connection, tenant_id: str) -> Account | None:
    """Lock one tenant until the transaction ends."""
    cursor = await connection.execute(LOCK_ACCOUNT, (tenant_id,))
    row = await cursor.fetchone()
    return to_account(row, _state) if row else None


def _state(text: str) -> BillingState:
    try:
        return _state_decoder.decode(text)
    except msgspec.DecodeError:
        return UNREADABLE


async def count_entries(connection: Connection, tenant_id: str) -> int:
    """How many entries a tenant's ledger has."""
    cursor = await connection.execute("SELECT count(*) FROM billing_events WHERE tenant_id = %s", (tenant_id,))
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def parked_for(connection: Connection, tenants: Collection[str]) -> dict[str, int]:
    """How many parked events each of these tenants has that could take their place."""
    cursor = await connection.execute(PARKED, {"tenants": list(tenants)})
    return dict(await cursor.fetchall())


@asynccontextmanager
async def folded_events(
    connection: Connection, tenants: Sequence[str]
) -> AsyncIterator[AsyncIterator[tuple[str, BillingEvent]]]:
    """The events that these tenants' states are made of, with their tenants: sorted by tenant, ``created``, arrival.

    The transaction must go on until the block ends. At most `ROWS_PER_FETCH` of them are held at a time.
    """
    async with _streamed(connection, FOLDED_EVENTS, (list(tenants), sorted(FOLDED_TYPES))) as events:
        yield events


@asynccontextmanager
async def folded_events_since(
    connection: Connection, tenant_id: str, second: int
) -> AsyncIterator[AsyncIterator[tuple[str, BillingEvent]]]:
    """The same of one tenant, from a second on."""
    async with _streamed(connection, FOLDED_EVENTS_SINCE, (tenant_id, second, sorted(FOLDED_TYPES))) as events:
        yield events


@asynccontextmanager
async def _streamed(
    connection: Connection, statement: str, values: Sequence[object]
) -> AsyncIterator[AsyncIterator[tuple[str, BillingEvent]]]:
    await connection.execute(BY_INDEX)
    async with connection.cursor("folded_events") as cursor:
        cursor.itersize = ROWS_PER_FETCH
        await cursor.execute(statement, values, binary=True)
        yield _events(cursor)


async def second_before_newest(connection: Connection, tenant_id: str, most: int) -> int | None:
    """The second of the newest event that is not one of a ledger's newest ``most``; None if there are no others."""
    cursor = await connection.execute(SECOND_BEFORE_NEWEST, (tenant_id, most))
    row = await cursor.fetchone()
    return int(row[0]) if row else None


async def beginning_after(connection: Connection, tenant_id: str, second: int, telling: Collection[str]) -> int | None:
    """The oldest second after this one whose only event is of a type after which the state is the same in any case."""
    await connection.execute(BY_INDEX)
    values = {"tenant": tenant_id, "second": second, "telling": list(telling)}
    cursor = await connection.execute(BEGINNING_AFTER, values)
    row = await cursor.fetchone()
    return int(row[0]) if row else None


async def _events(rows: AsyncIterator[Sequence[Any]]) -> AsyncIterator[tuple[str, BillingEvent]]:
    async for tenant_id, *facts in rows:
        yield tenant_id, to_event(facts)
