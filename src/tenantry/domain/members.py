"""Members: the users of a tenant with a role each, and who may give, change and take roles."""

from datetime import datetime
from enum import StrEnum

import msgspec

from tenantry.domain.access import AccessLevel, Mode, Principal, PrincipalKind, Role, lower_role, role_grants
from tenantry.domain.errors import LastOwnerError, ModeMismatchError, ScopeEscalationError


class MemberStatus(StrEnum):
    ACTIVE = "active"
    REMOVED = "removed"


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """A user's membership in a tenant. A removed member's record stays, and keeps the user out."""

    id: str
    org_id: str
    user_id: str
    role: Role
    status: MemberStatus
    created_at: datetime
    updated_at: datetime
    removed_at: datetime | None


class Ownership(msgspec.Struct, frozen=True, rename="camel"):
    """Whose a tenant is, and where its billing mail goes."""

    owner_id: str
    owner_email: str
    owner_email_verified: bool


def removed(member: Member, now: datetime) -> Member:
    """The member, kept out from now on."""
    return msgspec.structs.replace(member, status=MemberStatus.REMOVED, removed_at=now)


def taken_back(member: Member, role: Role) -> Member:
    """The removed member, let in again with this role."""
    return msgspec.structs.replace(member, role=role, status=MemberStatus.ACTIVE, removed_at=None)


def check_may_give(giver: Principal, role: Role) -> None:
    """Raise unless ``giver`` may let a user have ``role``.

    Nobody gives a role that grants more than they hold themselves, and a key that ends gives no access that lasts.
    Raises `ScopeEscalationError` or `ModeMismatchError`.
    """
    check_may_manage(giver, role)
    scopes, _ = role_grants(role, ())
    giver.require_holding(scopes, AccessLevel.SCOPED)
    if giver.kind is PrincipalKind.API_KEY and giver.expires_at is not None:
        raise ScopeEscalationError("A key that has an end cannot give access that has none.")


def check_may_change(changer: Principal, before: Role, after: Role) -> None:
    """Raise unless ``changer`` may change a member's role so.

    More than before is like giving the role; less is open to everybody who manages members. What an owner is, only an
    OWNER changes. Raises `ScopeEscalationError` or `ModeMismatchError`.
    """
    check_may_manage(changer, before)
    if lower_role(before, after) is not after:
        check_may_give(changer, after)


def check_may_manage(manager: Principal, role: Role) -> None:
    """Raise unless ``manager`` may have to do with members of this role, be it to remove them.

    Raises `ScopeEscalationError` or `ModeMismatchError`.
    """
    if manager.mode is Mode.TEST:
        raise ModeMismatchError("Members have no test mode: a test-mode key manages none.")
    if role is Role.OWNER and manager.access_level is not AccessLevel.OWNER:
        raise ScopeEscalationError("Only an OWNER makes, changes and removes owners.")


def check_may_be_less(member: Member, *, owner_id: str, other_owners: int) -> None:
    """Raise `LastOwnerError` if the tenant would be left without its owner, or without any.

    ``owner_id`` is the tenant's; ``other_owners`` is how many active members beside this one are owners.
    """
    if member.user_id == owner_id:
        raise LastOwnerError(
            "This member is the tenant's owner: transfer the tenant first, with POST /api/v1/tenants/{id}/transfer."
        )
    if member.role is Role.OWNER and not other_owners:
        raise LastOwnerError("This is the tenant's last owner: give another member the role owner first.")


def check_may_begin_as(user_id: str, role: Role, *, owner_id: str) -> None:
    """Raise `LastOwnerError` if the tenant's owner would become less by being added with this role."""
    if user_id == owner_id and role is not Role.OWNER:
        raise LastOwnerError("This user is the tenant's owner: add them with the role owner, or transfer the tenant.")
