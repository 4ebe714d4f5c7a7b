"""Events that belong to no tenant, for the operator, with the command that places each."""

import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from tenantry.billing import unplaced_events_store as store
from tenantry.billing.unplaced_events_store import UnplacedRow
from tenantry.common.clock import Clock, from_epoch
from tenantry.common.encoding import doc
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.pagination import Page, window_after
from tenantry.domain.billing.events import Outcome

LISTED_FOR: Final = timedelta(days=30)
"""How long events without a tenant's name are listed; parked ones wait as long."""


class UnplacedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event of the payment provider that belongs to no tenant."""

    id: Annotated[str, doc("The provider's event id.", "evt_1SQk7xLm3Rk2pXw7")]
    type: Annotated[str, doc("The provider's event type.", "customer.subscription.updated")]
    created: Annotated[datetime, doc("When the provider created it.", "2026-11-01T00:00:02Z")]
    received_at: Annotated[datetime, doc("When tenantry received it.", "2026-11-01T00:00:04Z")]
    outcome: Annotated[
        Outcome,
        doc(
            "`parked`: it is applied once its tenant is known. `ignored`: it names no tenant. `invalid`: see `reason`.",
            "parked",
        ),
    ]
    reason: Annotated[
        str, doc("What it waits for.", "Waits: customer cus_Rk2pXw7Lm3 is not known yet.")
    ]
    org_id: Annotated[str | None, doc("The tenant that its metadata names.", None)]
    customer_id: Annotated[str | None, doc("The provider's customer.", "cus_Rk2pXw7Lm3")]
    subscription_id: Annotated[str | None, doc("The subscription.", "sub_1SQk7xLm3Rk2pXw7")]
    invoice_id: Annotated[str | None, doc("The invoice.", None)]
    command: Annotated[
        str | None,
        doc(
            "The command that places it; replace words in capitals. Null where none can: the event names neither a "
            "tenant nor a customer, or is invalid.",
            "tenantry admin link cus_Rk2pXw7Lm3 --org ORG",
        ),
    ]


@dataclass(frozen=True)
class UnplacedEvents:
    database: Database
    clock: Clock

    async def list_page(self, limit: int, cursor: str | None) -> Page[UnplacedEvent]:
        """Read a page of events that belong to no tenant, the last received first. Raises
        `InvalidCursorError`.
        """
        window, since = window_after(limit, cursor), self.clock() - LISTED_FOR
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            page = await store.read_page(connection, since, window)
        return Page([_shown(row) for row in page.data], page.next_cursor)


def _shown(row: UnplacedRow) -> UnplacedEvent:
    return UnplacedEvent(
        row.id,
        row.type,
        from_epoch(row.created),
        row.received_at,
        row.outcome,
        row.reason,
        row.org_id,
        row.customer_id,
        row.subscription_id,
        row.invoice_id,
        placing_command(row),
    )


def placing_command(row: UnplacedRow) -> str | None:
    """Return the command that places an event; None if nothing in tenantry can."""
    if row.outcome is Outcome.INVALID:
        return None
    if row.org_id is not None and row.is_tenant_known:
        return f"tenantry tenants rebuild {row.org_id}"
    if row.org_id is not None:
        return f"tenantry admin create-tenant --id {row.org_id} --name NAME --owner-email EMAIL"
    if row.tenant_of_customer is not None:
        return f"tenantry tenants rebuild {row.tenant_of_customer}"
    if row.customer_id is not None:
        return f"tenantry admin link {shlex.quote(row.customer_id)} --org ORG"
    return None
