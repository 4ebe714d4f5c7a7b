"""The owner's mail address: taken from verified claims, or confirmed by a mailed link."""

import asyncio
import logging
import re
from enum import Enum, auto
from typing import Final

import msgspec
import psycopg

from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.tenants_store import OwnerSeen
from tenantry.audit import trail as audit
from tenantry.auth.reauthorization import as_of_now
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.tenants_store import TenantRow, find_tenant
from tenantry.domain.access import Principal
from tenantry.domain.audit import Action, ActorKind, Author
from tenantry.domain.errors import DatabaseUnavailableError, NotFoundError
from tenantry.domain.members import Ownership
from tenantry.domain.owner_mails import OwnerAddress, link_digest, same_address
from tenantry.integrations.oidc.tokens import Claims
from tenantry.notifications import mails_store
from tenantry.notifications.owner_mails import MailOutbox, announce, request_confirmation

INTERVAL: Final = 5.0
"""Seconds between writes: what a process that is killed can lose, until the owner's next request."""

logger = logging.getLogger(__name__)


class OwnerAddresses:
    """Collects owners whose address has changed; `run` writes them, in one statement for all tenants.

    Of two tokens that disagree the one that ends later counts, so that a token from before the change, which goes on
    for a while, does not bring the old address back.
    """

    def __init__(self, database: Database, outbox: MailOutbox, clock: Clock) -> None:
        self._database = database
        self._outbox = outbox
        self._clock = clock
        self._seen: dict[str, OwnerSeen] = {}

    def record(self, org_id: str, claims: Claims) -> None:
        """The tenant's owner has just sent a token with this verified address."""
        if claims.email is None:
            return
        known = self._seen.get(org_id)
        if known is None or known.token_issued <= claims.issued_at:
            self._seen[org_id] = OwnerSeen(org_id, claims.subject, claims.email, claims.issued_at)

    async def run(self) -> None:
        """Write what was collected every `INTERVAL` seconds, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.write()

    async def write(self) -> None:
        """Write what was collected so far. While the database does not take it, it is kept for the next time."""
        seen, self._seen = self._seen, {}
        if not seen:
            return
        now = self._clock()
        try:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                for seen_as, was in await tenants.move_owner_emails(connection, list(seen.values()), now):
                    await audit.record(
                        connection,
                        Author(ActorKind.SYSTEM),
                        Action.TENANT_UPDATED,
                        org_id=seen_as.org_id,
                        target_id=seen_as.org_id,
                        before=Ownership(seen_as.user_id, was.email, owner_email_verified=was.is_verified),
                        after=Ownership(seen_as.user_id, seen_as.email, owner_email_verified=True),
                        now=now,
                    )
                    is_now = OwnerAddress(seen_as.email, seen_as.email)
                    await announce(connection, self._outbox, seen_as.org_id, was, is_now, now)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            self._seen = {**seen, **self._seen}
            why = type(error.__cause__ or error).__name__  # its text may hold an address
            logger.info("the addresses of %d owners are written later: %s", len(seen), why)


# Confirming an owner's address by the link in a mail


_AT_ONCE: Final = 2
"""Links need no credential: most database connections stay free for others."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


class AddressToConfirm(msgspec.Struct, frozen=True):
    """What a link confirms: that this is the address of this tenant's owner."""

    tenant_id: str
    tenant_name: str
    email: str


class Resent(Enum):
    """The outcome of a request for another confirmation mail."""

    QUEUED = auto()
    LIMITED = auto()
    """The tenant or the address has had as many as it may get for now."""
    VERIFIED = auto()
    """The address is verified already."""


class OwnerConfirmations:
    """Sends confirmation mails again, and takes the links that they hold."""

    def __init__(self, database: Database, outbox: MailOutbox, issuer: str | None, clock: Clock) -> None:
        self._database = database
        self._outbox = outbox
        self._issuer = issuer
        self._clock = clock
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def of_tenant(self, principal: Principal) -> OwnerAddress:
        """The owner's address of the caller's tenant. Raises `NotFoundError`."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            return (await _living(connection, principal.org_id)).owner_address

    async def send_again(self, principal: Principal) -> Resent:
        """Mail the confirmation link again. Raises `NotFoundError`, and what `as_of_now` and a scope raise."""
        tenant_id = principal.org_id
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            found = await _living(connection, tenant_id, lock=True)
            now = self._clock()
            (await as_of_now(connection, principal, self._issuer, now)).require("tenants:write")
            if found.owner_address.is_verified:
                return Resent.VERIFIED
            async with connection.within(ACROSS_TENANTS):
                queued = await request_confirmation(connection, self._outbox, tenant_id, found.owner_email, now)
        return Resent.QUEUED if queued else Resent.LIMITED

    async def look_up(self, token: str) -> AddressToConfirm | None:
        """What a link would confirm, which changes nothing; None for a link that is not valid."""
        if not _TOKEN.fullmatch(token):
            return None
        async with self._turn, self._database.transaction(ACROSS_TENANTS) as connection:
            found = await mails_store.find_confirmation(connection, link_digest(token), self._clock())
            if found is None:
                return None
            async with connection.within(of_tenant(found[0])):
                return _to_confirm(await find_tenant(connection, found[0]), found[1])

    async def confirm(self, author: Author, token: str) -> AddressToConfirm | None:
        """Record that the address is verified, and end every link of the tenant; None for a link that is not valid.

        A link is valid once, for 24 hours, and only while its address is the owner's.
        """
        if not _TOKEN.fullmatch(token):
            return None
        digest = link_digest(token)
        async with self._turn, self._database.transaction(ACROSS_TENANTS) as connection:
            now = self._clock()
            found = await mails_store.find_confirmation(connection, digest, now)
            if found is None:
                return None
            tenant_id, email = found
            async with connection.within(of_tenant(tenant_id)):
                tenant = await find_tenant(connection, tenant_id, lock=True)
            # read again: another request may have used the link before this one got the tenant's row
            if await mails_store.find_confirmation(connection, digest, now) is None:
                return None
            confirmed = _to_confirm(tenant, email)
            if tenant is None or confirmed is None:
                return None
            async with connection.within(of_tenant(tenant_id)):
                await _verify(connection, author, tenant, self._clock)
            await mails_store.end_links(connection, tenant_id)
            return confirmed


async def verify_as_operator(database: Database, author: Author, tenant_id: str, clock: Clock) -> OwnerAddress:
    """Record that the operator vouches for the owner's address as it is. Raises `NotFoundError`."""
    async with database.transaction(of_tenant(tenant_id)) as connection:
        tenant = await _living(connection, tenant_id, lock=True)
        if not tenant.owner_address.is_verified:
            await _verify(connection, author, tenant, clock)
            async with connection.within(ACROSS_TENANTS):
                await mails_store.end_links(connection, tenant_id)
        return OwnerAddress(tenant.owner_email, tenant.owner_email)


async def _verify(connection: Connection, author: Author, tenant: TenantRow, clock: Clock) -> None:
    now = clock()
    record = tenant.record
    await tenants.set_verified_email(connection, record.id, tenant.owner_email, now)
    await audit.record(
        connection,
        author,
        Action.TENANT_UPDATED,
        org_id=record.id,
        target_id=record.id,
        before=Ownership(record.owner_id, tenant.owner_email, owner_email_verified=False),
        after=Ownership(record.owner_id, tenant.owner_email, owner_email_verified=True),
        now=now,
    )


def _to_confirm(tenant: TenantRow | None, email: str) -> AddressToConfirm | None:
    """The tenant and address to confirm; None once the owner address is another one, or verified."""
    if tenant is None or tenant.deleted or tenant.owner_address.is_verified:
        return None
    if not same_address(tenant.owner_email, email):
        return None
    return AddressToConfirm(tenant.record.id, tenant.record.name, tenant.owner_email)


async def _living(connection: Connection, tenant_id: str, *, lock: bool = False) -> TenantRow:
    found = await find_tenant(connection, tenant_id, lock=lock)
    if found is None or found.deleted:
        raise NotFoundError("tenant")
    return found
