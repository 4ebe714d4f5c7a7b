"""The links between customers of the provider and tenants, and the events that belong to a tenant by its customer."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tenantry.db.connection import Connection
from tenantry.domain.billing.events import INVOICE_TYPES, SNAPSHOT, SUBSCRIPTION_TYPES

LINK: Final = """
INSERT INTO customers (id, tenant_id, linked_by, linked_at) VALUES (%s, %s, %s, %s)
"""
UNLINK: Final = "DELETE FROM customers WHERE id = ANY(%s)"
HOLDER: Final = "SELECT tenant_id FROM customers WHERE id = %s"
# Invoice events belong to a tenant by their customer alone. They wait again, as if the link had never been.
PARK_INVOICES: Final = """
UPDATE billing_events
   SET tenant_id = NULL, outcome = 'parked', reason = 'Waits: customer ' || customer_id || ' is not known yet.',
       before = NULL, after = NULL, anomalies = array_remove(anomalies, 'ambiguous_order')
 WHERE tenant_id = %(tenant)s AND customer_id = ANY(%(customers)s) AND type = ANY(%(invoices)s)
   AND outcome IN ('applied', 'late', 'no_change')
"""
# A snapshot of a subscription that has named the tenant stays: its metadata decides, not its customer.
IGNORE_SNAPSHOTS: Final = """
UPDATE billing_events s
   SET outcome = 'ignored', reason = 'Customer ' || s.customer_id || ' was unlinked from this tenant.'
 WHERE s.tenant_id = %(tenant)s AND s.customer_id = ANY(%(customers)s) AND s.type = %(snapshot)s
   AND s.outcome IN ('applied', 'late', 'no_change')
   AND NOT EXISTS (SELECT FROM billing_events e
                    WHERE e.tenant_id = s.tenant_id AND e.subscription_id = s.subscription_id
                      AND e.type = ANY(%(subscriptions)s) AND e.outcome IN ('applied', 'late', 'no_change'))
"""
NEWEST_CUSTOMER: Final = "SELECT id FROM customers WHERE tenant_id = %s ORDER BY linked_at DESC, id DESC LIMIT 1"


async def holder_of(connection: Connection, customer_id: str) -> str | None:
    """Return the tenant that a customer is linked to."""
    found: str | None = await connection.fetch_value(HOLDER, (customer_id,))
    return found


async def link(connection: Connection, customer_id: str, tenant_id: str, now: datetime) -> None:
    """Link an unlinked customer, by the operator."""
    await connection.execute(LINK, (customer_id, tenant_id, "operator", now))


async def unlink(connection: Connection, tenant_id: str, customers: Sequence[str]) -> None:
    """Remove the links of a tenant's customers, and what belonged to the tenant by them.

    Their invoice events are parked again, and snapshots of their subscriptions are ignored unless an event has named
    the tenant for the subscription. The caller folds the tenant's events again.
    """
    values = {
        "tenant": tenant_id, "customers": list(customers), "invoices": sorted(INVOICE_TYPES), "snapshot": SNAPSHOT,
        "subscriptions": sorted(SUBSCRIPTION_TYPES),
    }  # fmt: skip
    await connection.execute(PARK_INVOICES, values)
    await connection.execute(IGNORE_SNAPSHOTS, values)
    await connection.execute(UNLINK, (list(customers),))


async def newest_customer(connection: Connection, tenant_id: str) -> str | None:
    """Return the customer that was linked to a tenant last."""
    found: str | None = await connection.fetch_value(NEWEST_CUSTOMER, (tenant_id,))
    return found
