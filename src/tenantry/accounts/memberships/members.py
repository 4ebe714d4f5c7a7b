"""Members of a tenant: list, invite, change, remove."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from tenantry.accounts import members_store as members
from tenantry.accounts.members_store import MemberFilter
from tenantry.accounts.memberships.changes import (
    NO_OUTBOX,
    MembershipChanges,
    check_not_last_owner,
    issuer_named_by,
    issuer_of_new,
)
from tenantry.auth.changes import Change, Changes, Repeated
from tenantry.common.clock import Clock
from tenantry.db.connection import of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.db.outbox import Outbox
from tenantry.db.pagination import Page, window_after
from tenantry.db.tenants_store import TenantUsers, get_tenant
from tenantry.domain import errors
from tenantry.domain import members as rules
from tenantry.domain.audit import Action, Author
from tenantry.domain.issuers import Issuers
from tenantry.domain.members import (
    Member,
    MemberStatus,
    User,
)
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Catalog

WRITE_SCOPE: Final = "members:write"
_MOST_OF_A_SUBJECT: Final = 100


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

    @property
    def _changes(self) -> Changes:
        return Changes(self.database, self.clock)

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
                self._users(principal),
                wanted,
                window,
            )

    async def get(self, principal: RequestPrincipal, member_id: str) -> Member:
        """Read a member, removed ones included. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await members.get(connection, self._users(principal), member_id)

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

    async def known_users(
        self, principal: RequestPrincipal, subjects: Collection[str]
    ) -> dict[str, User]:
        """Return the users whom the principal means by these subjects.

        Where the principal has no directory, and users come from several, these are the tenant's
        members and the users whom it has seen. A subject of several of them is left out.
        """
        issuer = issuer_named_by(self.issuers, principal)
        if issuer is not None:
            return {subject: User(issuer, subject) for subject in subjects}
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            found = await members.find_known(connection, self._users(principal), subjects)
        times = Counter(user.subject for user in found)
        return {user.subject: user for user in found if times[user.subject] == 1}

    async def active_users(self, principal: RequestPrincipal, subject: str) -> list[User]:
        """Return the active members with a subject, of the principal's directory if it has one."""
        wanted = MemberFilter(user_id=subject, status=MemberStatus.ACTIVE)
        page = await self.list_page(principal, wanted, _MOST_OF_A_SUBJECT, None)
        users = await self.users_of(principal, page.data)
        issuer = issuer_named_by(self.issuers, principal)
        return [user for user in users.values() if issuer in (None, user.issuer)]

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
                self._users(principal),
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
        issuer: str | None = None,
    ) -> Member:
        """Invite a user, or a removed member again. A user who adds themselves is active at once.
        Without an ``issuer``, it is that of `issuer_of_new`.

        Raises `IdentityProviderNotConfiguredError`, `ScopeEscalationError`, `ModeMismatchError`,
        `LastOwnerError`, `MemberExistsError`, `PlanLimitReachedError`, `ValidationError` and the
        errors of idempotency.
        """
        issuer = issuer or issuer_of_new(self.issuers, principal)
        wanted = self.catalog.roles.require(role)
        if not self.email_subjects:
            rules.check_user_id(user_id, "userId")
        user = User(issuer, user_id)
        async with self._changes.begin_once(
            principal, author, WRITE_SCOPE, claim=claim, kind=Member
        ) as change:
            if isinstance(change, Repeated):
                return change.first_answer
            rules.check_may_give(change.caller, wanted)
            memberships = self._memberships(change)
            before = await memberships.find_user(user)
            await memberships.check_initial_role(wanted, user, before)
            _check_not_current(before)
            await memberships.check_limit(self.catalog)
            binds_owner = rules.binds_owner(author, change.caller.access_level)
            member = await memberships.add(user, before, role, binds_owner=binds_owner)
            return change.answer(member)

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
        async with self._changes.begin(principal, author, WRITE_SCOPE) as change:
            memberships = self._memberships(change)
            before = await memberships.find(member_id)
            rules.check_may_change(change.caller, roles.find(before.role), after)
            if before.status is MemberStatus.REMOVED:
                raise errors.MemberNotActiveError(
                    "The membership has ended: invite the user with POST /api/v1/members."
                )
            if not after.includes(roles.find(before.role)):
                await check_not_last_owner(change.connection, change.tenant, self.issuers, before)
            binds_owner = rules.binds_owner(author, change.caller.access_level, binds=binds)
            return await memberships.set_role(before, role, binds_owner=binds_owner)

    async def remove(
        self, principal: RequestPrincipal, author: Author, member_id: str, *, binds: bool = True
    ) -> None:
        """Remove a member or withdraw an invitation; a removed user is rejected whatever their
        tokens claim.

        A user whose token claims the role owner is rejected only if an OWNER or the operator wrote
        the membership. ``binds`` is as in `tenantry.domain.members.binds_owner`.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError`, `LastOwnerError`.
        """
        async with self._changes.begin(principal, author, WRITE_SCOPE) as change:
            memberships = self._memberships(change)
            before = await memberships.find(member_id)
            rules.check_may_manage(change.caller, self.catalog.roles.find(before.role))
            binds_owner = rules.binds_owner(author, change.caller.access_level, binds=binds)
            after = before
            if before.status is not MemberStatus.REMOVED:
                await check_not_last_owner(change.connection, change.tenant, self.issuers, before)
                after = rules.removed(before, change.now)
            await memberships.save(Action.MEMBER_REMOVED, before, after, binds_owner=binds_owner)

    def _users(self, principal: RequestPrincipal) -> TenantUsers:
        return TenantUsers(principal.org_id, self.issuers)

    def _memberships(self, change: Change) -> MembershipChanges:
        return MembershipChanges(change, self.issuers, self.outbox)

    def accepts_user_id(self, user_id: str) -> bool:
        """Whether this may be a user's id; an e-mail address only where the identity provider has
        such ids.
        """
        return self.email_subjects or not rules.is_email(user_id)


def _check_not_current(member: Member | None) -> None:
    if member is not None and member.status is not MemberStatus.REMOVED:
        raise errors.MemberExistsError(
            f"The user is a member or invited already, as {member.role}: "
            f"change the role with PATCH /api/v1/members/{member.id}."
        )
