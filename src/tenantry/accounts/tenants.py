"""Tenants: making, reading, changing, ending, exporting."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Protocol

import msgspec

from tenantry.accounts import members_store as members
from tenantry.accounts import members_store as memberships
from tenantry.accounts import projects_store as projects
from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.members import seat_owner
from tenantry.accounts.members_store import User
from tenantry.accounts.owner_addresses import verify_as_operator
from tenantry.audit import trail as audit
from tenantry.auth import api_keys_store as api_keys
from tenantry.auth.reauthorization import as_of_now
from tenantry.billing import ledger
from tenantry.billing import ledger_store as billing
from tenantry.billing.ledger_queries import BillingEventView, view
from tenantry.billing.ledger_queries_store import read_all_entries
from tenantry.common.clock import Clock, to_micros
from tenantry.common.encoding import Position, new_id
from tenantry.common.openapi import doc
from tenantry.db.connection import ACROSS_TENANTS, OF_PEOPLE, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim, once
from tenantry.db.pagination import parse_time_cursor, to_page
from tenantry.db.tenants_store import TenantRow, find_tenant
from tenantry.domain.access import Mode, Principal
from tenantry.domain.api_keys import ApiKey, RevocationReason
from tenantry.domain.audit import Action, AuditEvent, Author
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import (
    CustomerTakenError,
    NotFoundError,
    TenantDeletedError,
    TenantExistsError,
    TenantLimitReachedError,
    ValidationError,
)
from tenantry.domain.members import check_user_id
from tenantry.domain.names import check_name, is_printable_name
from tenantry.domain.owner_mails import same_address
from tenantry.domain.pages import Page
from tenantry.domain.plans import FREE
from tenantry.domain.projects import Project
from tenantry.domain.tenants import Tenant
from tenantry.integrations.oidc.tokens import Claims
from tenantry.notifications.owner_mails import MailOutbox, announce

FindEmail = Callable[[], Awaitable[str | None]]
"""Asks the identity provider for the address of the user at hand."""


class TenantWishes(msgspec.Struct, frozen=True):
    """What an operator wants a tenant to be; None leaves a thing as it is, or at its default when it is new."""

    name: str
    owner_email: str
    owner_id: str | None = None
    stripe_customer_id: str | None = None
    suspended: bool | None = None
    plan: str | None = None
    email_verified: bool = True
    """Whether somebody vouches for the address: the operator does, unless this says otherwise."""


class TenantExport(msgspec.Struct, frozen=True, rename="camel"):
    """Everything that is kept of a tenant, except key digests and raw event bodies."""

    tenant: Annotated[Tenant, doc("The tenant's record.")]
    owner_email: Annotated[str, doc("The address that receives billing mail.", "ada@acme.example")]
    owner_email_verified: Annotated[
        bool, doc("Whether the owner's address is verified; only then does it receive security notices.", example=True)
    ]
    suspended: Annotated[bool, doc("Whether the tenant's credentials are refused.", example=False)]
    customers: Annotated[list[str], doc("The payment provider's customers that are linked to it.", ["cus_Rk2pXw7Lm3"])]
    members: Annotated[list[dict[str, Any]], doc("Users and their roles, including removed ones.")]
    api_keys: Annotated[list[ApiKey], doc("All keys, without secrets.")]
    audit_events: Annotated[list[AuditEvent], doc("The whole audit trail.")]
    projects: Annotated[list[Project], doc("All projects of both modes.")]
    billing_events: Annotated[list[BillingEventView], doc("The whole ledger.")]


class AuditedTenant(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant in the audit trail."""

    name: str
    owner_id: str
    owner_email: str
    owner_email_verified: bool
    stripe_customer_id: str | None
    suspended: bool


class TenantOutbox(MailOutbox, ledger.Outbox, Protocol):
    """What is to be done once a change of a tenant is committed."""


class TenantService:
    """Tenants, as their own people and as the operator see them."""

    def __init__(
        self,
        database: Database,
        policy: BillingPolicy,
        outbox: TenantOutbox,
        clock: Clock,
        issuer: str | None = None,
        keys_revoked: Callable[[RevocationReason, int], None] = lambda _reason, _number: None,
        *,
        tenants_per_user: int = 0,
        email_subjects: bool = False,
    ) -> None:
        """``issuer`` is the identity provider's, where there is one: owners whom the operator names are its users, and
        ``email_subjects`` says that their ids may be e-mail addresses. A user may create ``tenants_per_user``.

        ``keys_revoked`` is told of keys that ended with their tenant, once they have: why, and how many.
        """
        self._keys_revoked = keys_revoked
        self._tenants_per_user = tenants_per_user
        self._email_subjects = email_subjects
        self._database = database
        self._issuer = issuer
        self._policy = policy
        self._outbox = outbox
        self._clock = clock

    async def list_page(
        self, principal: Principal, claims: Claims | None, limit: int, cursor: str | None
    ) -> Page[Tenant]:
        """The tenants that the caller belongs to, newest first: a key's own, a user's all."""
        after = parse_time_cursor(cursor)
        if claims is None:
            async with self._database.transaction(of_tenant(principal.org_id)) as connection:
                found = await find_tenant(connection, principal.org_id)
            rows = [found.record] if found and cursor is None else []
        else:
            async with self._database.transaction(OF_PEOPLE) as connection:
                rows = await tenants.read_of_user(
                    connection, claims.issuer, claims.subject, principal.org_id, limit, after
                )
        return to_page(rows, limit, lambda row: Position(to_micros(row.created_at), row.id))

    async def get(self, principal: Principal, tenant_id: str) -> Tenant:
        """The caller's tenant. Raises `NotFoundError` for any other."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            return (await _own(connection, principal, tenant_id)).record

    async def create(
        self,
        claims: Claims,
        author: Author,
        *,
        name: str,
        owner_email: str | None,
        find_email: FindEmail,
        claim: Claim | None,
    ) -> Tenant:
        """Make a tenant whose owner is the user. An org claim that names no tenant becomes its id.

        The owner's address is ``owner_email``, the token's verified one, or the identity provider's.
        Raises `TenantExistsError`, `TenantLimitReachedError`, `ValidationError` and the errors of idempotency.
        """
        check_name(name)
        verified = claims.email or await find_email()
        email = owner_email or verified
        if email is None:
            raise ValidationError(("ownerEmail", "is needed: the identity provider gives no verified address"))
        is_verified = verified is not None and same_address(email, verified)
        now = self._clock()
        tenant_id = claims.org_id or new_id("org")
        async with self._database.transaction(OF_PEOPLE) as connection:  # the claim is the user's, not a tenant's

            async def make() -> Tenant:
                await self._check_room(connection, User(claims.issuer, claims.subject))
                wishes = TenantWishes(name=name, owner_email=email, owner_id=claims.subject, email_verified=is_verified)
                async with connection.within(of_tenant(tenant_id)):
                    if not await self._insert(connection, author, tenant_id, wishes, now):
                        raise TenantExistsError("The organization that the token names exists already.")
                    await seat_owner(connection, author, claims.issuer, tenant_id, claims.subject, now, is_founder=True)
                    if owner_email is None:
                        await tenants.let_owner_email_follow(connection, tenant_id, claims.issued_at)
                    made = await _existing(connection, tenant_id)
                    await announce(connection, self._outbox, tenant_id, None, made.owner_address, now)
                    return made.record

            tenant, _ = await once(connection, claim, Tenant, now, make)
            return tenant

    async def update(
        self,
        principal: Principal,
        author: Author,
        tenant_id: str,
        *,
        name: str,
        owner_email: str | None,
        email_verified: bool = False,
    ) -> Tenant:
        """Change the caller's tenant. Raises `NotFoundError` and `ValidationError`.

        ``email_verified`` says that the identity provider vouches for the address as the caller's. The same address
        again, where it is not verified, asks for another confirmation mail.
        """
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            found = await _own(connection, principal, tenant_id, lock=True)
            now = self._clock()
            (await as_of_now(connection, principal, self._issuer, now)).require("tenants:write")
            check_name(name, found.record.name)
            was = found.owner_address
            address = was if owner_email is None else was.changed(owner_email, verified=email_verified)
            await tenants.update(
                connection,
                tenant_id,
                name=name,
                owner_address=address,
                owner_email_follows=found.owner_email_follows and owner_email is None,
                owner_id=found.record.owner_id,
                suspended=found.suspended,
                now=now,
            )
            record = await _entered(connection, author, found, now)
            if owner_email is not None:
                await announce(connection, self._outbox, tenant_id, was, address, now)
            return record

    async def put(self, author: Author, tenant_id: str, wishes: TenantWishes) -> tuple[Tenant, bool]:
        """Make a tenant, or set an existing one; the flag says that it is new.

        Raises `TenantDeletedError` for one that has ended, `ValidationError` and `CustomerTakenError`.
        """
        self._check_owner_id(wishes)
        now = self._clock()
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            if not is_printable_name(wishes.name):  # an older tenant may keep such a name
                present = await find_tenant(connection, tenant_id)
                check_name(wishes.name, present.record.name if present else None)
            made = await self._insert(connection, author, tenant_id, wishes, now)
            if not made:
                found = await self._set(connection, tenant_id, wishes, now)
                await _entered(connection, author, found, now)
                address = found.owner_address.changed(wishes.owner_email, verified=wishes.email_verified)
                if wishes.email_verified:
                    await announce(connection, self._outbox, tenant_id, found.owner_address, address, now)
            await self._seat_owner(connection, author, tenant_id, wishes, now)
            return (await _existing(connection, tenant_id)).record, made

    async def create_as_operator(self, author: Author, tenant_id: str, wishes: TenantWishes) -> Tenant:
        """Make a tenant. Raises `TenantExistsError`, `ValidationError` and `CustomerTakenError`."""
        self._check_owner_id(wishes)
        check_name(wishes.name)
        now = self._clock()
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            if not await self._insert(connection, author, tenant_id, wishes, now):
                raise TenantExistsError(f"A tenant {tenant_id} exists already.")
            await self._seat_owner(connection, author, tenant_id, wishes, now)
            return (await _existing(connection, tenant_id)).record

    async def show(self, tenant_id: str) -> Tenant:
        """Any living tenant, for the operator. Raises `NotFoundError`."""
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            found = await _existing(connection, tenant_id)
        if found.deleted:
            raise NotFoundError("tenant")
        return found.record

    async def verify_owner_address(self, author: Author, tenant_id: str) -> str:
        """Record that the operator vouches for the owner's address; returns the address. Raises `NotFoundError`."""
        return (await verify_as_operator(self._database, author, tenant_id, self._clock)).email

    async def delete(self, author: Author, tenant_id: str) -> None:
        """End a tenant: its keys die with the commit, its data stays for 30 days. Raises `NotFoundError`."""
        now = self._clock()
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            found = await _existing(connection, tenant_id, lock=True)
            if found.deleted:
                return
            await tenants.mark_deleted(connection, tenant_id, now)
            ended = await api_keys.revoke_all(connection, tenant_id, now)
            await audit.record(
                connection, author, Action.TENANT_ENDED, org_id=tenant_id, target_id=tenant_id,
                before=_audited(found), now=now,
            )  # fmt: skip
        if ended:
            self._keys_revoked(RevocationReason.TENANT_ENDED, ended)

    async def export(self, tenant_id: str) -> TenantExport:
        """Everything of a tenant, also of one that ended less than 30 days ago. Raises `NotFoundError`."""
        now = self._clock()
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            found = await _existing(connection, tenant_id)
            return TenantExport(
                tenant=found.record,
                owner_email=found.owner_email,
                owner_email_verified=found.owner_address.is_verified,
                suspended=found.suspended,
                customers=await billing.customers_of(connection, tenant_id),
                members=await members.read_all(connection, tenant_id),
                api_keys=await api_keys.read_all(connection, tenant_id, now),
                audit_events=await audit.read_all(connection, tenant_id),
                projects=[project for mode in Mode for project in await projects.read_all(connection, tenant_id, mode)],
                billing_events=[view(row) for row in await read_all_entries(connection, tenant_id)],
            )

    def _check_owner_id(self, wishes: TenantWishes) -> None:
        if wishes.owner_id is not None and not self._email_subjects:
            check_user_id(wishes.owner_id, "ownerId")

    async def _check_room(self, connection: Connection, user: User) -> None:
        """Raise `TenantLimitReachedError` if the user has created as many tenants as one user may.

        Creations by one user take turns until they are committed, in whichever processes they run.
        """
        await memberships.hold_creations(connection, user)
        if await memberships.has_created(connection, user, self._tenants_per_user):
            raise TenantLimitReachedError(
                f"A user may create {self._tenants_per_user} organizations. Use one of yours, or ask the operator of "
                "this service to end one or to allow more."
            )

    async def _insert(
        self, connection: Connection, author: Author, tenant_id: str, wishes: TenantWishes, now: datetime
    ) -> bool:
        customers = [wishes.stripe_customer_id] if wishes.stripe_customer_id else []
        async with connection.within(ACROSS_TENANTS):  # what waited is no tenant's yet
            await ledger.claim(connection, tenant_id, customers)
        made = await tenants.insert(
            connection,
            tenant_id=tenant_id,
            name=wishes.name,
            owner_id=wishes.owner_id or new_id("usr"),
            owner_email=wishes.owner_email,
            owner_email_verified=wishes.email_verified,
            plan=wishes.plan or FREE,
            now=now,
        )
        if made:
            if wishes.suspended:
                await self._set(connection, tenant_id, wishes, now)
            elif wishes.stripe_customer_id:
                await _link(connection, tenant_id, wishes.stripe_customer_id, now)
            made_as = _audited(await _existing(connection, tenant_id))
            await audit.record(
                connection, author, Action.TENANT_CREATED, org_id=tenant_id, target_id=tenant_id,
                after=made_as, now=now,
            )  # fmt: skip
            await self._heal(connection, tenant_id, now)
        return made

    async def _set(self, connection: Connection, tenant_id: str, wishes: TenantWishes, now: datetime) -> TenantRow:
        """Set a tenant whose name, and whose customer's, `_insert` has claimed; returns what it was before."""
        found = await _existing(connection, tenant_id, lock=True)
        if found.deleted:
            raise TenantDeletedError("The tenant has ended; its id is free again after 30 days.")
        address = found.owner_address.changed(wishes.owner_email, verified=wishes.email_verified)
        await tenants.update(
            connection,
            tenant_id,
            name=wishes.name,
            owner_address=address,
            owner_id=wishes.owner_id or found.record.owner_id,
            suspended=found.suspended if wishes.suspended is None else wishes.suspended,
            now=now,
        )
        if wishes.stripe_customer_id and wishes.stripe_customer_id != found.record.stripe_customer_id:
            await _link(connection, tenant_id, wishes.stripe_customer_id, now)
            await self._heal(connection, tenant_id, now)
        return found

    async def _heal(self, connection: Connection, tenant_id: str, now: datetime) -> None:
        async with connection.within(ACROSS_TENANTS):
            await ledger.apply_parked(connection, tenant_id, self._policy, self._outbox, now)

    async def _seat_owner(
        self, connection: Connection, author: Author, tenant_id: str, wishes: TenantWishes, now: datetime
    ) -> None:
        """Let the owner whom the operator names sign in as one."""
        if self._issuer is not None and wishes.owner_id is not None:
            await seat_owner(connection, author, self._issuer, tenant_id, wishes.owner_id, now)


async def _entered(connection: Connection, author: Author, before: TenantRow, now: datetime) -> Tenant:
    """The tenant as it has become, once the change is in the audit trail."""
    after = await _existing(connection, before.record.id)
    await audit.record(
        connection,
        author,
        Action.TENANT_UPDATED,
        org_id=after.record.id,
        target_id=after.record.id,
        before=_audited(before),
        after=_audited(after),
        now=now,
    )
    return after.record


def _audited(row: TenantRow) -> AuditedTenant:
    """What people change of a tenant. Its billing state changes by events, and its ledger tells of those."""
    return AuditedTenant(
        name=row.record.name,
        owner_id=row.record.owner_id,
        owner_email=row.owner_email,
        owner_email_verified=row.owner_address.is_verified,
        stripe_customer_id=row.record.stripe_customer_id,
        suspended=row.suspended,
    )


async def _link(connection: Connection, tenant_id: str, customer_id: str, now: datetime) -> None:
    if not await tenants.link_customer(connection, tenant_id, customer_id, "operator", now):
        raise CustomerTakenError(f"Customer {customer_id} belongs to another tenant.")


async def _existing(connection: Connection, tenant_id: str, *, lock: bool = False) -> TenantRow:
    found = await find_tenant(connection, tenant_id, lock=lock)
    if found is None:
        raise NotFoundError("tenant")
    return found


async def _own(connection: Connection, principal: Principal, tenant_id: str, *, lock: bool = False) -> TenantRow:
    if tenant_id != principal.org_id:
        raise NotFoundError("tenant")
    return await _existing(connection, tenant_id, lock=lock)
