"""The links between customers of the provider and tenants, and the events that belong to a tenant by its customer."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tenantry.db.connection import Connection
from tenantry.domain.billing.events import INVOICE_TYPES

LINK: Final = """
INSERT INTO customers (id, tenant_id, linked_by, linked_at) VALUES (%s, %s, %s, %s)
"""
UNLINK: Final = "DELETE FROM customers WHERE tenant_id = %(tenant)s AND id = ANY(%(customers)s)"
HOLDER: Final = "SELECT tenant_id FROM customers WHERE id = %s"
# Invoice events belong to a tenant by their customer, unless their subscription is the tenant's. They wait again, as if
# the link had never been.
PARK_INVOICES: Final = """
UPDATE billing_events
   SET tenant_id = NULL, outcome = 'parked', reason = 'Waits: customer ' || customer_id || ' is not known yet.',
       before = NULL, after = NULL, anomalies = nullif(array_remove(anomalies, 'ambiguous_order'), '{}'),
       parked_at = %(now)s
 WHERE tenant_id = %(tenant)s AND customer_id = ANY(%(customers)s) AND type = ANY(%(invoices)s)
   AND outcome IN ('applied', 'late', 'no_change')
   AND NOT (%(each)s AND EXISTS (
         SELECT FROM subscriptions s
          WHERE s.tenant_id = billing_events.tenant_id AND s.id = billing_events.subscription_id
            AND s.reported_at IS NOT NULL))
"""
SET_CUSTOMER: Final = "UPDATE tenants SET stripe_customer_id = %s, updated_at = %s WHERE id = %s"
NEWEST_CUSTOMER: Final = "SELECT id FROM customers WHERE tenant_id = %s ORDER BY linked_at DESC, id DESC LIMIT 1"


async def holder_of(connection: Connection, customer_id: str) -> str | None:
    """Return the tenant that a customer is linked to."""
    found: str | None = await connection.fetch_value(HOLDER, (customer_id,))
    return found


async def link(connection: Connection, customer_id: str, tenant_id: str, now: datetime) -> None:
    """Link an unlinked customer, by the operator."""
    await connection.execute(LINK, (customer_id, tenant_id, "operator", now))


async def unlink(
    connection: Connection, tenant_id: str, customers: Sequence[str], now: datetime, *, each: bool
) -> None:
    """Remove the links of a tenant's customers, and park their invoice events again.

    With ``each``, invoices of the tenant's own subscriptions stay. The caller folds the tenant's events again.
    """
    values = {
        "tenant": tenant_id, "customers": list(customers), "invoices": sorted(INVOICE_TYPES), "now": now, "each": each,
    }  # fmt: skip
    await connection.execute(PARK_INVOICES, values)
    await connection.execute(UNLINK, values)


async def set_customer(connection: Connection, tenant_id: str, customer_id: str, now: datetime) -> None:
    """Make a linked customer the one of the tenant's record."""
    await connection.execute(SET_CUSTOMER, (customer_id, now, tenant_id))


async def newest_customer(connection: Connection, tenant_id: str) -> str | None:
    """Return the customer that was linked to a tenant last."""
    found: str | None = await connection.fetch_value(NEWEST_CUSTOMER, (tenant_id,))
    return found
