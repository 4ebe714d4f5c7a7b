"""Notifications to a tenant's owner."""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

PAYMENT_FAILED: Final = "billing.payment_failed"


class PaymentFailedData(msgspec.Struct, frozen=True, rename="camel"):
    """What the notification says: the invoice's hosted page, if the event had an http(s) address."""

    invoice_url: str | None


class Notification(msgspec.Struct, frozen=True, rename="camel"):
    """A notification request; its fields are those of SPEC 2.4 and no others."""

    id: UUID
    type: str
    recipient_id: str
    tenant_id: str
    channels: tuple[str, ...]
    data: PaymentFailedData


def payment_failed(notification_id: UUID, tenant_id: str, owner_id: str, invoice_url: str | None) -> Notification:
    """The notification that a payment of ``tenant_id`` failed."""
    return Notification(
        notification_id, PAYMENT_FAILED, owner_id, tenant_id, ("email",), PaymentFailedData(invoice_url)
    )


class PendingMail(msgspec.Struct, frozen=True):
    """A notification that is not yet delivered, with all that its mail says.

    ``amount_due`` is in the smallest unit of ``currency``, as the provider counts it.
    """

    notification_id: UUID
    attempts: int
    created_at: datetime
    tenant_name: str
    recipient: str
    invoice_url: str | None
    amount_due: int | None
    currency: str | None
    tenant_id: str
