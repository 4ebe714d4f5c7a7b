"""Refunds and disputes: the tenants of the charges that they name, the earlier ones of these, and
those that wait for a tenant. Only events of these types run a statement of this module.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from tenantry.billing.ledger_rows import to_event
from tenantry.db.connection import Connection
from tenantry.domain.billing.events import INVOICE_TYPES, REVERSAL_TYPES, BillingEvent
from tenantry.domain.billing.ledger import ReceivedEvent

# The newest entry counts: an invoice may have moved to another tenant.
TENANTS_OF_PAYMENTS: Final = """
SELECT payment, tenant_id
  FROM billing_events
 CROSS JOIN unnest(payments) AS payment
 WHERE payments && %s AND tenant_id IS NOT NULL
 ORDER BY created, arrival
"""
# The ledger finds an invoice within a tenant's entries: of the tenants that have, or had, its
# customer or one of the customer's subscriptions.
TENANTS_OF_INVOICES: Final = """
SELECT wanted.invoice_id, e.tenant_id
  FROM unnest(%(invoices)s::text[], %(customers)s::text[]) AS wanted (invoice_id, customer_id)
  JOIN billing_events e
    ON e.tenant_id = ANY(ARRAY(
         SELECT tenant_id FROM customers WHERE id = wanted.customer_id
          UNION
         SELECT tenant_id FROM subscription_tenants WHERE customer_id = wanted.customer_id))
   AND e.document->>'invoice_id' = wanted.invoice_id
 WHERE e.type = ANY(%(types)s)
 ORDER BY e.created, e.arrival
"""
EARLIER: Final = """
SELECT id, type, created, arrival, org_id, customer_id, subscription_id, invoice_url,
       document::text, tenant_id
  FROM billing_events
 WHERE payments && %(payments)s AND tenant_id = ANY(%(tenants)s)
   AND type = ANY(%(types)s) AND outcome IN ('applied', 'late', 'no_change')
 ORDER BY arrival
"""
PARKED_OF_PAYMENTS: Final = """
SELECT id, type, created, arrival, org_id, customer_id, subscription_id, invoice_url,
       document::text, received_at
  FROM billing_events
 WHERE payments && %s AND outcome = 'parked' AND type = ANY(%s)
 ORDER BY created, arrival
"""
# A refund or dispute names neither a tenant nor a subscription, so an index finds those among the
# other parked events. One that waits for a customer comes last: the customer's link finds it too.
WAITING: Final = """
SELECT id, type, created, arrival, org_id, customer_id, subscription_id, invoice_url,
       document::text, received_at
  FROM billing_events
 WHERE outcome = 'parked' AND org_id IS NULL AND subscription_id IS NULL AND type = ANY(%s)
 ORDER BY customer_id IS NOT NULL, received_at DESC
 LIMIT %s
"""
FIND_PARKED: Final = """
SELECT id, type, created, arrival, org_id, customer_id, subscription_id, invoice_url,
       document::text, received_at
  FROM billing_events
 WHERE id = %s AND outcome = 'parked'
"""
NAME_CUSTOMER: Final = """
UPDATE billing_events
   SET customer_id = %(customer)s,
       document = jsonb_set(
         document::jsonb || jsonb_strip_nulls(jsonb_build_object('invoice_id', %(invoice)s::text)),
         '{reason}', to_jsonb('Waits: customer ' || %(customer)s || ' is not known yet.'))
 WHERE id = %(event)s AND outcome = 'parked'
"""
IGNORE: Final = """
UPDATE billing_events
   SET outcome = 'ignored', document = jsonb_set(document::jsonb, '{reason}', to_jsonb(%s::text))
 WHERE id = %s AND outcome = 'parked'
"""
_TYPES: Final = sorted(REVERSAL_TYPES)


async def tenants_of_payments(
    connection: Connection, events: Collection[BillingEvent], *, by_invoice: bool
) -> dict[str, str]:
    """Return the tenants of the charges and payment intents of events, and with ``by_invoice`` of
    their invoices, as far as the ledger knows them.
    """
    payments = sorted({name for event in events for name in event.payments})
    found = dict(await connection.fetch(TENANTS_OF_PAYMENTS, (payments,)))
    unknown = [event for event in events if found.keys().isdisjoint(event.payments)]
    invoices = sorted(
        {
            (each.invoice_id, each.customer_id)
            for each in unknown
            if each.invoice_id and each.customer_id
        }
    )
    if invoices and by_invoice:
        ids, customers = zip(*invoices, strict=True)
        values = {
            "invoices": list(ids),
            "customers": list(customers),
            "types": sorted(INVOICE_TYPES),
        }
        found |= dict(await connection.fetch(TENANTS_OF_INVOICES, values))
    return found


async def read_earlier(
    connection: Connection, payments: Mapping[str, Collection[str]]
) -> dict[str, list[BillingEvent]]:
    """Return the refunds and disputes of tenants' payments in the order of their arrival."""
    values = {
        "payments": sorted(set().union(*payments.values())),
        "tenants": sorted(payments),
        "types": _TYPES,
    }
    found = defaultdict[str, list[BillingEvent]](list)
    for *columns, tenant_id in await connection.fetch(EARLIER, values):
        found[tenant_id].append(to_event(columns))
    return found


async def read_parked_of(connection: Connection, payments: Collection[str]) -> list[ReceivedEvent]:
    """Return the parked refunds and disputes of these payments, oldest first."""
    return _received(await connection.fetch(PARKED_OF_PAYMENTS, (sorted(payments), _TYPES)))


async def read_waiting(connection: Connection, most: int) -> list[ReceivedEvent]:
    """Return parked refunds and disputes, the last received first; those that wait for a customer
    come after the others.
    """
    return _received(await connection.fetch(WAITING, (_TYPES, most)))


async def find_parked(connection: Connection, event_id: str) -> ReceivedEvent | None:
    """Return an event if it is parked."""
    return next(iter(_received(await connection.fetch(FIND_PARKED, (event_id,)))), None)


async def name_customer(
    connection: Connection, event_id: str, customer_id: str, invoice_id: str | None
) -> None:
    """Let a parked event wait for a customer, which the provider has named."""
    values = {"event": event_id, "customer": customer_id, "invoice": invoice_id}
    await connection.execute(NAME_CUSTOMER, values)


async def ignore(connection: Connection, event_id: str, reason: str) -> None:
    """Ignore a parked event that can never have a tenant."""
    await connection.execute(IGNORE, (reason, event_id))


def _received(rows: Iterable[Sequence[Any]]) -> list[ReceivedEvent]:
    return [ReceivedEvent(to_event(columns), received_at) for *columns, received_at in rows]
