"""A user's own memberships: listing, accepting, declining, leaving. They need no role, for the user alone decides."""

from datetime import datetime

from tenantry.accounts import members_store as members
from tenantry.accounts import members_store as memberships
from tenantry.accounts.members import check_may_be_less, locked, store_change
from tenantry.accounts.members_store import User
from tenantry.common.clock import Clock, to_micros
from tenantry.common.encoding import Position
from tenantry.db.connection import OF_PEOPLE, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim, once
from tenantry.db.pagination import parse_time_cursor, to_page
from tenantry.db.tenants_store import TenantRow
from tenantry.domain import members as rules
from tenantry.domain.audit import Action, ActorKind, Author
from tenantry.domain.errors import NotFoundError
from tenantry.domain.members import BY_LEAVER, BY_USER, Member, Membership, MemberStatus
from tenantry.domain.pages import Page
from tenantry.integrations.oidc.tokens import Claims


class MembershipService:
    """The memberships of users, whichever tenants they are in. Changes hold the tenant's row, as in `MemberService`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def list_page(
        self, user: User, status: MemberStatus | None, limit: int, cursor: str | None
    ) -> Page[Membership]:
        """A page of a user's memberships and invitations, newest first. Raises `InvalidCursorError`."""
        after = parse_time_cursor(cursor)
        async with self._database.transaction(OF_PEOPLE) as connection:
            rows = await memberships.read_own_page(connection, user, status, limit=limit, after=after)
        page = to_page(rows, limit, lambda row: Position(to_micros(row[1]), row[0].id))
        return Page([membership for membership, _ in page.data], page.next_cursor)

    async def get(self, user: User, membership_id: str) -> Membership:
        """One membership of the user, also a removed one. Raises `NotFoundError`."""
        async with self._database.transaction(OF_PEOPLE) as connection:
            org_id = await _tenant_of(connection, user, membership_id)
            async with connection.within(of_tenant(org_id)):
                return _shown(*await _own(connection, user, org_id, membership_id))

    async def accept(self, user: User, author: Author, membership_id: str, claim: Claim | None) -> Membership:
        """Accept an invitation; again is fine. Raises `NotFoundError`, `MemberNotActiveError`, idempotency's errors."""
        async with self._database.transaction(OF_PEOPLE) as connection:

            async def act() -> Membership:
                org_id = await _tenant_of(connection, user, membership_id)
                async with connection.within(of_tenant(org_id)):
                    tenant, member = await _own(connection, user, org_id, membership_id)
                    return _shown(tenant, await _accept(connection, author, member, self._clock()))

            membership, _ = await once(connection, claim, Membership, self._clock(), act)
            return membership

    async def accept_named(self, claims: Claims, org_id: str, address: str | None) -> None:
        """Accept the invitation to a tenant that a user's request names; again is fine.

        Raises `NotFoundError`, `MemberNotActiveError` and `DatabaseUnavailableError`.
        """
        async with self._database.transaction(of_tenant(org_id)) as connection:
            await locked(connection, org_id)
            member = await members.find_user(connection, org_id, claims.issuer, claims.subject)
            if member is None:
                raise NotFoundError("membership")
            await _accept(connection, Author(ActorKind.USER, claims.subject, address), member, self._clock())

    async def end(self, user: User, author: Author, membership_id: str, *, leaves: bool = False) -> None:
        """Decline an invitation, or leave; again is fine. Raises `NotFoundError` and `LastOwnerError`.

        ``leaves`` says that an invited user, whose token claims the tenant, leaves rather than declines.
        """
        async with self._database.transaction(OF_PEOPLE) as connection:
            org_id = await _tenant_of(connection, user, membership_id)
            async with connection.within(of_tenant(org_id)):
                tenant, member = await _own(connection, user, org_id, membership_id)
                if member.status is MemberStatus.REMOVED:
                    return
                await check_may_be_less(connection, tenant, user.issuer, member)
                declines = member.status is MemberStatus.INVITED and not leaves
                action, written = (Action.MEMBER_DECLINED, BY_USER) if declines else (Action.MEMBER_LEFT, BY_LEAVER)
                now = self._clock()
                await store_change(connection, author, written, action, member, rules.removed(member, now), now)


async def _tenant_of(connection: Connection, user: User, membership_id: str) -> str:
    org_id = await memberships.find_tenant(connection, user, membership_id)
    if org_id is None:
        raise NotFoundError("membership")
    return org_id


async def _own(connection: Connection, user: User, org_id: str, membership_id: str) -> tuple[TenantRow, Member]:
    """The tenant, held until the end of the transaction, and the membership as it is then."""
    tenant = await locked(connection, org_id)
    member = await members.find(connection, org_id, user.issuer, membership_id)
    if member is None:
        raise NotFoundError("membership")
    return tenant, member


async def _accept(connection: Connection, author: Author, member: Member, now: datetime) -> Member:
    return await store_change(connection, author, BY_USER, Action.MEMBER_ACCEPTED, member, rules.accepted(member), now)


def _shown(tenant: TenantRow, member: Member) -> Membership:
    return Membership(member.id, member.org_id, tenant.record.name, member.role, member.status)
