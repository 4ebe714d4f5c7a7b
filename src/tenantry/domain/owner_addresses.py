"""The owner's e-mail address of a tenant: whether it is verified, and how much mail an address may get."""

from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec

NOTICES_PER_HOUR: Final = 5
"""Security notices that a tenant's owner gets in any hour; further ones are collected in a digest."""
NOTICE_WINDOW: Final = timedelta(hours=1)
DIGEST_DETAILS: Final = 100
"""Notices that a digest describes; of further ones it gives the number."""
CONFIRMATIONS_PER_HOUR: Final = 3
"""Confirmation mails in any hour: for one tenant, and to one address whatever tenants ask for it."""
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
