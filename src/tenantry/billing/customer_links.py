"""Linking, unlinking and moving customers of the provider, by the operator. The ledger's events
follow the customer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec

from tenantry.audit.trail import RecordedChange
from tenantry.billing import customer_links_store as store
from tenantry.billing import ledger_store
from tenantry.billing.batch_store import read_accounts
from tenantry.billing.locked_ledger import LedgerTransaction, LockedLedger, lock_events
from tenantry.billing.locked_tenants import (
    ClaimedLedger,
    ClaimedTenant,
    claim_customer,
    claim_tenant,
    lock_subscriptions,
)
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database, retry_on_conflict
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import find_tenant, get_tenant
from tenantry.domain.audit import Action, Author
from tenantry.domain.billing.customer_links import CustomerMove
from tenantry.domain.billing.events import CUSTOMER_MISSING, BillingEvent
from tenantry.domain.billing.ledger import ReceivedEvent, SnapshotRequest
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import CustomerTakenError, NotFoundError, TenantDeletedError
from tenantry.domain.outbound_events import EventType
from tenantry.domain.tenants import ManagedTenant


class _LinkedCustomers(msgspec.Struct, frozen=True):
    """A tenant's customers in the audit trail."""

    customers: list[str]


@dataclass(frozen=True)
class CustomerLinks:
    """Changes links in one transaction with everything that follows from them, and records them in
    the audit trail.

    A tenant that loses a customer is folded again without the customer's invoices. A tenant that
    gets one applies the customer's parked events at their places; mails follow the rules of parked
    events. Then the provider is asked about both, where its key is set: its answer ends a
    subscription that counted only by the customer.

    Which tenants must be locked is known only once some are. So two changes may end in a deadlock,
    and the one that the database ends is made again.
    """

    database: Database
    policy: BillingPolicy
    outbox: Outbox
    clock: Clock

    async def holder_of(self, customer_id: str) -> str | None:
        """Return the tenant that has a customer, also one that has ended."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await store.holder_of(connection, customer_id)

    async def link(
        self,
        author: Author,
        customer_id: str,
        tenant_id: str,
    ) -> CustomerMove:
        """Link a customer that has no link, or that of an ended tenant; use the tenant's own again
        that was given up. Raises `CustomerTakenError` for any other.

        Raises `NotFoundError` without the tenant, and `TenantDeletedError` if it has ended.
        """
        return await retry_on_conflict(
            partial(self._move, author, customer_id, tenant_id, takes=False)
        )

    async def move(
        self,
        author: Author,
        customer_id: str,
        tenant_id: str,
        *,
        taken_from: str | None = None,
    ) -> CustomerMove:
        """Link a customer, whichever tenant has it; with ``taken_from`` as `link`, unless this is
        the tenant. Raises `NotFoundError` and `TenantDeletedError` as `link`.
        """
        return await retry_on_conflict(
            partial(self._move, author, customer_id, tenant_id, takes=True, taken_from=taken_from)
        )

    async def unlink(
        self, author: Author, customer_id: str, *, tenant_id: str | None = None
    ) -> CustomerMove:
        """Remove the link of a customer. Raises `NotFoundError` without one, or unless it is to
        ``tenant_id``.
        """
        return await retry_on_conflict(partial(self._unlink, author, customer_id, tenant_id))

    async def _unlink(
        self, author: Author, customer_id: str, tenant_id: str | None
    ) -> CustomerMove:
        async with self.database.change(ACROSS_TENANTS) as connection:
            transaction = self._transaction(connection)
            async with claim_customer(transaction, customer_id) as ledger:
                holder = await store.holder_of(connection, customer_id)
                if holder is None or tenant_id not in (None, holder):
                    raise NotFoundError("linked customer")
                own = await store.subscriptions_of(connection, customer_id)
                await unlink_customers(ledger, author, holder, [customer_id])
                await self._settle_moves(ledger, own)
            await self.outbox.defer_snapshots(connection, [SnapshotRequest(holder, later=False)])
        return CustomerMove(customer_id, holder, None)

    async def _move(
        self,
        author: Author,
        customer_id: str,
        tenant_id: str,
        *,
        takes: bool,
        taken_from: str | None = None,
    ) -> CustomerMove:
        async with self.database.change(ACROSS_TENANTS) as connection:
            transaction = self._transaction(connection)
            async with claim_tenant(transaction, tenant_id, [customer_id]) as ledger:
                holder = await store.holder_of(connection, customer_id)
                own = await store.subscriptions_of(connection, customer_id)
                await _check_target(connection, tenant_id)
                move = CustomerMove(customer_id, holder, tenant_id)
                if holder == tenant_id and not await store.is_gone(connection, customer_id):
                    return move
                if holder not in (None, tenant_id):
                    if not takes or taken_from not in (None, holder):
                        await _check_free(connection, customer_id, holder)
                    await unlink_customers(ledger, author, holder, [customer_id])
                await self._link(ledger, author, customer_id)
                await ledger.apply_parked()
                await self._settle_moves(ledger, own)
            asked = [
                SnapshotRequest(each, later=False)
                for each in sorted({tenant_id, holder or tenant_id})
            ]
            await self.outbox.defer_snapshots(connection, asked)
        return move

    def _transaction(self, connection: Connection) -> LedgerTransaction:
        return LedgerTransaction(connection, self.policy, self.clock(), self.outbox)

    async def _link(self, ledger: ClaimedTenant, author: Author, customer_id: str) -> None:
        transaction, tenant_id = ledger.transaction, ledger.tenant_id
        connection, now = transaction.connection, transaction.now
        customers = await ledger_store.customers_of(connection, tenant_id)
        before = [each for each in customers if each != customer_id]  # which was given up
        await store.link(connection, customer_id, tenant_id, now)
        linked = await get_tenant(connection, tenant_id)
        published = linked.managed(self.policy.catalog, now)
        await _record(transaction, author, tenant_id, before, published=published)

    async def _settle_moves(self, ledger: ClaimedLedger, subscriptions: Sequence[str]) -> None:
        """Let the customer's subscriptions count for the tenant that their newest event belongs to
        by now.

        Other subscriptions of the locked tenants stay as they are: a tenant that has one of them
        may not be locked.
        """
        if not self.policy.is_each or len(ledger.tenants) <= 1:
            return
        connection = ledger.transaction.connection
        shared = await ledger_store.shared_subscriptions(connection, ledger.tenants)
        concerned = [each for each in shared if each in subscriptions]
        if concerned:
            async with lock_subscriptions(ledger.transaction, concerned) as moved:
                await moved.settle()


async def _check_target(connection: Connection, tenant_id: str) -> None:
    """Raise `NotFoundError` without the tenant, and `TenantDeletedError` if it has ended."""
    target = await find_tenant(connection, tenant_id)
    if target is None:
        raise NotFoundError("tenant")
    if target.deleted:
        raise TenantDeletedError("The tenant has ended; its id is free again after 30 days.")


async def _check_free(
    connection: Connection,
    customer_id: str,
    holder: str,
) -> None:
    """Raise `CustomerTakenError` unless the customer's tenant has ended."""
    former = await find_tenant(connection, holder)
    if former is not None and not former.deleted:
        raise CustomerTakenError(f"Customer {customer_id} belongs to another tenant: {holder}.")


async def unlink_customers(
    ledger: LockedLedger, author: Author, tenant_id: str, customers: Sequence[str]
) -> None:
    """Unlink those of these customers that a tenant has, fold the tenant again, and record it in
    the audit trail. The customers' names are locked.
    """
    connection = ledger.transaction.connection
    accounts = await read_accounts(connection, [tenant_id], ledger.transaction.policy)
    before = await ledger_store.customers_of(connection, tenant_id)
    removed = [customer_id for customer_id in customers if customer_id in before]
    if not accounts or not removed:
        return  # another transaction has purged the tenant, or moved the customers
    await ledger.release(accounts[0], removed)
    # `LockedLedger.release` has published the change
    await _record(ledger.transaction, author, tenant_id, before, published=None)


async def give_up_customer(
    database: Database,
    policy: BillingPolicy,
    tenant_id: str,
    customer_id: str,
    now: datetime,
    outbox: Outbox | None,
) -> str | None:
    """Record that the provider does not have a tenant's customer any more; return the customer to
    use instead: the same if a newer event proves it. The events of the customer stay the tenant's.
    """
    event = BillingEvent(
        id=new_id("missing"),
        type=CUSTOMER_MISSING,
        created=int(now.timestamp()),
        org_id=tenant_id,
        customer_id=customer_id,
    )

    async def record() -> str | None:
        async with database.change(ACROSS_TENANTS) as connection:
            transaction = LedgerTransaction(connection, policy, now, outbox)
            received = [ReceivedEvent(event, now, fetched=True)]
            async with lock_events(transaction, received) as ledger:
                await ledger.write(ledger.changes)
        account = ledger.changes.accounts.get(tenant_id)
        return None if account is None else account.customer_id

    return await retry_on_conflict(record)


async def release_from_ended(ledger: ClaimedTenant, author: Author, customer_id: str) -> None:
    """Unlink a customer of an ended tenant, so that the claimed tenant can take it over."""
    connection = ledger.transaction.connection
    holder = await store.holder_of(connection, customer_id)
    if holder is None or holder == ledger.tenant_id:
        return
    former = await find_tenant(connection, holder)
    if former is not None and former.deleted:
        await unlink_customers(ledger, author, holder, [customer_id])


async def _record(
    transaction: LedgerTransaction,
    author: Author,
    tenant_id: str,
    before: list[str],
    *,
    published: ManagedTenant | None,
) -> None:
    after = await ledger_store.customers_of(transaction.connection, tenant_id)
    change = RecordedChange(transaction.connection, author, tenant_id, transaction.now)
    await change.record(
        Action.TENANT_UPDATED,
        tenant_id,
        before=_LinkedCustomers(before),
        after=_LinkedCustomers(after),
        shown=published,
        event=EventType.TENANT_UPDATED if published else None,
    )
