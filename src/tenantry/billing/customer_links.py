"""Linking, unlinking and moving customers of the provider, by the operator. The ledger's events
follow the customer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

import msgspec

from tenantry.audit import trail as audit
from tenantry.billing import accounts_store, ingest, ledger_store
from tenantry.billing import customer_links_store as store
from tenantry.billing.accounts_store import read_accounts
from tenantry.billing.whole_ledgers import release_customers
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database, retry_on_conflict
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import find_tenant, get_tenant
from tenantry.domain.audit import Action, Author
from tenantry.domain.billing.events import CUSTOMER_MISSING, BillingEvent
from tenantry.domain.billing.ledger import NameLock, ReceivedEvent, SnapshotRequest
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import CustomerTakenError, NotFoundError, TenantDeletedError
from tenantry.domain.outbound_events import EventType
from tenantry.domain.tenants import ManagedTenant


class CustomerMove(msgspec.Struct, frozen=True, rename="camel"):
    """A change of a customer's link: the tenants before and after it, None for no link."""

    customer_id: str
    moved_from: str | None
    moved_to: str | None


class _LinkedCustomers(msgspec.Struct, frozen=True):
    """A tenant's customers in the audit trail."""

    customers: list[str]


class _Locked(NamedTuple):
    """The tenants that a change of a link has locked, and the subscriptions of its customer by
    then.
    """

    tenants: list[str]
    subscriptions: frozenset[str]


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
    ) -> CustomerMove:
        """Link a customer, whichever tenant has it. Raises `NotFoundError` and `TenantDeletedError`
        as `link`.
        """
        return await retry_on_conflict(
            partial(self._move, author, customer_id, tenant_id, takes=True)
        )

    async def unlink(self, author: Author, customer_id: str) -> CustomerMove:
        """Remove the link of a customer. Raises `NotFoundError` without one."""
        return await retry_on_conflict(partial(self._unlink, author, customer_id))

    async def _unlink(self, author: Author, customer_id: str) -> CustomerMove:
        async with self.database.change(ACROSS_TENANTS) as connection:
            await ledger_store.lock_names(connection, [_name(customer_id)])
            holder = await store.holder_of(connection, customer_id)
            if holder is None:
                raise NotFoundError("linked customer")
            locked = await self._lock_all(connection, customer_id, {holder})
            await unlink_customers(
                connection,
                self.policy,
                author,
                holder,
                [customer_id],
                self.clock(),
            )
            await self._settle_moves(connection, locked)
            await self.outbox.defer_snapshots(connection, [SnapshotRequest(holder, later=False)])
        return CustomerMove(customer_id, holder, None)

    async def _move(
        self,
        author: Author,
        customer_id: str,
        tenant_id: str,
        *,
        takes: bool,
    ) -> CustomerMove:
        now = self.clock()
        async with self.database.change(ACROSS_TENANTS) as connection:
            await ingest.claim(connection, tenant_id, [customer_id])
            holder = await store.holder_of(connection, customer_id)
            tenants = {tenant_id, holder or tenant_id}
            locked = await self._lock_all(connection, customer_id, tenants)
            await _check_target(connection, tenant_id)
            move = CustomerMove(customer_id, holder, tenant_id)
            if holder == tenant_id and not await store.is_gone(connection, customer_id):
                return move
            if holder not in (None, tenant_id):
                if not takes:
                    await _check_free(connection, customer_id, holder)
                await unlink_customers(
                    connection,
                    self.policy,
                    author,
                    holder,
                    [customer_id],
                    now,
                )
            customers = await ledger_store.customers_of(connection, tenant_id)
            before = [each for each in customers if each != customer_id]  # which was given up
            await store.link(
                connection,
                customer_id,
                tenant_id,
                now,
            )
            linked = await get_tenant(connection, tenant_id)
            await _record(
                connection,
                author,
                tenant_id,
                before,
                now,
                published=linked.managed(self.policy.catalog, now),
            )
            await ingest.apply_parked(
                connection,
                tenant_id,
                self.policy,
                self.outbox,
                now,
            )
            await self._settle_moves(connection, locked)
            asked = [SnapshotRequest(each, later=False) for each in sorted(tenants)]
            await self.outbox.defer_snapshots(connection, asked)
        return move

    async def _lock_all(
        self,
        connection: Connection,
        customer_id: str,
        tenants: set[str],
    ) -> _Locked:
        """Lock these tenants and all that share a subscription of the customer, in the order of
        their ids.
        """
        if self.policy.is_each:
            tenants = tenants.union(await store.tenants_sharing(connection, customer_id))
        accounts = await read_accounts(
            connection,
            sorted(tenants),
            self.policy,
            lock=True,
        )
        subscriptions = (
            await store.subscriptions_of(connection, customer_id) if self.policy.is_each else ()
        )
        return _Locked([each.tenant_id for each in accounts], frozenset(subscriptions))

    async def _settle_moves(self, connection: Connection, locked: _Locked) -> None:
        """Let the customer's subscriptions count for the tenant that their newest event belongs to
        by now.

        Other subscriptions of the locked tenants stay as they are: a tenant that has one of them
        may not be locked.
        """
        if self.policy.is_each and len(locked.tenants) > 1:
            shared = await accounts_store.shared_subscriptions(connection, locked.tenants)
            concerned = [each for each in shared if each in locked.subscriptions]
            await ingest.settle_moves(
                connection,
                concerned,
                self.policy,
                self.outbox,
                self.clock(),
            )


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
    connection: Connection,
    policy: BillingPolicy,
    author: Author,
    tenant_id: str,
    customers: Sequence[str],
    now: datetime,
) -> None:
    """Unlink those of these customers that a tenant has, fold the tenant again, and record it in
    the audit trail.

    The caller has locked the customers' names.
    """
    accounts = await read_accounts(
        connection,
        [tenant_id],
        policy,
        lock=True,
    )
    before = await ledger_store.customers_of(connection, tenant_id)
    removed = [customer_id for customer_id in customers if customer_id in before]
    if not accounts or not removed:
        return  # another transaction has purged the tenant, or moved the customers
    await release_customers(
        connection,
        accounts[0],
        removed,
        policy,
        now,
    )
    # `release_customers` has published the change
    await _record(
        connection,
        author,
        tenant_id,
        before,
        now,
        published=None,
    )


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
            received = [ReceivedEvent(event, now, fetched=True)]
            changes = await ingest.apply_batch(connection, received, policy, now)
            await ingest.write(connection, changes, outbox, now)
        account = changes.accounts.get(tenant_id)
        return None if account is None else account.customer_id

    return await retry_on_conflict(record)


async def release_from_ended(
    connection: Connection,
    policy: BillingPolicy,
    author: Author,
    tenant_id: str,
    customer_id: str,
    now: datetime,
) -> None:
    """Unlink a customer of an ended tenant, so that another tenant can take it over.

    The caller has locked the names of the customer and the tenant, and no tenant.
    """
    holder = await store.holder_of(connection, customer_id)
    if holder is None or holder == tenant_id:
        return
    # in the order of their ids, as all transactions lock tenants
    await read_accounts(
        connection,
        [tenant_id, holder],
        policy,
        lock=True,
    )
    former = await find_tenant(connection, holder)
    if former is not None and former.deleted:
        await unlink_customers(
            connection,
            policy,
            author,
            holder,
            [customer_id],
            now,
        )


async def _record(
    connection: Connection,
    author: Author,
    tenant_id: str,
    before: list[str],
    now: datetime,
    *,
    published: ManagedTenant | None,
) -> None:
    after = await ledger_store.customers_of(connection, tenant_id)
    await audit.record(
        connection,
        author,
        Action.TENANT_UPDATED,
        (tenant_id, tenant_id),
        now,
        before=_LinkedCustomers(before),
        after=_LinkedCustomers(after),
        shown=published,
        event=EventType.TENANT_UPDATED if published else None,
    )


def _name(customer_id: str) -> NameLock:
    return NameLock(f"customer {customer_id}", claimed=True)
