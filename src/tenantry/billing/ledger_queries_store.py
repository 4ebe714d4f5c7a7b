"""Reading the billing ledger: pages, events and raw bodies; whole histories in the order of the
index; counts.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from tenantry.billing.ledger_rows import decode_document, to_event
from tenantry.billing.ledger_store import FOLD_TYPES, unpack
from tenantry.db.connection import Connection
from tenantry.db.numbered_pages import (
    BY_ARRIVAL,
    EVERY_ROW,
    NumberedListing,
    NumberedPage,
    PageRequest,
)
from tenantry.db.pagination import Listing
from tenantry.domain.billing.events import INVOICE_TYPES, BillingEvent, Outcome
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.domain.grants import GrantTerms

Shown = TypeVar("Shown")

_grants: Final = msgspec.json.Decoder(GrantTerms)
_LISTING: Final = Listing(
    "id, type, created, received_at, outcome, arrival, coalesce(anomalies, '{}'), document::text",
    "billing_events",
    "created",
    "arrival",
)
_OF_TENANT: Final = "tenant_id = %(tenant)s AND (created, arrival) < (%(created)s, %(arrival)s)"
# One value a line, so that no search text matches across two of them.
_SEARCHED: Final = "concat_ws(E'\\n', id, type, subscription_id, document->>'invoice_id')"
_FILTERED: Final = (
    "(%(event_type)s::text IS NULL OR type = %(event_type)s) "
    "AND (%(outcome)s::text IS NULL OR outcome = %(outcome)s) "
    "AND (%(search)s::text IS NULL OR type = ANY(%(named_types)s) "
    f"OR position(lower(%(search)s) IN lower({_SEARCHED})) > 0)"
)
ENTRY: Final = """
SELECT id, type, created, received_at, outcome, arrival, coalesce(anomalies, '{}'),
       document::text
  FROM billing_events
 WHERE tenant_id = %s AND id = %s
"""
# Nothing remains of a paid invoice: then the amount is the whole one.
SUBJECT_OF_ENTRY: Final = """
SELECT customer_id, subscription_id, invoice_url, document->>'invoice_id',
       coalesce(nullif(document->>'amount_remaining', '0'), document->>'amount_due')::bigint,
       document->>'currency', document->>'grant'
  FROM billing_events
 WHERE tenant_id = %s AND id = %s
"""
ALL_ENTRIES: Final = """
SELECT id, type, created, received_at, outcome, arrival, coalesce(anomalies, '{}'),
       document::text
  FROM billing_events
 WHERE tenant_id = %s
 ORDER BY created, arrival
"""
# The feed looks at the events of the four days before a tenant's newest, because the provider
# retries an event for three days, and at the newest 5,000 of these. The index has a tenant's events
# by ``created``. The limit is a literal: a cached plan would not consider a parameter's value.
NEWEST_ARRIVALS: Final = """
SELECT watched.tenant_id, newest.arrival
  FROM unnest(%s::text[], %s::bigint[]) AS watched (tenant_id, since)
 CROSS JOIN LATERAL (
         SELECT max(recent.arrival) AS arrival
           FROM (SELECT arrival
                   FROM billing_events
                  WHERE tenant_id = watched.tenant_id
                    AND created > coalesce((
                          SELECT max(s.tip_created)
                            FROM subscriptions s
                           WHERE s.tenant_id = watched.tenant_id), 0) - 4 * 86400
                  ORDER BY created DESC, arrival DESC
                  LIMIT 5000) AS recent
          WHERE recent.arrival > watched.since) AS newest
 WHERE newest.arrival IS NOT NULL
"""

ROWS_PER_FETCH: Final = 1000

# The index has the events in their order: without a sort, the first page comes as fast as the last.
BY_INDEX: Final = (
    "SELECT set_config(name, 'off', true) "
    "FROM unnest(ARRAY['enable_sort', 'enable_seqscan']) AS setting (name)"
)
# For each tenant its newest events first: a recent event is found soon.
WITH_RECENT_EVENTS: Final = """
SELECT wanted.id
  FROM unnest(%s::text[]) AS wanted (id)
 CROSS JOIN LATERAL (
         SELECT FROM billing_events e
          WHERE e.tenant_id = wanted.id AND e.received_at >= %s
          ORDER BY e.created DESC LIMIT 1) AS newest
"""
FOLDED_EVENTS: Final = """
SELECT id, type, created, arrival, org_id, customer_id, subscription_id, invoice_url,
       document::text, tenant_id
  FROM billing_events
 WHERE tenant_id = ANY(%(tenants)s) AND created >= %(since)s
   AND outcome IN ('applied', 'late', 'no_change') AND type = ANY(%(folded)s)
 ORDER BY tenant_id, created, arrival
"""
SECOND_BEFORE_NEWEST: Final = """
SELECT created
  FROM billing_events
 WHERE tenant_id = %s
 ORDER BY created DESC, arrival DESC
OFFSET %s LIMIT 1
"""
# As `ledger_store.READ_EVENTS`, but the oldest such beginning.
BEGINNING_AFTER: Final = """
SELECT created
  FROM billing_events
 WHERE tenant_id = %(tenant)s AND created > %(second)s
   AND outcome IN ('applied', 'late', 'no_change') AND type = ANY(%(folded)s)
 GROUP BY created
HAVING count(*) = 1
   AND bool_and(type = ANY(%(full_state)s)
                AND subscription_id IS NOT NULL
                AND customer_id IS NOT NULL
                AND document->>'status' NOT IN ('past_due', 'unpaid')
                AND document->'details'->>'pause' IS DISTINCT FROM 'void'
                AND document->'details'->>'is_truncated' IS NULL)
 ORDER BY created
 LIMIT 1
"""
# An invoice belongs to the tenant of its subscription if that is known, else to that of its
# customer.
PARKED: Final = """
SELECT tenant_id, count(*)
  FROM (SELECT org_id AS tenant_id
          FROM billing_events
         WHERE outcome = 'parked' AND org_id = ANY(%(tenants)s)
         UNION ALL
        SELECT c.tenant_id
          FROM customers c
          JOIN billing_events e ON e.outcome = 'parked' AND e.org_id IS NULL AND e.customer_id = c.id
         WHERE c.tenant_id = ANY(%(tenants)s)
           AND NOT (e.type = ANY(%(invoices)s) AND EXISTS (
                 SELECT
                   FROM subscription_tenants known
                   JOIN subscriptions s ON s.tenant_id = known.tenant_id AND s.id = known.subscription_id
                  WHERE known.subscription_id = e.subscription_id
                    AND s.reported_at IS NOT NULL AND s.moved_at IS NULL))
         UNION ALL
        SELECT s.tenant_id
          FROM subscription_tenants known
          JOIN subscriptions s ON s.tenant_id = known.tenant_id AND s.id = known.subscription_id
          JOIN billing_events e ON e.outcome = 'parked' AND e.org_id IS NULL AND e.subscription_id = s.id
         WHERE e.type = ANY(%(invoices)s)
           AND s.tenant_id = ANY(%(tenants)s) AND s.reported_at IS NOT NULL AND s.moved_at IS NULL
         UNION ALL
        SELECT t.id
          FROM subscription_tenants known
          JOIN tenants t ON t.id = known.tenant_id
           AND t.folds->''->'state'->>'subscription_id' = known.subscription_id
          JOIN billing_events e ON e.outcome = 'parked' AND e.org_id IS NULL
           AND e.subscription_id = known.subscription_id
         WHERE e.type = ANY(%(invoices)s) AND e.customer_id IS NULL AND t.id = ANY(%(tenants)s)) AS waiting
 GROUP BY tenant_id
"""
# All these entries have an anomaly, so the index of anomalies has them in this order.
REPLACEABLE_ENTRIES: Final = """
SELECT id, type, created, arrival, org_id, customer_id, subscription_id, invoice_url,
       document::text, received_at, event_body(id)
  FROM billing_events
 WHERE anomalies IS NOT NULL
   AND (outcome = 'invalid'
        OR (outcome = 'ignored' AND anomalies && '{connected_account,ignored_livemode}'))
   AND received_at >= %(since)s
   AND (received_at, arrival) > (%(received)s, %(arrival)s)
 ORDER BY received_at, arrival
 LIMIT %(most)s
"""
_Place = tuple[int, int] | None  # of an entry: the second of its event, and its arrival number


class LedgerRecord(msgspec.Struct, frozen=True):
    id: str
    type: str
    created: int
    received_at: datetime
    outcome: str
    arrival: int
    anomalies: list[str]
    livemode: bool | None
    reason: str
    before: BillingRecord | None
    after: BillingRecord | None


class EventFilter(msgspec.Struct, frozen=True):
    """Conditions on entries; None means any.

    ``search`` is a part of the event's id or type, or of the id of its subscription or invoice,
    case-insensitive. It also finds all events of ``named_types``.
    """

    event_type: str | None = None
    outcome: Outcome | None = None
    search: str | None = None
    named_types: tuple[str, ...] = ()


class EventSubject(msgspec.Struct, frozen=True):
    """What an event is about, by the provider's ids.

    ``amount`` is what remained to be paid of its invoice, or all of a paid one, in the smallest
    unit of ``currency``. ``invoice_url`` is the provider's, unchecked. ``grant`` is of the
    operator's own entries alone.
    """

    customer_id: str | None
    subscription_id: str | None
    invoice_url: str | None
    invoice_id: str | None
    amount: int | None
    currency: str | None
    grant: GrantTerms | None


_effect_of: Final = attrgetter("livemode", "reason", "before", "after")


def _record(row: Sequence[Any]) -> LedgerRecord:
    *columns, document = row
    values = (*columns, *_effect_of(decode_document(document)))
    return LedgerRecord(*values)


async def read_entries(
    connection: Connection, tenant_id: str, limit: int, after: _Place
) -> list[LedgerRecord]:
    """Return a tenant's entries, newest first, after a position ``(created, arrival)``; one more
    than ``limit``.
    """
    values = _from(tenant_id, after)
    return [
        _record(row) for row in await _LISTING.read(connection, _OF_TENANT, "true", values, limit)
    ]


async def read_numbered(
    connection: Connection,
    tenant_id: str,
    wanted: EventFilter,
    request: PageRequest,
    shown: Callable[[LedgerRecord], Shown],
) -> NumberedPage[Shown]:
    """Read a page of the entries that match a filter, newest first, as ``shown``. Raises
    `InvalidCursorError`.
    """
    conditions = {**msgspec.structs.asdict(wanted), "named_types": list(wanted.named_types)}
    numbered = NumberedListing(
        _LISTING,
        "tenant_id = %(tenant)s",
        {"tenant": tenant_id, **conditions},
        EVERY_ROW if wanted == EventFilter() else _FILTERED,
        BY_ARRIVAL,
    )
    return await numbered.read(connection, request, lambda row: shown(_record(row)))


def _from(tenant_id: str, after: _Place) -> dict[str, object]:
    created, arrival = after or (2**62, 0)
    return {"tenant": tenant_id, "created": created, "arrival": arrival}


async def find_entry(connection: Connection, tenant_id: str, event_id: str) -> LedgerRecord | None:
    row = await connection.fetch_row(ENTRY, (tenant_id, event_id))
    return _record(row) if row else None


async def find_subject(
    connection: Connection, tenant_id: str, event_id: str
) -> EventSubject | None:
    row = await connection.fetch_row(SUBJECT_OF_ENTRY, (tenant_id, event_id))
    if row is None:
        return None
    *facts, grant = row
    values = (*facts, None if grant is None else _grants.decode(grant))
    return EventSubject(*values)


async def read_all_entries(connection: Connection, tenant_id: str) -> list[LedgerRecord]:
    """Return a tenant's whole ledger, by ``created`` and arrival."""
    return [_record(row) for row in await connection.fetch(ALL_ENTRIES, (tenant_id,))]


async def find_body(connection: Connection, event_id: str) -> tuple[bool, bytes | None]:
    """Return whether the event exists, and its raw body if that is still stored."""
    row = await connection.fetch_row(
        "SELECT event_body(e.id) FROM billing_events e WHERE e.id = %s", (event_id,)
    )
    return row is not None, unpack(row[0]) if row and row[0] is not None else None


async def find_body_of_tenant(
    connection: Connection, tenant_id: str, event_id: str
) -> bytes | None:
    """Return the raw body of an event in a tenant's ledger, if that is still stored."""
    query = (
        "SELECT tenant_event_body(e.id) FROM billing_events e WHERE e.tenant_id = %s AND e.id = %s"
    )
    row = await connection.fetch_row(query, (tenant_id, event_id))
    return unpack(row[0]) if row and row[0] is not None else None


async def newest_second(connection: Connection) -> int | None:
    """Return the second of the newest event of all tenants (Unix time); reads every tenant."""
    second: int | None = await connection.fetch_value("SELECT max(tip_created) FROM subscriptions")
    return second


async def count_parked(connection: Connection) -> int:
    return await connection.fetch_count(
        "SELECT count(*) FROM billing_events WHERE outcome = 'parked'"
    )


async def newest_arrival(connection: Connection, tenant_id: str) -> int:
    """Return the arrival number of a tenant's latest event; 0 if there is none."""
    return (await arrivals_after(connection, {tenant_id: -1})).get(tenant_id, 0)


async def arrivals_after(connection: Connection, watched: Mapping[str, int]) -> dict[str, int]:
    """Return the latest arrival of each tenant that has an event after the arrival given for it."""
    values = (list(watched), list(watched.values()))
    return dict(await connection.fetch(NEWEST_ARRIVALS, values))


async def replaceable_entries(
    connection: Connection, since: datetime, after: tuple[datetime, int], most: int
) -> list[ReceivedEvent]:
    """Return the next entries, received since a moment, that a valid event of their id replaces,
    with bodies if stored.

    ``after`` is the time and arrival number of the last entry before them.
    """
    received, arrival = after
    values = {"since": since, "received": received, "arrival": arrival, "most": most}
    return [
        ReceivedEvent(to_event(columns), received_at, unpack(body) if body is not None else None)
        for *columns, received_at, body in await connection.fetch(REPLACEABLE_ENTRIES, values)
    ]


async def tenants_after(connection: Connection, after: str, limit: int) -> list[str]:
    """Return the next tenants by id, ended ones included."""
    query = "SELECT id FROM tenants WHERE id > %s ORDER BY id LIMIT %s"
    return [row[0] for row in await connection.fetch(query, (after, limit))]


async def count_tenants(connection: Connection, after: str = "") -> int:
    return await connection.fetch_count("SELECT count(*) FROM tenants WHERE id > %s", (after,))


async def known_tenants(connection: Connection, tenants: Sequence[str]) -> set[str]:
    return {
        row[0]
        for row in await connection.fetch(
            "SELECT id FROM tenants WHERE id = ANY(%s)", (list(tenants),)
        )
    }


async def tenants_with_news(
    connection: Connection, tenants: Sequence[str], since: datetime
) -> list[str]:
    """Return those of these tenants that have an event received at this moment or later."""
    return [row[0] for row in await connection.fetch(WITH_RECENT_EVENTS, (list(tenants), since))]


async def count_entries(connection: Connection, tenant_id: str) -> int:
    return await connection.fetch_count(
        "SELECT count(*) FROM billing_events WHERE tenant_id = %s", (tenant_id,)
    )


async def parked_for(connection: Connection, tenants: Collection[str]) -> dict[str, int]:
    """Count the parked events of each of these tenants, which could be applied."""
    return dict(
        await connection.fetch(
            PARKED, {"tenants": list(tenants), "invoices": sorted(INVOICE_TYPES)}
        )
    )


@asynccontextmanager
async def folded_events(
    connection: Connection, tenants: Sequence[str], since: int = -1
) -> AsyncIterator[AsyncIterator[tuple[str, BillingEvent]]]:
    """Open a stream of the events that the fold of these tenants applies, with their tenants, from
    a second on.

    They are sorted by tenant, ``created`` and arrival. At most `ROWS_PER_FETCH` are in memory at a
    time. The transaction must continue until the block ends.
    """
    await connection.execute(BY_INDEX)
    async with connection.cursor("folded_events") as cursor:
        cursor.itersize = ROWS_PER_FETCH
        values = {**FOLD_TYPES, "tenants": list(tenants), "since": since}
        await cursor.execute(FOLDED_EVENTS, values, binary=True)
        yield ((tenant_id, to_event(columns)) async for *columns, tenant_id in cursor)


async def second_before_newest(connection: Connection, tenant_id: str, most: int) -> int | None:
    """Return the second of the newest event that is not among a ledger's newest ``most``; None if
    there is none.
    """
    second: int | None = await connection.fetch_value(SECOND_BEFORE_NEWEST, (tenant_id, most))
    return second


async def beginning_after(connection: Connection, tenant_id: str, second: int) -> int | None:
    """Return the oldest second after this one whose only event is a full-state event."""
    await connection.execute(BY_INDEX)
    values = {**FOLD_TYPES, "tenant": tenant_id, "second": second}
    found: int | None = await connection.fetch_value(BEGINNING_AFTER, values)
    return found
