"""Events of the payment provider that belong to no tenant."""

import shlex
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.billing.events import Outcome


class PlacedBy(StrEnum):
    """What gives an event its tenant."""

    REBUILD = "rebuild"
    """Rebuilding the tenant that it names, or that its customer is linked to by now."""
    CREATE = "create"
    """Creating the tenant that it names."""
    LINK = "link"
    """Linking its customer to a tenant."""


class Placement(msgspec.Struct, frozen=True):
    """What places an event; ``subject`` is the tenant, or the customer to link."""

    by: PlacedBy
    subject: str

    @property
    def command(self) -> str:
        """The command that does it, with words in capitals to replace."""
        match self.by:
            case PlacedBy.REBUILD:
                return f"tenantry admin rebuild-tenants {self.subject}"
            case PlacedBy.CREATE:
                return f"tenantry admin create-tenant --id {self.subject} --name NAME --owner-email EMAIL"
            case PlacedBy.LINK:
                return f"tenantry admin link {shlex.quote(self.subject)} --org ORG"


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
