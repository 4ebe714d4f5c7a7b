"""Members: listing, inviting, changing, removing, and handing a tenant over."""

from datetime import datetime

import msgspec

from tenantry.accounts import members_store as members
from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.members_store import Filter
from tenantry.audit import trail as audit
from tenantry.auth.reauthorization import as_of_now
from tenantry.common.clock import Clock, to_micros
from tenantry.common.encoding import Position, new_id
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim, once
from tenantry.db.pagination import MOST_RECORDS_LOOKED_AT, parse_time_cursor, time_end, to_page, to_sought_page
from tenantry.db.tenants_store import TenantRow, find_tenant
from tenantry.domain import members as rules
from tenantry.domain.access import AccessLevel, Principal, Role, lower_role
from tenantry.domain.audit import Action, Author
from tenantry.domain.errors import (
    IdentityProviderNotConfiguredError,
    MemberExistsError,
    MemberNotActiveError,
    NotFoundError,
    PlanLimitReachedError,
    ValidationError,
)
from tenantry.domain.members import Member, MemberStatus, Ownership, Writer
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.pages import Page, SoughtPage
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import Tenant
from tenantry.notifications.owner_mails import MailOutbox, announce


class MemberService:
    """The members of a principal's tenant: users of one identity provider, ``issuer``.

    Users of another, from before it was changed, are no members here: they cannot sign in. Without an identity provider
    there is nobody to add, and those of all are shown. Every change holds the tenant's row from beginning to end, so
    that no two of them leave a tenant without an owner together.
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
        """``email_subjects`` says that the identity provider's user ids may be e-mail addresses."""
        self._database = database
        self._outbox = outbox
        self._issuer = issuer
        self._catalog = catalog
        self._clock = clock
        self._email_subjects = email_subjects

    async def list_page(self, principal: Principal, wanted: Filter, limit: int, cursor: str | None) -> Page[Member]:
        """A page of members, newest first. Raises `InvalidCursorError`."""
        after = parse_time_cursor(cursor)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            rows = await members.read_page(connection, principal.org_id, self._issuer, wanted, limit=limit, after=after)
        return to_page(rows, limit, _position)

    async def seek_page(
        self, principal: Principal, wanted: Filter, limit: int, cursor: str | None
    ) -> SoughtPage[Member]:
        """A page of the members that are wanted, newest first. Raises `InvalidCursorError`."""
        after = parse_time_cursor(cursor)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            rows, end = await members.seek_page(
                connection, principal.org_id, self._issuer, wanted, limit=limit, after=after
            )
        return to_sought_page(rows, limit, _position, time_end(end, MOST_RECORDS_LOOKED_AT))

    async def get(self, principal: Principal, member_id: str) -> Member:
        """One member, be it a removed one. Raises `NotFoundError`."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            return await self._find(connection, principal, member_id)

    async def add(
        self, principal: Principal, author: Author, *, user_id: str, role: Role, claim: Claim | None
    ) -> Member:
        """Invite a user; again after the membership has ended. Whoever adds themselves is a member at once.

        Raises `IdentityProviderNotConfiguredError`, `ScopeEscalationError`, `ModeMismatchError`, `LastOwnerError`,
        `MemberExistsError`, `PlanLimitReachedError`, `ValidationError` and the errors of idempotency.
        """
        issuer = self._known_issuer()
        self._check_user_id(user_id)
        status = rules.status_of_new(author, user_id)
        action = Action.MEMBER_INVITED if status is MemberStatus.INVITED else Action.MEMBER_ADDED
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:

            async def make() -> Member:
                tenant, caller, now = await self._begin(connection, principal)
                rules.check_may_give(caller, role)
                rules.check_may_begin_as(user_id, role, owner_id=tenant.record.owner_id)
                before = await members.find_user(connection, principal.org_id, issuer, user_id)
                if before is not None and before.status is not MemberStatus.REMOVED:
                    state = "is a member" if before.status is MemberStatus.ACTIVE else "is invited"
                    raise MemberExistsError(
                        f"The user {state} already, as {before.role}: change the role with PATCH "
                        f"/api/v1/members/{before.id}."
                    )
                await self._check_room(connection, tenant, issuer)
                written = rules.writer(author, caller.access_level)
                if before is None:
                    member = Member(new_id("mbr"), principal.org_id, user_id, role, status, now, now, None)
                    return await _insert(connection, author, written, issuer, member)
                after = rules.restored(before, role, status)
                return await store_change(connection, author, written, action, before, after, now)

            member, _ = await once(connection, claim, Member, self._clock(), make)
            return member

    async def change_role(
        self, principal: Principal, author: Author, member_id: str, role: Role, *, binds: bool = True
    ) -> Member:
        """Give a member, or an invited user, another role. ``binds`` is as in `tenantry.domain.members.writer`.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError`, `MemberNotActiveError`, `LastOwnerError`.
        """
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            tenant, caller, now = await self._begin(connection, principal)
            before = await self._find(connection, caller, member_id)
            rules.check_may_change(caller, before.role, role)
            if before.status is MemberStatus.REMOVED:
                raise MemberNotActiveError("The membership has ended: invite the user with POST /api/v1/members.")
            if lower_role(before.role, role) is not before.role:
                await check_may_be_less(connection, tenant, self._issuer, before)
            after = msgspec.structs.replace(before, role=role)
            written = rules.writer(author, caller.access_level, binds=binds)
            return await store_change(connection, author, written, Action.MEMBER_UPDATED, before, after, now)

    async def remove(self, principal: Principal, author: Author, member_id: str, *, binds: bool = True) -> None:
        """Refuse a user from now on, whatever their tokens say, or withdraw an invitation; again is fine.

        A user whose token claims the role owner is refused only if an OWNER, or the operator, has written this
        membership. ``binds`` is as in `tenantry.domain.members.writer`.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError`, `LastOwnerError`.
        """
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            tenant, caller, now = await self._begin(connection, principal)
            before = await self._find(connection, caller, member_id)
            rules.check_may_manage(caller, before.role)
            written = rules.writer(author, caller.access_level, binds=binds)
            if before.status is not MemberStatus.REMOVED:
                await check_may_be_less(connection, tenant, self._issuer, before)
            after = before if before.status is MemberStatus.REMOVED else rules.removed(before, now)
            await store_change(connection, author, written, Action.MEMBER_REMOVED, before, after, now)

    async def transfer(
        self, principal: Principal, author: Author, tenant_id: str, *, user_id: str, owner_email: str,
        claim: Claim | None, email_verified: bool = False,
    ) -> Tenant:  # fmt: skip
        """Make an active member the tenant's owner, with the address for billing mail; the one before becomes admin.

        ``email_verified`` says that the identity provider vouches for the address as the caller's.

        Raises `NotFoundError`, `IdentityProviderNotConfiguredError`, `ScopeEscalationError`, `ModeMismatchError`,
        `ValidationError` and the errors of idempotency.
        """
        if tenant_id != principal.org_id:
            raise NotFoundError("tenant")
        issuer = self._known_issuer()
        self._check_user_id(user_id)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:

            async def make() -> Tenant:
                tenant, caller, now = await self._begin(connection, principal)
                rules.check_may_give(caller, Role.OWNER)
                written = rules.writer(author, caller.access_level)
                successor = await members.find_user(connection, tenant_id, issuer, user_id)
                if successor is None or successor.status is not MemberStatus.ACTIVE:
                    raise ValidationError(("userId", "is not an active member of the tenant"))
                await _set_role(connection, author, written, successor, Role.OWNER, now)
                if tenant.record.owner_id != user_id:
                    previous = await members.find_user(connection, tenant_id, issuer, tenant.record.owner_id)
                    if previous is not None and previous.status is MemberStatus.ACTIVE:
                        await _set_role(
                            connection, author, written, previous, lower_role(previous.role, Role.ADMIN), now
                        )
                address = tenant.owner_address.changed(owner_email, verified=email_verified)
                made = await _hand_over(connection, author, tenant, user_id, address, now)
                await announce(connection, self._outbox, tenant_id, tenant.owner_address, address, now)
                return made

            transferred, _ = await once(connection, claim, Tenant, self._clock(), make)
            return transferred

    async def _begin(self, connection: Connection, principal: Principal) -> tuple[TenantRow, Principal, datetime]:
        """The tenant, held until the end of the transaction; the caller as it is then, and when that is."""
        tenant = await locked(connection, principal.org_id)
        now = self._clock()
        return tenant, await as_of_now(connection, principal, self._issuer, now), now

    def _known_issuer(self) -> str:
        if self._issuer is None:
            raise IdentityProviderNotConfiguredError("Members are users of an identity provider: set OIDC_ISSUER.")
        return self._issuer

    async def _find(self, connection: Connection, principal: Principal, member_id: str) -> Member:
        member = await members.find(connection, principal.org_id, self._issuer, member_id)
        if member is None:
            raise NotFoundError("member")
        return member

    def takes_user_id(self, user_id: str) -> bool:
        """Whether this may be a user's id: an e-mail address is one only where the identity provider has such ids."""
        return self._email_subjects or not rules.is_email(user_id)

    def _check_user_id(self, user_id: str) -> None:
        if not self._email_subjects:
            rules.check_user_id(user_id, "userId")

    async def _check_room(self, connection: Connection, tenant: TenantRow, issuer: str) -> None:
        """Raise `PlanLimitReachedError` when the plan allows no more members. The caller holds the tenant's row."""
        plan = tenant.record.plan
        most = self._catalog.limits(plan).members
        if most is not None and await members.count_current(connection, tenant.record.id, issuer, most) >= most:
            raise PlanLimitReachedError(
                f"The plan {self._catalog.name(plan)} allows {most} members; invitations count as members."
            )


async def seat_owner(
    connection: Connection, author: Author, issuer: str, org_id: str, user_id: str, now: datetime,
    *, is_founder: bool = False,
) -> None:  # fmt: skip
    """Make a user an owner among a tenant's members, so that they can sign in as one; a removed one stays out.

    ``is_founder``: the user has just created the tenant. The caller holds the tenant's row.
    """
    written = rules.writer(author, AccessLevel.OWNER)
    before = await members.find_user(connection, org_id, issuer, user_id)
    if before is None:
        member = Member(new_id("mbr"), org_id, user_id, Role.OWNER, MemberStatus.ACTIVE, now, now, None)
        await _insert(connection, author, written, issuer, member, is_founder=is_founder)
    elif before.status is not MemberStatus.REMOVED:
        action = Action.MEMBER_ADDED if before.status is MemberStatus.INVITED else Action.MEMBER_UPDATED
        after = msgspec.structs.replace(before, role=Role.OWNER, status=MemberStatus.ACTIVE)
        await store_change(connection, author, written, action, before, after, now)


async def locked(connection: Connection, org_id: str) -> TenantRow:
    """The tenant, held until the end of the transaction. Raises `NotFoundError` for none, and for an ended one."""
    tenant = await find_tenant(connection, org_id, lock=True)
    if tenant is None or tenant.deleted:
        raise NotFoundError("tenant")
    return tenant


async def check_may_be_less(connection: Connection, tenant: TenantRow, issuer: str | None, member: Member) -> None:
    """Raise `LastOwnerError` if the tenant needs this member as an owner. The caller holds the tenant's row."""
    others = await members.count_owners(connection, member.org_id, issuer, beside=member.id)
    rules.check_may_be_less(member, owner_id=tenant.record.owner_id, other_owners=others)


async def _insert(
    connection: Connection, author: Author, written: Writer, issuer: str, member: Member, *, is_founder: bool = False
) -> Member:
    await members.insert(connection, issuer, member, written, is_founder=is_founder)
    action = Action.MEMBER_INVITED if member.status is MemberStatus.INVITED else Action.MEMBER_ADDED
    after = rules.audited(member, binds_owner=written.access != AccessLevel.SCOPED)
    await audit.record(
        connection, author, action, org_id=member.org_id, target_id=member.id, after=after, now=member.created_at
    )
    return member


async def _set_role(
    connection: Connection, author: Author, written: Writer, before: Member, role: Role, now: datetime
) -> None:
    after = msgspec.structs.replace(before, role=role)
    await store_change(connection, author, written, Action.MEMBER_UPDATED, before, after, now)


async def store_change(
    connection: Connection, author: Author, written: Writer, action: Action, before: Member, after: Member,
    now: datetime,
) -> Member:  # fmt: skip
    """Store what has changed of a member, and record it in the audit trail.

    Where nothing else has changed, an OWNER or the operator still makes the membership binding on a claimed owner.
    """
    bound = await members.binds_owner(connection, before.org_id, before.id)
    binds = bound or written.access != AccessLevel.SCOPED
    if after == before and binds == bound:
        return before
    if after != before:
        after = msgspec.structs.replace(after, updated_at=now)
    await members.update(connection, after, written)
    await audit.record(
        connection, author, action, org_id=after.org_id, target_id=after.id,
        before=rules.audited(before, binds_owner=bound), after=rules.audited(after, binds_owner=binds), now=now,
    )  # fmt: skip
    return after


async def _hand_over(
    connection: Connection, author: Author, tenant: TenantRow, owner_id: str, address: OwnerAddress, now: datetime
) -> Tenant:
    """The tenant with its new owner and address, which nothing but another request changes from now on."""
    record = tenant.record
    before = Ownership(record.owner_id, tenant.owner_email, tenant.owner_address.is_verified)
    after = Ownership(owner_id, address.email, address.is_verified)
    if before == after and not tenant.owner_email_follows:
        return record
    await tenants.update(
        connection,
        record.id,
        name=record.name,
        owner_address=address,
        owner_id=owner_id,
        suspended=tenant.suspended,
        now=now,
    )
    await audit.record(
        connection, author, Action.TENANT_TRANSFERRED, org_id=record.id, target_id=record.id,
        before=before, after=after, now=now,
    )  # fmt: skip
    return msgspec.structs.replace(record, owner_id=owner_id, updated_at=now)


def _position(member: Member) -> Position:
    return Position(to_micros(member.created_at), member.id)
