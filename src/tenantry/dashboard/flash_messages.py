"""What a page says once, at its top, of the form that led to it.

It is in a cookie, proved to be ours: an address that anybody can write makes no page say that something was done.
"""

import hmac
from enum import StrEnum
from typing import Final

from tenantry.domain.sessions import Session, SessionSecret

_PROOF_AFTER: Final = "."


class Notice(StrEnum):
    """All that is ever said, in full."""

    MEMBER_ADDED = "The user is a member now."
    MEMBER_INVITED = "The user is invited. They become a member when they accept."
    INVITATION_WITHDRAWN = "The invitation is withdrawn."
    INVITATION_DECLINED = "The invitation is declined."
    INVITATION_ACCEPTED = "You are a member of this organization now."
    ORGANIZATION_LEFT = "You have left the organization."
    MEMBER_CHANGED = "The role is changed. It counts from the next request on."
    MEMBER_REMOVED = "The member is removed. Their next request is refused."
    TRANSFERRED = "The organization has a new owner."
    PROJECT_DELETED = "The project is deleted."
    KEY_SAVED = "Saved. It counts from the next request on."
    OTHERS_SIGNED_OUT = "You are signed out everywhere else."
    CONFIRMATION_SENT = "The confirmation is on its way to the owner's address."
    CONFIRMATION_LIMITED = "Not sent: the address has had several confirmations. Try again in an hour, or tomorrow."
    ADDRESS_VERIFIED = "The owner's address is verified already."
    CHECKED_OUT = (
        "The provider has taken the order. The plan changes as soon as its event arrives, usually within seconds."
    )
    CHECKOUT_LEFT = "The checkout was left. Nothing was ordered."
    PORTAL_LEFT = "What you changed at the provider shows here as soon as its event arrives, usually within seconds."

    @property
    def is_done(self) -> bool:
        """Whether what it says is done, and nothing is waited for."""
        return self not in (
            Notice.CHECKED_OUT, Notice.CHECKOUT_LEFT, Notice.PORTAL_LEFT, Notice.CONFIRMATION_LIMITED,
        )  # fmt: skip


class Notices:
    """Proves notices, each for one session and the path of one page."""

    def __init__(self, secret: SessionSecret) -> None:
        self._secret = secret

    def prove(self, session: Session, path: str, notice: Notice) -> str:
        """The notice with its proof, in letters, digits, underscores and a dot."""
        return f"{notice.name}{_PROOF_AFTER}{self._secret.proof(session.digest, f'{notice.name} {path}')}"

    def read(self, session: Session, path: str, proved: str) -> Notice | None:
        """What `prove` was given for this session and path; None for any other text."""
        notice = Notice.__members__.get(proved.partition(_PROOF_AFTER)[0])
        if notice is None or not hmac.compare_digest(proved.encode(), self.prove(session, path, notice).encode()):
            return None
        return notice
