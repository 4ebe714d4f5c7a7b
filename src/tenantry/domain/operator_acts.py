"""The trail of what the operator's people do."""

from datetime import datetime
from enum import StrEnum

import msgspec


class OperatorPerson(msgspec.Struct, frozen=True):
    """The person behind an act of the operator, whom only operators see."""

    issuer: str
    subject: str
    name: str | None


class OperatorAction(StrEnum):
    """An act of the operator that changes no tenant."""

    WEBHOOK_ENABLED = "webhook.enabled"
    WEBHOOK_RESENT = "webhook.resent"
    WEBHOOK_TESTED = "webhook.tested"
    LEDGER_CHECKED = "ledger.checked"
    """A replay or a reconciliation that shows what it would change."""
    CONFIRMATION_RESENT = "confirmation.resent"
    AUDIT_EXPORTED = "audit.exported"
    USAGE_EXPORTED = "usage.exported"
    REPAIR_STARTED = "ledger.repair_started"
    """A replay or a reconciliation that changes the tenant, whose trail has what it repaired."""


def act_id_of(entry_id: str) -> str:
    """Return the id of the act that an entry of a tenant's audit trail is about."""
    return f"act_{entry_id.partition('_')[2]}"


class NewAct(msgspec.Struct, frozen=True):
    """An act that is recorded, without its author."""

    id: str
    at: datetime
    action: str
    org_id: str | None
    """The tenant; None for an act that concerns the installation."""
    target_id: str


class OperatorAct(NewAct, frozen=True):
    """An entry of the operator's trail: what one of the operator's people did on the pages."""

    reason: str | None
    address: str | None
    request_id: str | None
    person: OperatorPerson
