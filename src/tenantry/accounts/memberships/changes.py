"""Changes of memberships, which everything that adds, changes or removes a member makes here."""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET

from tenantry.accounts import invitations_store as invitations
from tenantry.accounts import members_store as members
from tenantry.auth.changes import CallersChange, Change
from tenantry.common.encoding import new_id
from tenantry.db.connection import Connection
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import TenantRow, TenantUsers
from tenantry.domain import errors
from tenantry.domain import members as rules
from tenantry.domain.audit import Action
from tenantry.domain.issuers import Issuers
from tenantry.domain.members import Member, Membership, MemberStatus, User
from tenantry.domain.permissions import AccessLevel, RequestPrincipal
from tenantry.domain.plan_limits import MEMBERS, limit_in_force
from tenantry.domain.plans import Catalog
from tenantry.domain.roles import OWNER, BuiltInRole, Role

NO_OUTBOX: Final = Outbox()
"""Drops what would ask the provider: where no seats can change, or the caller defers them."""


@dataclass(frozen=True)
class MembershipChanges:
    """The memberships of the tenant of a change. ``issuers`` are those whose users are its members;
    None are all.

    Each change is recorded in the audit trail, and through the ``outbox`` the seats at the provider
    follow the number of active members.
    """

    change: Change
    issuers: Issuers | None
    outbox: Outbox

    async def find(self, member_id: str) -> Member:
        """Read a member, a removed one included. Raises `NotFoundError`."""
        return await members.get(self.change.connection, self._users, member_id)

    async def find_user(self, user: User) -> Member | None:
        """Read the membership of a user, a removed one included."""
        return await members.find_user(self.change.connection, self.change.org_id, user)

    async def check_limit(self, catalog: Catalog) -> None:
        """Raise `PlanLimitReachedError` if the plan allows no further member. Invited users and
        open invitations by mail count.
        """
        change = self.change
        limit = limit_in_force(MEMBERS, change.tenant.record, catalog, change.now)
        if limit is None:
            return
        invited = await invitations.count_open(change.connection, change.org_id, change.now)
        current = await members.count_current(change.connection, self._users, limit.most)
        limit.check(invited + current)

    async def check_initial_role(self, role: Role, user: User, before: Member | None) -> None:
        """Raise `LastOwnerError` for a lower role of the tenant's owner. ``before`` is the user's
        membership, if any.
        """
        change = self.change
        is_owner = await _is_tenant_owner(
            change.connection, change.tenant, self.issuers, user.subject, before
        )
        rules.check_initial_role(role, is_tenant_owner=is_owner)

    async def add(
        self, user: User, before: Member | None, role: str, *, binds_owner: bool
    ) -> Member:
        """Invite a user who is no member, or was removed: then ``before`` is that membership. A
        user who adds themselves, or whom the operator adds, is active at once.
        """
        status = rules.status_of_new(self.change.author, user.subject)
        action = Action.MEMBER_INVITED if status is MemberStatus.INVITED else Action.MEMBER_ADDED
        wanted = self._wanted(user, before, role, status)
        return await self._put(action, user, before, wanted, binds_owner=binds_owner)

    async def admit(
        self, user: User, before: Member | None, role: Role, *, binds_owner: bool
    ) -> Member:
        """Make a user who accepted an invitation by mail an active member: a new one, or an invited
        or removed one, whose membership is ``before``.

        Raises `LastOwnerError`.
        """
        await self.check_initial_role(role, user, before)
        wanted = self._wanted(user, before, role.id, MemberStatus.ACTIVE)
        action = Action.MEMBER_ACCEPTED
        return await self._put(action, user, before, wanted, binds_owner=binds_owner)

    async def add_owner(self, user: User, *, is_founder: bool = False) -> None:
        """Make a user an active member with the role owner, unless the member was removed.

        ``is_founder``: the user has just created the tenant.
        """
        binds_owner = rules.binds_owner(self.change.author, AccessLevel.OWNER)
        before = await self.find_user(user)
        status = None if before is None else before.status
        if status is MemberStatus.REMOVED:
            return
        action = Action.MEMBER_UPDATED if status is MemberStatus.ACTIVE else Action.MEMBER_ADDED
        wanted = self._wanted(user, before, BuiltInRole.OWNER, MemberStatus.ACTIVE)
        await self._put(
            action, user, before, wanted, binds_owner=binds_owner, is_founder=is_founder
        )

    async def set_role(self, before: Member, role: str, *, binds_owner: bool) -> Member:
        """Change the role of a member."""
        after = msgspec.structs.replace(before, role=role)
        return await self.save(Action.MEMBER_UPDATED, before, after, binds_owner=binds_owner)

    async def save(
        self, action: Action, before: Member, after: Member, *, binds_owner: bool
    ) -> Member:
        """Store a change of a member.

        Without another change, an OWNER or the operator still makes the membership binding on a
        claimed owner.
        """
        change = self.change
        bound = await members.binds_owner(change.connection, before.org_id, before.id)
        binds = bound or binds_owner
        if after == before and binds == bound:
            return before
        if after != before:
            after = msgspec.structs.replace(after, updated_at=change.now)
        await members.update(change.connection, after, binds_owner=binds_owner)
        await change.record(
            action,
            after.id,
            before=rules.audited(before, binds_owner=bound),
            after=rules.audited(after, binds_owner=binds),
            shown=after,
            event=UNSET if after != before else None,
        )
        await self._follow_seats(before, after)
        return after

    async def _put(
        self,
        action: Action,
        user: User,
        before: Member | None,
        wanted: Member,
        *,
        binds_owner: bool,
        is_founder: bool = False,
    ) -> Member:
        """Store a new member, or the change of one."""
        if before is not None:
            return await self.save(action, before, wanted, binds_owner=binds_owner)
        await members.insert(
            self.change.connection,
            user.issuer,
            wanted,
            is_founder=is_founder,
            binds_owner=binds_owner,
        )
        after = rules.audited(wanted, binds_owner=binds_owner)
        await self.change.record(action, wanted.id, after=after, shown=wanted)
        await self._follow_seats(None, wanted)
        return wanted

    @property
    def _users(self) -> TenantUsers:
        return TenantUsers(self.change.org_id, self.issuers)

    def _wanted(self, user: User, before: Member | None, role: str, status: MemberStatus) -> Member:
        """Return the membership that a user gets, in the place of the one ``before``."""
        if before is not None:
            return msgspec.structs.replace(before, role=role, status=status, removed_at=None)
        now = self.change.now
        return Member(
            new_id("mbr"),
            self.change.org_id,
            user.subject,
            role,
            status,
            now,
            now,
            None,
        )

    async def _follow_seats(self, before: Member | None, after: Member) -> None:
        """Let the seats at the provider follow a change of the number of active members."""
        was_active = before is not None and before.status is MemberStatus.ACTIVE
        if was_active is not (after.status is MemberStatus.ACTIVE):
            await self.outbox.defer_seats(self.change.connection, [after.org_id])


async def check_not_last_owner(
    connection: Connection, tenant: TenantRow, issuers: Issuers | None, member: Member
) -> None:
    """Raise `LastOwnerError` for the only owner of a tenant that the transaction has locked."""
    others = await members.count_owners(
        connection, TenantUsers(member.org_id, issuers), except_id=member.id
    )
    is_owner = await _is_tenant_owner(connection, tenant, issuers, member.user_id, member)
    rules.check_not_last_owner(member, is_tenant_owner=is_owner, other_owners=others)


async def _is_tenant_owner(
    connection: Connection,
    tenant: TenantRow,
    issuers: Issuers | None,
    user_id: str,
    member: Member | None,
) -> bool:
    """Whether a user, with this membership if any, may be the tenant's owner, of whom the tenant
    stores the subject.

    A user of another directory may have the same subject: where one of them is an owner, the others
    are not meant.
    """
    if user_id != tenant.record.owner_id:
        return False
    own_id = member.id if member is not None else ""
    return not await members.count_owners(
        connection,
        TenantUsers(tenant.record.id, issuers),
        except_id=own_id,
        user_id=user_id,
    )


async def hand_over(change: CallersChange, issuers: Issuers | None, successor: User) -> None:
    """Make an active member of the caller's tenant its owner; the previous owner, if a member,
    becomes an admin.

    The previous owner may be a user of another one of the ``issuers`` than the successor.

    Raises `ScopeEscalationError`, `ModeMismatchError` and `ValidationError`.
    """
    rules.check_may_give(change.caller, OWNER)
    binds_owner = rules.binds_owner(change.author, change.caller.access_level)
    memberships = MembershipChanges(change, issuers, NO_OUTBOX)  # it changes no number
    member = await memberships.find_user(successor)
    if member is None or member.status is not MemberStatus.ACTIVE:
        raise errors.ValidationError(("userId", "is not an active member of the tenant"))
    former = await members.find_owner(
        change.connection,
        TenantUsers(change.org_id, issuers),
        User(successor.issuer, change.tenant.record.owner_id),
    )
    await memberships.set_role(member, BuiltInRole.OWNER, binds_owner=binds_owner)
    if former is not None and former.id != member.id and former.status is MemberStatus.ACTIVE:
        role = rules.role_of_former_owner(former.role)
        await memberships.set_role(former, role, binds_owner=binds_owner)


def membership_of(tenant: TenantRow, member: Member) -> Membership:
    """Return a member's own view of the membership."""
    return Membership(
        member.id,
        member.org_id,
        tenant.record.name,
        member.role,
        member.status,
    )


def issuer_named_by(issuers: Issuers | None, principal: RequestPrincipal) -> str | None:
    """Return the issuer of the users whom a principal names by subject: the principal's own, or the
    only one; None for a key or the operator where the users come from several directories.
    """
    return principal.issuer or (issuers.only if issuers is not None else None)


def issuer_of_new(issuers: Issuers | None, principal: RequestPrincipal) -> str:
    """Return the issuer of a user whom a principal names: the principal's own, or the only one.

    Raises `IdentityProviderNotConfiguredError` without an identity provider, and `ValidationError`
    for a key where the users come from several directories.
    """
    if issuers is None:
        raise errors.IdentityProviderNotConfiguredError(
            "Members are users of an identity provider: set OIDC_ISSUER."
        )
    issuer = issuer_named_by(issuers, principal)
    if issuer is None:
        raise errors.ValidationError(
            (
                "userId",
                "may be of any of several directories: repeat this with the token of a user of the same one",
            )
        )
    return issuer
