"""The change of a tenant's row: its fields, its links of customers, and its audit entries."""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.accounts import tenants_store as tenants
from tenantry.audit.trail import RecordedChange
from tenantry.auth.changes import Change
from tenantry.billing import customer_links_store
from tenantry.billing import ledger_store as billing
from tenantry.billing.customer_links import release_from_ended, unlink_customers
from tenantry.billing.grants import GrantChange
from tenantry.billing.locked_ledger import LedgerTransaction
from tenantry.billing.locked_tenants import ClaimedTenant, claim_tenant, lock_tenant
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import TenantRow, get_tenant
from tenantry.domain import errors
from tenantry.domain.audit import Action
from tenantry.domain.billing.ledger import SnapshotRequest
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.grants import GrantTerms
from tenantry.domain.outbound_events import EventType
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.plans import FREE, Catalog
from tenantry.domain.tenants import TenantInput, suspension_after

_GRANT_AT_CREATION: Final = "plan"
_REASON_AT_CREATION: Final = "the plan was chosen when the organization was created"


class AuditedTenant(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant in the audit trail."""

    name: str
    owner_id: str
    owner_email: str
    owner_email_verified: bool
    stripe_customer_id: str | None
    suspended: bool
    suspension_reason: str | UnsetType = UNSET
    time_zone: str | UnsetType = UNSET
    key_mails: bool | UnsetType = UNSET


@dataclass(eq=False)
class TenantChange(RecordedChange):
    """The creation or update of a tenant in the transaction of ``connection``."""

    policy: BillingPolicy
    outbox: Outbox

    async def apply(self, wanted: TenantInput, *, only_new: bool) -> TenantRow | None:
        """Create a tenant, or update an existing one and return its former row.

        Raises `TenantExistsError` with ``only_new``, `TenantDeletedError` for a tenant that has
        ended, and `CustomerTakenError`.
        """
        customer = wanted.stripe_customer_id or None
        unlinked = list[str]()
        if wanted.stripe_customer_id is None:
            unlinked = await billing.customers_of(self.connection, self.org_id)
        claimed = [customer] if customer else unlinked
        async with claim_tenant(self._transaction, self.org_id, claimed) as ledger:
            if customer:
                await self._release_from_ended(ledger, customer)
            created = await self._insert(wanted, only_new=only_new)
            found = await self._lock_current()
            await self._update(found, wanted)
            if unlinked:
                await self._unlink(ledger, unlinked)
            is_linked = await self._link(found, customer)
            await self._record(found, wanted, created=created)
            if created or is_linked:
                await self._apply_parked(ledger)
        return None if created else found

    async def _record(self, found: TenantRow, wanted: TenantInput, *, created: bool) -> None:
        if created:
            await self._record_creation()
            await self._grant(wanted.plan)
        else:
            change = Change(self.connection, self.author, self.now, found)
            await record_update(change, self.policy.catalog)

    @property
    def _transaction(self) -> LedgerTransaction:
        return LedgerTransaction(self.connection, self.policy, self.now, self.outbox)

    async def _release_from_ended(self, ledger: ClaimedTenant, customer: str) -> None:
        async with self.connection.within(ACROSS_TENANTS):
            await release_from_ended(ledger, self.author, customer)

    async def _insert(self, wanted: TenantInput, *, only_new: bool) -> bool:
        """Insert a tenant; return False if there is one with this id."""
        verified = wanted.owner_email if wanted.email_verified else ""
        created = await tenants.insert(
            self.connection,
            self.org_id,
            wanted.name,
            wanted.owner_id or new_id("usr"),
            OwnerAddress(wanted.owner_email, verified),
            self.now,
        )
        if only_new and not created:
            raise errors.TenantExistsError(f"The organization {self.org_id} exists already.")
        return created

    async def _lock_current(self) -> TenantRow:
        found = await get_tenant(self.connection, self.org_id, lock=True, even_ended=True)
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
            suspension=suspension_after(
                found.suspension, self.author.reason, suspended=wanted.suspended
            ),
        )

    async def _unlink(self, ledger: ClaimedTenant, customers: list[str]) -> None:
        connection = self.connection
        async with connection.within(ACROSS_TENANTS):
            await unlink_customers(ledger, self.author, self.org_id, customers)
            request = SnapshotRequest(self.org_id, later=False)
            await self.outbox.defer_snapshots(connection, [request])

    async def _link(self, tenant: TenantRow, customer: str | None) -> bool:
        """Link a customer, if one is given and not the tenant's; return whether it was."""
        if customer is None or customer == tenant.record.stripe_customer_id:
            return False
        async with self.connection.within(ACROSS_TENANTS):
            is_linked = await customer_links_store.link(
                self.connection, customer, self.org_id, self.now
            )
        if not is_linked:
            raise errors.CustomerTakenError(f"Customer {customer} belongs to another tenant.")
        return True

    async def _record_creation(self) -> None:
        created = await get_tenant(self.connection, self.org_id)
        await self.record(
            Action.TENANT_CREATED,
            self.org_id,
            after=audited(created),
            shown=created.managed(self.policy.catalog, self.now),
        )

    async def _grant(self, plan: str | None) -> None:
        """Give a new tenant the plan that the operator chose, for good."""
        if plan in (None, FREE):
            return
        terms = GrantTerms(_GRANT_AT_CREATION, plan, reason=_REASON_AT_CREATION)
        async with (
            self.connection.within(ACROSS_TENANTS),
            lock_tenant(self._transaction, self.org_id) as ledger,
        ):
            await GrantChange(ledger, self.author).set(terms)

    async def _apply_parked(self, ledger: ClaimedTenant) -> None:
        async with self.connection.within(ACROSS_TENANTS):
            await ledger.apply_parked()


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
        row.suspension or UNSET,
        record.time_zone or UNSET,
        False if row.leaves_key_mails else UNSET,
    )
