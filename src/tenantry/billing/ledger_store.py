"""The billing ledger: what folds, links and moves need of it, and the locks of names.

Raw bodies are compressed (zlib's format, RFC 1950).
"""

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

from tenantry.billing.batch_store import (
    SEEN_EVENTS,
    TENANTS_OF_CUSTOMERS,
    by_customer,
)
from tenantry.billing.ledger_rows import to_event
from tenantry.db.connection import Connection
from tenantry.db.statements import (
    BOOLEANS,
    MOMENT,
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
    BillingEvent,
)
from tenantry.domain.billing.ledger import (
    FoldId,
    LinkedCustomer,
    NameLock,
    ReceivedEvent,
    ReplayNeed,
)
from tenantry.domain.billing.state import BillingPolicy, fold_key, is_grant_key
from tenantry.domain.billing_months import SETTLED_AFTER
from tenantry.domain.plans import OVER

# A transaction that adds a tenant or a customer link locks its name exclusively; one that parks an
# event because the name is missing holds a shared lock. So one of the two sees what the other has
# done.
LOCK_NAMES: Final = Statement(
    """
SELECT CASE WHEN claimed THEN pg_advisory_xact_lock(hashtextextended(name, 0))
            ELSE pg_advisory_xact_lock_shared(hashtextextended(name, 0)) END
  FROM unnest($1, $2) AS wanted (name, claimed)
""",
    TEXTS,
    BOOLEANS,
)
# The tenants that have one of these customers or subscriptions, or a subscription of one of these
# customers.
LOCK_HOLDERS: Final = """
SELECT id
  FROM tenants
 WHERE id = ANY(ARRAY(
         SELECT %(tenant)s::text
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
    "settled_after": None,
}
"""The parameters of statements on the events that the fold applies.

A full-state event that is the only one of its second gives a state that does not depend on earlier
events. An event without a subscription's id does not prove which subscription ended before. One
that is past due does not say since when, one with paused payments does not say until when they were
paid, one with truncated items keeps those before, and one without a customer keeps the one before.
Where quotas follow billing months, one that is not ``settled_after`` its anchor does not say which
month ran when that came.
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
                                  AND r.document->'details'->>'is_truncated' IS NULL
                                  AND (%(settled_after)s::bigint IS NULL
                                       OR r.document->'details'->>'anchor' IS NULL
                                       OR r.created - (r.document->'details'->>'anchor')::bigint >= %(settled_after)s))
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
                                  AND r.document->'details'->>'is_truncated' IS NULL
                                  AND (%(settled_after)s::bigint IS NULL
                                       OR r.document->'details'->>'anchor' IS NULL
                                       OR r.created - (r.document->'details'->>'anchor')::bigint >= %(settled_after)s))
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


def locked_names(locks: Iterable[NameLock]) -> BoundStatement:
    """Lock names until the transaction ends: tenants, then subscriptions, then customers; before
    locking any row.
    """
    claimed = dict(sorted(locks))  # of two locks of one name the claim counts
    names = sorted(claimed, reverse=True)
    return LOCK_NAMES(names, [claimed[name] for name in names])


async def lock_names(connection: Connection, locks: Collection[NameLock]) -> None:
    """Lock names as `locked_names`, in one round trip."""
    if locks:
        await connection.run_batch(locked_names(locks))


async def lock_holders(
    connection: Connection,
    tenant_id: str | None,
    customers: Collection[str],
    subscriptions: Collection[str],
) -> list[str]:
    """Lock a tenant and those that have these names, in the order of their ids, until the
    transaction ends; return those that exist.
    """
    values = {
        "tenant": tenant_id,
        "customers": list(customers),
        "subscriptions": list(subscriptions),
    }
    return await connection.fetch_column(LOCK_HOLDERS, values)


async def read_events(
    connection: Connection, needs: Mapping[FoldId, ReplayNeed], policy: BillingPolicy
) -> dict[FoldId, list[BillingEvent]]:
    """Return the folded events that timelines need; there is at least one need."""
    ids = list(needs)
    tenants, keys = zip(*ids, strict=True)
    seconds, late, until = zip(*needs.values(), strict=True)
    values = {
        **FOLD_TYPES,
        "settled_after": SETTLED_AFTER if policy.catalog.has_billing_months else None,
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
    tenants: Collection[str],
    customers: Collection[str],
    subscriptions: Collection[str] = (),
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
    return by_customer(rows)


async def subscriptions_of(connection: Connection, tenant_id: str) -> list[str]:
    """Return the subscriptions that a tenant has or had."""
    query = "SELECT subscription_id FROM subscription_tenants WHERE tenant_id = %s"
    return await connection.fetch_column(query, (tenant_id,))


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
    return await connection.fetch_column(query, (tenant_id,))


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


def unpack(packed: bytes) -> bytes:
    return zlib.decompress(packed)


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


# Of these tenants, or of all. One whose other tenant was removed may have moved there before. The
# rows of tenants are read by their ids: the view `subscriptions` would read all of them.
SHARED_SUBSCRIPTIONS: Final = """
WITH wanted AS (
         SELECT subscription_id FROM subscription_tenants WHERE tenant_id = ANY(%(tenants)s)
          UNION
         SELECT subscription_id FROM subscription_tenants WHERE %(tenants)s::text[] IS NULL)
SELECT s.subscription_id
  FROM wanted
  JOIN subscription_tenants s USING (subscription_id)
  JOIN tenants t ON t.id = s.tenant_id
 GROUP BY s.subscription_id
HAVING count(*) > 1 OR bool_or(t.folds->s.subscription_id->>'moved_at' IS NOT NULL)
 ORDER BY s.subscription_id
"""


async def shared_subscriptions(
    connection: Connection, tenants: Collection[str] | None = None
) -> list[str]:
    """Return the subscriptions of these tenants, or all, that several tenants have or had, by
    events or invoices.
    """
    values = {"tenants": None if tenants is None else list(tenants)}
    return await connection.fetch_column(SHARED_SUBSCRIPTIONS, values)
