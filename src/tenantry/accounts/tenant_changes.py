"""The change of a tenant's row: its fields, its links of customers, and its audit entries."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.accounts import tenants_store as tenants
from tenantry.audit import trail as audit
from tenantry.auth.changes import Change
from tenantry.billing import customer_links_store, ingest
from tenantry.billing import ledger_store as billing
from tenantry.billing.customer_links import release_from_ended, unlink_customers
from tenantry.billing.grants import GrantChange
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import TenantRow, get_tenant
from tenantry.domain import errors
from tenantry.domain.audit import Action, Author
from tenantry.domain.billing.ledger import SnapshotRequest
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.grants import GrantTerms
from tenantry.domain.outbound_events import EventType
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.plans import FREE, Catalog

_GRANT_AT_CREATION: Final = "plan"
_REASON_AT_CREATION: Final = "the plan was chosen when the organization was created"


class TenantInput(msgspec.Struct, frozen=True):
    """The fields that an operator sets; None leaves a field unchanged, or at its default for a new
    tenant.

    For ``stripe_customer_id`` None removes all links of the tenant's customers, and UNSET leaves
    them.
    """

    name: str
    owner_email: str
    owner_id: str | None = None
    stripe_customer_id: str | UnsetType | None = UNSET
    suspended: bool | None = None
    plan: str | None = None
    email_verified: bool = True
    """Whether the address counts as verified, as one from the operator does."""


class AuditedTenant(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant in the audit trail."""

    name: str
    owner_id: str
    owner_email: str
    owner_email_verified: bool
    stripe_customer_id: str | None
    suspended: bool
    time_zone: str | UnsetType = UNSET


@dataclass(frozen=True)
class TenantChange:
    """The creation or update of a tenant in the transaction of ``connection``."""

    connection: Connection
    policy: BillingPolicy
    outbox: Outbox
    author: Author
    tenant_id: str
    now: datetime

    async def apply(self, wanted: TenantInput, *, only_new: bool) -> TenantRow | None:
        """Create a tenant, or update an existing one and return its former row.

        Raises `TenantExistsError` with ``only_new``, `TenantDeletedError` for a tenant that has
        ended, and `CustomerTakenError`.
        """
        customer = wanted.stripe_customer_id or None
        unlinked = list[str]()
        if wanted.stripe_customer_id is None:
            unlinked = await billing.customers_of(self.connection, self.tenant_id)
        await self._claim(customer, unlinked)
        created = await self._insert(wanted, only_new=only_new)
        found = await self._lock_current()
        await self._update(found, wanted)
        if unlinked:
            await self._unlink(unlinked)
        is_linked = await self._link(found, customer)
        if created:
            await self._record_creation()
            await self._grant(wanted.plan)
        else:
            change = Change(self.connection, found, self.author, self.now)
            await record_update(change, self.policy.catalog)
        if created or is_linked:
            await self._apply_parked()
        return None if created else found

    async def _claim(self, customer: str | None, unlinked: list[str]) -> None:
        """Lock the tenant and the customers whose links change: parked events have no tenant yet.

        Release the ``customer`` to link from a tenant that has ended.
        """
        connection = self.connection
        tenant_id = self.tenant_id
        async with connection.within(ACROSS_TENANTS):
            await ingest.claim(connection, tenant_id, [customer] if customer else unlinked)
            if customer:
                await release_from_ended(
                    connection, self.policy, self.author, tenant_id, customer, self.now
                )

    async def _insert(self, wanted: TenantInput, *, only_new: bool) -> bool:
        """Insert a tenant; return False if there is one with this id."""
        verified = wanted.owner_email if wanted.email_verified else ""
        created = await tenants.insert(
            self.connection,
            self.tenant_id,
            wanted.name,
            wanted.owner_id or new_id("usr"),
            OwnerAddress(wanted.owner_email, verified),
            self.now,
        )
        if only_new and not created:
            raise errors.TenantExistsError(f"The organization {self.tenant_id} exists already.")
        return created

    async def _lock_current(self) -> TenantRow:
        found = await get_tenant(self.connection, self.tenant_id, lock=True, even_ended=True)
        if found.deleted:
            raise errors.TenantDeletedError(
                "The tenant has ended; its id is free again after 30 days."
            )
        return found

    async def _update(self, found: TenantRow, wanted: TenantInput) -> None:
        address = found.owner_address.changed(wanted.owner_email, verified=wanted.email_verified)
        await tenants.update(
            self.connection,
            found,
            address,
            self.now,
            name=wanted.name,
            owner_id=wanted.owner_id,
            suspended=wanted.suspended,
        )

    async def _unlink(self, customers: list[str]) -> None:
        connection = self.connection
        async with connection.within(ACROSS_TENANTS):
            await unlink_customers(
                connection, self.policy, self.author, self.tenant_id, customers, self.now
            )
            request = SnapshotRequest(self.tenant_id, later=False)
            await self.outbox.defer_snapshots(connection, [request])

    async def _link(self, tenant: TenantRow, customer: str | None) -> bool:
        """Link a customer, if one is given and not the tenant's; return whether it was."""
        if customer is None or customer == tenant.record.stripe_customer_id:
            return False
        async with self.connection.within(ACROSS_TENANTS):
            is_linked = await customer_links_store.link(
                self.connection, customer, self.tenant_id, self.now
            )
        if not is_linked:
            raise errors.CustomerTakenError(f"Customer {customer} belongs to another tenant.")
        return True

    async def _record_creation(self) -> None:
        created = await get_tenant(self.connection, self.tenant_id)
        await audit.record(
            self.connection,
            self.author,
            Action.TENANT_CREATED,
            (self.tenant_id, self.tenant_id),
            self.now,
            after=audited(created),
            shown=created.managed(self.policy.catalog, self.now),
        )

    async def _grant(self, plan: str | None) -> None:
        """Give a new tenant the plan that the operator chose, for good."""
        if plan in (None, FREE):
            return
        terms = GrantTerms(_GRANT_AT_CREATION, plan, reason=_REASON_AT_CREATION)
        async with self.connection.within(ACROSS_TENANTS):
            await GrantChange(
                self.connection, self.policy, self.outbox, self.author, self.tenant_id, self.now
            ).set(terms)

    async def _apply_parked(self) -> None:
        async with self.connection.within(ACROSS_TENANTS):
            await ingest.apply_parked(
                self.connection, self.tenant_id, self.policy, self.outbox, self.now
            )


async def record_update(
    change: Change, catalog: Catalog, action: Action = Action.TENANT_UPDATED
) -> TenantRow:
    """Record a change of the tenant's own row in the audit trail, and publish it; return the
    changed tenant.
    """
    before, after = change.tenant, await get_tenant(change.connection, change.org_id)
    await change.record(
        action,
        change.org_id,
        before=audited(before),
        after=audited(after),
        shown=after.managed(catalog, change.now),
        event=EventType.TENANT_SUSPENDED if after.suspended and not before.suspended else UNSET,
    )
    return after


def audited(row: TenantRow) -> AuditedTenant:
    """Return the fields that callers change. The ledger records the billing state."""
    is_verified = row.owner_address.is_verified
    record = row.record
    return AuditedTenant(
        record.name,
        record.owner_id,
        row.owner_email,
        is_verified,
        record.stripe_customer_id,
        row.suspended,
        record.time_zone or UNSET,
    )
