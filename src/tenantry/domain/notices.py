"""Notifications to a tenant's owner."""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from tenantry.domain.api_keys import ApiKey

PAYMENT_FAILED: Final = "billing.payment_failed"
KEY_LEAKED: Final = "api_key.leaked"


class PaymentFailedData(msgspec.Struct, frozen=True, rename="camel"):
    """What the notification says: the invoice's hosted page, if the event had an http(s) address."""

    invoice_url: str | None


class KeyLeakedData(msgspec.Struct, frozen=True, rename="camel"):
    """Which key it was, by the characters of it that may be shown; when it was reported, and from which address."""

    key_id: str
    key_name: str
    start: str
    last4: str
    reported_at: datetime
    reported_from: str | None


class Notification(msgspec.Struct, frozen=True, rename="camel"):
    """A notification request; its fields are those of SPEC 2.4 and no others."""

    id: UUID
    type: str
    recipient_id: str
    tenant_id: str
    channels: tuple[str, ...]
    data: PaymentFailedData | KeyLeakedData


def payment_failed(notification_id: UUID, tenant_id: str, owner_id: str, invoice_url: str | None) -> Notification:
    """The notification that a payment of ``tenant_id`` failed."""
    return Notification(
        notification_id, PAYMENT_FAILED, owner_id, tenant_id, ("email",), PaymentFailedData(invoice_url)
    )


def key_leaked(
    notification_id: UUID, key: ApiKey, owner_id: str, reported_at: datetime, reported_from: str | None
) -> Notification:
    """The notification that a key was reported as leaked, and is revoked."""
    data = KeyLeakedData(key.id, key.name, key.start, key.last4, reported_at, reported_from)
    return Notification(notification_id, KEY_LEAKED, owner_id, key.org_id, ("email",), data)


def leak_event_id(key_id: str) -> str:
    """What a key's leak is known by, so that it is told once; the provider's events begin otherwise."""
    return f"leak:{key_id}"


class PendingMail(msgspec.Struct, frozen=True):
    """A notification that is not yet delivered, with all that its mail says.

    ``amount_due`` is in the smallest unit of ``currency``, as the provider counts it. With ``leak`` the mail is about
    a leaked key, and about a failed payment without.
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
    leak: KeyLeakedData | None = None
