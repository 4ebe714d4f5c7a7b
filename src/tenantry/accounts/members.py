"""Members of tenants: list, invite, change, remove; and users' own memberships."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET

from tenantry.accounts import invitations_store as invitations
from tenantry.accounts import members_store as members
from tenantry.accounts.members_store import MemberFilter
from tenantry.audit import trail as audit
from tenantry.auth.authentication import lock_and_reauthorize
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db import idempotency_store as idempotency
from tenantry.db.connection import OF_PEOPLE, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.db.outbox import Outbox
from tenantry.db.pagination import Page, window_after
from tenantry.db.tenants_store import TenantRow, get_tenant
from tenantry.domain import errors
from tenantry.domain import members as rules
from tenantry.domain.audit import Action, ActorKind, Author
from tenantry.domain.issuers import Issuers
from tenantry.domain.members import (
    Member,
    Membership,
    MemberStatus,
    User,
)
from tenantry.domain.permissions import AccessLevel, RequestPrincipal
from tenantry.domain.plan_limits import MEMBERS, limit_in_force
from tenantry.domain.plans import Catalog
from tenantry.domain.roles import OWNER, BuiltInRole, Role
from tenantry.integrations.oidc.tokens import Claims

WRITE_SCOPE: Final = "members:write"
NO_OUTBOX: Final = Outbox()
"""Drops what would ask the provider."""


@dataclass(frozen=True)
class MemberService:
    """The members of a principal's tenant: users of one identity provider, whose ``issuers`` these
    are.

    Users of a former identity provider are not members, because they cannot sign in. Without an
    identity provider no user can be added, and the members of all are listed. Every change locks
    the tenant's row, so that two changes at once cannot leave a tenant without an owner.
    ``email_subjects`` allows e-mail addresses as user ids, where the identity provider has such
    ids.
    """

    database: Database
    issuers: Issuers | None
    catalog: Catalog
    clock: Clock
    _: KW_ONLY
    outbox: Outbox = NO_OUTBOX
    email_subjects: bool = False

    async def list_page(
        self,
        principal: RequestPrincipal,
        wanted: MemberFilter,
        limit: int,
        cursor: str | None,
    ) -> Page[Member]:
        """Read a page of members, newest first. Raises `InvalidCursorError`, and `ValidationError`
        for an unknown role.
        """
        if wanted.role is not None:
            self.catalog.roles.require(wanted.role)
        org_id = principal.org_id
        window = window_after(limit, cursor)
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return await members.read_page(
                connection,
                org_id,
                self.issuers,
                wanted,
                window,
            )

    async def get(self, principal: RequestPrincipal, member_id: str) -> Member:
        """Read a member, removed ones included. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await self._find(connection, principal, member_id)

    async def of_user(self, principal: RequestPrincipal, user: User) -> Member | None:
        """Read a user's membership in the principal's tenant, a removed one included; None for
        access by claim alone.
        """
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await members.find_user(connection, principal.org_id, user)

    async def users_of(
        self, principal: RequestPrincipal, found: Sequence[Member]
    ) -> dict[str, User]:
        """Return the users of members, by the member's id: users of two directories may have the
        same subject.
        """
        member_ids = [member.id for member in found]
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            issuers = await members.issuers_of(connection, principal.org_id, member_ids)
        return {
            member.id: User(issuers[member.id], member.user_id)
            for member in found
            if member.id in issuers
        }

    async def owner_of(self, principal: RequestPrincipal, viewer: User) -> Member | None:
        """Return the membership of the tenant's owner, if any.

        The tenant stores the owner's subject alone. Of several users with it, an active owner comes
        first, then a user of the ``viewer``'s issuer. Raises `NotFoundError`.
        """
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            tenant = await get_tenant(connection, principal.org_id)
            owner = User(viewer.issuer, tenant.record.owner_id)
            return await members.find_owner(
                connection,
                principal.org_id,
                self.issuers,
                owner,
            )

    async def add(
        self,
        principal: RequestPrincipal,
        author: Author,
        *,
        user_id: str,
        role: str,
        claim: Claim | None,
    ) -> Member:
        """Invite a user, or a removed member again. A user who adds themselves is active at once.

        Raises `IdentityProviderNotConfiguredError`, `ScopeEscalationError`, `ModeMismatchError`,
        `LastOwnerError`, `MemberExistsError`, `PlanLimitReachedError`, `ValidationError` and the
        errors of idempotency.
        """
        issuer = issuer_of_new(self.issuers, principal)
        wanted = self.catalog.roles.require(role)
        if not self.email_subjects:
            rules.check_user_id(user_id, "userId")
        status = rules.status_of_new(author, user_id)
        action = Action.MEMBER_INVITED if status is MemberStatus.INVITED else Action.MEMBER_ADDED
        async with self.database.change(of_tenant(principal.org_id)) as connection:
            repeated = await idempotency.begin(
                connection,
                claim,
                Member,
                self.clock(),
            )
            if repeated is not None:
                return repeated
            tenant, caller, now = await lock_and_reauthorize(
                connection,
                principal,
                WRITE_SCOPE,
                self.clock,
            )
            rules.check_may_give(caller, wanted)
            before = await members.find_user(connection, principal.org_id, User(issuer, user_id))
            is_owner = await _is_tenant_owner(
                connection,
                tenant,
                self.issuers,
                user_id,
                before,
            )
            rules.check_initial_role(wanted, is_tenant_owner=is_owner)
            _check_not_current(before)
            await check_member_limit(connection, tenant, self.issuers, self.catalog, now)
            binds_owner = rules.binds_owner(author, caller.access_level)
            if before is None:
                member = Member(
                    new_id("mbr"),
                    principal.org_id,
                    user_id,
                    role,
                    status,
                    now,
                    now,
                    None,
                )
                await _insert(connection, author, issuer, member, binds_owner=binds_owner)
            else:
                again = msgspec.structs.replace(
                    before,
                    role=role,
                    status=status,
                    removed_at=None,
                )
                member = await _save(
                    connection,
                    author,
                    action,
                    before,
                    again,
                    now,
                    binds_owner=binds_owner,
                )
            await _follow_seats(self.outbox, connection, before, member)
            await idempotency.keep(connection, claim, member, now)
            return member

    async def change_role(
        self,
        principal: RequestPrincipal,
        author: Author,
        member_id: str,
        role: str,
        *,
        binds: bool = True,
    ) -> Member:
        """Change the role of a member or an invited user. ``binds`` is as in
        `tenantry.domain.members.binds_owner`.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError`, `MemberNotActiveError`,
        `LastOwnerError`, and `ValidationError` for an unknown role.
        """
        roles = self.catalog.roles
        after = roles.require(role)
        async with self.database.change(of_tenant(principal.org_id)) as connection:
            tenant, caller, now = await lock_and_reauthorize(
                connection,
                principal,
                WRITE_SCOPE,
                self.clock,
            )
            before = await self._find(connection, caller, member_id)
            rules.check_may_change(caller, roles.find(before.role), after)
            if before.status is MemberStatus.REMOVED:
                raise errors.MemberNotActiveError(
                    "The membership has ended: invite the user with POST /api/v1/members."
                )
            if not after.includes(roles.find(before.role)):
                await _check_not_last_owner(
                    connection,
                    tenant,
                    self.issuers,
                    before,
                )
            binds_owner = rules.binds_owner(author, caller.access_level, binds=binds)
            return await _set_role(
                connection,
                author,
                before,
                role,
                now,
                binds_owner=binds_owner,
            )

    async def remove(
        self, principal: RequestPrincipal, author: Author, member_id: str, *, binds: bool = True
    ) -> None:
        """Remove a member or withdraw an invitation; a removed user is rejected whatever their
        tokens claim.

        A user whose token claims the role owner is rejected only if an OWNER or the operator wrote
        the membership. ``binds`` is as in `tenantry.domain.members.binds_owner`.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError`, `LastOwnerError`.
        """
        async with self.database.change(of_tenant(principal.org_id)) as connection:
            tenant, caller, now = await lock_and_reauthorize(
                connection,
                principal,
                WRITE_SCOPE,
                self.clock,
            )
            before = await self._find(connection, caller, member_id)
            rules.check_may_manage(caller, self.catalog.roles.find(before.role))
            binds_owner = rules.binds_owner(author, caller.access_level, binds=binds)
            if before.status is not MemberStatus.REMOVED:
                await _check_not_last_owner(
                    connection,
                    tenant,
                    self.issuers,
                    before,
                )
            after = before if before.status is MemberStatus.REMOVED else rules.removed(before, now)
            await _save(
                connection,
                author,
                Action.MEMBER_REMOVED,
                before,
                after,
                now,
                binds_owner=binds_owner,
            )
            await _follow_seats(self.outbox, connection, before, after)

    async def _find(
        self, connection: Connection, principal: RequestPrincipal, member_id: str
    ) -> Member:
        member = await members.find(
            connection,
            principal.org_id,
            self.issuers,
            member_id,
        )
        if member is None:
            raise errors.NotFoundError("member")
        return member

    def accepts_user_id(self, user_id: str) -> bool:
        """Whether this may be a user's id; an e-mail address only where the identity provider has
        such ids.
        """
        return self.email_subjects or not rules.is_email(user_id)


@dataclass(frozen=True)
class MembershipService:
    """A user's own memberships in any tenants. Changes need no role, and lock the tenant's row.

    ``issuers`` are those whose users count as other owners.
    """

    database: Database
    issuers: Issuers | None
    clock: Clock
    outbox: Outbox = NO_OUTBOX

    async def list_page(
        self, user: User, status: MemberStatus | None, limit: int, cursor: str | None
    ) -> Page[Membership]:
        """Read a page of a user's memberships and invitations, newest first. Raises
        `InvalidCursorError`.
        """
        window = window_after(limit, cursor)
        async with self.database.transaction(OF_PEOPLE) as connection:
            return await members.read_own_page(connection, user, status, window)

    async def get(self, user: User, membership_id: str) -> Membership:
        """Read a membership of the user, removed ones included. Raises `NotFoundError`."""
        async with (
            self.database.transaction(OF_PEOPLE) as connection,
            self._locked(connection, user, membership_id) as (tenant, member),
        ):
            return _shown(tenant, member)

    async def accept(
        self, user: User, author: Author, membership_id: str, claim: Claim | None
    ) -> Membership:
        """Accept an invitation. Raises `NotFoundError`, `MemberNotActiveError` and the errors of
        idempotency.
        """
        async with self.database.change(OF_PEOPLE) as connection:
            now = self.clock()
            repeated = await idempotency.begin(connection, claim, Membership, now)
            if repeated is not None:
                return repeated
            async with self._locked(connection, user, membership_id) as (tenant, member):
                accepted = _shown(tenant, await self._accept(connection, author, member))
            await idempotency.keep(connection, claim, accepted, now)
            return accepted

    async def accept_named(self, claims: Claims, org_id: str, address: str | None) -> None:
        """Accept the invitation to a tenant that a user's request names.

        Raises `NotFoundError`, `MemberNotActiveError` and `DatabaseUnavailableError`.
        """
        async with self.database.change(of_tenant(org_id)) as connection:
            await get_tenant(connection, org_id, lock=True)
            member = await members.find_user(connection, org_id, claims.user)
            if member is None:
                raise errors.NotFoundError("membership")
            author = Author(ActorKind.USER, claims.subject, address)
            await self._accept(connection, author, member)

    async def check_may_end(self, user: User, membership_id: str) -> None:
        """Raise `LastOwnerError` if the tenant needs the user as its owner; or `NotFoundError`."""
        async with (
            self.database.transaction(OF_PEOPLE) as connection,
            self._locked(connection, user, membership_id) as (tenant, member),
        ):
            await _check_not_last_owner(
                connection,
                tenant,
                self.issuers,
                member,
            )

    async def end(
        self, user: User, author: Author, membership_id: str, *, leaves: bool = False
    ) -> None:
        """Decline an invitation, or leave. Raises `NotFoundError` and `LastOwnerError`.

        ``leaves``: an invited user, whose token claims the tenant, leaves rather than declines.
        """
        async with (
            self.database.change(OF_PEOPLE) as connection,
            self._locked(connection, user, membership_id) as (tenant, member),
        ):
            if member.status is MemberStatus.REMOVED:
                return
            await _check_not_last_owner(
                connection,
                tenant,
                self.issuers,
                member,
            )
            declines = member.status is MemberStatus.INVITED and not leaves
            action = Action.MEMBER_DECLINED if declines else Action.MEMBER_LEFT
            now = self.clock()
            removed = rules.removed(member, now)
            await _save(
                connection,
                author,
                action,
                member,
                removed,
                now,
                # a user who left is rejected even if the token claims the role owner
                binds_owner=not declines,
            )
            await _follow_seats(self.outbox, connection, member, removed)

    async def _accept(self, connection: Connection, author: Author, member: Member) -> Member:
        accepted = await _save(
            connection,
            author,
            Action.MEMBER_ACCEPTED,
            member,
            rules.accepted(member),
            self.clock(),
            binds_owner=False,
        )
        await _follow_seats(self.outbox, connection, member, accepted)
        return accepted

    @asynccontextmanager
    async def _locked(
        self, connection: Connection, user: User, membership_id: str
    ) -> AsyncIterator[tuple[TenantRow, Member]]:
        """Lock the tenant of the user's membership, and work on it during the block. Raises
        `NotFoundError`.
        """
        org_id = await members.find_tenant_id(connection, user, membership_id)
        if org_id is None:
            raise errors.NotFoundError("membership")
        async with connection.within(of_tenant(org_id)):
            tenant = await get_tenant(connection, org_id, lock=True)
            member = await members.find(
                connection,
                org_id,
                Issuers(user.issuer),
                membership_id,
            )
            if member is None:
                raise errors.NotFoundError("membership")
            yield tenant, member


def issuer_of_new(issuers: Issuers | None, principal: RequestPrincipal) -> str:
    """Return the issuer of a user whom a principal names: the principal's own, or the only one.

    Raises `IdentityProviderNotConfiguredError` without an identity provider, and `ValidationError`
    for a key where the users come from several directories.
    """
    if issuers is None:
        raise errors.IdentityProviderNotConfiguredError(
            "Members are users of an identity provider: set OIDC_ISSUER."
        )
    issuer = principal.issuer or issuers.only
    if issuer is None:
        raise errors.ValidationError(
            (
                "userId",
                "may be of any of several directories: repeat this with the token of a user of the same one",
            )
        )
    return issuer


async def check_member_limit(
    connection: Connection,
    tenant: TenantRow,
    issuers: Issuers | None,
    catalog: Catalog,
    now: datetime,
) -> None:
    """Raise `PlanLimitReachedError` if the plan allows no further member. Invited users and open
    invitations by mail count.
    """
    limit = limit_in_force(MEMBERS, tenant.record, catalog, now)
    if limit is None:
        return
    org_id = tenant.record.id
    invited = await invitations.count_open(connection, org_id, now)
    limit.check(invited + await members.count_current(connection, org_id, issuers, limit.most))


async def admit(
    connection: Connection,
    outbox: Outbox,
    author: Author,
    tenant: TenantRow,
    issuers: Issuers | None,
    user: User,
    before: Member | None,
    role: Role,
    now: datetime,
    *,
    binds_owner: bool,
) -> Member:
    """Make a user who accepted an invitation by mail an active member: a new one, or an invited or
    removed one, whose membership is ``before``.

    The transaction has locked the tenant. Raises `LastOwnerError`.
    """
    org_id = tenant.record.id
    is_owner = await _is_tenant_owner(connection, tenant, issuers, user.subject, before)
    rules.check_initial_role(role, is_tenant_owner=is_owner)
    if before is None:
        member = Member(
            new_id("mbr"),
            org_id,
            user.subject,
            role.id,
            MemberStatus.ACTIVE,
            now,
            now,
            None,
        )
        await _insert(
            connection,
            author,
            user.issuer,
            member,
            binds_owner=binds_owner,
            has_accepted=True,
        )
    else:
        again = msgspec.structs.replace(
            before,
            role=role.id,
            status=MemberStatus.ACTIVE,
            removed_at=None,
        )
        member = await _save(
            connection,
            author,
            Action.MEMBER_ACCEPTED,
            before,
            again,
            now,
            binds_owner=binds_owner,
        )
    await _follow_seats(outbox, connection, before, member)
    return member


async def add_owner(
    connection: Connection,
    author: Author,
    user: User,
    org_id: str,
    now: datetime,
    *,
    is_founder: bool = False,
) -> None:
    """Make a user an active member with the role owner, unless the member was removed.

    ``is_founder``: the user has just created the tenant. The transaction must hold the lock on the
    tenant's row.
    """
    binds_owner = rules.binds_owner(author, AccessLevel.OWNER)
    before = await members.find_user(connection, org_id, user)
    if before is None:
        member = Member(
            new_id("mbr"),
            org_id,
            user.subject,
            BuiltInRole.OWNER,
            MemberStatus.ACTIVE,
            now,
            now,
            None,
        )
        await _insert(
            connection,
            author,
            user.issuer,
            member,
            is_founder=is_founder,
            binds_owner=binds_owner,
        )
    elif before.status is not MemberStatus.REMOVED:
        action = (
            Action.MEMBER_ADDED if before.status is MemberStatus.INVITED else Action.MEMBER_UPDATED
        )
        after = msgspec.structs.replace(before, role=BuiltInRole.OWNER, status=MemberStatus.ACTIVE)
        await _save(
            connection,
            author,
            action,
            before,
            after,
            now,
            binds_owner=binds_owner,
        )


async def hand_over(
    connection: Connection,
    author: Author,
    caller: RequestPrincipal,
    issuers: Issuers | None,
    owner_id: str,
    successor: User,
    now: datetime,
) -> None:
    """Make an active member of the caller's tenant its owner; the previous owner, if a member,
    becomes an admin.

    The previous owner ``owner_id`` may be a user of another one of the ``issuers`` than the
    successor.

    Raises `ScopeEscalationError`, `ModeMismatchError` and `ValidationError`.
    """
    rules.check_may_give(caller, OWNER)
    binds_owner = rules.binds_owner(author, caller.access_level)
    member = await members.find_user(connection, caller.org_id, successor)
    if member is None or member.status is not MemberStatus.ACTIVE:
        raise errors.ValidationError(("userId", "is not an active member of the tenant"))
    former = await members.find_owner(
        connection,
        caller.org_id,
        issuers,
        User(successor.issuer, owner_id),
    )
    await _set_role(
        connection,
        author,
        member,
        BuiltInRole.OWNER,
        now,
        binds_owner=binds_owner,
    )
    if former is not None and former.id != member.id and former.status is MemberStatus.ACTIVE:
        await _set_role(
            connection,
            author,
            former,
            rules.role_of_former_owner(former.role),
            now,
            binds_owner=binds_owner,
        )


async def _check_not_last_owner(
    connection: Connection, tenant: TenantRow, issuers: Issuers | None, member: Member
) -> None:
    others = await members.count_owners(
        connection,
        member.org_id,
        issuers,
        except_id=member.id,
    )
    is_owner = await _is_tenant_owner(
        connection,
        tenant,
        issuers,
        member.user_id,
        member,
    )
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
    org_id = tenant.record.id
    return not await members.count_owners(
        connection,
        org_id,
        issuers,
        except_id=own_id,
        user_id=user_id,
    )


def _check_not_current(member: Member | None) -> None:
    if member is not None and member.status is not MemberStatus.REMOVED:
        raise errors.MemberExistsError(
            f"The user is a member or invited already, as {member.role}: "
            f"change the role with PATCH /api/v1/members/{member.id}."
        )


async def _insert(
    connection: Connection,
    author: Author,
    issuer: str,
    member: Member,
    *,
    binds_owner: bool,
    is_founder: bool = False,
    has_accepted: bool = False,
) -> Member:
    await members.insert(
        connection,
        issuer,
        member,
        is_founder=is_founder,
        binds_owner=binds_owner,
    )
    action = Action.MEMBER_ACCEPTED if has_accepted else _action_of_new(member)
    after = rules.audited(member, binds_owner=binds_owner)
    await audit.record(
        connection,
        author,
        action,
        (member.org_id, member.id),
        member.created_at,
        after=after,
        shown=member,
    )
    return member


def _action_of_new(member: Member) -> Action:
    return Action.MEMBER_INVITED if member.status is MemberStatus.INVITED else Action.MEMBER_ADDED


async def _set_role(
    connection: Connection,
    author: Author,
    before: Member,
    role: str,
    now: datetime,
    *,
    binds_owner: bool,
) -> Member:
    after = msgspec.structs.replace(before, role=role)
    return await _save(
        connection,
        author,
        Action.MEMBER_UPDATED,
        before,
        after,
        now,
        binds_owner=binds_owner,
    )


async def _save(
    connection: Connection,
    author: Author,
    action: Action,
    before: Member,
    after: Member,
    now: datetime,
    *,
    binds_owner: bool,
) -> Member:
    """Store a change of a member, and record it in the audit trail.

    Without another change, an OWNER or the operator still makes the membership binding on a claimed
    owner.
    """
    bound = await members.binds_owner(connection, before.org_id, before.id)
    binds = bound or binds_owner
    if after == before and binds == bound:
        return before
    if after != before:
        after = msgspec.structs.replace(after, updated_at=now)
    await members.update(connection, after, binds_owner=binds_owner)
    await audit.record(
        connection,
        author,
        action,
        (after.org_id, after.id),
        now,
        before=rules.audited(before, binds_owner=bound),
        after=rules.audited(after, binds_owner=binds),
        shown=after,
        event=UNSET if after != before else None,
    )
    return after


async def _follow_seats(
    outbox: Outbox, connection: Connection, before: Member | None, after: Member
) -> None:
    """Let the seats at the provider follow a change of the number of active members, whose tenant
    the transaction has locked.
    """
    was_active = before is not None and before.status is MemberStatus.ACTIVE
    if was_active is not (after.status is MemberStatus.ACTIVE):
        await outbox.defer_seats(connection, [after.org_id])


def _shown(tenant: TenantRow, member: Member) -> Membership:
    return Membership(
        member.id,
        member.org_id,
        tenant.record.name,
        member.role,
        member.status,
    )
