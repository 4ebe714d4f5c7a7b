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
    EVERY_ROW,
    NumberedListing,
    NumberedPage,
    PageRequest,
)
from tenantry.db.pagination import BY_ARRIVAL, Listing
from tenantry.domain.billing.events import INVOICE_TYPES, BillingEvent, Outcome
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.billing.reversals import PaymentReversal, shown_reversal
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.domain.grants import GrantTerms

Shown = TypeVar("Shown")

_grants: Final = msgspec.json.Decoder(GrantTerms)
_LISTING: Final = Listing(
    "id, type, created, received_at, outcome, arrival, coalesce(anomalies, '{}'), subscription_id, document::text",
    "billing_events",
    "created",
    "arrival",
    order=BY_ARRIVAL,
)
# One value a line, so that no search text matches across two of them.
_SEARCHED: Final = (
    "concat_ws(E'\\n', id, type, subscription_id, document->>'invoice_id', "
    "document->'reversal'->>'id', document->'reversal'->>'charge_id')"
)
# What concerns a tenant's users: refunds and disputes; payments of an amount, also those that
# changed nothing; and all that changed the fields of its record. Its phases of access repeat these
# fields.
_OF_HISTORY: Final = """\
(outcome IN ('applied', 'no_change')
 AND type IN ('invoice.payment_failed', 'invoice.payment_succeeded')
 AND coalesce(document->>'amount_due', '') <> '0'
 OR outcome = 'applied'
    AND (type LIKE 'tenantry.grant.%%' OR document->'reversal' IS NOT NULL
         OR coalesce(document->'before', '{}')::jsonb - 'access'
            <> coalesce(document->'after', '{}')::jsonb - 'access'))"""
_FILTERED: Final = (
    "(%(event_type)s::text IS NULL OR type = %(event_type)s) "
    "AND (%(outcome)s::text IS NULL OR outcome = %(outcome)s) "
    "AND (%(search)s::text IS NULL OR type = ANY(%(named_types)s) "
    f"OR position(lower(%(search)s) IN lower({_SEARCHED})) > 0) "
    f"AND (NOT %(of_history)s OR {_OF_HISTORY})"
)
ENTRIES: Final = """
SELECT id, type, created, received_at, outcome, arrival, coalesce(anomalies, '{}'),
       subscription_id, document::text
  FROM billing_events
 WHERE tenant_id = %s AND (created, arrival) < (%s, %s)
 ORDER BY created DESC, arrival DESC
 LIMIT %s
"""
ENTRY: Final = """
SELECT id, type, created, received_at, outcome, arrival, coalesce(anomalies, '{}'),
       subscription_id, document::text
  FROM billing_events
 WHERE tenant_id = %s AND id = %s
"""
# Nothing remains of a paid invoice: then the amount is the whole one.
SUBJECT_OF_ENTRY: Final = """
SELECT customer_id, subscription_id, invoice_url, document->>'invoice_id',
       coalesce(nullif(document->>'amount_remaining', '0'), document->>'amount_due',
                document->'reversal'->>'amount')::bigint,
       document->>'currency', document->>'grant'
  FROM billing_events
 WHERE tenant_id = %s AND id = %s
"""
ALL_ENTRIES: Final = """
SELECT id, type, created, received_at, outcome, arrival, coalesce(anomalies, '{}'),
       subscription_id, document::text
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
 WHERE tenant_id = ANY(%(tenants)s)
   AND outcome IN ('applied', 'late', 'no_change') AND type = ANY(%(folded)s)
 ORDER BY tenant_id, created, arrival
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
   AND ((outcome = 'invalid' AND received_at >= %(invalid_since)s)
        OR (outcome = 'ignored'
            AND anomalies && '{connected_account,ignored_livemode}'
            AND (%(tenants)s::text[] IS NULL
                 OR org_id = ANY(%(tenants)s)
                 OR customer_id = ANY(ARRAY(SELECT id FROM customers WHERE tenant_id = ANY(%(tenants)s))))))
   AND received_at >= %(received)s
   AND (received_at, arrival) > (%(received)s, %(arrival)s)
 ORDER BY received_at, arrival
 LIMIT %(most)s
"""
NEWEST_INVALID: Final = """
SELECT received_at
  FROM billing_events
 WHERE anomalies IS NOT NULL AND outcome = 'invalid' AND received_at >= %s
 ORDER BY received_at DESC
OFFSET %s
 LIMIT 1
"""
_Place = tuple[int, int] | None  # of an entry: the second of its event, and its arrival number
_AFTER_ALL: Final = (2**62, 0)


class LedgerRecord(msgspec.Struct, frozen=True):
    id: str
    type: str
    created: int
    received_at: datetime
    outcome: str
    arrival: int
    anomalies: list[str]
    subscription_id: str | None
    livemode: bool | None
    reason: str
    before: BillingRecord | None
    after: BillingRecord | None
    amount: int | None
    currency: str | None
    grant: GrantTerms | None
    reversal: PaymentReversal | None = None


class EventFilter(msgspec.Struct, frozen=True):
    """Conditions on entries; None means any.

    ``search`` is a part of the event's id or type, or of the id of its subscription, invoice,
    refund, dispute or charge, case-insensitive. It also finds all events of ``named_types``.
    ``of_history`` leaves out what changed nothing for the tenant's users.
    """

    event_type: str | None = None
    outcome: Outcome | None = None
    search: str | None = None
    named_types: tuple[str, ...] = ()
    of_history: bool = False


class EventSubject(msgspec.Struct, frozen=True):
    """What an event is about, by the provider's ids.

    ``amount`` is what remained to be paid of its invoice, or all of a paid one, or that of its
    refund or dispute, in the smallest unit of ``currency``. ``invoice_url`` is the provider's,
    unchecked. ``grant`` is of the operator's own entries alone.
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
    *columns, text = row
    document = decode_document(text)
    # nothing remains of a paid invoice: then the amount is the whole one
    amount, reversal = document.amount_remaining or document.amount_due, document.reversal
    if reversal is not None:
        amount = reversal.amount
        reversal = shown_reversal(reversal, document.currency, columns[0])
    facts = amount, document.currency, document.grant, reversal
    values = (*columns, *_effect_of(document), *facts)
    return LedgerRecord(*values)


async def read_entries(
    connection: Connection, tenant_id: str, limit: int, after: _Place
) -> list[LedgerRecord]:
    """Return a tenant's entries, newest first, after a position ``(created, arrival)``; one more
    than ``limit``.
    """
    created, arrival = after or _AFTER_ALL
    rows = await connection.fetch(ENTRIES, (tenant_id, created, arrival, limit + 1))
    return [_record(row) for row in rows]


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
    )
    return await numbered.read(connection, request, lambda row: shown(_record(row)))


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


class ReplaceableEntries(msgspec.Struct, frozen=True):
    """Entries that a valid event of their id replaces: all, or those that may be of ``tenants``.

    ``after`` is the time and arrival number of the last entry before them. The columns of an
    invalid event name no tenant, so these are selected by ``invalid_since`` alone.
    """

    after: tuple[datetime, int]
    tenants: tuple[str, ...] | None
    invalid_since: datetime


async def newest_invalid_since(connection: Connection, since: datetime, most: int) -> datetime:
    """Return when the oldest of the newest ``most`` invalid entries came; ``since`` if there are
    fewer.
    """
    row = await connection.fetch_row(NEWEST_INVALID, (since, most - 1))
    return row[0] if row else since


async def replaceable_entries(
    connection: Connection, wanted: ReplaceableEntries, most: int
) -> list[ReceivedEvent]:
    """Return the next of these entries, with bodies if stored."""
    received, arrival = wanted.after
    values = {
        "received": received,
        "arrival": arrival,
        "tenants": None if wanted.tenants is None else list(wanted.tenants),
        "invalid_since": wanted.invalid_since,
        "most": most,
    }
    return [
        ReceivedEvent(to_event(columns), received_at, unpack(body) if body is not None else None)
        for *columns, received_at, body in await connection.fetch(REPLACEABLE_ENTRIES, values)
    ]


async def tenants_after(connection: Connection, after: str, limit: int) -> list[str]:
    """Return the next tenants by id, ended ones included."""
    query = "SELECT id FROM tenants WHERE id > %s ORDER BY id LIMIT %s"
    return await connection.fetch_column(query, (after, limit))


async def count_tenants(connection: Connection, after: str = "") -> int:
    return await connection.fetch_count("SELECT count(*) FROM tenants WHERE id > %s", (after,))


async def known_tenants(connection: Connection, tenants: Sequence[str]) -> set[str]:
    query = "SELECT id FROM tenants WHERE id = ANY(%s)"
    return set(await connection.fetch_column(query, (list(tenants),)))


async def tenants_with_news(
    connection: Connection, tenants: Sequence[str], since: datetime
) -> list[str]:
    """Return those of these tenants that have an event received at this moment or later."""
    return await connection.fetch_column(WITH_RECENT_EVENTS, (list(tenants), since))


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
    connection: Connection, tenants: Sequence[str]
) -> AsyncIterator[AsyncIterator[tuple[str, BillingEvent]]]:
    """Open a stream of the events that the fold of these tenants applies, with their tenants.

    They are sorted by tenant, ``created`` and arrival. At most `ROWS_PER_FETCH` are in memory at a
    time. The transaction must continue until the block ends.
    """
    await connection.execute(BY_INDEX)
    async with connection.cursor("folded_events") as cursor:
        cursor.itersize = ROWS_PER_FETCH
        values = {**FOLD_TYPES, "tenants": list(tenants)}
        await cursor.execute(FOLDED_EVENTS, values, binary=True)
        yield ((tenant_id, to_event(columns)) async for *columns, tenant_id in cursor)
