"""Members: the users of a tenant with their roles, and the rules for changes."""

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain import errors
from tenantry.domain.audit import ActorKind, Author
from tenantry.domain.permissions import (
    AccessLevel,
    Mode,
    PrincipalKind,
    RequestPrincipal,
)
from tenantry.domain.roles import BuiltInRole, Role

# "|" may be in an address, but separates the parts of many providers' user ids:
# samlp|acme|ada@acme.example.
_EMAIL: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{}~-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_NOT_AN_EMAIL: Final = (
    "is an e-mail address. Send the user's id at the identity provider, which is `sub` of their tokens. "
    "Users find theirs on the dashboard: on their profile, or on the page after their first sign-in."
)


class MemberStatus(StrEnum):
    INVITED = "invited"
    ACTIVE = "active"
    REMOVED = "removed"


class User(NamedTuple):
    """A user of an identity provider."""

    issuer: str
    subject: str


class UserProfile(NamedTuple):
    """What a tenant knows of a user, as the identity provider describes them."""

    name: str | None
    email: str | None
    """An address that the identity provider has verified; of a primary owner who has not used the
    tenant yet, the tenant's present address for billing mail.
    """
    seen_at: datetime | None
    """None for a user who has not used the tenant yet."""

    @property
    def label(self) -> str:
        """The name, or the address; empty if neither is known."""
        return self.name or self.email or ""


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """A user's membership in a tenant. The record of a removed member stays, so that the user is
    rejected.
    """

    id: Annotated[
        str,
        doc(
            "The member's id, for changing the role and removing it.",
            "mbr_01975c3a5b3ef0a1b2c3d4e5f6071829",
        ),
    ]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    user_id: Annotated[
        str, doc("The user's id at the identity provider: `sub` of their tokens.", "user_ada")
    ]
    role: Annotated[
        str,
        doc(
            "An owner may do everything, an admin all but what needs an OWNER, a member uses projects. "
            "The plan catalog may add roles.",
            "owner",
        ),
    ]
    status: Annotated[
        MemberStatus, doc("`invited` until the user accepts, `active`, or `removed`.", "active")
    ]
    created_at: Annotated[
        datetime, doc("When the user was first added or invited.", "2026-10-01T08:00:00Z")
    ]
    updated_at: Annotated[datetime, doc("When it was last changed.", "2026-10-01T08:00:00Z")]
    removed_at: Annotated[
        datetime | None,
        doc(
            "When the user was removed; null for a current member. Requests of a removed user are rejected.",
            None,
        ),
    ]


class AuditedMember(Member, frozen=True, rename="camel"):
    """A member in the audit trail."""

    binds_owner: bool
    """Whether it also restricts a user whose token claims the role owner: an OWNER or the operator
    wrote it.
    """


class Membership(msgspec.Struct, frozen=True, rename="camel"):
    """A membership as its user sees it. An invitation shows nothing else of the tenant."""

    id: Annotated[
        str,
        doc(
            "The membership's id: the id of the member in the tenant.",
            "mbr_01975c3a5b3ef0a1b2c3d4e5f6071829",
        ),
    ]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    org_name: Annotated[str, doc("The tenant's name, chosen by its members.", "Acme")]
    role: Annotated[str, doc("What the user may do in the tenant.", "admin")]
    status: Annotated[
        MemberStatus, doc("`invited` until the user accepts, `active`, or `removed`.", "invited")
    ]


def binds_owner(author: Author, level: AccessLevel, *, binds: bool = True) -> bool:
    """Whether what an author with this level writes also restricts a user whose token claims the
    role owner. Without ``binds`` it does not.
    """
    is_decisive = author.kind is ActorKind.OPERATOR or level is AccessLevel.OWNER
    return binds and is_decisive


def audited(member: Member, *, binds_owner: bool) -> AuditedMember:
    """Return the member for the audit trail."""
    return AuditedMember(**msgspec.structs.asdict(member), binds_owner=binds_owner)


def removed(member: Member, now: datetime) -> Member:
    """Return the member, removed now."""
    return msgspec.structs.replace(member, status=MemberStatus.REMOVED, removed_at=now)


def accepted(member: Member) -> Member:
    """Return the active member. Raises `MemberNotActiveError` for a removed one."""
    if member.status is MemberStatus.REMOVED:
        raise errors.MemberNotActiveError(
            "This membership has ended: the invitation was withdrawn or declined, or the member was removed. "
            "Ask an owner or admin of the organization for a new invitation."
        )
    return msgspec.structs.replace(member, status=MemberStatus.ACTIVE)


def status_of_new(author: Author, user_id: str) -> MemberStatus:
    """Return the status of a new membership: invited, unless the operator or the user creates
    it.
    """
    is_own = author.kind is ActorKind.USER and author.id == user_id
    return (
        MemberStatus.ACTIVE if is_own or author.kind is ActorKind.OPERATOR else MemberStatus.INVITED
    )


def is_email(user_id: str) -> bool:
    """Whether this is an e-mail address, which most identity providers do not use as an id."""
    return _EMAIL.fullmatch(user_id) is not None


def check_user_id(user_id: str, location: str) -> None:
    """Raise `ValidationError` for an e-mail address."""
    if is_email(user_id):
        raise errors.ValidationError((location, _NOT_AN_EMAIL))


def check_may_give(giver: RequestPrincipal, role: Role) -> None:
    """Raise unless ``giver`` may give ``role``: one that their role gives, that grants no more than
    they have, and not by a key that expires.

    Raises `ScopeEscalationError` or `ModeMismatchError`.
    """
    check_may_manage(giver, role)
    giver.require_holding(role.scopes, AccessLevel.SCOPED)
    if giver.kind is PrincipalKind.API_KEY and giver.expires_at is not None:
        raise errors.ScopeEscalationError("A key with an expiry cannot grant access without one.")


def assignable_roles(giver: RequestPrincipal, roles: Iterable[Role]) -> list[Role]:
    """Return those of the roles that ``giver`` may give."""
    return [role for role in roles if _is_allowed(check_may_give, giver, role)]


def may_manage(manager: RequestPrincipal, role: Role) -> bool:
    """Whether ``manager`` may change members with this role."""
    return _is_allowed(check_may_manage, manager, role)


def _is_allowed(
    check: Callable[[RequestPrincipal, Role], None], principal: RequestPrincipal, role: Role
) -> bool:
    try:
        check(principal, role)
    except errors.DomainError:
        return False
    return True


def check_may_change(changer: RequestPrincipal, before: Role, after: Role) -> None:
    """Raise unless ``changer`` may change a member's role so: a role that permits more as in
    `check_may_give`.

    Raises `ScopeEscalationError` or `ModeMismatchError`.
    """
    check_may_manage(changer, before)
    check_may_manage(changer, after)
    if not before.includes(after):
        check_may_give(changer, after)


def check_may_manage(manager: RequestPrincipal, role: Role) -> None:
    """Raise `ScopeEscalationError` or `ModeMismatchError` unless ``manager`` may change members
    with this role.
    """
    if manager.mode is Mode.TEST:
        raise errors.ModeMismatchError("A test-mode key cannot manage members.")
    if role.is_owner and manager.access_level is not AccessLevel.OWNER:
        raise errors.ScopeEscalationError("Only an owner can add, change or remove owners.")
    manager.require_giving(role.id)


def role_of_former_owner(role_id: str) -> str:
    """Return the role that a member keeps after handing over the tenant: an owner becomes an
    admin.
    """
    return BuiltInRole.ADMIN if role_id == BuiltInRole.OWNER else role_id


def check_not_last_owner(member: Member, *, is_tenant_owner: bool, other_owners: int) -> None:
    """Raise `LastOwnerError` if the tenant would lose its owner or its last member who is an owner.

    ``other_owners`` is the number of other active members who are owners.
    """
    if member.status is MemberStatus.REMOVED:
        return
    if is_tenant_owner:  # an invited one too: the user may already be an owner by the claim
        raise errors.LastOwnerError(
            "This member is the tenant's owner: transfer the tenant first, with POST /api/v1/tenants/{id}/transfer."
        )
    is_owner = member.status is MemberStatus.ACTIVE and member.role == BuiltInRole.OWNER
    if is_owner and not other_owners:
        raise errors.LastOwnerError(
            "This is the tenant's last owner: give another member the role owner first."
        )


def check_initial_role(role: Role, *, is_tenant_owner: bool) -> None:
    """Raise `LastOwnerError` if the tenant's owner would get a lower role."""
    if is_tenant_owner and not role.is_owner:
        raise errors.LastOwnerError(
            "This user is the tenant's owner: add them with the role owner, or transfer the tenant."
        )
