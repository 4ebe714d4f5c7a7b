"""Create, read, change, end and export tenants: for their users, and for the operator."""

import logging
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final

from msgspec import UNSET, UnsetType

from tenantry.accounts import members_store as members
from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.caller_address import UNVERIFIED, CallerAddress
from tenantry.accounts.memberships.changes import (
    NO_OUTBOX,
    MembershipChanges,
    hand_over,
    issuer_of_new,
)
from tenantry.accounts.tenant_changes import TenantChange, audited, record_update
from tenantry.accounts.tenant_export import TenantExport, read_export
from tenantry.audit.trail import RecordedChange
from tenantry.auth.api_keys import revoke_all
from tenantry.auth.changes import Change, Changes, Repeated, answered_once
from tenantry.billing import checkout_store
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.common.time_zones import time_zone_names
from tenantry.db.connection import OF_PEOPLE, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.db.outbox import Outbox
from tenantry.db.pagination import Page, window_after
from tenantry.db.tenants_store import TenantRow, get_tenant
from tenantry.domain import errors
from tenantry.domain.api_keys import RevocationReason
from tenantry.domain.audit import Action, Author
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.issuers import Issuers
from tenantry.domain.members import User, check_user_id
from tenantry.domain.names import check_name
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.permissions import AccessLevel, RequestPrincipal
from tenantry.domain.telemetry import SILENT, Telemetry
from tenantry.domain.tenants import (
    ManagedTenant,
    Tenant,
    TenantInput,
    is_tenant_id,
    suspension_after,
    to_tenant,
)
from tenantry.integrations.oidc.tokens import Claims
from tenantry.integrations.stripe.client import ProviderApi

WRITE_SCOPE: Final = "tenants:write"
_STILL_RENEWS: Final = (
    "The organization has a subscription that renews. Cancel it under Billing first; deleting the organization would "
    "not stop the charges."
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TenantService:
    """Tenants, for their users and for the operator.

    ``issuers`` are the identity provider's. The operator names one of their users as the owner;
    where there are several directories, that makes no membership. ``email_subjects`` allows e-mail
    addresses as user ids. A user may create ``tenants_per_user`` tenants. At the ``provider`` an
    open checkout ends before its tenant.
    """

    database: Database
    policy: BillingPolicy
    outbox: Outbox
    clock: Clock
    issuers: Issuers | None = None
    telemetry: Telemetry = SILENT
    _: KW_ONLY
    tenants_per_user: int = 0
    email_subjects: bool = False
    provider: ProviderApi | None = None

    @property
    def _changes(self) -> Changes:
        return Changes(self.database, self.clock)

    async def list_page(
        self, principal: RequestPrincipal, claims: Claims | None, limit: int, cursor: str | None
    ) -> Page[Tenant]:
        """Read a page of the caller's tenants, newest first: the key's own, or all of the
        user's.
        """
        window = window_after(limit, cursor)
        if claims is None:
            async with self.database.transaction(of_tenant(principal.org_id)) as connection:
                found = await get_tenant(connection, principal.org_id, even_ended=True)
            return Page([self._shown(found)] if cursor is None else [], None)
        async with self.database.transaction(OF_PEOPLE) as connection:
            catalog = self.policy.catalog
            now = self.clock()
            return await tenants.read_of_user(
                connection,
                claims.user,
                principal.org_id,
                window,
                catalog,
                now,
            )

    async def get(self, principal: RequestPrincipal, tenant_id: str) -> Tenant:
        """Read the caller's tenant. Raises `NotFoundError` for any other."""
        _check_own(principal, tenant_id)
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return self._shown(await get_tenant(connection, tenant_id, even_ended=True))

    async def create(
        self,
        claims: Claims,
        author: Author,
        *,
        name: str,
        owner_email: str | None,
        address: CallerAddress,
        claim: Claim | None,
    ) -> Tenant:
        """Create a tenant with the user as its owner. The token's org claim, if any, becomes its
        id.

        The owner's address is ``owner_email``, or the user's verified ``address``. Raises
        `TenantExistsError`, `TenantLimitReachedError`, `ValidationError` and the errors of
        idempotency.
        """
        check_name(name)
        email = owner_email or await address.find()
        if email is None:
            raise errors.ValidationError(
                ("ownerEmail", "is needed: the identity provider gives no verified address")
            )
        is_verified = owner_email is None or await address.verifies(owner_email)
        now = self.clock()
        tenant_id = claims.org_id or new_id("org")
        # the claim is the user's, not a tenant's
        async with (
            self.database.change(OF_PEOPLE) as connection,
            answered_once(connection, claim, Tenant, now) as request,
        ):
            if isinstance(request, Repeated):
                return request.first_answer
            await self._check_tenant_limit(connection, claims.user)
            wanted = TenantInput(
                name,
                email,
                claims.subject,
                email_verified=is_verified,
            )
            async with connection.within(of_tenant(tenant_id)):
                creation = self._tenant_change(connection, author, tenant_id, now)
                await creation.apply(wanted, only_new=True)
                if owner_email is None:
                    await tenants.let_owner_email_follow(connection, tenant_id, claims.issued_at)
                row = await get_tenant(connection, tenant_id)
                change = Change(connection, author, now, row)
                # a new tenant has no subscription
                memberships = MembershipChanges(change, self.issuers, NO_OUTBOX)
                await memberships.add_owner(claims.user, is_founder=True)
                await change.mails(self.outbox).announce(None, row.owner_address)
            return request.answer(self._shown(row))

    async def update(
        self,
        principal: RequestPrincipal,
        author: Author,
        tenant_id: str,
        *,
        name: str | None = None,
        owner_email: str | None = None,
        time_zone: str | UnsetType | None = UNSET,
        leaves_key_mails: bool | None = None,
        address: CallerAddress = UNVERIFIED,
    ) -> Tenant:
        """Change the given fields of the caller's tenant.

        ``address`` is the caller's verified one. Setting the same unverified ``owner_email`` again
        requests another confirmation mail. ``time_zone`` None means that of each reader. With
        ``leaves_key_mails`` its people get no reminders of API keys.

        Raises `NotFoundError`, `ValidationError` and as `Changes.begin`.
        """
        _check_own(principal, tenant_id)
        is_verified = await address.verifies(owner_email)
        async with self._changes.begin(principal, author, WRITE_SCOPE) as change:
            found = change.tenant
            if name is not None:
                check_name(name)
            _check_time_zone(time_zone)
            was = found.owner_address
            becomes = was if owner_email is None else was.changed(owner_email, verified=is_verified)
            follows = found.owner_email_follows and owner_email is None
            await tenants.update(
                change.connection,
                found,
                becomes,
                change.now,
                name=name,
                owner_email_follows=follows,
                time_zone=time_zone,
                leaves_key_mails=leaves_key_mails,
            )
            updated = await record_update(change, self.policy.catalog)
            if owner_email is not None:
                await self._announce(change, becomes)
            return self._shown(updated)

    async def leaves_key_mails(self, principal: RequestPrincipal) -> bool:
        """Whether the people of the caller's tenant get no reminders of API keys."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return (await get_tenant(connection, principal.org_id)).leaves_key_mails

    async def transfer(
        self,
        principal: RequestPrincipal,
        author: Author,
        tenant_id: str,
        *,
        user_id: str,
        owner_email: str,
        claim: Claim | None,
        address: CallerAddress = UNVERIFIED,
        issuer: str | None = None,
    ) -> Tenant:
        """Make an active member the tenant's owner, with the address for billing mail; the former
        owner becomes admin.

        ``address`` is the caller's verified one. Without an ``issuer`` of the member, it is that of
        `issuer_of_new`.

        Raises `NotFoundError`, `IdentityProviderNotConfiguredError`, `ScopeEscalationError`,
        `ModeMismatchError`, `ValidationError`, the errors of idempotency and those of
        `Changes.begin`.
        """
        issuer = issuer or issuer_of_new(self.issuers, principal)
        self._check_user_id(user_id, "userId")
        _check_own(principal, tenant_id)
        is_verified = await address.verifies(owner_email)
        async with self._changes.begin_once(
            principal, author, WRITE_SCOPE, claim=claim, kind=Tenant
        ) as change:
            if isinstance(change, Repeated):
                return change.first_answer
            await hand_over(change, self.issuers, User(issuer, user_id))
            row = found = change.tenant
            becomes = found.owner_address.changed(owner_email, verified=is_verified)
            is_new_owner = user_id != found.record.owner_id
            if is_new_owner or becomes != found.owner_address or found.owner_email_follows:
                await tenants.update(
                    change.connection,
                    found,
                    becomes,
                    change.now,
                    owner_id=user_id,
                )
                row = await record_update(change, self.policy.catalog, Action.TENANT_TRANSFERRED)
            await self._announce(change, becomes)
            return change.answer(self._shown(row))

    async def put(
        self, author: Author, tenant_id: str, wanted: TenantInput, *, only_new: bool = False
    ) -> tuple[ManagedTenant, bool]:
        """Create a tenant or, unless ``only_new``, update an existing one; the flag says that it is
        new.

        Raises `TenantExistsError`, `TenantDeletedError` for an ended tenant, `ValidationError`,
        `CustomerTakenError`.
        """
        if wanted.owner_id is not None:
            self._check_user_id(wanted.owner_id, "ownerId")
        check_name(wanted.name)
        if wanted.plan is not None and wanted.plan not in self.policy.catalog:
            raise errors.ValidationError(("plan", f"{wanted.plan!r} is not in the plan catalog"))
        now = self.clock()
        async with self.database.change(of_tenant(tenant_id)) as connection:
            writing = self._tenant_change(connection, author, tenant_id, now)
            before = await writing.apply(wanted, only_new=only_new)
            if before is not None and wanted.email_verified:
                address = before.owner_address.changed(wanted.owner_email, verified=True)
                await self._announce(Change(connection, author, now, before), address)
            row = await get_tenant(connection, tenant_id)
            issuer = self.issuers.only if self.issuers is not None else None
            if issuer is not None and wanted.owner_id is not None:
                change = Change(connection, author, now, row)
                memberships = MembershipChanges(change, self.issuers, NO_OUTBOX)
                await memberships.add_owner(User(issuer, wanted.owner_id))
                # in any case: a repeated request repairs the seats
                await self.outbox.defer_seats(connection, [tenant_id])
            return self._managed(row), before is None

    async def show(self, tenant_id: str) -> ManagedTenant:
        """Read a tenant that has not ended, for the operator. Raises `NotFoundError`."""
        check_tenant_id(tenant_id)
        async with self.database.transaction(of_tenant(tenant_id)) as connection:
            return self._managed(await get_tenant(connection, tenant_id))

    async def suspend(self, author: Author, tenant_id: str, *, suspended: bool) -> ManagedTenant:
        """Reject a tenant's credentials from now on, for the author's reason, or accept them again.
        Raises `NotFoundError`.
        """
        check_tenant_id(tenant_id)
        async with self._changes.begin_in_tenant(tenant_id, author) as change:
            current = change.tenant.suspension
            suspension = suspension_after(current, author.reason, suspended=suspended)
            if suspension == current:
                return self._managed(change.tenant)
            await tenants.set_suspension(change.connection, tenant_id, suspension, change.now)
            return self._managed(await record_update(change, self.policy.catalog))

    async def delete(self, author: Author, tenant_id: str) -> None:
        """End a tenant: revoke its keys at once, keep its data for 30 days. It no longer counts for
        the user who created it. Raises `NotFoundError`.
        """
        async with self._changes.begin_in_tenant(tenant_id, author, even_ended=True) as change:
            await members.forget_founder(change.connection, tenant_id)
            if change.tenant.deleted:
                return
            revoked = await self._end(change)
        self._count_revoked(revoked)

    async def end_own(
        self, principal: RequestPrincipal, author: Author, tenant_id: str, *, name: str
    ) -> None:
        """End the caller's tenant, as `delete` does. ``name`` is its name, which the caller repeats
        to confirm.

        While a subscription renews, the provider would charge for an organization that is closed,
        so an open checkout ends first. While the provider is away it stays open, for a day at most.
        For the user who created the tenant, it counts until its data is deleted: a new one would
        have new quotas, a new trial, and new limits of mails.

        Raises `NotFoundError`, `ScopeEscalationError`, `ValidationError`,
        `SubscriptionExistsError`, and as `Changes.begin`.
        """
        ended: str | None = None
        while other := await self._end_without_checkout(principal, author, tenant_id, name, ended):
            await self._end_checkout(tenant_id, other)
            ended = other

    async def _end_without_checkout(
        self,
        principal: RequestPrincipal,
        author: Author,
        tenant_id: str,
        name: str,
        ended: str | None,
    ) -> str | None:
        """End the caller's tenant and return None, or return its last checkout session unless that
        has ``ended``.
        """
        _check_own(principal, tenant_id)
        async with self._changes.begin(principal, author, WRITE_SCOPE) as change:
            if change.caller.access_level is not AccessLevel.OWNER:
                raise errors.ScopeEscalationError("Only an owner can delete the organization.")
            if name != change.tenant.record.name:
                raise errors.ValidationError(("name", "is not the organization's name"))
            if await tenants.has_renewal(change.connection, tenant_id):
                raise errors.SubscriptionExistsError(_STILL_RENEWS)
            other = await checkout_store.last_checkout(change.connection, tenant_id)
            if other not in (None, ended):
                return other
            revoked = await self._end(change)
        self._count_revoked(revoked)
        return None

    async def _end_checkout(self, tenant_id: str, session_id: str) -> None:
        """End a checkout session at the provider. Raises `SubscriptionExistsError` if it was
        completed and its subscription renews.
        """
        if self.provider is None:
            return
        try:
            completed = await self.provider.end_checkout_session(session_id)
        except (errors.ProviderUnavailableError, errors.ProviderRefusedError):
            # the owner can end the organization in any case; the session expires within a day
            logger.warning("the last checkout of tenant %s was not ended with it", tenant_id)
            return
        if completed is not None and completed.renews_for(tenant_id):
            raise errors.SubscriptionExistsError(_STILL_RENEWS)

    async def export(self, author: Author, tenant_id: str) -> TenantExport:
        """Export a tenant, also one that ended less than 30 days ago. Raises `NotFoundError`.

        The audit trail records the export; the next one contains that entry.
        """
        now = self.clock()
        async with self.database.transaction(of_tenant(tenant_id)) as connection:
            found = await get_tenant(connection, tenant_id, even_ended=True)
            exported = await read_export(connection, found, self.policy.catalog, now)
            change = RecordedChange(connection, author, tenant_id, now)
            await change.record(Action.TENANT_EXPORTED, tenant_id)
            return exported

    async def _end(self, change: Change) -> int:
        """End the tenant; return how many of its keys that revoked."""
        tenant_id = change.org_id
        revoked = await revoke_all(change)
        await tenants.mark_deleted(change.connection, tenant_id, change.now)
        ended = await get_tenant(change.connection, tenant_id, even_ended=True)
        await change.record(
            Action.TENANT_ENDED,
            tenant_id,
            before=audited(change.tenant),
            shown=ended.managed(self.policy.catalog, change.now),
        )
        return revoked

    async def _announce(self, change: Change, address: OwnerAddress) -> None:
        """Mail what a new address of the owner needs."""
        await change.mails(self.outbox).announce(change.tenant.owner_address, address)

    def _count_revoked(self, number: int) -> None:
        if number:
            self.telemetry.keys_revoked(RevocationReason.TENANT_ENDED, number)

    def _tenant_change(
        self, connection: Connection, author: Author, tenant_id: str, now: datetime
    ) -> TenantChange:
        return TenantChange(
            connection, author, tenant_id, now, policy=self.policy, outbox=self.outbox
        )

    def _shown(self, tenant: TenantRow) -> Tenant:
        return to_tenant(tenant.record, self.policy.catalog, self.clock())

    def _managed(self, tenant: TenantRow) -> ManagedTenant:
        return tenant.managed(self.policy.catalog, self.clock())

    def _check_user_id(self, user_id: str, location: str) -> None:
        if not self.email_subjects:
            check_user_id(user_id, location)

    async def _check_tenant_limit(self, connection: Connection, user: User) -> None:
        """Check the user's number of tenants, one creation after another in all processes until the
        commit.
        """
        await connection.lock_name(f"tenants of\x1f{user.issuer}\x1f{user.subject}")
        if await members.has_created(connection, user, self.tenants_per_user):
            raise errors.TenantLimitReachedError(
                f"A user may create {self.tenants_per_user} organizations. Those that were deleted in the last "
                "30 days count too. Use one of yours, or ask the operator of this service to end one or to allow more."
            )


def _check_time_zone(name: str | UnsetType | None) -> None:
    if isinstance(name, str) and name not in time_zone_names():
        raise errors.ValidationError(
            ("timeZone", "must be a name of the IANA time zone database, such as Europe/Berlin")
        )


def _check_own(principal: RequestPrincipal, tenant_id: str) -> None:
    if tenant_id != principal.org_id:
        raise errors.NotFoundError("tenant")


def check_tenant_id(tenant_id: str) -> None:
    """Raise `NotFoundError` for an id that no tenant can have, which the database might not even
    accept.
    """
    if not is_tenant_id(tenant_id):
        raise errors.NotFoundError("tenant")
