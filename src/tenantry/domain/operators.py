"""Who may open the operator's pages (CONTRACT 11.2)."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from tenantry.domain.members import User, is_email

SIGNED_IN_WITHIN: Final = timedelta(hours=1)
"""How long ago the identity provider may have authenticated an operator who changes something."""


class OperatorRole(msgspec.Struct, frozen=True):
    """The role of operators at the identity provider, and the claim that gives it."""

    claim: str
    name: str


class Operators(msgspec.Struct, frozen=True):
    """The users who may open the operator's pages: named ones, and those to whom the identity
    provider gives a role.

    ``issuer`` is that of ``subjects``; None where there are several issuers, whose users are named
    as ``pairs`` of issuer and subject. ``addresses`` are in lower case, and compared exactly.
    """

    issuer: str | None
    subjects: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()
    pairs: frozenset[User] = frozenset()
    role: OperatorRole | None = None

    @property
    def any(self) -> bool:
        """Whether there can be an operator."""
        return bool(self.subjects or self.addresses or self.pairs or self.role)

    def include(self, user: User, verified_email: str | None, role: OperatorRole | None) -> bool:
        """Whether a user is an operator, who has this verified address, and this operator's role
        at the identity provider.
        """
        is_of_issuer = self.issuer is not None and user.issuer == self.issuer
        is_named = user.subject in self.subjects or verified_email in self.addresses
        has_role = role is not None and role == self.role
        return user in self.pairs or (is_of_issuer and (is_named or has_role))


def operators_of(
    entries: Sequence[str], issuer: str | None, role: OperatorRole | None
) -> Operators:
    """Return the operators of checked entries: subjects, addresses, or pairs of issuer and subject
    with a blank between.
    """
    pairs = [entry for entry in entries if " " in entry]
    single = [entry for entry in entries if " " not in entry]
    return Operators(
        issuer,
        subjects=frozenset(each for each in single if not is_email(each)),
        addresses=frozenset(filter(is_email, single)),
        pairs=frozenset(User(*each.split(" ")) for each in pairs),
        role=role,
    )
