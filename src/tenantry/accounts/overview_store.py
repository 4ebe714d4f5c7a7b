"""How a tenant uses its plan, and what it owes."""

from datetime import datetime
from typing import Final

import msgspec

from tenantry.common.clock import from_epoch
from tenantry.db.connection import Connection
from tenantry.db.pagination import MOST_LOOKED_AT

REQUESTS: Final = "SELECT coalesce(sum(number), 0) FROM request_counts WHERE subject = %s AND second > %s"
FAILED_INVOICE: Final = f"""
SELECT id, created, invoice_url, coalesce(amount_remaining, amount_due), currency
  FROM (SELECT *
          FROM billing_events
         WHERE tenant_id = %s
         ORDER BY created DESC, arrival DESC
         LIMIT {MOST_LOOKED_AT}) AS newest
 WHERE type = 'invoice.payment_failed' AND outcome IN ('applied', 'late', 'no_change')
 ORDER BY created DESC, arrival DESC
 LIMIT 1
"""  # noqa: S608  # our own number


class FailedInvoice(msgspec.Struct, frozen=True):
    """An invoice whose payment failed: the event, and what that says of it.

    ``amount`` is what remains to be paid, in the smallest unit of ``currency``, as the provider counts it; ``url`` is
    as the provider gave it.
    """

    event_id: str
    failed_at: datetime | None
    url: str | None
    amount: int | None
    currency: str | None


async def count_requests(connection: Connection, subject: str, since: int) -> int:
    """How many requests of a subject of rate limits are counted after a second."""
    cursor = await connection.execute(REQUESTS, (subject, since))
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def last_failed_invoice(connection: Connection, tenant_id: str) -> FailedInvoice | None:
    """The invoice of a tenant's newest failed payment, if that is among the newest `MOST_LOOKED_AT` events."""
    cursor = await connection.execute(FAILED_INVOICE, (tenant_id,))
    row = await cursor.fetchone()
    return FailedInvoice(row[0], from_epoch(row[1]), *row[2:]) if row else None
