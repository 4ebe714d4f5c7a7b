"""The owner's mail address: taken from verified claims, or confirmed by a mailed link."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.tenant_changes import record_update
from tenantry.accounts.tenants import WRITE_SCOPE, check_tenant_id
from tenantry.audit.operator_trail import record_acts
from tenantry.auth.changes import Change, Changes
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database, few_at_once
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import TenantRow, find_tenant, get_tenant
from tenantry.db.write_behind import WriteBehind
from tenantry.domain.audit import ActorKind, Author
from tenantry.domain.errors import ValidationError
from tenantry.domain.operator_acts import NewAct, OperatorAction
from tenantry.domain.owner_mails import OwnerAddress, link_digest, same_address
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Catalog
from tenantry.integrations.oidc.tokens import Claims
from tenantry.notifications import mails_store

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


def owner_address_writes(
    database: Database, outbox: Outbox, catalog: Catalog, clock: Clock
) -> WriteBehind[Claims]:
    """Return the pending writes of owner addresses: by tenant, the claims of owners whose address
    has changed.

    Of two tokens the one issued later counts, so that a token from before the change does not
    restore the old address.
    """

    async def store(connection: Connection, claims: Mapping[str, Claims]) -> None:
        now = clock()
        # rows are locked in the order of their ids, as everywhere
        for org_id, claim in sorted(claims.items()):
            if _new_email(await find_tenant(connection, org_id), claim) is None:
                continue
            tenant = await find_tenant(connection, org_id, lock=True)
            if tenant is not None:
                change = Change(connection, Author(ActorKind.SYSTEM), now, tenant)
                await _follow(change, claim, outbox, catalog)

    return WriteBehind(
        database,
        "owner addresses",
        store,
        lambda old, new: old.issued_at <= new.issued_at,
        read_by_checks=True,
    )


async def _follow(change: Change, claims: Claims, outbox: Outbox, catalog: Catalog) -> None:
    """Set the owner's address to the claimed one, if that still is its new one under the lock."""
    connection, org_id, tenant = change.connection, change.org_id, change.tenant
    email = _new_email(tenant, claims)
    if email is None:
        return
    if await tenants.move_owner_email(connection, org_id, email, claims.issued_at, change.now):
        await record_update(change, catalog)
        address = OwnerAddress(email, email)
        await change.mails(outbox).announce(tenant.owner_address, address)


def _new_email(tenant: TenantRow | None, claims: Claims) -> str | None:
    """Return the claimed address if it confirms the owner's, or that one follows the identity
    provider's.
    """
    email = claims.email
    if email is None or tenant is None or not _is_owner(tenant, claims):
        return None
    address = tenant.owner_address
    confirms = not address.is_verified and same_address(address.email, email)
    follows = tenant.owner_email_follows and address.email != email
    return email if confirms or follows else None


def _is_owner(tenant: TenantRow, claims: Claims) -> bool:
    return not tenant.deleted and tenant.record.owner_id == claims.subject


class ConfirmationRequest(Enum):
    """The outcome of a request for another confirmation mail."""

    QUEUED = auto()
    LIMITED = auto()
    """The tenant or the address has received as many mails as allowed for now."""
    VERIFIED = auto()
    """The address is verified already."""


@dataclass(frozen=True)
class OwnerConfirmations:
    """Sends confirmation mails again, and accepts their links, or the operator's word."""

    database: Database
    outbox: Outbox
    catalog: Catalog
    clock: Clock
    _turn: asyncio.Semaphore = field(default_factory=few_at_once, init=False)

    async def of_tenant(self, principal: RequestPrincipal) -> OwnerAddress:
        """Return the owner's address of the principal's tenant. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return (await get_tenant(connection, principal.org_id)).owner_address

    async def send_again(self, principal: RequestPrincipal, author: Author) -> ConfirmationRequest:
        """Mail the confirmation link again: by a person of the operator, this is an act. Raises
        `InsufficientScopeError` and as `Changes.begin`.
        """
        changes = Changes(self.database, self.clock, read_by_checks=False)
        async with changes.begin(principal, author, WRITE_SCOPE) as change:
            if change.tenant.owner_address.is_verified:
                return ConfirmationRequest.VERIFIED
            queued = await change.mails(self.outbox).confirm_owner(change.tenant.owner_email)
            if queued and author.person is not None:
                await _record_resent(change)
        return ConfirmationRequest.QUEUED if queued else ConfirmationRequest.LIMITED

    async def look_up(self, token: str) -> TenantRow | None:
        """Return the tenant whose owner's address a link would confirm, without a change; None for
        an invalid link.
        """
        if not _TOKEN.fullmatch(token):
            return None
        async with self._turn, self.database.transaction(ACROSS_TENANTS) as connection:
            return await self._find(connection, token)

    async def confirm(self, author: Author, token: str) -> TenantRow | None:
        """Mark the address as verified, and end every link of the tenant; None for an invalid link.

        A link is valid once, for 24 hours, and only while its address is the owner's.
        """
        if not _TOKEN.fullmatch(token):
            return None
        async with self.database.change(ACROSS_TENANTS, turn=self._turn) as connection:
            tenant = await self._find(connection, token, lock=True)
            # another request may have used the link before this one locked the tenant's row
            if tenant is None or await self._find(connection, token) is None:
                return None
            await _verify(Change(connection, author, self.clock(), tenant), self.catalog)
            return tenant

    async def verify(
        self, author: Author, tenant_id: str, *, email: str | None = None
    ) -> OwnerAddress:
        """Mark the owner's address of a tenant as verified by the operator, and return it.

        Raises `NotFoundError`, and `ValidationError` if it is no longer ``email``.
        """
        check_tenant_id(tenant_id)
        async with Changes(self.database, self.clock).begin_in_tenant(tenant_id, author) as change:
            address = change.tenant.owner_address
            if email is not None and not same_address(address.email, email):
                raise ValidationError(
                    ("email", "was changed meanwhile. Check the new one, and submit again")
                )
            if not address.is_verified:
                await _verify(change, self.catalog)
        return OwnerAddress(address.email, address.email)

    async def _find(
        self, connection: Connection, token: str, *, lock: bool = False
    ) -> TenantRow | None:
        """Find the tenant whose owner's address a link confirms; None if that is another one or
        verified.
        """
        found = await mails_store.find_confirmation(connection, link_digest(token), self.clock())
        if found is None:
            return None
        async with connection.within(of_tenant(found[0])):
            tenant = await find_tenant(connection, found[0], lock=lock)
        if tenant is None or tenant.deleted or tenant.owner_address.is_verified:
            return None
        return tenant if same_address(tenant.owner_email, found[1]) else None


async def _record_resent(change: Change) -> None:
    org_id = change.org_id
    act = NewAct(
        new_id("act"), change.now, OperatorAction.CONFIRMATION_RESENT, org_id, target_id=org_id
    )
    await record_acts(change.connection, change.author, [act])


async def _verify(change: Change, catalog: Catalog) -> None:
    """Mark the address as verified, and end the links to confirm it."""
    connection, tenant = change.connection, change.tenant
    address = OwnerAddress(tenant.owner_email, tenant.owner_email)
    async with connection.within(of_tenant(change.org_id)):
        await tenants.update(
            connection,
            tenant,
            address,
            change.now,
            owner_email_follows=tenant.owner_email_follows,
        )
        await record_update(change, catalog)
    async with connection.within(ACROSS_TENANTS):
        await mails_store.end_links(connection, change.org_id)
