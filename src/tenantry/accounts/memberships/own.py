"""A user's own memberships: list, accept, decline, leave."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tenantry.accounts import members_store as members
from tenantry.accounts.memberships.changes import (
    NO_OUTBOX,
    MembershipChanges,
    check_not_last_owner,
    membership_of,
)
from tenantry.auth.changes import Change, Repeated, answered_once
from tenantry.common.clock import Clock
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
from tenantry.domain.members import Member, Membership, MemberStatus, User
from tenantry.integrations.oidc.tokens import Claims


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
            return membership_of(tenant, member)

    async def accept(
        self, user: User, author: Author, membership_id: str, claim: Claim | None
    ) -> Membership:
        """Accept an invitation. Raises `NotFoundError`, `MemberNotActiveError` and the errors of
        idempotency.
        """
        async with (
            self.database.change(OF_PEOPLE) as connection,
            answered_once(connection, claim, Membership, self.clock()) as request,
        ):
            if isinstance(request, Repeated):
                return request.first_answer
            async with self._locked(connection, user, membership_id) as (tenant, member):
                change = Change(connection, author, self.clock(), tenant)
                accepted = membership_of(tenant, await self._accept(change, member))
            return request.answer(accepted)

    async def accept_named(self, claims: Claims, org_id: str, address: str | None) -> None:
        """Accept the invitation to a tenant that a user's request names.

        Raises `NotFoundError`, `MemberNotActiveError` and `DatabaseUnavailableError`.
        """
        author = Author(ActorKind.USER, claims.subject, address)
        async with self.database.change(of_tenant(org_id)) as connection:
            tenant = await get_tenant(connection, org_id, lock=True)
            member = await members.find_user(connection, org_id, claims.user)
            if member is None:
                raise errors.NotFoundError("membership")
            await self._accept(Change(connection, author, self.clock(), tenant), member)

    async def check_may_end(self, user: User, membership_id: str) -> None:
        """Raise `LastOwnerError` if the tenant needs the user as its owner; or `NotFoundError`."""
        async with (
            self.database.transaction(OF_PEOPLE) as connection,
            self._locked(connection, user, membership_id) as (tenant, member),
        ):
            await check_not_last_owner(connection, tenant, self.issuers, member)

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
            change = Change(connection, author, self.clock(), tenant)
            memberships = self._memberships(change)
            await check_not_last_owner(connection, tenant, self.issuers, member)
            declines = member.status is MemberStatus.INVITED and not leaves
            action = Action.MEMBER_DECLINED if declines else Action.MEMBER_LEFT
            removed = rules.removed(member, change.now)
            # a user who left is rejected even if the token claims the role owner
            await memberships.save(action, member, removed, binds_owner=not declines)

    async def _accept(self, change: Change, member: Member) -> Member:
        accepted = rules.accepted(member)
        return await self._memberships(change).save(
            Action.MEMBER_ACCEPTED, member, accepted, binds_owner=False
        )

    def _memberships(self, change: Change) -> MembershipChanges:
        return MembershipChanges(change, self.issuers, self.outbox)

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
            member = await members.find_user(connection, org_id, user)
            if member is None or member.id != membership_id:
                raise errors.NotFoundError("membership")
            yield tenant, member
