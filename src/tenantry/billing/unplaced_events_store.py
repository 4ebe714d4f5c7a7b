"""Events that belong to no tenant: parked ones, and recent ones that name no tenant or are
invalid.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.pagination import Listing, Page, Window
from tenantry.domain.billing.events import Outcome
from tenantry.domain.billing.unplaced_events import PlacedBy, Placement

# Whether the tenant or the customer is known by now, as after a restart in the middle of a repair.
_COLUMNS: Final = """
id, type, created, received_at, outcome, document->>'reason' AS reason, org_id, customer_id,
subscription_id, document->>'invoice_id' AS invoice_id,
EXISTS (SELECT FROM tenants t WHERE t.id = k.org_id) AS is_tenant_known,
(SELECT c.tenant_id FROM customers c WHERE c.id = k.customer_id) AS tenant_of_customer
"""
_LISTING: Final = Listing(_COLUMNS, "billing_events", "received_at")
# Each half has a partial index, however big the ledger is. An event without metadata is placed by
# its customer's link.
UNPLACED: Final = """
(outcome = 'parked'
 OR (anomalies IS NOT NULL AND received_at > %(since)s AND tenant_id IS NULL
     AND (outcome = 'invalid'
          OR (anomalies @> '{missing_org_id}' AND NOT EXISTS (SELECT FROM customers c WHERE c.id = k.customer_id)))))
"""


class UnplacedRow(msgspec.Struct, frozen=True):
    """An event that belongs to no tenant. ``created`` is in seconds since the Unix epoch."""

    id: str
    type: str
    created: int
    received_at: datetime
    outcome: Outcome
    reason: str
    org_id: str | None
    customer_id: str | None
    subscription_id: str | None
    invoice_id: str | None
    is_tenant_known: bool
    tenant_of_customer: str | None

    @property
    def placement(self) -> Placement | None:
        """What places the event; None if nothing in tenantry can."""
        if self.outcome is Outcome.INVALID:
            return None
        if self.org_id is not None:
            by = PlacedBy.REBUILD if self.is_tenant_known else PlacedBy.CREATE
            return Placement(by, self.org_id)
        if self.tenant_of_customer is not None:
            return Placement(PlacedBy.REBUILD, self.tenant_of_customer)
        return None if self.customer_id is None else Placement(PlacedBy.LINK, self.customer_id)


async def read_page(connection: Connection, since: datetime, window: Window) -> Page[UnplacedRow]:
    """Read a page of the parked events, and of the other ones received after ``since``, newest
    first.
    """
    return await _LISTING.page(connection, UNPLACED, {"since": since}, window, _row)


def _row(row: Sequence[Any]) -> UnplacedRow:
    event_id, event_type, created, received_at, outcome, *rest = row
    return UnplacedRow(event_id, event_type, created, received_at, Outcome(outcome), *rest)
