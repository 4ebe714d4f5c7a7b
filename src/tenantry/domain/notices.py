"""Notifications to a tenant's owner."""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from tenantry.domain.api_keys import ApiKey

PAYMENT_FAILED: Final = "billing.payment_failed"
KEY_LEAKED: Final = "api_key.leaked"
OWNER_ADDRESS_CHANGED: Final = "owner_address.changed"
OWNER_ADDRESS_CONFIRMATION: Final = "owner_address.confirmation"
SECURITY_DIGEST: Final = "security.digest"


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


class AddressChangedData(msgspec.Struct, frozen=True, rename="camel"):
    """The address that the owner's was changed to, when, and whether it was verified from the start."""

    email: str
    changed_at: datetime
    verified: bool = False


SecurityNotice = KeyLeakedData | AddressChangedData
"""What a security notice is about."""


class DigestData(msgspec.Struct, frozen=True, rename="camel"):
    """Security notices collected in one mail: what happened, oldest first, and how many more there were."""

    leaked: list[KeyLeakedData]
    changed: list[AddressChangedData]
    more: int


class Confirmation(msgspec.Struct, frozen=True):
    """The link that a confirmation mail asks its recipient to open, and for how many hours it is valid."""

    link: str
    hours: int


class PaymentFailure(msgspec.Struct, frozen=True):
    """A failed payment; amounts are in the smallest unit of ``currency``, as the provider counts them."""

    invoice_url: str | None
    amount_due: int | None
    amount_remaining: int | None
    currency: str | None


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


def key_leaked(key: ApiKey, reported_at: datetime, reported_from: str | None) -> KeyLeakedData:
    """The security notice that a key was reported as leaked, and is revoked."""
    return KeyLeakedData(key.id, key.name, key.start, key.last4, reported_at, reported_from)


class PendingMail(msgspec.Struct, frozen=True):
    """A mail that is not yet delivered, with all that it says.

    ``about`` says which mail it is. ``in_notifications`` says which table holds it: the one for SPEC 2.4, or
    ``owner_mails``.
    """

    notification_id: UUID
    attempts: int
    created_at: datetime
    tenant_name: str
    recipient: str
    tenant_id: str
    about: PaymentFailure | KeyLeakedData | AddressChangedData | DigestData | Confirmation
    in_notifications: bool = False
