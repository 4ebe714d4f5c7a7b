"""The links between customers of the provider and tenants, and the events that belong to a tenant
by its customer.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tenantry.db.connection import Connection
from tenantry.domain.billing.events import FOLDED_TYPES, INVOICE_TYPES, REVERSAL_TYPES

# A customer that was given up can be used again.
LINK: Final = """
INSERT INTO customers AS known (id, tenant_id, linked_by, linked_at) VALUES (%s, %s, %s, %s)
    ON CONFLICT (id) DO UPDATE
   SET gone_by = NULL
 WHERE known.tenant_id = excluded.tenant_id
"""
UNLINK: Final = "DELETE FROM customers WHERE tenant_id = %(tenant)s AND id = ANY(%(customers)s)"
HOLDER: Final = "SELECT tenant_id FROM customers WHERE id = %s"
IS_GONE: Final = "SELECT gone_by IS NOT NULL FROM customers WHERE id = %s"
# Events without org_id, as all invoices are, belong to a tenant by their customer, except invoices
# of a subscription whose own events name the tenant. They wait again, as if the link had never
# been. Refunds and disputes stay: no state follows from them, and their changes are published.
PARK_AGAIN: Final = """
UPDATE billing_events
   SET tenant_id = NULL,
       outcome = 'parked',
       parked_at = %(now)s,
       anomalies = nullif(array_remove(anomalies, 'ambiguous_order'), '{}'),
       document = jsonb_set(
         document::jsonb - '{before,after}'::text[],
         '{reason}', to_jsonb('Waits: customer ' || customer_id || ' is not known yet.'))
 WHERE tenant_id = %(tenant)s AND customer_id = ANY(%(customers)s) AND org_id IS NULL
   AND outcome IN ('applied', 'late', 'no_change') AND type <> ALL(%(reversals)s)
   AND NOT (%(each)s AND type = ANY(%(invoices)s) AND coalesce(subscription_id, '') IN (
         SELECT s.subscription_id
           FROM billing_events s
          WHERE s.tenant_id = %(tenant)s AND s.org_id = %(tenant)s AND s.subscription_id IS NOT NULL
            AND s.type = ANY(%(folded)s) AND s.outcome IN ('applied', 'late', 'no_change')))
"""
# A subscription of which only parked events are known has no tenant yet.
SUBSCRIPTIONS_OF: Final = """
SELECT subscription_id FROM subscription_tenants WHERE customer_id = %(customer)s
 UNION
SELECT subscription_id
  FROM billing_events
 WHERE outcome = 'parked' AND org_id IS NULL AND customer_id = %(customer)s AND subscription_id IS NOT NULL
"""
SET_CUSTOMER: Final = "UPDATE tenants SET stripe_customer_id = %s, updated_at = %s WHERE id = %s"
NEWEST_CUSTOMER: Final = """
SELECT id FROM customers WHERE tenant_id = %s AND gone_by IS NULL ORDER BY linked_at DESC, id DESC LIMIT 1
"""


async def holder_of(connection: Connection, customer_id: str) -> str | None:
    """Return the tenant that a customer is linked to."""
    found: str | None = await connection.fetch_value(HOLDER, (customer_id,))
    return found


async def is_gone(connection: Connection, customer_id: str) -> bool:
    """Whether a linked customer was given up."""
    return bool(await connection.fetch_value(IS_GONE, (customer_id,)))


async def subscriptions_of(connection: Connection, customer_id: str) -> list[str]:
    """Return the subscriptions of a customer, also those that only parked events name."""
    return await connection.fetch_column(SUBSCRIPTIONS_OF, {"customer": customer_id})


async def link(connection: Connection, customer_id: str, tenant_id: str, now: datetime) -> bool:
    """Link a customer and name it in the tenant's record, by the operator; return False if it is
    another tenant's.
    """
    cursor = await connection.execute(LINK, (customer_id, tenant_id, "operator", now))
    if not cursor.rowcount:
        return False
    await connection.execute(SET_CUSTOMER, (customer_id, now, tenant_id))
    return True


async def unlink(
    connection: Connection, tenant_id: str, customers: Sequence[str], now: datetime, *, each: bool
) -> None:
    """Remove the links of a tenant's customers, and park again the events that are the tenant's
    only by them, except refunds and disputes.

    With ``each``, invoices of subscriptions that name the tenant stay. The caller folds the
    tenant's events again.
    """
    values = {
        "tenant": tenant_id,
        "customers": list(customers),
        "invoices": sorted(INVOICE_TYPES),
        "folded": sorted(FOLDED_TYPES),
        "reversals": sorted(REVERSAL_TYPES),
        "now": now,
        "each": each,
    }
    await connection.execute(PARK_AGAIN, values)
    await connection.execute(UNLINK, values)


async def newest_customer(connection: Connection, tenant_id: str) -> str | None:
    """Return the usable customer that was linked to a tenant last."""
    found: str | None = await connection.fetch_value(NEWEST_CUSTOMER, (tenant_id,))
    return found
