"""A tenant's request count and its last failed invoice."""

from datetime import datetime
from typing import Final

import msgspec

from tenantry.common.clock import from_epoch
from tenantry.db.connection import Connection
from tenantry.db.pagination import MAX_SCANNED_ROWS

REQUESTS: Final = "SELECT coalesce(sum(number), 0) FROM request_counts WHERE subject = %s AND second > %s"
FAILED_INVOICE: Final = f"""
SELECT id, created, invoice_url, coalesce(amount_remaining, amount_due), currency
  FROM (SELECT *
          FROM billing_events
         WHERE tenant_id = %s
         ORDER BY created DESC, arrival DESC
         LIMIT {MAX_SCANNED_ROWS}) AS newest
 WHERE type = 'invoice.payment_failed' AND outcome IN ('applied', 'late', 'no_change')
 ORDER BY created DESC, arrival DESC
 LIMIT 1
"""  # noqa: S608  # our own number


class FailedInvoice(msgspec.Struct, frozen=True):
    """An invoice whose payment failed, from the event.

    ``amount`` remains to be paid, in the smallest unit of ``currency``; ``url`` is the provider's, unchecked.
    """

    event_id: str
    failed_at: datetime | None
    url: str | None
    amount: int | None
    currency: str | None


async def count_requests(connection: Connection, subject: str, since: int) -> int:
    """Count the requests of a rate limit's subject after a second."""
    return int(await connection.fetch_value(REQUESTS, (subject, since)))


async def last_failed_invoice(connection: Connection, tenant_id: str) -> FailedInvoice | None:
    """Find the invoice of a tenant's newest failed payment among its newest `MAX_SCANNED_ROWS` events."""
    row = await connection.fetch_row(FAILED_INVOICE, (tenant_id,))
    return FailedInvoice(row[0], from_epoch(row[1]), *row[2:]) if row else None
