"""Whether a tenant has had a trial, and which of its checkout sessions ends before another one."""

from typing import Final

from tenantry.db.connection import Connection
from tenantry.domain.billing.events import CUSTOMER_DELETED

# The ledger keeps the facts of every event, so it remembers a trial for as long as the tenant
# exists. Only checkouts of plans with a trial read it, and pages that show such plans.
HAD_TRIAL: Final = """
SELECT EXISTS (SELECT FROM billing_events
                WHERE tenant_id = %s
                  AND outcome NOT IN ('parked', 'ignored', 'invalid')
                  AND document->'details'->>'trial_end' IS NOT NULL)
"""
# Not if one is missing only by an answer to an API key, which may be another account's.
WERE_CUSTOMERS_DELETED: Final = """
SELECT bool_and(coalesce(e.type = %(deleted)s, false))
  FROM customers c
  LEFT JOIN billing_events e ON e.id = c.gone_by
 WHERE c.tenant_id = %(org)s
"""
LAST_CHECKOUT: Final = "SELECT last_checkout FROM tenants WHERE id = %s"
# Of two checkouts at the same time, the second to get here finds that of the first.
REMEMBER_CHECKOUT: Final = """
UPDATE tenants
   SET last_checkout = %(session)s
 WHERE id = %(org)s
   AND (last_checkout IS NOT DISTINCT FROM %(ended)s OR last_checkout = %(session)s)
"""


async def had_trial(connection: Connection, org_id: str) -> bool:
    """Whether a tenant had a trial, by its events."""
    return bool(await connection.fetch_value(HAD_TRIAL, (org_id,)))


async def were_customers_deleted(connection: Connection, org_id: str) -> bool:
    """Whether the provider has deleted the tenant's customers, all of them: it has ended their
    subscriptions with them, whatever the events have said so far.
    """
    values = {"deleted": CUSTOMER_DELETED, "org": org_id}
    return bool(await connection.fetch_value(WERE_CUSTOMERS_DELETED, values))


async def last_checkout(connection: Connection, org_id: str) -> str | None:
    """Return the checkout session that ends before another one of the tenant."""
    session_id: str | None = await connection.fetch_value(LAST_CHECKOUT, (org_id,))
    return session_id


async def remember_checkout(
    connection: Connection, org_id: str, session_id: str, ended: str | None
) -> str | None:
    """Store a new session instead of the session that has ``ended``.

    Return None, or the session of another checkout that is stored by now.
    """
    values = {"session": session_id, "org": org_id, "ended": ended}
    cursor = await connection.execute(REMEMBER_CHECKOUT, values)
    if cursor.rowcount:
        return None
    return await last_checkout(connection, org_id)
