"""The billing ledger with its raw bodies, the context of a batch, and the links of customers.

The functions for the webhook take and return whole batches: a batch costs two round trips, its
commit included. Bodies are compressed (zlib's format, RFC 1950).
"""

import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final

import psycopg
from isal import isal_zlib

from tenantry.billing import accounts_store as accounts
from tenantry.billing.ledger_rows import encode_document, to_event
from tenantry.db.connection import Connection
from tenantry.db.standby_waits import CommittedChange, commit_change
from tenantry.db.statements import (
    BIGINTS,
    BLOBS,
    JSONS,
    MOMENT,
    MOMENTS,
    TEXT,
    TEXTS,
    BoundStatement,
    Statement,
)
from tenantry.domain.billing.events import (
    CUSTOMER_MISSING,
    CUSTOMER_PROVING_TYPES,
    FOLDED_TYPES,
    PAYMENT_TYPES,
    SNAPSHOT,
    WHOLE_SUBSCRIPTION_TYPES,
    Anomaly,
    BillingEvent,
)
from tenantry.domain.billing.ledger import (
    BatchContext,
    BillingAccount,
    CustomerLink,
    CustomerUse,
    FoldId,
    KnownTenants,
    LedgerEntry,
    LinkedCustomer,
    NameLock,
    ReceivedEvent,
    ReplayNeed,
    holders_of,
    named_tenants,
)
from tenantry.domain.billing.raw_bodies import RawBodies
from tenantry.domain.billing.state import BillingPolicy, fold_key, is_grant_key
from tenantry.domain.plans import OVER

TENANTS_OF_CUSTOMERS: Final = Statement(
    "SELECT id, tenant_id, gone_by IS NOT NULL FROM customers WHERE id = ANY($1)", TEXTS
)
# Each event in the ledger, and whether a valid event of the same id replaces its entry.
SEEN_EVENTS: Final = Statement(
    """
SELECT id,
       outcome = 'invalid'
       OR (outcome = 'ignored' AND anomalies && '{connected_account,ignored_livemode}')
  FROM billing_events
 WHERE id = ANY($1)
""",
    TEXTS,
)
NEXT_ARRIVAL: Final = Statement("SELECT nextval('billing_arrivals')")
# A transaction that adds a tenant or a customer link locks its name exclusively; one that parks an
# event because the name is missing holds a shared lock. So one of the two sees what the other has
# done.
LOCK_NAMES: Final = """
SELECT CASE WHEN claimed THEN pg_advisory_xact_lock(hashtextextended(name, 0))
            ELSE pg_advisory_xact_lock_shared(hashtextextended(name, 0)) END
  FROM unnest(%s::text[], %s::boolean[]) AS wanted (name, claimed)
"""
# The tenants that have one of these customers or subscriptions, or a subscription of one of these
# customers.
LOCK_HOLDERS: Final = """
SELECT
  FROM tenants
 WHERE id = ANY(ARRAY(
         SELECT %(tenant)s
          UNION
         SELECT tenant_id FROM customers WHERE id = ANY(%(customers)s)
          UNION
         SELECT tenant_id
           FROM subscription_tenants
          WHERE subscription_id = ANY(%(subscriptions)s)
          UNION
         SELECT other.tenant_id
           FROM subscription_tenants one
           JOIN subscription_tenants other ON other.subscription_id = one.subscription_id
          WHERE one.customer_id = ANY(%(customers)s)))
 ORDER BY id
   FOR NO KEY UPDATE
"""

FOLD_TYPES: Final = {
    "folded": sorted(FOLDED_TYPES),
    "full_state": sorted(WHOLE_SUBSCRIPTION_TYPES),
}
"""The parameters of statements on the events that the fold applies.

A full-state event that is the only one of its second gives a state that does not depend on earlier
events. An event without a subscription's id does not prove which subscription ended before. One
that is past due does not say since when, one with paused payments does not say until when they were
paid, one with truncated items keeps those before, and one without a customer keeps the one before.
"""
# A late event's history begins at the newest full-state event before it that is alone in its
# second; without one, at the beginning. With "until" it ends at the next such event. MATERIALIZED
# finds each bound once: with outdated statistics the planner would otherwise find it again for
# every event of the tenant, and time out.
READ_EVENTS: Final = """
WITH beginnings AS MATERIALIZED (
         SELECT number,
                tenant_id,
                fold,
                CASE WHEN late THEN coalesce((
                  SELECT r.created
                    FROM billing_events r
                   WHERE r.tenant_id = wanted.tenant_id
                     AND r.created < wanted.second
                     AND (wanted.fold IS NULL OR coalesce(r.subscription_id, '') = wanted.fold)
                     AND r.outcome IN ('applied', 'late', 'no_change')
                     AND r.type = ANY(%(folded)s)
                   GROUP BY r.created
                  HAVING count(*) = 1
                     AND bool_and(r.type = ANY(%(full_state)s)
                                  AND r.subscription_id IS NOT NULL
                                  AND r.customer_id IS NOT NULL
                                  AND r.document->>'status' NOT IN ('past_due', 'unpaid')
                                  AND r.document->'details'->>'pause' IS DISTINCT FROM 'void'
                                  AND r.document->'details'->>'is_truncated' IS NULL)
                   ORDER BY r.created DESC
                   LIMIT 1), -1) ELSE second END AS since,
                coalesce((
                  SELECT r.created
                    FROM billing_events r
                   WHERE r.tenant_id = wanted.tenant_id
                     AND r.created > wanted.until
                     AND (wanted.fold IS NULL OR coalesce(r.subscription_id, '') = wanted.fold)
                     AND r.outcome IN ('applied', 'late', 'no_change')
                     AND r.type = ANY(%(folded)s)
                   GROUP BY r.created
                  HAVING count(*) = 1
                     AND bool_and(r.type = ANY(%(full_state)s)
                                  AND r.subscription_id IS NOT NULL
                                  AND r.customer_id IS NOT NULL
                                  AND r.document->>'status' NOT IN ('past_due', 'unpaid')
                                  AND r.document->'details'->>'pause' IS DISTINCT FROM 'void'
                                  AND r.document->'details'->>'is_truncated' IS NULL)
                   ORDER BY r.created
                   LIMIT 1), 9223372036854775807) AS until
           FROM unnest(%(tenants)s::text[], %(folds)s::text[], %(seconds)s::bigint[],
                       %(late)s::boolean[], %(until)s::bigint[])
                WITH ORDINALITY AS wanted (tenant_id, fold, second, late, until, number))
SELECT e.id, e.type, e.created, e.arrival, e.org_id, e.customer_id, e.subscription_id,
       e.invoice_url, e.document::text, beginnings.number
  FROM beginnings
  JOIN billing_events e
    ON e.tenant_id = beginnings.tenant_id
   AND e.created BETWEEN beginnings.since AND beginnings.until
   AND (beginnings.fold IS NULL OR coalesce(e.subscription_id, '') = beginnings.fold)
 WHERE e.outcome IN ('applied', 'late', 'no_change') AND e.type = ANY(%(folded)s)
 ORDER BY beginnings.number, e.created, e.arrival
"""
PAYMENTS: Final = """
SELECT e.tenant_id, wanted.invoice_id, max(e.created)
  FROM unnest(%(tenants)s::text[], %(invoices)s::text[]) AS wanted (tenant_id, invoice_id)
  JOIN billing_events e
    ON e.tenant_id = wanted.tenant_id
   AND e.document->>'invoice_id' = wanted.invoice_id
 WHERE e.type = ANY(%(payments)s) AND e.outcome IN ('applied', 'late', 'no_change')
 GROUP BY e.tenant_id, wanted.invoice_id
"""
READ_PARKED: Final = """
SELECT id, type, created, arrival, org_id, customer_id, subscription_id, invoice_url,
       document::text, received_at
  FROM billing_events
 WHERE outcome = 'parked'
   AND (org_id = ANY(%s) OR (org_id IS NULL AND (customer_id = ANY(%s) OR subscription_id = ANY(%s))))
 ORDER BY created, arrival
"""
READ_SUBSCRIPTIONS: Final = """
SELECT id, type, created, arrival, org_id, customer_id, subscription_id, invoice_url,
       document::text, received_at, tenant_id
  FROM billing_events
 WHERE tenant_id = ANY(%(tenants)s) AND subscription_id = ANY(%(subscriptions)s)
   AND outcome IN ('applied', 'late', 'no_change') AND type = ANY(%(folded)s)
 ORDER BY created, arrival
"""


_first: Final = itemgetter(0)
NONE_CURRENT: Final[Mapping[str, str]] = {}


async def read_context(
    connection: Connection,
    policy: BillingPolicy,
    tenants: Collection[str],
    customers: Collection[str],
    subscriptions: Collection[str],
    events: Collection[str],
    current: Mapping[str, str] = NONE_CURRENT,
) -> BatchContext:
    """Lock the tenants that a batch touches and read its context, in one round trip.

    ``subscriptions`` is empty with `SubscriptionRule.ANY`, ``current`` (`tenants_of_current`) with
    `SubscriptionRule.EACH`.
    """
    # Links and holders after the locks: another transaction may have changed them while this waited
    # for a tenant.
    calls = [
        accounts.LOCK_ACCOUNTS([*tenants, *current.values()], list(customers), list(subscriptions)),
        TENANTS_OF_CUSTOMERS(list(customers)),
        SEEN_EVENTS(list(events)),
        NEXT_ARRIVAL(),
    ]
    if subscriptions:
        calls.append(accounts.HOLDERS(list(subscriptions)))
    rows, links, seen, [(first_arrival,)], *holders = await connection.run_batch(*calls)
    locked = accounts.to_accounts(rows, policy)
    with_subscriptions = holders_of(subscriptions, locked)
    return BatchContext(
        accounts=locked,
        known=KnownTenants(
            _by_customer(links), named_tenants(with_subscriptions, locked), dict(current)
        ),
        seen=frozenset(map(_first, seen)),
        first_arrival=first_arrival,
        replaceable=frozenset([event_id for event_id, is_replaceable in seen if is_replaceable]),
        tenants_of_subscription=with_subscriptions,
        missing=frozenset(map(_first, chain(*holders))).difference(locked),
        gone_customers=frozenset([customer_id for customer_id, _, is_gone in links if is_gone]),
    )


def _by_customer(links: Iterable[Sequence[Any]]) -> dict[str, str]:
    """Return the tenants of rows of `TENANTS_OF_CUSTOMERS`."""
    return {customer_id: tenant_id for customer_id, tenant_id, _ in links}


async def lock_names(connection: Connection, locks: Iterable[NameLock]) -> None:
    """Lock names until the transaction ends: tenants, then subscriptions, then customers; before
    locking any row.
    """
    claimed = dict(sorted(locks))  # of two locks of one name the claim counts
    names = sorted(claimed, reverse=True)
    if names:
        await connection.execute(LOCK_NAMES, (names, [claimed[name] for name in names]))


async def lock_holders(
    connection: Connection,
    tenant_id: str,
    customers: Collection[str],
    subscriptions: Collection[str],
) -> None:
    """Lock a tenant and those that have these names, in the order of their ids, until the
    transaction ends.
    """
    values = {
        "tenant": tenant_id,
        "customers": list(customers),
        "subscriptions": list(subscriptions),
    }
    await connection.execute(LOCK_HOLDERS, values)


async def lock_account(
    connection: Connection, tenant_id: str, policy: BillingPolicy
) -> BillingAccount | None:
    """Lock one tenant until the transaction ends."""
    return (await lock_accounts(connection, [tenant_id], policy)).get(tenant_id)


async def lock_accounts(
    connection: Connection, tenants: Collection[str], policy: BillingPolicy
) -> dict[str, BillingAccount]:
    """Lock tenants, in the order of their ids, until the transaction ends."""
    found = await accounts.read_accounts(connection, sorted(tenants), policy, lock=True)
    return {account.tenant_id: account for account in found}


async def read_events(
    connection: Connection, needs: Mapping[FoldId, ReplayNeed], policy: BillingPolicy
) -> dict[FoldId, list[BillingEvent]]:
    """Return the folded events that timelines need; there is at least one need."""
    ids = list(needs)
    tenants, keys = zip(*ids, strict=True)
    seconds, late, until = zip(*needs.values(), strict=True)
    values = {
        **FOLD_TYPES,
        "tenants": list(tenants),
        "folds": [_subscription_of(key, policy) for key in keys],
        "seconds": list(seconds),
        "late": list(late),
        "until": list(until),
    }
    events: dict[FoldId, list[BillingEvent]] = {fold_id: [] for fold_id in ids}
    for *columns, number in await connection.fetch(READ_EVENTS, values):
        event, fold_id = to_event(columns), ids[number - 1]
        key = fold_key(event, policy)
        if key is not None and fold_id[1] in (None, key):
            events[fold_id].append(event)
    return events


def _subscription_of(key: str | None, policy: BillingPolicy) -> str | None:
    """Return the subscription whose events a fold needs: empty for those without one, as the
    events of grants are, and None for all.
    """
    if key is None:
        return None
    if is_grant_key(key):
        return ""
    return key if policy.is_each else None


async def read_payments(
    connection: Connection, invoices: Collection[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """Return the second of the newest payment of invoices, each given with its tenant; unpaid ones
    are left out.
    """
    tenants, ids = zip(*sorted(invoices), strict=True)
    values = {"tenants": list(tenants), "invoices": list(ids), "payments": sorted(PAYMENT_TYPES)}
    found = await connection.fetch(PAYMENTS, values)
    return {(tenant_id, invoice_id): created for tenant_id, invoice_id, created in found}


async def read_parked(
    connection: Connection,
    tenants: Sequence[str],
    customers: Sequence[str],
    subscriptions: Sequence[str] = (),
) -> list[ReceivedEvent]:
    """Return the parked events that wait for these tenants, customers or subscriptions, oldest
    first.
    """
    values = (list(tenants), list(customers), list(subscriptions))
    return [
        ReceivedEvent(to_event(columns), received_at)
        for *columns, received_at in await connection.fetch(READ_PARKED, values)
    ]


async def park_again(connection: Connection, events: Collection[str], now: datetime) -> None:
    """Park invoice events again, because their subscription belongs to another tenant."""
    await connection.run_batch(PARK_AGAIN(sorted(events), now))


async def read_subscriptions(
    connection: Connection, subscriptions: Collection[str], tenants: Collection[str]
) -> list[tuple[str, ReceivedEvent]]:
    """Return all folded events of these subscriptions in the ledgers of these tenants, each with
    its tenant.
    """
    values = {**FOLD_TYPES, "tenants": list(tenants), "subscriptions": list(subscriptions)}
    return [
        (tenant_id, ReceivedEvent(to_event(columns), received_at))
        for *columns, received_at, tenant_id in await connection.fetch(READ_SUBSCRIPTIONS, values)
    ]


async def known_events(connection: Connection, ids: Collection[str]) -> dict[str, bool]:
    """Return which of these events the ledger has, and whether a valid event of the same id
    replaces the entry.
    """
    [rows] = await connection.run_batch(SEEN_EVENTS(list(ids)))
    return {event_id: bool(is_replaceable) for event_id, is_replaceable in rows}


async def tenants_of_customers(
    connection: Connection, events: Iterable[BillingEvent]
) -> dict[str, str]:
    """Return the tenants of the events' customers, by customer; unlinked customers are left out."""
    return await tenants_of(
        connection, {event.customer_id for event in events if event.customer_id}
    )


async def tenants_of(connection: Connection, customers: Collection[str]) -> dict[str, str]:
    """Return the tenants of customers, by customer; unlinked customers are left out."""
    [rows] = await connection.run_batch(TENANTS_OF_CUSTOMERS(list(customers)))
    return _by_customer(rows)


async def subscriptions_of(connection: Connection, tenant_id: str) -> list[str]:
    """Return the subscriptions that a tenant has or had."""
    query = "SELECT subscription_id FROM subscription_tenants WHERE tenant_id = %s"
    return [row[0] for row in await connection.fetch(query, (tenant_id,))]


TENANTS_OF_CURRENT: Final = """
SELECT s.subscription_id, t.id
  FROM subscription_tenants s
  JOIN tenants t ON t.id = s.tenant_id
 WHERE s.subscription_id = ANY(%s)
   AND t.folds->''->'state'->>'subscription_id' = s.subscription_id
 ORDER BY (t.folds->''->>'tip_created')::bigint, t.id
"""


async def tenants_of_current(
    connection: Connection, subscriptions: Collection[str]
) -> dict[str, str]:
    """Return the tenants whose one state is from these subscriptions, by subscription; of several
    the newest.
    """
    if not subscriptions:
        return {}
    return dict(await connection.fetch(TENANTS_OF_CURRENT, (list(subscriptions),)))


async def customers_of(connection: Connection, tenant_id: str) -> list[str]:
    query = "SELECT id FROM customers WHERE tenant_id = %s ORDER BY linked_at, id"
    return [row[0] for row in await connection.fetch(query, (tenant_id,))]


INSERT_ENTRIES: Final = Statement(
    """
INSERT INTO billing_events (
       id, type, created, arrival, received_at, org_id, customer_id, subscription_id, invoice_url,
       tenant_id, outcome, anomalies, document)
SELECT id, type, created, arrival, received_at, org_id, customer_id, subscription_id, invoice_url,
       tenant_id, outcome, string_to_array(anomalies, ' '), document
  FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) AS given (
       id, type, created, arrival, received_at, org_id, customer_id, subscription_id, invoice_url,
       tenant_id, outcome, anomalies, document)
""",
    TEXTS,
    TEXTS,
    BIGINTS,
    BIGINTS,
    MOMENTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    JSONS,
)
INSERT_LINKS: Final = Statement(
    """
INSERT INTO customers (id, tenant_id, linked_by)
SELECT * FROM unnest($1, $2, $3)
    ON CONFLICT (id) DO NOTHING
""",
    TEXTS,
    TEXTS,
    TEXTS,
)
SET_CUSTOMER_USES: Final = Statement(
    """
UPDATE customers
   SET gone_by = given.event_id
  FROM unnest($1, $2, $3) AS given (id, tenant_id, event_id)
 WHERE customers.id = given.id AND customers.tenant_id = given.tenant_id
""",
    TEXTS,
    TEXTS,
    TEXTS,
)
# Events prove a customer as in `customer_links.proves_customer`. The index of a tenant's entries
# bounds what this reads.
LINKED_CUSTOMERS: Final = """
SELECT c.tenant_id, c.id, c.gone_by IS NOT NULL,
       CASE WHEN g.type = %(missing)s THEN g.created END,
       coalesce((
         SELECT max(e.created)
           FROM billing_events e
          WHERE e.tenant_id = c.tenant_id AND e.customer_id = c.id
            AND e.outcome IN ('applied', 'late', 'no_change')
            AND (e.type = ANY(%(proving)s)
                 OR (e.type = %(snapshot)s AND e.document->>'status' <> ALL(%(over)s)))), -1)
  FROM customers c
  LEFT JOIN billing_events g ON g.id = c.gone_by
 WHERE c.tenant_id = ANY(%(tenants)s)
 ORDER BY c.linked_at DESC, c.id DESC
"""
DELETE_ENTRIES: Final = Statement(
    "DELETE FROM billing_events WHERE id = ANY($1) AND NOT coalesce($2 = ANY(anomalies), false)",
    TEXTS,
    TEXT,
)
# An entry that is decoded again keeps its arrival number, and so its body.
DELETE_REPLACED: Final = Statement(
    """
WITH gone AS (
         DELETE FROM billing_events
          WHERE id = ANY($1)
            AND (outcome = 'invalid'
                 OR (outcome = 'ignored' AND anomalies && '{connected_account,ignored_livemode}'))
      RETURNING arrival)
DELETE FROM billing_bodies b
 USING gone
 WHERE b.arrival = gone.arrival AND b.arrival <> ALL($2)
""",
    TEXTS,
    BIGINTS,
)
UPDATE_PARKED: Final = Statement(
    """
UPDATE billing_events e
   SET tenant_id = given.tenant_id,
       outcome = given.outcome,
       anomalies = string_to_array(given.anomalies, ' '),
       document = given.document
  FROM unnest($1, $2, $3, $4, $5) AS given (id, tenant_id, outcome, anomalies, document)
 WHERE e.id = given.id
""",
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    JSONS,
)

INSERT_BODIES: Final = Statement(
    """
INSERT INTO billing_bodies (arrival, received_at, body)
SELECT arrival, $3, body FROM unnest($1, $2) AS kept (arrival, body)
""",
    BIGINTS,
    BLOBS,
    MOMENT,
)
_FASTEST: Final = 0

_ENTRY_KEY: Final = re.compile(r"billing_events(_\w+)?_pkey")
"""The primary key of the ledger, or of one of its partitions."""

PARK_AGAIN: Final = Statement(
    """
UPDATE billing_events
   SET tenant_id = NULL,
       outcome = 'parked',
       parked_at = $2,
       document = jsonb_set(
         document::jsonb - '{before,after}'::text[],
         '{reason}', to_jsonb('Waits: subscription ' || subscription_id || ' is not known yet.'))
 WHERE id = ANY($1)
""",
    TEXTS,
    MOMENT,
)


class EntryTakenError(Exception):
    """Another transaction has added one of the events to the ledger meanwhile."""


_event_id: Final = attrgetter("received.event.id")
_columns_of: Final = attrgetter(
    "event.id",
    "event.type",
    "event.created",
    "event.arrival",
    "received_at",
    "event.org_id",
    "event.customer_id",
    "event.subscription_id",
    "event.invoice_url",
)


def insert_entries(entries: Sequence[LedgerEntry]) -> list[BoundStatement]:
    # sorted by id, so that two batches with the same new events cannot deadlock
    rows = [
        (*_columns_of(entry.received), *_effect_of(entry))
        for entry in sorted(entries, key=_event_id)
    ]
    return INSERT_ENTRIES.for_rows(rows)


def insert_bodies(
    entries: Sequence[LedgerEntry], raw_bodies: RawBodies, now: datetime
) -> list[BoundStatement]:
    """Store the raw bodies of new entries, as far as the setting wants them."""
    stored = [
        (entry.received.event.arrival, pack(entry.received.body))
        for entry in entries
        if entry.received.body is not None and raw_bodies.stores_body_of(entry.received.event)
    ]
    return INSERT_BODIES.for_rows(stored, now)


def _effect_of(entry: LedgerEntry) -> tuple[str | None, str, str | None, bytes]:
    """Return the columns of an entry that follow from its tenant."""
    anomalies = " ".join(entry.anomalies) or None
    return entry.tenant_id, entry.outcome, anomalies, encode_document(entry)


def pack(body: bytes) -> bytes:
    return isal_zlib.compress(body, _FASTEST)


def unpack(packed: bytes) -> bytes:
    return zlib.decompress(packed)


def delete_entries(ids: Sequence[str]) -> list[BoundStatement]:
    """Delete entries that a newer snapshot superseded; those that report drift stay."""
    return [DELETE_ENTRIES(ids, Anomaly.DRIFT)] if ids else []


def delete_replaced(ids: Collection[str], entries: Sequence[LedgerEntry]) -> list[BoundStatement]:
    """Delete the entries that new ``entries`` of the same id replace; call it before inserting
    these.
    """
    arrivals = [entry.received.event.arrival for entry in entries]
    return [DELETE_REPLACED(sorted(ids), arrivals)] if ids else []


def update_parked(entries: Sequence[LedgerEntry]) -> list[BoundStatement]:
    """Write the outcome of parked events whose tenant has become known."""
    return UPDATE_PARKED.for_rows([(_event_id(entry), *_effect_of(entry)) for entry in entries])


def insert_links(links: Sequence[CustomerLink]) -> list[BoundStatement]:
    """Add links of customers; the first claim on a customer stands."""
    return INSERT_LINKS.for_rows(links)


def set_customer_uses(uses: Sequence[CustomerUse]) -> list[BoundStatement]:
    """Store which customers cannot be used any more, and which can be again."""
    return SET_CUSTOMER_USES.for_rows(uses)


async def linked_customers(
    connection: Connection, tenants: Collection[str]
) -> dict[str, list[LinkedCustomer]]:
    """Return all customers of tenants, the newest first."""
    values = {
        "tenants": list(tenants),
        "missing": CUSTOMER_MISSING,
        "proving": sorted(CUSTOMER_PROVING_TYPES),
        "snapshot": SNAPSHOT,
        "over": sorted(OVER),
    }
    found = defaultdict[str, list[LinkedCustomer]](list)
    for tenant_id, *columns in await connection.fetch(LINKED_CUSTOMERS, values):
        found[tenant_id].append(LinkedCustomer(*columns))
    return found


async def write(connection: Connection, calls: Sequence[BoundStatement], *, commit: bool) -> None:
    """Run these calls together. Raises `EntryTakenError`; roll back then."""
    if not calls and not commit:
        return
    with _entries_taken():
        await connection.run_batch(*calls, commit=commit)


async def write_change(connection: Connection, calls: Sequence[BoundStatement]) -> CommittedChange:
    """Run these calls, in a transaction that changes what checks read, and commit. Raises
    `EntryTakenError`; roll back then.
    """
    with _entries_taken():
        return await commit_change(connection, *calls)


@contextmanager
def _entries_taken() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.UniqueViolation as error:
        if _ENTRY_KEY.fullmatch(error.diag.constraint_name or ""):
            raise EntryTakenError(
                "an event of the batch was delivered twice at once, and the other is in the ledger"
            ) from error
        raise
