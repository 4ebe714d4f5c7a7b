"""The owner's address, and the mails to it."""

import hashlib
import unicodedata
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from tenantry.domain.mail_addresses import ascii_domain

PAYMENT_FAILED: Final = "billing.payment_failed"
KEY_LEAKED: Final = "api_key.leaked"
OWNER_ADDRESS_CHANGED: Final = "owner_address.changed"
OWNER_ADDRESS_CONFIRMATION: Final = "owner_address.confirmation"
KEY_REMINDER: Final = "api_key.reminder"
SECURITY_DIGEST: Final = "security.digest"
INVITATION: Final = "member.invitation"
INVITATION_CONFIRMATION: Final = "member.invitation_confirmation"
SECURITY_NOTICES: Final = (KEY_LEAKED, OWNER_ADDRESS_CHANGED, SECURITY_DIGEST)
TO_CHOSEN_ADDRESSES: Final = (OWNER_ADDRESS_CONFIRMATION, INVITATION, INVITATION_CONFIRMATION)
"""Types of mails whose addresses users choose."""


class MailStatus(StrEnum):
    """Where a mail is on its way. The last three are its end."""

    COLLECTING = "collecting"
    """A digest to which notices are added until it is due."""
    QUEUED = "queued"
    SENT = "sent"
    FAILED = "failed"
    DROPPED = "dropped"
    """It was no longer needed, or a user chose an address that cannot be reached."""


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


class NoData(msgspec.Struct, frozen=True):
    """The data of a confirmation: its link is made when it is sent."""


class InvitationReference(msgspec.Struct, frozen=True, rename="camel"):
    """The invitation of a mail."""

    invitation_id: str


class InvitationMail(msgspec.Struct, frozen=True):
    """The link of an invitation, the role it gives, and until when it can be accepted."""

    link: str
    role: str
    expires_at: datetime


class PaymentFailedData(msgspec.Struct, frozen=True, rename="camel"):
    """The page of the invoice whose payment failed, if the event had one (SPEC 2.4)."""

    invoice_url: str | None


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


class ExpiringKey(msgspec.Struct, frozen=True, rename="camel"):
    """A key that expires, by the shown characters of its secret, and the reminder that this is: 14
    or 3 days.
    """

    key_id: str
    key_name: str
    start: str
    last4: str
    mode: str
    expires_at: datetime
    days: int


class UnusedKey(msgspec.Struct, frozen=True, rename="camel"):
    """A key that was not used for long, by the shown characters of its secret."""

    key_id: str
    key_name: str
    start: str
    last4: str
    mode: str
    last_used_at: datetime | None


class KeyReminderData(msgspec.Struct, frozen=True, rename="camel"):
    """Keys that expire soon, keys that are unused, and the number of further unused ones."""

    expiring: list[ExpiringKey]
    unused: list[UnusedKey]
    more_unused: int = 0


NoticeData = (
    TrialEndingData | PaymentRecoveredData | SubscriptionEndedData | AccessEndedData | QuotaUsedData
)
MailData = (
    PaymentFailedData
    | NoticeData
    | SecurityNotice
    | DigestData
    | NoData
    | InvitationReference
    | KeyReminderData
)
"""What is stored of a mail's content."""
MailContent = (
    PaymentFailure
    | NoticeData
    | SecurityNotice
    | DigestData
    | Confirmation
    | InvitationMail
    | KeyReminderData
)
"""What a mail says when it is sent."""


class MailKind(NamedTuple):
    """The data, the subject and the template of a type of mail. No subject contains text that a
    tenant chose.
    """

    data: type[MailData]
    subject: str
    template: str


MAIL_KINDS: Final[Mapping[str, MailKind]] = {
    PAYMENT_FAILED: MailKind(PaymentFailedData, "Payment failed", "payment_failed"),
    OwnerNotice.TRIAL_ENDING.mail_type: MailKind(
        TrialEndingData, "Your trial ends soon", "trial_ending"
    ),
    OwnerNotice.PAYMENT_RECOVERED.mail_type: MailKind(
        PaymentRecoveredData, "Payment received", "payment_recovered"
    ),
    OwnerNotice.SUBSCRIPTION_ENDED.mail_type: MailKind(
        SubscriptionEndedData, "Your subscription has ended", "subscription_ended"
    ),
    OwnerNotice.ACCESS_ENDED.mail_type: MailKind(
        AccessEndedData, "Your access to your plan has ended", "access_ended"
    ),
    OwnerNotice.QUOTA_USED.mail_type: MailKind(QuotaUsedData, "Quota of your plan", "quota_used"),
    OWNER_ADDRESS_CONFIRMATION: MailKind(NoData, "Confirm your e-mail address", "confirm_address"),
    INVITATION: MailKind(InvitationReference, "You are invited to an organization", "invitation"),
    INVITATION_CONFIRMATION: MailKind(
        InvitationReference, "Confirm your e-mail address", "confirm_invitation"
    ),
    KEY_LEAKED: MailKind(KeyLeakedData, "A leaked API key was revoked", "key_leaked"),
    OWNER_ADDRESS_CHANGED: MailKind(
        AddressChangedData, "The owner's e-mail address was changed", "address_changed"
    ),
    KEY_REMINDER: MailKind(KeyReminderData, "API keys that need your attention", "key_reminder"),
    SECURITY_DIGEST: MailKind(DigestData, "Security notices of the last hour", "security_digest"),
}


class NewMail(msgspec.Struct, frozen=True):
    """A mail to queue.

    Each ``cause`` is mailed once; without one the mail is a cause of its own. Without ``recipient``
    the mail is a notification (SPEC 2.4): it goes to the owner, at the address of the moment when
    it is queued. Mails to one mailbox have the same ``limit_key``. A digest collects notices until
    ``due_at``.
    """

    type: str
    tenant_id: str
    data: MailData
    cause: str | None = None
    recipient: str | None = None
    limit_key: str | None = None
    due_at: datetime | None = None

    def to(self, email: str) -> "NewMail":
        """Return the mail to an address that need not be the owner's."""
        return msgspec.structs.replace(self, recipient=email, limit_key=limit_key(email))


def security_mail(tenant_id: str, email: str, notice: SecurityNotice) -> NewMail:
    """Return the mail of one security notice. The leak of a key is mailed once."""
    if isinstance(notice, AddressChangedData):
        return NewMail(OWNER_ADDRESS_CHANGED, tenant_id, notice).to(email)
    return NewMail(KEY_LEAKED, tenant_id, notice, f"{KEY_LEAKED} {notice.key_id}").to(email)


class PendingMail(msgspec.Struct, frozen=True):
    """A mail that can be sent now."""

    id: UUID
    type: str
    created_at: datetime
    tenant_name: str
    recipient: str
    tenant_id: str
    about: MailContent


class ListedMail(msgspec.Struct, frozen=True):
    """A mail and how far it has come, without what it says."""

    type: str
    recipient: str
    status: MailStatus
    last_error: str | None
    created_at: datetime
    due_at: datetime
    ended_at: datetime | None
    """When it was sent, given up or dropped."""

    @property
    def subject(self) -> str:
        """The subject, without the name of the product."""
        return MAIL_KINDS[self.type].subject


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
SETTINGS_PATH: Final = "/orgs/{}/settings"
"""The path of a tenant's settings, whose pages reminders of API keys link."""
CONFIRMATIONS_PER_DAY: Final = 6
"""Confirmation mails to one address in any 24 hours."""
CONFIRMATION_VALID: Final = timedelta(hours=24)


class RecentMails(NamedTuple):
    """Mails of a type in the last hour and 24 hours: those of a tenant, and those of all tenants to
    an address.
    """

    of_tenant_this_hour: int
    of_tenant_today: int
    to_address_this_hour: int
    to_address_today: int

    def allow_confirmation(self, *, of_tenant: bool) -> bool:
        """Whether another confirmation may be mailed; with ``of_tenant`` the tenant has a limit
        too.
        """
        if of_tenant and self.of_tenant_this_hour >= CONFIRMATIONS_PER_HOUR:
            return False
        is_free_this_hour = self.to_address_this_hour < CONFIRMATIONS_PER_HOUR
        return is_free_this_hour and self.to_address_today < CONFIRMATIONS_PER_DAY


def status_given_up(mail_type: str) -> MailStatus:
    """Return the end of a mail that cannot be delivered.

    Users choose the addresses of some mails, so the operator need not know that one is wrong.
    """
    return MailStatus.DROPPED if mail_type in TO_CHOSEN_ADDRESSES else MailStatus.FAILED


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
