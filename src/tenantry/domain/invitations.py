"""Invitations by mail: their record, their limits, and who may accept one."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain import errors
from tenantry.domain.mail_addresses import comparable_address, is_deliverable
from tenantry.domain.names import NAME_RULE, has_refused_characters
from tenantry.domain.roles import Roles

VALID: Final = timedelta(days=7)
"""How long an invitation can be accepted after it was created or sent again."""
MOST_OPEN: Final = 100
"""Open invitations of a tenant."""
MAILS_PER_DAY: Final = 50
"""Invitation mails of a tenant in any 24 hours."""
MAILS_TO_ADDRESS_PER_DAY: Final = 6
"""Invitation mails of all tenants to one address in any 24 hours."""
MOST_SENDS: Final = 3
"""Mails of one invitation."""
_NOT_AN_ADDRESS: Final = "is not an email address"
_ENDED: Final = "Ask an owner or admin of the organization for a new invitation."


class InvitationStatus(StrEnum):
    OPEN = "open"
    ACCEPTED = "accepted"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class Invitation(msgspec.Struct, frozen=True, rename="camel"):
    """An invitation to become a member of a tenant, mailed to an address."""

    id: Annotated[str, doc("The invitation's id.", "inv_01975c3a5b3ef0a1b2c3d4e5f6071829")]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    email: Annotated[str, doc("The invited address.", "grace@acme.example")]
    role: Annotated[str, doc("What the user may do after accepting.", "member")]
    status: Annotated[
        InvitationStatus, doc("`open`, `accepted`, `withdrawn`, or `expired`.", "open")
    ]
    invited_by: Annotated[str, doc("The user or key that created it, or `operator`.", "user_ada")]
    created_at: Annotated[datetime, doc("When it was created.", "2026-10-01T08:00:00Z")]
    expires_at: Annotated[datetime, doc("Until when it can be accepted.", "2026-10-08T08:00:00Z")]
    sent_at: Annotated[
        datetime | None,
        doc(
            "When the mail server accepted its last mail; null before the first.",
            "2026-10-01T08:00:03Z",
        ),
    ]


class InvitationTerms(msgspec.Struct, frozen=True):
    """An invitation with what its record omits."""

    invitation: Invitation
    address: str
    """The address in the form of `comparable_address`."""
    sends: int
    """Mails that were queued."""
    binds_owner: bool
    """As of `tenantry.domain.members.binds_owner` for who created it."""
    member_id: str | None
    """The membership of the user who accepted."""


class ShownInvitation(msgspec.Struct, frozen=True):
    """What the bearer of a link sees of an invitation."""

    id: str
    org_id: str
    org_name: str
    email: str
    role: str
    status: InvitationStatus
    expires_at: datetime


def invited_address(email: str) -> str:
    """Return the comparable form of an address to invite. Raises `ValidationError`."""
    if has_refused_characters(email):
        raise errors.ValidationError(("email", NAME_RULE))
    address = comparable_address(email)
    if address is None or not is_deliverable(email):
        raise errors.ValidationError(("email", _NOT_AN_ADDRESS))
    return address


def check_open(status: InvitationStatus) -> None:
    """Raise `InvitationClosedError` unless the invitation can still be accepted."""
    if status is InvitationStatus.ACCEPTED:
        raise errors.InvitationClosedError("This invitation was accepted already.")
    if status is InvitationStatus.WITHDRAWN:
        raise errors.InvitationClosedError(f"This invitation was withdrawn. {_ENDED}")
    if status is InvitationStatus.EXPIRED:
        raise errors.InvitationClosedError(f"This invitation has expired. {_ENDED}")


def check_offered_since(invitation: Invitation, removed_at: datetime | None) -> None:
    """Raise `InvitationClosedError` for a user whose membership ended at ``removed_at``, after the
    invitation was sent; None for a user who is no former member.

    Who removed a member need not know of an invitation that the member never used.
    """
    sent_at = invitation.expires_at - VALID
    if removed_at is not None and removed_at > sent_at:
        raise errors.InvitationClosedError(
            f"Your membership has ended since this invitation was sent. {_ENDED}"
        )


def check_role(roles: Roles, role_id: str) -> None:
    """Raise `InvitationClosedError` for a role that has left the catalog."""
    if role_id not in roles:
        raise errors.InvitationClosedError(f"The role of this invitation has ended. {_ENDED}")


def check_recipient(address: str, verified: str | None, *, has_proof: bool) -> None:
    """Raise unless the invitation to ``address`` may be accepted by a user.

    ``verified`` is the address that the identity provider verified as the user's. With the proof of
    a mail to the invited address it does not matter, because one person may have several addresses.
    Neither is ever left out, since a link without a proof can be copied and forwarded.

    Raises `EmailNotVerifiedError` and `EmailMismatchError`.
    """
    if has_proof:
        return
    if verified is None:
        raise errors.EmailNotVerifiedError(
            "The identity provider has not verified an email address of this user. Open the link in "
            "the mail that arrived at the invited address, or request a confirmation mail to it."
        )
    check_no_other_address(address, verified)


def check_no_other_address(address: str, verified: str | None) -> None:
    """Raise `EmailMismatchError` for a user whose verified address is not the invited one.

    The invited address is likely to be another person's, who must not get mail for this user.
    """
    if verified is not None and comparable_address(verified) != address:
        raise errors.EmailMismatchError(
            "This invitation is for another email address than the user's. If it is yours too, open "
            "the link in the mail that arrived there. Otherwise ask for an invitation of your address."
        )


def check_limits(*, open_ones: int, mails_today: int) -> None:
    """Raise `InvitationLimitReachedError` if a tenant may create no further invitation now."""
    if open_ones >= MOST_OPEN:
        raise errors.InvitationLimitReachedError(
            f"The organization has {MOST_OPEN} open invitations: withdraw some, or wait until they are accepted."
        )
    check_mails(mails_today)


def check_mails(mails_today: int) -> None:
    """Raise `InvitationLimitReachedError` if a tenant may send no further invitation mail now."""
    if mails_today >= MAILS_PER_DAY:
        raise errors.InvitationLimitReachedError(
            f"The organization sent {MAILS_PER_DAY} invitation mails in 24 hours: try again later."
        )


def check_sends(sends: int) -> None:
    """Raise `InvitationLimitReachedError` if an invitation was mailed often enough."""
    if sends >= MOST_SENDS:
        raise errors.InvitationLimitReachedError(
            f"This invitation was sent {MOST_SENDS} times: copy its link, or withdraw it and invite again."
        )


def check_mails_to_address(mails_today: int) -> None:
    """Raise `InvitationLimitReachedError` if an address may receive no further invitation mail
    now.
    """
    if mails_today >= MAILS_TO_ADDRESS_PER_DAY:
        raise errors.InvitationLimitReachedError(
            "This address received as many invitation mails as allowed in 24 hours: "
            "copy the link, or try again later."
        )


def confirmation_limit() -> errors.InvitationLimitReachedError:
    """Return the error of an address that received as many confirmation mails as allowed."""
    return errors.InvitationLimitReachedError(
        "This address received as many confirmation mails as allowed for now: open the newest one, or try again later."
    )
