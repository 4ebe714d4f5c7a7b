"""Invitations by mail: create, list, send again, withdraw, and accept with the mailed link."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime

import msgspec

from tenantry.accounts import invitations_store as store
from tenantry.accounts import members_store as members
from tenantry.accounts.caller_address import CallerAddress
from tenantry.accounts.memberships.changes import NO_OUTBOX, MembershipChanges, membership_of
from tenantry.accounts.memberships.members import WRITE_SCOPE
from tenantry.auth.authentication import check_not_suspended
from tenantry.auth.changes import Change, Changes, Repeated, answered_once
from tenantry.auth.user_profiles_store import record_visits, visit_of
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import OF_PEOPLE, Connection, of_tenant
from tenantry.db.database import Database, few_at_once
from tenantry.db.idempotency_store import Claim
from tenantry.db.outbox import Outbox
from tenantry.db.pagination import Page, window_after
from tenantry.db.tenants_store import TenantRow, get_tenant
from tenantry.domain import errors
from tenantry.domain import invitations as rules
from tenantry.domain.audit import Action, Author
from tenantry.domain.invitation_links import InvitationLinks
from tenantry.domain.invitations import (
    Invitation,
    InvitationStatus,
    InvitationTerms,
    ShownInvitation,
)
from tenantry.domain.issuers import Issuers
from tenantry.domain.members import (
    Member,
    Membership,
    MemberStatus,
    User,
    binds_owner,
    check_may_give,
    check_may_manage,
)
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Catalog
from tenantry.notifications.mail_outbox import TenantMails


async def _nothing() -> None:
    """Write nothing."""


@dataclass(frozen=True)
class InvitationService:
    """Invitations by mail to a principal's tenant, and their acceptance by users.

    Every change locks the tenant's row. ``links`` is None where invitations are not enabled: every
    method but `withdraw` and `look_up` then raises `InvitationsNotEnabledError`. ``write_visits``
    stores what this process has learned of users and their addresses.
    """

    database: Database
    issuers: Issuers | None
    catalog: Catalog
    clock: Clock
    links: InvitationLinks | None
    _: KW_ONLY
    outbox: Outbox = NO_OUTBOX
    write_visits: Callable[[], Awaitable[None]] = _nothing
    _turn: asyncio.Semaphore = field(default_factory=few_at_once, init=False)

    @property
    def _changes(self) -> Changes:
        return Changes(self.database, self.clock, read_by_checks=False)

    @property
    def is_enabled(self) -> bool:
        return self.links is not None

    @property
    def _links(self) -> InvitationLinks:
        if self.links is None:
            raise errors.InvitationsNotEnabledError(
                "Invitations by mail are not enabled: the operator can set INVITATIONS=true."
            )
        return self.links

    async def list_page(
        self,
        principal: RequestPrincipal,
        status: InvitationStatus | None,
        limit: int,
        cursor: str | None,
    ) -> Page[Invitation]:
        """Read a page of invitations, newest first. Raises `InvalidCursorError`."""
        _ = self._links
        org_id = principal.org_id
        window = window_after(limit, cursor)
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return await store.read_page(connection, org_id, status, window, self.clock())

    async def get(self, principal: RequestPrincipal, invitation_id: str) -> Invitation:
        """Read an invitation, closed ones included. Raises `NotFoundError`."""
        _ = self._links
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return (await store.get(connection, org_id, invitation_id, self.clock())).invitation

    async def link(self, principal: RequestPrincipal, invitation_id: str) -> str:
        """Return the link of an open invitation, to pass on. The caller has ``members:write``.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError` and
        `InvitationClosedError`.
        """
        links = self._links
        invitation = await self.get(principal, invitation_id)
        check_may_manage(principal, self.catalog.roles.find(invitation.role))
        rules.check_open(invitation.status)
        return links.link(invitation.id)

    async def create(
        self,
        principal: RequestPrincipal,
        author: Author,
        *,
        email: str,
        role: str,
        claim: Claim | None,
    ) -> Invitation:
        """Invite the user of a mail address, and mail the link.

        Where the address received as many invitations as allowed, no mail is sent, and the link can
        be copied.

        Raises `ValidationError`, `ScopeEscalationError`, `ModeMismatchError`, `MemberExistsError`,
        `InvitationExistsError`, `InvitationLimitReachedError`, `PlanLimitReachedError` and the
        errors of idempotency.
        """
        _ = self._links
        org_id = principal.org_id
        address = rules.invited_address(email)
        wanted = self.catalog.roles.require(role)
        await self.write_visits()
        async with self._changes.begin_once(
            principal, author, WRITE_SCOPE, claim=claim, kind=Invitation
        ) as change:
            if isinstance(change, Repeated):
                return change.first_answer
            connection, now = change.connection, change.now
            check_may_give(change.caller, wanted)
            await _check_no_member(connection, org_id, email, address)
            await _check_not_invited(connection, org_id, address, now)
            recent = await change.mails(self.outbox).recent_invitations(email)
            open_ones = await store.count_open(connection, org_id, now)
            rules.check_limits(open_ones=open_ones, mails_today=recent.of_tenant_today)
            memberships = MembershipChanges(change, self.issuers, self.outbox)
            await memberships.check_limit(self.catalog)
            invitation = Invitation(
                new_id("inv"),
                org_id,
                email,
                role,
                InvitationStatus.OPEN,
                principal.id,
                now,
                now + rules.VALID,
                None,
            )
            # the operator may invite to a suspended tenant, where nobody can accept
            is_mailed = (
                not change.tenant.suspended
                and recent.to_address_today < rules.MAILS_TO_ADDRESS_PER_DAY
            )
            terms = InvitationTerms(
                invitation,
                address,
                int(is_mailed),
                binds_owner(author, change.caller.access_level),
                None,
            )
            await store.insert(connection, terms)
            await change.record(Action.INVITATION_CREATED, invitation.id, after=invitation)
            if is_mailed:
                await change.mails(self.outbox).invite(invitation.email, invitation.id)
            return change.answer(invitation)

    async def resend(
        self,
        principal: RequestPrincipal,
        author: Author,
        invitation_id: str,
        claim: Claim | None = None,
    ) -> Invitation:
        """Mail the link of an open invitation again; it can then be accepted for seven more days.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError`,
        `InvitationClosedError`, `MemberExistsError`, `InvitationLimitReachedError` and the errors
        of idempotency.
        """
        _ = self._links
        org_id = principal.org_id
        await self.write_visits()
        async with self._changes.begin_once(
            principal, author, WRITE_SCOPE, claim=claim, kind=Invitation
        ) as change:
            if isinstance(change, Repeated):
                return change.first_answer
            check_not_suspended(
                change.tenant.suspension
            )  # nothing is mailed that cannot be accepted
            terms = await store.get(change.connection, org_id, invitation_id, change.now)
            before = terms.invitation
            check_may_give(change.caller, self.catalog.roles.find(before.role))
            rules.check_open(before.status)
            rules.check_role(self.catalog.roles, before.role)
            await _check_no_member(change.connection, org_id, before.email, terms.address)
            rules.check_sends(terms.sends)
            mails = change.mails(self.outbox)
            recent = await mails.recent_invitations(before.email)
            rules.check_mails(recent.of_tenant_today)
            rules.check_mails_to_address(recent.to_address_today)
            after = msgspec.structs.replace(before, expires_at=change.now + rules.VALID)
            await store.mark_sent_again(change.connection, after)
            await change.record(Action.INVITATION_RESENT, after.id, before=before, after=after)
            await mails.invite(after.email, after.id)
            return change.answer(after)

    async def withdraw(
        self, principal: RequestPrincipal, author: Author, invitation_id: str
    ) -> None:
        """Withdraw an invitation: its link stops working. Repeating it succeeds. It needs no links,
        so that the operator can do it too.

        Raises `NotFoundError`, `ScopeEscalationError`, `ModeMismatchError`, and
        `InvitationClosedError` for one that was accepted.
        """
        async with self._changes.begin(principal, author, WRITE_SCOPE) as change:
            terms = await store.get(change.connection, change.org_id, invitation_id, change.now)
            before = terms.invitation
            check_may_manage(change.caller, self.catalog.roles.find(before.role))
            if before.status in (InvitationStatus.WITHDRAWN, InvitationStatus.EXPIRED):
                return
            rules.check_open(before.status)
            await _close(change, before, Action.INVITATION_WITHDRAWN, InvitationStatus.WITHDRAWN)

    async def look_up(self, token: str) -> ShownInvitation | None:
        """Return what the bearer of a link sees, without a change; None for an invalid link."""
        if self.links is None or self.links.read(token) is None:
            return None
        try:
            async with (
                self._turn,
                self.database.transaction(OF_PEOPLE) as connection,
                self._of_link(connection, token) as (tenant, terms, _now),
            ):
                return _shown(tenant, terms.invitation)
        except errors.NotFoundError:
            return None

    def is_mailed(self, invitation: ShownInvitation, proof: str) -> bool:
        """Whether a proof is of a mail about this invitation."""
        return self._links.is_mailed(invitation.id, proof)

    async def accept(
        self,
        user: User,
        author: Author,
        token: str,
        address: CallerAddress,
        *,
        proof: str = "",
        claim: Claim | None = None,
    ) -> Membership:
        """Make the user a member, and close the invitation. The same user may repeat it.

        ``address`` is the user's verified one. ``proof`` is that of a mail to the invited address,
        and counts for any user who presents it. The invitation of a user who is a member already is
        withdrawn, so that it takes no place of the plan's members.

        Raises `NotFoundError` for an invalid link, `InvitationClosedError`,
        `EmailNotVerifiedError`, `EmailMismatchError`, `MemberExistsError`,
        `PlanLimitReachedError`, `LastOwnerError`, `OrgSuspendedError` and the errors of
        idempotency.
        """
        links = self._links
        verified = await address.find()  # may ask the identity provider: before the transaction
        try:
            async with (
                self.database.change(OF_PEOPLE) as connection,
                answered_once(connection, claim, Membership, self.clock()) as request,
            ):
                if isinstance(request, Repeated):
                    return request.first_answer
                async with self._of_link(connection, token, lock=True) as (tenant, terms, now):
                    check_not_suspended(tenant.suspension)
                    change = Change(connection, author, now, tenant)
                    member = await self._accepted_by(connection, user, terms)
                    if member is None:
                        rules.check_open(terms.invitation.status)
                        has_proof = links.is_mailed(terms.invitation.id, proof)
                        rules.check_recipient(terms.address, verified, has_proof=has_proof)
                        member = await self._join(change, user, terms)
                        await _record_address(change, address, verified)
                    membership = membership_of(tenant, member)
                return request.answer(membership)
        except errors.MemberExistsError:
            await self._close_needless(user, author, token)
            raise

    async def request_confirmation(self, user: User, token: str, address: CallerAddress) -> None:
        """Mail the link with the proof to the invited address, for a user who has only the token.

        Nothing is mailed where accepting would fail, whatever the proof, nor for a user whose
        verified ``address`` is another one.

        Raises `NotFoundError` for an invalid link, `InvitationClosedError`, `EmailMismatchError`,
        `MemberExistsError`, `OrgSuspendedError`, and `InvitationLimitReachedError` where the
        address received as many as allowed.
        """
        _ = self._links
        verified = await address.find()  # may ask the identity provider: before the transaction
        async with (
            self.database.transaction(OF_PEOPLE) as connection,
            self._of_link(connection, token, lock=True) as (tenant, terms, now),
        ):
            check_not_suspended(tenant.suspension)
            invitation = terms.invitation
            rules.check_open(invitation.status)
            rules.check_no_other_address(terms.address, verified)
            await self._check_may_join(connection, user, invitation)
            mails = TenantMails(connection, self.outbox, now, invitation.org_id)
            queued = await mails.confirm_invited(invitation.email, invitation.id)
            if not queued:
                raise rules.confirmation_limit()

    @asynccontextmanager
    async def _of_link(
        self, connection: Connection, token: str, *, lock: bool = False
    ) -> AsyncIterator[tuple[TenantRow, InvitationTerms, datetime]]:
        """Work on the invitation of a link during the block; with ``lock`` its tenant is locked.

        Raises `NotFoundError` for an invalid link.
        """
        invitation_id = self._links.read(token)
        org_id = invitation_id and await store.find_tenant_id(connection, invitation_id)
        if not invitation_id or not org_id:
            raise errors.NotFoundError("invitation")
        async with connection.within(of_tenant(org_id)):
            tenant = await get_tenant(connection, org_id, lock=lock)
            now = self.clock()
            yield tenant, await store.get(connection, org_id, invitation_id, now), now

    async def _check_may_join(
        self, connection: Connection, user: User, invitation: Invitation
    ) -> Member | None:
        """Return the former membership of a user who may become a member, if there is one.

        Raises `MemberExistsError`, and `InvitationClosedError` for a user who was removed since, or
        a role that has ended.
        """
        former = await members.find_user(connection, invitation.org_id, user)
        if former is not None and former.status is MemberStatus.ACTIVE:
            raise errors.MemberExistsError(f"You are a member already, as {former.role}.")
        removed_at = None if former is None else former.removed_at
        rules.check_offered_since(invitation, removed_at)
        rules.check_role(self.catalog.roles, invitation.role)
        return former

    async def _close_needless(self, user: User, author: Author, token: str) -> None:
        """Withdraw the invitation of a user who may accept it, but is a member already."""
        async with (
            self.database.transaction(OF_PEOPLE) as connection,
            self._of_link(connection, token, lock=True) as (tenant, terms, now),
        ):
            invitation = terms.invitation
            member = await members.find_user(connection, tenant.record.id, user)
            is_member = member is not None and member.status is MemberStatus.ACTIVE
            if is_member and invitation.status is InvitationStatus.OPEN:
                await _close(
                    Change(connection, author, now, tenant),
                    invitation,
                    Action.INVITATION_WITHDRAWN,
                    InvitationStatus.WITHDRAWN,
                )

    async def _accepted_by(
        self, connection: Connection, user: User, terms: InvitationTerms
    ) -> Member | None:
        """Return the membership of the user, if this user accepted the invitation before and has
        not left since.
        """
        if terms.member_id is None:
            return None
        member = await members.find_user(connection, terms.invitation.org_id, user)
        if member is None or member.id != terms.member_id:
            return None
        return member if member.status is MemberStatus.ACTIVE else None

    async def _join(self, change: Change, user: User, terms: InvitationTerms) -> Member:
        """Close the invitation, and make the user a member in its place."""
        invitation = terms.invitation
        former = await self._check_may_join(change.connection, user, invitation)
        await _close(change, invitation, Action.INVITATION_ACCEPTED, InvitationStatus.ACCEPTED)
        memberships = MembershipChanges(change, self.issuers, self.outbox)
        await memberships.check_limit(self.catalog)
        role = self.catalog.roles.find(invitation.role)
        member = await memberships.admit(user, former, role, binds_owner=terms.binds_owner)
        await store.name_member(change.connection, invitation, member.id)
        return member


async def _check_no_member(connection: Connection, org_id: str, email: str, address: str) -> None:
    """Raise `MemberExistsError` for the address of an active member."""
    member_id = await store.find_member_id(connection, org_id, email, address)
    if member_id is not None:
        raise errors.MemberExistsError(
            "The user of this address is a member already: "
            f"change the role with PATCH /api/v1/members/{member_id}."
        )


async def _check_not_invited(
    connection: Connection, org_id: str, address: str, now: datetime
) -> None:
    """Raise `InvitationExistsError` for an address with an open invitation."""
    if await store.has_open(connection, org_id, address, now):
        raise errors.InvitationExistsError(
            "There is an open invitation for this address: send it again, or withdraw it."
        )


async def _record_address(change: Change, address: CallerAddress, verified: str | None) -> None:
    """Store the verified address of a new member, which need not be the invited one."""
    if address.claims is None:
        return
    claims = msgspec.structs.replace(address.claims, email=verified)
    visit = visit_of(claims, change.org_id, claims.name, change.now)
    async with change.connection.within(OF_PEOPLE):
        await record_visits(change.connection, [visit])


async def _close(
    change: Change, before: Invitation, action: Action, status: InvitationStatus
) -> None:
    await store.close(change.connection, before, status, change.now)
    after = msgspec.structs.replace(before, status=status)
    await change.record(action, before.id, before=before, after=after)


def _shown(tenant: TenantRow, invitation: Invitation) -> ShownInvitation:
    return ShownInvitation(
        invitation.id,
        invitation.org_id,
        tenant.record.name,
        invitation.email,
        invitation.role,
        invitation.status,
        invitation.expires_at,
    )
