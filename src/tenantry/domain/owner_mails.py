"""The owner's address, and the security notices that are mailed to it."""

import hashlib
from contextlib import suppress
from datetime import datetime, timedelta
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


# The owner's e-mail address of a tenant: whether it is verified, and how much mail an address may get


NOTICES_PER_HOUR: Final = 5
"""Security notices that a tenant's owner gets in any hour; further ones are collected in a digest."""
NOTICE_WINDOW: Final = timedelta(hours=1)
DIGEST_DETAILS: Final = 100
"""Notices that a digest describes; of further ones it gives the number."""
CONFIRMATIONS_PER_HOUR: Final = 3
"""Confirmation mails in any hour: for one tenant, and to one address whatever tenants ask for it."""
CONFIRM_PATH: Final = "/confirm-address"
"""The path that the link in a confirmation mail opens."""
CONFIRMATIONS_PER_DAY: Final = 6
"""Confirmation mails to one address in any 24 hours."""
CONFIRMATION_VALID: Final = timedelta(hours=24)


class OwnerAddress(msgspec.Struct, frozen=True):
    """A tenant's owner address, and the address that was verified last.

    ``verified_email`` is empty where none ever was, and None for a tenant from before addresses were verified: its
    address counts as verified.
    """

    email: str
    verified_email: str | None

    @property
    def is_verified(self) -> bool:
        """Whether mail other than the confirmation and payment notices may go to the address."""
        return self.verified_email is None or same_address(self.email, self.verified_email)

    @property
    def for_security(self) -> str | None:
        """Where security notices go: the address that was verified last; None if there is none."""
        return self.email if self.verified_email is None else self.verified_email or None

    def changed(self, email: str, *, verified: bool) -> "OwnerAddress":
        """The address once it is set to ``email``; the former verified one stays until this one is verified."""
        former = self.for_security or ""
        return OwnerAddress(email, email if verified or same_address(email, former) else former)


def same_address(one: str, other: str) -> bool:
    """Whether two addresses are the same; only the domain's case does not matter (RFC 5321, section 2.4)."""
    local, _, domain = one.rpartition("@")
    other_local, _, other_domain = other.rpartition("@")
    return (local, domain.casefold()) == (other_local, other_domain.casefold())


def limit_key(email: str) -> str:
    """What an address is counted under, so that one mailbox is not reached under many spellings.

    Case, dots and a ``+tag`` in the local part do not count, whether or not the mail server ignores them.
    """
    local, _, domain = email.casefold().rpartition("@")
    with suppress(UnicodeError):
        domain = domain.encode("idna").decode()
    return f"{local.partition('+')[0].replace('.', '')}@{domain.rstrip('.')}"


def link_digest(token: str) -> bytes:
    """Hash a confirmation link's token for storage."""
    return hashlib.sha256(token.encode()).digest()
