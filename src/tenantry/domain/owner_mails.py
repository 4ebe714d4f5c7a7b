"""The owner's address, and the mails to it."""

import hashlib
import unicodedata
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from tenantry.domain.mail_addresses import ascii_domain

PAYMENT_FAILED: Final = "billing.payment_failed"
KEY_LEAKED: Final = "api_key.leaked"
OWNER_ADDRESS_CHANGED: Final = "owner_address.changed"
OWNER_ADDRESS_CONFIRMATION: Final = "owner_address.confirmation"
SECURITY_DIGEST: Final = "security.digest"
INVITATION: Final = "member.invitation"
INVITATION_CONFIRMATION: Final = "member.invitation_confirmation"
SECURITY_NOTICES: Final = (KEY_LEAKED, OWNER_ADDRESS_CHANGED, SECURITY_DIGEST)
TO_CHOSEN_ADDRESSES: Final = (OWNER_ADDRESS_CONFIRMATION, INVITATION, INVITATION_CONFIRMATION)
"""Types of mails whose addresses users choose."""


class OwnerNotice(StrEnum):
    """A billing notice that the operator can turn on (the setting OWNER_NOTICES)."""

    TRIAL_ENDING = "trial_ending"
    PAYMENT_RECOVERED = "payment_recovered"
    SUBSCRIPTION_ENDED = "subscription_ended"
    ACCESS_ENDED = "access_ended"
    QUOTA_USED = "quota_used"

    @property
    def mail_type(self) -> str:
        """The type of its notification (SPEC 2.4)."""
        return f"billing.{self.value}"


class KeyLeakedData(msgspec.Struct, frozen=True, rename="camel"):
    """A leaked key, by the shown characters of its secret, and its report."""

    key_id: str
    key_name: str
    start: str
    last4: str
    reported_at: datetime
    reported_from: str | None


class AddressChangedData(msgspec.Struct, frozen=True, rename="camel"):
    """A new owner address, and whether it was verified when it was set."""

    email: str
    changed_at: datetime
    verified: bool = False


SecurityNotice = KeyLeakedData | AddressChangedData


class DigestData(msgspec.Struct, frozen=True, rename="camel"):
    """Security notices collected in one mail, oldest first, and the number of further ones."""

    leaked: list[KeyLeakedData]
    changed: list[AddressChangedData]
    more: int


class Confirmation(msgspec.Struct, frozen=True):
    """The link of a confirmation mail, and for how many hours it is valid."""

    link: str
    hours: int


class InvitationReference(msgspec.Struct, frozen=True, rename="camel"):
    """The invitation of a mail."""

    invitation_id: str


class InvitationMail(msgspec.Struct, frozen=True):
    """The link of an invitation, the role it gives, and until when it can be accepted."""

    invitation_id: str
    link: str
    role: str
    expires_at: datetime


class InvitationConfirmation(msgspec.Struct, frozen=True):
    """The link by which an invited user confirms the address, and until when the invitation can be
    accepted.
    """

    link: str
    expires_at: datetime


LinkMail = Confirmation | InvitationMail | InvitationConfirmation
"""The content of a mail of `TO_CHOSEN_ADDRESSES`."""


class PaymentFailure(msgspec.Struct, frozen=True):
    """A failed payment; amounts are in the smallest unit of ``currency``."""

    invoice_url: str | None
    amount_due: int | None
    amount_remaining: int | None
    currency: str | None


class TrialEndingData(msgspec.Struct, frozen=True, rename="camel"):
    """The name of a plan, and when its trial ends."""

    plan: str
    trial_end: datetime


class PaymentRecoveredData(msgspec.Struct, frozen=True, rename="camel"):
    """The page of an invoice that was paid after a failed payment, if the event had one."""

    invoice_url: str | None


class SubscriptionEndedData(msgspec.Struct, frozen=True, rename="camel"):
    """The name of the plan that a subscription had, if known."""

    plan: str | None


class AccessEndedData(msgspec.Struct, frozen=True, rename="camel"):
    """Why a tenant has no access any more, in one or two sentences."""

    reason: str


class QuotaUsedData(msgspec.Struct, frozen=True, rename="camel"):
    """A quota of which at least ``percent`` were used when the notice was queued: 80 or 100."""

    feature: str
    percent: int
    used: int
    limit: int
    resets_at: datetime


NoticeData = (
    TrialEndingData | PaymentRecoveredData | SubscriptionEndedData | AccessEndedData | QuotaUsedData
)
NOTICE_DATA: Final[Mapping[str, type[NoticeData]]] = {
    OwnerNotice.TRIAL_ENDING.mail_type: TrialEndingData,
    OwnerNotice.PAYMENT_RECOVERED.mail_type: PaymentRecoveredData,
    OwnerNotice.SUBSCRIPTION_ENDED.mail_type: SubscriptionEndedData,
    OwnerNotice.ACCESS_ENDED.mail_type: AccessEndedData,
    OwnerNotice.QUOTA_USED.mail_type: QuotaUsedData,
}
"""The data of each billing notice, by its type."""


class PendingMail(msgspec.Struct, frozen=True):
    """A mail that is not yet delivered; ``about`` is its content.

    ``in_notifications`` means that the table of SPEC 2.4 holds it, otherwise ``owner_mails``.
    """

    notification_id: UUID
    attempts: int
    created_at: datetime
    tenant_name: str
    recipient: str
    tenant_id: str
    about: PaymentFailure | NoticeData | KeyLeakedData | AddressChangedData | DigestData | LinkMail
    in_notifications: bool = False


NOTICES_PER_HOUR: Final = 5
"""Security notices to a tenant's owner in any hour; further ones are collected in a digest."""
NOTICE_WINDOW: Final = timedelta(hours=1)
DIGEST_DETAILS: Final = 100
"""Notices that a digest describes; it only counts further ones."""
CONFIRMATIONS_PER_HOUR: Final = 3
"""Confirmation mails in any hour for one tenant, and to one address from all tenants."""
CONFIRM_PATH: Final = "/confirm-address"
"""The path that the link in a confirmation mail opens."""
BILLING_PATH: Final = "/orgs/{}/billing"
"""The path of a tenant's billing page, which billing notices link."""
CONFIRMATIONS_PER_DAY: Final = 6
"""Confirmation mails to one address in any 24 hours."""
CONFIRMATION_VALID: Final = timedelta(hours=24)


class OwnerAddress(msgspec.Struct, frozen=True):
    """A tenant's owner address, and the address that was verified last.

    ``verified_email`` is empty without one.
    """

    email: str
    verified_email: str

    @property
    def is_verified(self) -> bool:
        """Whether the address may receive mail other than confirmations and billing notices."""
        return same_address(self.email, self.verified_email)

    @property
    def for_security(self) -> str | None:
        """The address for security notices: the one that was verified last, if any."""
        return self.verified_email or None

    def loses_to(self, email: str) -> bool:
        """Whether ``email`` replaces the address, and the one for security notices is another."""
        former = (self.email, self.verified_email or email)
        return not any(same_address(each, email) for each in former)

    def changed(self, email: str, *, verified: bool) -> "OwnerAddress":
        """Return the address set to ``email``; the former verified one stays until this one is
        verified.
        """
        former = self.verified_email
        return OwnerAddress(email, email if verified or same_address(email, former) else former)


def same_address(one: str, other: str) -> bool:
    """Compare two addresses, ignoring the case of the domain (RFC 5321, section 2.4)."""
    local, _, domain = one.rpartition("@")
    other_local, _, other_domain = other.rpartition("@")
    return (local, domain.casefold()) == (other_local, other_domain.casefold())


def limit_key(email: str) -> str:
    """Return the key under which mails to an address are counted, so that other spellings do not
    raise the limit.

    Ignores case, dots, the Unicode form and a ``+tag`` in the local part, whether or not the mail
    server does. The domain is the one to which mail is sent.
    """
    local, _, domain = unicodedata.normalize("NFC", email).rpartition("@")
    encoded = ascii_domain(domain) or domain.casefold()
    return f"{local.casefold().partition('+')[0].replace('.', '')}@{encoded.rstrip('.')}"


def link_digest(token: str) -> bytes:
    """Hash a confirmation link's token for storage."""
    return hashlib.sha256(token.encode()).digest()
