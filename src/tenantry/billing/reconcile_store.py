"""Queries of reconcile: linked tenants, stale tenants and findings."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Self

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.events import CHECKOUT_TYPES, Anomaly, BillingEvent
from tenantry.domain.plans import OVER

# A tenant may have a subscription of a customer without a link, which an event names. The view
# `subscriptions` would read the folds of all tenants for each page.
LINKED: Final = """
SELECT t.id
  FROM tenants t
 WHERE t.deleted_at IS NULL
   AND (EXISTS (SELECT FROM customers c WHERE c.tenant_id = t.id AND c.gone_by IS NULL)
        OR EXISTS (
             SELECT
               FROM json_each(CASE WHEN json_typeof(t.folds) = 'object' THEN t.folds END) s
              WHERE s.value->>'moved_at' IS NULL
                AND s.value->'state'->>'customer_id' IS NOT NULL
                AND coalesce(s.value->'state'->>'subscription_status', 'none') <> ALL(%(over)s))
        OR (t.folds->''->'state'->>'subscription_id' IS NOT NULL AND EXISTS (
             SELECT
               FROM billing_events e
              WHERE e.tenant_id = t.id AND e.customer_id IS NOT NULL
                AND e.subscription_id = t.folds->''->'state'->>'subscription_id')))
   AND t.id > %(after)s
 ORDER BY t.id
 LIMIT %(most)s
"""
DUE: Final = """
SELECT t.id
  FROM tenants t
 WHERE t.deleted_at IS NULL
   AND (EXISTS (SELECT FROM customers c WHERE c.tenant_id = t.id AND c.gone_by IS NULL)
        OR EXISTS (
             SELECT
               FROM json_each(CASE WHEN json_typeof(t.folds) = 'object' THEN t.folds END) s
              WHERE s.value->>'moved_at' IS NULL
                AND s.value->'state'->>'customer_id' IS NOT NULL
                AND coalesce(s.value->'state'->>'subscription_status', 'none') <> ALL(%(over)s))
        OR (t.folds->''->'state'->>'subscription_id' IS NOT NULL AND EXISTS (
             SELECT
               FROM billing_events e
              WHERE e.tenant_id = t.id AND e.customer_id IS NOT NULL
                AND e.subscription_id = t.folds->''->'state'->>'subscription_id')))
   AND (t.reconciled_at IS NULL OR t.reconciled_at <= %(until)s) AND t.id <> ALL(%(without)s)
 ORDER BY t.reconciled_at NULLS FIRST, t.id
 LIMIT %(most)s
"""
COUNT_LINKED: Final = """
SELECT count(*)
  FROM tenants t
 WHERE t.deleted_at IS NULL
   AND (EXISTS (SELECT FROM customers c WHERE c.tenant_id = t.id AND c.gone_by IS NULL)
        OR EXISTS (
             SELECT
               FROM json_each(CASE WHEN json_typeof(t.folds) = 'object' THEN t.folds END) s
              WHERE s.value->>'moved_at' IS NULL
                AND s.value->'state'->>'customer_id' IS NOT NULL
                AND coalesce(s.value->'state'->>'subscription_status', 'none') <> ALL(%(over)s))
        OR (t.folds->''->'state'->>'subscription_id' IS NOT NULL AND EXISTS (
             SELECT
               FROM billing_events e
              WHERE e.tenant_id = t.id AND e.customer_id IS NOT NULL
                AND e.subscription_id = t.folds->''->'state'->>'subscription_id')))
"""
BY_ID: Final = """
SELECT t.id,
       ARRAY(SELECT c.id FROM customers c WHERE c.tenant_id = t.id AND c.gone_by IS NULL ORDER BY c.linked_at, c.id),
       ARRAY((SELECT e.customer_id
                FROM billing_events e
               WHERE e.tenant_id = t.id AND e.customer_id IS NOT NULL
                 AND e.subscription_id = t.folds->''->'state'->>'subscription_id'
               ORDER BY e.created DESC, e.arrival DESC
               LIMIT 1)
              UNION
              SELECT s.value->'state'->>'customer_id'
                FROM json_each(CASE WHEN json_typeof(t.folds) = 'object' THEN t.folds END) s
               WHERE s.value->>'moved_at' IS NULL
                 AND s.value->'state'->>'customer_id' IS NOT NULL
                 AND coalesce(s.value->'state'->>'subscription_status', 'none') <> ALL(%(over)s)
              EXCEPT
              SELECT c.id FROM customers c WHERE c.tenant_id = t.id AND c.gone_by IS NOT NULL),
       ARRAY(SELECT DISTINCT e.subscription_id
               FROM customers c
               JOIN billing_events e ON e.tenant_id = t.id AND e.customer_id = c.id
              WHERE c.tenant_id = t.id AND c.gone_by IS NOT NULL AND e.subscription_id IS NOT NULL),
       t.reconciled_at
  FROM unnest(%(tenants)s::text[]) WITH ORDINALITY AS wanted (id, number)
  JOIN tenants t USING (id)
 WHERE t.deleted_at IS NULL
 ORDER BY wanted.number
"""
_OVER: Final = {"over": sorted(OVER)}
READ_POSITION: Final = """
SELECT nextval('billing_arrivals'),
       (SELECT max(tip_created) FROM subscriptions WHERE tenant_id = %s)
"""
# All transactions lock tenants in the order of their ids.
MARK_COMPARED: Final = """
UPDATE tenants
   SET reconciled_at = %s
 WHERE id IN (SELECT id FROM tenants WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE)
"""
# Without those that linked nothing. The index of a tenant's entries bounds what this reads.
CHECKOUTS: Final = """
SELECT tenant_id, subscription_id
  FROM billing_events
 WHERE tenant_id = ANY(%(tenants)s) AND type = ANY(%(types)s) AND org_id = tenant_id
   AND subscription_id = ANY(%(subscriptions)s) AND NOT coalesce(anomalies && %(refused)s, false)
"""
# With one state of each tenant. The link of a customer bounds what this reads.
OTHER_HOLDERS: Final = """
SELECT t.id, given.subscription_id
  FROM unnest(%s::text[], %s::text[]) AS given (customer_id, subscription_id)
  JOIN customers c ON c.id = given.customer_id
  JOIN tenants t ON t.id = c.tenant_id
   AND t.folds->''->'state'->>'subscription_id' = given.subscription_id
 WHERE t.id <> %s
"""
STALE: Final = """
SELECT id, count(*) OVER ()
  FROM tenants
 WHERE deleted_at IS NULL AND current_period_end < %(ended_until)s AND subscription_status <> ALL(%(over)s)
 ORDER BY current_period_end, id
 LIMIT %(most)s
"""
FOUND_AT: Final = "SELECT found_at FROM billing_findings WHERE name = %s"
RECORD_FINDING: Final = """
INSERT INTO billing_findings (name, number, found_at) VALUES (%s, %s, %s)
    ON CONFLICT (name) DO UPDATE SET number = excluded.number, found_at = excluded.found_at
"""


class LinkedTenant(msgspec.Struct, frozen=True):
    """A tenant and its customers at the provider.

    ``unlinked`` are further customers whose subscriptions the tenant's state is from, or that the
    provider lists with subscriptions of the tenant. ``checkouts`` are completed checkout sessions
    of the tenant with customers that are not linked. ``of_gone`` are the subscriptions of customers
    that the provider does not have any more. ``compared_at`` is when the tenant was last
    compared with the provider; ``begun_at`` the second in which the oldest subscription began that
    may be news.
    """

    id: str
    customers: list[str]
    unlinked: list[str] = []
    of_gone: list[str] = []
    compared_at: datetime | None = None
    checkouts: tuple[BillingEvent, ...] = ()
    begun_at: int | None = None

    @property
    def all_customers(self) -> list[str]:
        """All customers whose subscriptions may be the tenant's."""
        return [*self.customers, *self.unlinked]

    @property
    def may_have_subscription(self) -> bool:
        return bool(self.all_customers or self.of_gone)

    def accepts(self, checkout: BillingEvent) -> bool:
        """Whether a checkout session may link its customer; one with a buyer's reference only as
        the first.
        """
        return not (checkout.details.by_reference and self.customers)

    def with_listed(
        self,
        customers: Collection[str],
        checkouts: Iterable[BillingEvent],
        begun_at: int | None = None,
    ) -> Self:
        """Add customers and checkout sessions that the provider lists, and when the oldest
        subscription began.
        """
        further = sorted({*customers, *self.unlinked} - {*self.customers})
        unknown = tuple(
            event
            for event in checkouts
            if event.customer_id not in self.customers and self.accepts(event)
        )
        return msgspec.structs.replace(self, unlinked=further, checkouts=unknown, begun_at=begun_at)


class LedgerPosition(msgspec.Struct, frozen=True):
    """A number greater than those of all events that had arrived, and the second of the tenant's
    newest event.
    """

    arrival: int
    newest: int | None


async def linked_tenants(connection: Connection, after: str, most: int) -> list[LinkedTenant]:
    """Return the next living tenants that may have a customer, by id, ``after`` one."""
    values = {**_OVER, "after": after, "most": most}
    return await _in_order(connection, await connection.fetch_column(LINKED, values))


async def tenants_by_id(connection: Connection, tenants: Collection[str]) -> list[LinkedTenant]:
    """Return those of these tenants that have not ended, by id, also without any customer."""
    return await _in_order(connection, sorted(tenants))


async def tenant_by_id(connection: Connection, tenant_id: str) -> LinkedTenant | None:
    """Return a tenant that has not ended."""
    found = await tenants_by_id(connection, [tenant_id])
    return found[0] if found else None


async def count_linked_tenants(connection: Connection) -> int:
    return await connection.fetch_count(COUNT_LINKED, _OVER)


async def due_tenants(
    connection: Connection, until: datetime, most: int, *, without: Collection[str] = ()
) -> list[LinkedTenant]:
    """Return living tenants that may have a customer, last compared at ``until`` or before, the
    longest ago first.
    """
    values = {**_OVER, "until": until, "most": most, "without": list(without)}
    return await _in_order(connection, await connection.fetch_column(DUE, values))


async def _in_order(connection: Connection, tenants: Sequence[str]) -> list[LinkedTenant]:
    """Return those of these tenants that have not ended."""
    values = {**_OVER, "tenants": tenants}
    return [_linked(row) for row in await connection.fetch(BY_ID, values)]


def _linked(row: Sequence[Any]) -> LinkedTenant:
    tenant_id, customers, named, of_gone, compared_at = row
    unlinked = sorted(set(named) - set(customers))
    return LinkedTenant(tenant_id, customers, unlinked, of_gone, compared_at)


async def read_position(connection: Connection, tenant_id: str) -> LedgerPosition:
    """Return the position of the ledger before a request to the provider."""
    [row] = await connection.fetch(READ_POSITION, (tenant_id,))
    return LedgerPosition(*row)


async def mark_compared(connection: Connection, tenants: Collection[str], now: datetime) -> None:
    """Record when these tenants were compared with the provider."""
    await connection.execute(MARK_COMPARED, (now, list(tenants)))


async def subscriptions_of_checkouts(
    connection: Connection, tenants: Collection[str | None], subscriptions: Collection[str]
) -> set[tuple[str, str]]:
    """Return the tenants and subscriptions of the checkout sessions in these tenants' ledgers that
    have linked.
    """
    values = {
        "tenants": list(tenants),
        "types": sorted(CHECKOUT_TYPES),
        "subscriptions": list(subscriptions),
        "refused": [Anomaly.CUSTOMER_TAKEN.value, Anomaly.REFERENCE_REFUSED.value],
    }
    return {(row[0], row[1]) for row in await connection.fetch(CHECKOUTS, values)}


async def other_holders(
    connection: Connection, tenant_id: str, customers: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the other tenants whose state is from one of these subscriptions, with the
    subscription.

    ``customers`` has the customer of each subscription; it must be linked to the tenant.
    """
    values = (list(customers.values()), list(customers), tenant_id)
    return [(row[0], row[1]) for row in await connection.fetch(OTHER_HOLDERS, values)]


async def stale_tenants(
    connection: Connection, ended_until: int, most: int
) -> tuple[list[str], int]:
    """Return living tenants whose period ended before a second while their subscription has not,
    and their number.

    At most ``most``, the longest ago first.
    """
    rows = await connection.fetch(
        STALE, {"ended_until": ended_until, "over": [*OVER, NO_SUBSCRIPTION], "most": most}
    )
    return [row[0] for row in rows], rows[0][1] if rows else 0


async def record_finding(connection: Connection, name: str, number: int, now: datetime) -> None:
    await connection.execute(RECORD_FINDING, (name, number, now))


async def found_at(connection: Connection, name: str) -> datetime | None:
    """Return when a finding was last recorded."""
    moment: datetime | None = await connection.fetch_value(FOUND_AT, (name,))
    return moment


async def read_findings(connection: Connection) -> dict[str, int]:
    return dict(await connection.fetch("SELECT name, number FROM billing_findings"))


DRIFT_AND_AMBIGUITY: Final = """
SELECT count(DISTINCT tenant_id) FILTER (WHERE %(drift)s = ANY(anomalies)),
       count(*) FILTER (WHERE %(ambiguous)s = ANY(anomalies))
  FROM billing_events
 WHERE anomalies IS NOT NULL AND received_at > now() - interval '24 hours'
"""


async def count_drift_and_ambiguity(connection: Connection) -> tuple[int, int]:
    """Count the tenants that drifted and the events in an ambiguous order, in the last 24 h."""
    kinds = {
        "drift": Anomaly.DRIFT.value,
        "ambiguous": Anomaly.AMBIGUOUS_ORDER.value,
    }
    [(drifted, ambiguous)] = await connection.fetch(DRIFT_AND_AMBIGUITY, kinds)
    return drifted, ambiguous
