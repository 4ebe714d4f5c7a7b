"""Members of tenants: list, invite, change, remove, transfer ownership; and users' own memberships."""

from datetime import datetime

import msgspec

from tenantry.accounts import members_store as members
from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.members_store import MemberFilter
from tenantry.audit import trail as audit
from tenantry.auth.authentication import reauthorize
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import OF_PEOPLE, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim, once
from tenantry.db.pagination import Page, SearchPage, window_after
from tenantry.db.tenants_store import TenantRow, find_tenant
from tenantry.domain import errors
from tenantry.domain import members as rules
from tenantry.domain.access import AccessLevel, Principal, Role, lower_role
from tenantry.domain.audit import Action, ActorKind, Author
from tenantry.domain.members import BY_LEAVER, BY_USER, Member, Membership, MemberStatus, Ownership, User, Writer
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import Tenant
from tenantry.integrations.oidc.tokens import Claims
from tenantry.notifications.owner_mails import MailOutbox, announce


class MemberService:
    """The members of a principal's tenant: users of one identity provider, ``issuer``.

    Users of a former identity provider are not members, because they cannot sign in. Without an identity provider no
    user can be added, and the members of all are listed. Every change locks the tenant's row, so that two changes at
    once cannot leave a tenant without an owner.
    """

    def __init__(
        self,
        database: Database,
        outbox: MailOutbox,
        issuer: str | None,
        catalog: Catalog,
        clock: Clock,
        *,
        email_subjects: bool = False,
    ) -> None:
        """``email_subjects`` allows e-mail addresses as user ids, where the identity provider has such ids."""
        self._database = database
        self._outbox = outbox
        self._issuer = issuer
        self._catalog = catalog
        self._clock = clock
        self._email_subjects = email_subjects

    async def list_page(
        self, principal: Principal, wanted: MemberFilter, limit: int, cursor: str | None, *, bounded: bool = False
    ) -> SearchPage[Member]:
        """Read a page of members, newest first; with ``bounded`` of a bounded search. Raises `InvalidCursorError`."""
        org_id, window = principal.org_id, window_after(limit, cursor)
        async with self._database.transaction(of_tenant(org_id)) as connection:
            return await members.read_page(connection, org_id, self._issuer, wanted, window, bounded=bounded)

    async def get(self, principal: Principal, member_id: str) -> Member:
        """Read a member, removed ones included. Raises `NotFoundError`."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            return await self._find(connection, principal, member_id)

    async def add(
        self, principal: Principal, author: Author, *, user_id: str, role: Role, claim: Claim | None
    ) -> Member:
        """Invite a user, or a removed member again. A user who adds themselves is active at once.

        Raises `IdentityProviderNotConfiguredError`, `ScopeEscalationError`, `ModeMismatchError`, `LastOwnerError`,
        `MemberExistsError`, `PlanLimitReachedError`, `ValidationError` and the errors of idempotency.
        """
        issuer = self._require_issuer()
        self._check_user_id(user_id)
        status = rules.status_of_new(author, user_id)
        action = Action.MEMBER_INVITED if status is MemberStatus.INVITED else Action.MEMBER_ADDED
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:

            async def add() -> Member:
                tenant, caller, now = await self._lock_and_reauthorize(connection, principal)
                rules.check_may_give(caller, role)
                rules.check_initial_role(user_id, role, owner_id=tenant.record.owner_id)
                before = await members.find_user(connection, principal.org_id, User(issuer, user_id))
                if before is not None and before.status is not MemberStatus.REMOVED:
                    state = "is a member" if before.status is MemberStatus.ACTIVE else "is invited"
                    raise errors.MemberExistsError(
                        f"The user {state} already, as {before.role}: change the role with PATCH "
                        f"/api/v1/members/{before.id}."
                    )
                await self._check_member_limit(connection, tenant, issuer)
                written = rules.writer(author, caller.access_level)
                if before is None:
                    member = Member(new_id("mbr"), principal.org_id, user_id, role, status, now, now, None)
                    return await _insert(connection, author, written, issuer, member)
                after = rules.restored(before, role, status)
                return await _save(connection, author, written, action, before, after, now)

            member, _ = await once(connection, claim, Member, self._clock(), add)
            return member

    async def change_role(
        self, principal: Principal, author: Author, member_id: str, role: Role, *, binds: bool = True
    ) -> Member:
        """Change the role of a member or an invited user. ``binds`` is as in `tenantry.domain.members.writer`.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError`, `MemberNotActiveError`, `LastOwnerError`.
        """
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            tenant, caller, now = await self._lock_and_reauthorize(connection, principal)
            before = await self._find(connection, caller, member_id)
            rules.check_may_change(caller, before.role, role)
            if before.status is MemberStatus.REMOVED:
                raise errors.MemberNotActiveError(
                    "The membership has ended: invite the user with POST /api/v1/members."
                )
            if lower_role(before.role, role) is not before.role:
                await _check_not_last_owner(connection, tenant, self._issuer, before)
            written = rules.writer(author, caller.access_level, binds=binds)
            return await _set_role(connection, author, written, before, role, now)

    async def remove(self, principal: Principal, author: Author, member_id: str, *, binds: bool = True) -> None:
        """Remove a member or withdraw an invitation; a removed user is rejected whatever their tokens claim.

        A user whose token claims the role owner is rejected only if an OWNER or the operator wrote the membership.
        ``binds`` is as in `tenantry.domain.members.writer`.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError`, `LastOwnerError`.
        """
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            tenant, caller, now = await self._lock_and_reauthorize(connection, principal)
            before = await self._find(connection, caller, member_id)
            rules.check_may_manage(caller, before.role)
            written = rules.writer(author, caller.access_level, binds=binds)
            if before.status is not MemberStatus.REMOVED:
                await _check_not_last_owner(connection, tenant, self._issuer, before)
            after = before if before.status is MemberStatus.REMOVED else rules.removed(before, now)
            await _save(connection, author, written, Action.MEMBER_REMOVED, before, after, now)

    async def transfer(
        self, principal: Principal, author: Author, tenant_id: str, *, user_id: str, owner_email: str,
        claim: Claim | None, email_verified: bool = False,
    ) -> Tenant:  # fmt: skip
        """Make an active member the tenant's owner, with the address for billing mail; the former owner becomes admin.

        ``email_verified``: the identity provider verified the address as the caller's.

        Raises `NotFoundError`, `IdentityProviderNotConfiguredError`, `ScopeEscalationError`, `ModeMismatchError`,
        `ValidationError` and the errors of idempotency.
        """
        if tenant_id != principal.org_id:
            raise errors.NotFoundError("tenant")
        issuer = self._require_issuer()
        self._check_user_id(user_id)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:

            async def transfer() -> Tenant:
                tenant, caller, now = await self._lock_and_reauthorize(connection, principal)
                rules.check_may_give(caller, Role.OWNER)
                written = rules.writer(author, caller.access_level)
                successor = await members.find_user(connection, tenant_id, User(issuer, user_id))
                if successor is None or successor.status is not MemberStatus.ACTIVE:
                    raise errors.ValidationError(("userId", "is not an active member of the tenant"))
                await _set_role(connection, author, written, successor, Role.OWNER, now)
                if tenant.record.owner_id != user_id:
                    previous = await members.find_user(connection, tenant_id, User(issuer, tenant.record.owner_id))
                    if previous is not None and previous.status is MemberStatus.ACTIVE:
                        role = rules.role_after_transfer(previous.role)
                        await _set_role(connection, author, written, previous, role, now)
                address = tenant.owner_address.changed(owner_email, verified=email_verified)
                transferred = await _set_owner(connection, author, tenant, user_id, address, now)
                await announce(connection, self._outbox, tenant_id, tenant.owner_address, address, now)
                return transferred

            transferred, _ = await once(connection, claim, Tenant, self._clock(), transfer)
            return transferred

    async def _lock_and_reauthorize(
        self, connection: Connection, principal: Principal
    ) -> tuple[TenantRow, Principal, datetime]:
        tenant = await _lock_tenant(connection, principal.org_id)
        now = self._clock()
        return tenant, await reauthorize(connection, principal, self._issuer, now), now

    def _require_issuer(self) -> str:
        if self._issuer is None:
            raise errors.IdentityProviderNotConfiguredError(
                "Members are users of an identity provider: set OIDC_ISSUER."
            )
        return self._issuer

    async def _find(self, connection: Connection, principal: Principal, member_id: str) -> Member:
        member = await members.find(connection, principal.org_id, self._issuer, member_id)
        if member is None:
            raise errors.NotFoundError("member")
        return member

    def accepts_user_id(self, user_id: str) -> bool:
        """Whether this may be a user's id; an e-mail address only where the identity provider has such ids."""
        return self._email_subjects or not rules.is_email(user_id)

    def _check_user_id(self, user_id: str) -> None:
        if not self._email_subjects:
            rules.check_user_id(user_id, "userId")

    async def _check_member_limit(self, connection: Connection, tenant: TenantRow, issuer: str) -> None:
        plan = tenant.record.plan
        most = self._catalog.limits(plan).members
        if most is not None and await members.count_current(connection, tenant.record.id, issuer, most) >= most:
            raise errors.PlanLimitReachedError(
                f"The plan {self._catalog.name(plan)} allows {most} members; invitations count as members."
            )


class MembershipService:
    """A user's own memberships in any tenants. Changes need no role, and lock the tenant's row."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def list_page(
        self, user: User, status: MemberStatus | None, limit: int, cursor: str | None
    ) -> Page[Membership]:
        """Read a page of a user's memberships and invitations, newest first. Raises `InvalidCursorError`."""
        window = window_after(limit, cursor)
        async with self._database.transaction(OF_PEOPLE) as connection:
            return await members.read_own_page(connection, user, status, window)

    async def get(self, user: User, membership_id: str) -> Membership:
        """Read a membership of the user, removed ones included. Raises `NotFoundError`."""
        async with self._database.transaction(OF_PEOPLE) as connection:
            org_id = await _tenant_of(connection, user, membership_id)
            async with connection.within(of_tenant(org_id)):
                return _shown(*await _lock_own(connection, user, org_id, membership_id))

    async def accept(self, user: User, author: Author, membership_id: str, claim: Claim | None) -> Membership:
        """Accept an invitation. Raises `NotFoundError`, `MemberNotActiveError` and the errors of idempotency."""
        async with self._database.transaction(OF_PEOPLE) as connection:

            async def accept() -> Membership:
                org_id = await _tenant_of(connection, user, membership_id)
                async with connection.within(of_tenant(org_id)):
                    tenant, member = await _lock_own(connection, user, org_id, membership_id)
                    return _shown(tenant, await _accept(connection, author, member, self._clock()))

            membership, _ = await once(connection, claim, Membership, self._clock(), accept)
            return membership

    async def accept_named(self, claims: Claims, org_id: str, address: str | None) -> None:
        """Accept the invitation to a tenant that a user's request names.

        Raises `NotFoundError`, `MemberNotActiveError` and `DatabaseUnavailableError`.
        """
        async with self._database.transaction(of_tenant(org_id)) as connection:
            await _lock_tenant(connection, org_id)
            member = await members.find_user(connection, org_id, User(claims.issuer, claims.subject))
            if member is None:
                raise errors.NotFoundError("membership")
            await _accept(connection, Author(ActorKind.USER, claims.subject, address), member, self._clock())

    async def end(self, user: User, author: Author, membership_id: str, *, leaves: bool = False) -> None:
        """Decline an invitation, or leave. Raises `NotFoundError` and `LastOwnerError`.

        ``leaves``: an invited user, whose token claims the tenant, leaves rather than declines.
        """
        async with self._database.transaction(OF_PEOPLE) as connection:
            org_id = await _tenant_of(connection, user, membership_id)
            async with connection.within(of_tenant(org_id)):
                tenant, member = await _lock_own(connection, user, org_id, membership_id)
                if member.status is MemberStatus.REMOVED:
                    return
                await _check_not_last_owner(connection, tenant, user.issuer, member)
                declines = member.status is MemberStatus.INVITED and not leaves
                action, written = (Action.MEMBER_DECLINED, BY_USER) if declines else (Action.MEMBER_LEFT, BY_LEAVER)
                now = self._clock()
                await _save(connection, author, written, action, member, rules.removed(member, now), now)


async def add_owner(
    connection: Connection, author: Author, user: User, org_id: str, now: datetime, *, is_founder: bool = False
) -> None:
    """Make a user an active member with the role owner, unless the member was removed.

    ``is_founder``: the user has just created the tenant. The transaction must hold the lock on the tenant's row.
    """
    written = rules.writer(author, AccessLevel.OWNER)
    before = await members.find_user(connection, org_id, user)
    if before is None:
        member = Member(new_id("mbr"), org_id, user.subject, Role.OWNER, MemberStatus.ACTIVE, now, now, None)
        await _insert(connection, author, written, user.issuer, member, is_founder=is_founder)
    elif before.status is not MemberStatus.REMOVED:
        action = Action.MEMBER_ADDED if before.status is MemberStatus.INVITED else Action.MEMBER_UPDATED
        after = msgspec.structs.replace(before, role=Role.OWNER, status=MemberStatus.ACTIVE)
        await _save(connection, author, written, action, before, after, now)


async def _lock_tenant(connection: Connection, org_id: str) -> TenantRow:
    tenant = await find_tenant(connection, org_id, lock=True)
    if tenant is None or tenant.deleted:
        raise errors.NotFoundError("tenant")
    return tenant


async def _check_not_last_owner(connection: Connection, tenant: TenantRow, issuer: str | None, member: Member) -> None:
    others = await members.count_owners(connection, member.org_id, issuer, except_id=member.id)
    rules.check_not_last_owner(member, owner_id=tenant.record.owner_id, other_owners=others)


async def _insert(
    connection: Connection, author: Author, written: Writer, issuer: str, member: Member, *, is_founder: bool = False
) -> Member:
    await members.insert(connection, issuer, member, written, is_founder=is_founder)
    action = Action.MEMBER_INVITED if member.status is MemberStatus.INVITED else Action.MEMBER_ADDED
    after = rules.audited(member, binds_owner=written.access != AccessLevel.SCOPED)
    await audit.record(connection, author, action, (member.org_id, member.id), member.created_at, after=after)
    return member


async def _set_role(
    connection: Connection, author: Author, written: Writer, before: Member, role: Role, now: datetime
) -> Member:
    after = msgspec.structs.replace(before, role=role)
    return await _save(connection, author, written, Action.MEMBER_UPDATED, before, after, now)


async def _save(
    connection: Connection, author: Author, written: Writer, action: Action, before: Member, after: Member,
    now: datetime,
) -> Member:  # fmt: skip
    """Store a change of a member, and record it in the audit trail.

    Without another change, an OWNER or the operator still makes the membership binding on a claimed owner.
    """
    bound = await members.binds_owner(connection, before.org_id, before.id)
    binds = bound or written.access != AccessLevel.SCOPED
    if after == before and binds == bound:
        return before
    if after != before:
        after = msgspec.structs.replace(after, updated_at=now)
    await members.update(connection, after, written)
    await audit.record(
        connection, author, action, (after.org_id, after.id), now,
        before=rules.audited(before, binds_owner=bound), after=rules.audited(after, binds_owner=binds),
    )  # fmt: skip
    return after


async def _set_owner(
    connection: Connection, author: Author, tenant: TenantRow, owner_id: str, address: OwnerAddress, now: datetime
) -> Tenant:
    """Store the new owner and address, which no longer follows the identity provider's."""
    record = tenant.record
    before = Ownership(record.owner_id, tenant.owner_email, tenant.owner_address.is_verified)
    after = Ownership(owner_id, address.email, address.is_verified)
    if before == after and not tenant.owner_email_follows:
        return record
    await tenants.update(connection, tenant, address, now, owner_id=owner_id)
    target = (record.id, record.id)
    await audit.record(connection, author, Action.TENANT_TRANSFERRED, target, now, before=before, after=after)
    return msgspec.structs.replace(record, owner_id=owner_id, updated_at=now)


async def _tenant_of(connection: Connection, user: User, membership_id: str) -> str:
    org_id = await members.find_tenant_id(connection, user, membership_id)
    if org_id is None:
        raise errors.NotFoundError("membership")
    return org_id


async def _lock_own(connection: Connection, user: User, org_id: str, membership_id: str) -> tuple[TenantRow, Member]:
    """Lock the tenant, and return it with the user's membership."""
    tenant = await _lock_tenant(connection, org_id)
    member = await members.find(connection, org_id, user.issuer, membership_id)
    if member is None:
        raise errors.NotFoundError("membership")
    return tenant, member


async def _accept(connection: Connection, author: Author, member: Member, now: datetime) -> Member:
    return await _save(connection, author, BY_USER, Action.MEMBER_ACCEPTED, member, rules.accepted(member), now)


def _shown(tenant: TenantRow, member: Member) -> Membership:
    return Membership(member.id, member.org_id, tenant.record.name, member.role, member.status)
