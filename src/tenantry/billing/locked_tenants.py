"""The ledgers of tenants that are locked one by one: for changes of the operator, snapshots,
replays, and events that waited.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from tenantry.billing import batch_store, customer_links_store
from tenantry.billing import ledger_store as store
from tenantry.billing.batch_store import BatchNames
from tenantry.billing.locked_ledger import (
    Batch,
    LedgerTransaction,
    LockedLedger,
    claims,
    log_payments,
    present,
)
from tenantry.billing.whole_ledgers import fold_ledgers
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.domain.billing import customer_links
from tenantry.domain.billing.batch import Work
from tenantry.domain.billing.events import INVOICE_TYPES, BillingEvent
from tenantry.domain.billing.ledger import (
    AccountChange,
    BatchContext,
    BillingAccount,
    NameLock,
    ReceivedEvent,
)
from tenantry.domain.billing.ledger_fold import FoldedLedger


class LockedTenant(LockedLedger):
    """The ledger of one tenant; ``account`` is None without the tenant."""

    def __init__(
        self,
        transaction: LedgerTransaction,
        tenant_id: str,
        account: BillingAccount | None,
        names: Collection[NameLock] = (),
    ) -> None:
        super().__init__(transaction, names, may_begin_again=bool(names))
        self.tenant_id = tenant_id
        self.account = account

    async def fold_again(self, account: BillingAccount) -> FoldedLedger:
        """Fold all events of the tenant."""
        [folded] = await fold_ledgers(self._connection, [account], self._policy)
        return folded

    async def apply_parked(self, parked: Sequence[ReceivedEvent]) -> None:
        """Apply parked events that belong to the tenant, and write what they change."""
        names = BatchNames(frozenset([self.tenant_id]))
        context = await batch_store.read_context(self._connection, self._policy, names)
        changes = await self._apply_work(context, Work(tenant_id=self.tenant_id, parked=parked))
        await self.write(changes)
        self._connection.after_commit(partial(log_payments, changes.unparked))

    async def repair(self, account: BillingAccount, folded: BillingAccount) -> None:
        """Write the tenant as it was ``folded`` again."""
        change = AccountChange(folded, account)
        calls = batch_store.write_repair(change, self._policy, self.transaction.now)
        await batch_store.write(self._connection, calls, commit=False)


class LockedSubscriptions(LockedLedger):
    """The ledgers of all tenants that have one of these subscriptions."""

    def __init__(
        self,
        transaction: LedgerTransaction,
        subscriptions: Collection[str],
        context: BatchContext,
    ) -> None:
        super().__init__(transaction)
        self._subscriptions = subscriptions
        self._context = context

    async def settle(self, *, dry_run: bool = False) -> Sequence[AccountChange]:
        """Let subscriptions that several tenants have count for the tenant that they name, with the
        invoices of that time. Return the accounts that this changes; with ``dry_run`` roll back.
        """
        changes = await self._apply_work(self._context, Work(moved=self._subscriptions))
        if dry_run:
            await self._connection.rollback()
        else:
            await self.write(changes)
        return changes.changed_accounts


class ClaimedLedger(LockedLedger):
    """The ledgers of the ``tenants`` that have claimed customers, or share a subscription with
    these: no other transaction parks events for them meanwhile.
    """

    def __init__(self, transaction: LedgerTransaction, tenants: Sequence[str]) -> None:
        super().__init__(transaction, may_begin_again=False)
        self.tenants = tenants


class ClaimedTenant(ClaimedLedger):
    """The ledger of a tenant that may be new or get customers, and of those that have these."""

    def __init__(
        self, transaction: LedgerTransaction, tenants: Sequence[str], tenant_id: str
    ) -> None:
        super().__init__(transaction, tenants)
        self.tenant_id = tenant_id

    async def apply_parked(self) -> None:
        """Apply the parked events of the tenant, of the customers linked to it, and of its
        subscriptions; write what they change.
        """
        connection, tenant_id = self._connection, self.tenant_id
        customers = await store.customers_of(connection, tenant_id)
        begun = await self._begun_by_waiting(customers)
        known = await store.subscriptions_of(connection, tenant_id)
        waiting = await store.read_parked(connection, [tenant_id], customers, [*begun, *known])
        if not waiting:
            return
        context = await self._read_with_holders(waiting, customers)
        if await self._release_from_ended([each.event for each in waiting], context):
            context = await self._read_with_holders(waiting, customers)
        owners = dict.fromkeys(begun, tenant_id) | context.known.tenant_of_subscription
        parked = [each for each in waiting if _owner(each.event, owners, context) == tenant_id]
        changes = await self._apply_work(context, Work(tenant_id=tenant_id, parked=parked))
        await self.write(changes)
        connection.after_commit(partial(log_payments, changes.unparked))

    async def _begun_by_waiting(self, customers: Sequence[str]) -> frozenset[str]:
        """Return the subscriptions of events that wait for the tenant or its customers, which
        `SubscriptionRule.EACH` goes by.
        """
        if not self._policy.is_each:
            return frozenset()
        waiting = await store.read_parked(self._connection, [self.tenant_id], customers)
        return present(each.event.subscription_id for each in waiting)

    async def _read_with_holders(
        self, waiting: Sequence[ReceivedEvent], customers: Sequence[str]
    ) -> BatchContext:
        """Read the context of parked events, with all tenants that have one of their
        subscriptions.
        """
        named, subscriptions = await _named_by_waiting(self.transaction, self.tenant_id, customers)
        names = BatchNames(frozenset([self.tenant_id]), named)
        if self._policy.is_each:
            names = names._replace(subscriptions=subscriptions)
        return await self._read_context(Batch.of(waiting, self._policy), names)


@asynccontextmanager
async def lock_tenant(
    transaction: LedgerTransaction, tenant_id: str
) -> AsyncIterator[LockedTenant]:
    """Lock a tenant; the transaction holds no tenant with a greater id."""
    account = await batch_store.lock_account(transaction.connection, tenant_id, transaction.policy)
    yield LockedTenant(transaction, tenant_id, account)


@asynccontextmanager
async def lock_for_snapshots(
    transaction: LedgerTransaction,
    tenant_id: str,
    names: Collection[NameLock],
    customers: Collection[str],
) -> AsyncIterator[LockedTenant]:
    """Lock the names that snapshots of a tenant may add, then the tenant together with those that
    have these customers; first in the transaction.
    """
    connection, policy = transaction.connection, transaction.policy
    await store.lock_names(connection, names)
    account = await batch_store.lock_account(connection, tenant_id, policy, customers)
    yield LockedTenant(transaction, tenant_id, account, names)


@asynccontextmanager
async def lock_subscriptions(
    transaction: LedgerTransaction, subscriptions: Collection[str]
) -> AsyncIterator[LockedSubscriptions]:
    """Lock the tenants that have these subscriptions, in the order of their ids."""
    names = BatchNames(subscriptions=frozenset(subscriptions))
    connection, policy = transaction.connection, transaction.policy
    while (context := await batch_store.read_context(connection, policy, names)).missing:
        continue
    yield LockedSubscriptions(transaction, subscriptions, context)


@asynccontextmanager
async def claim_customer(
    transaction: LedgerTransaction, customer_id: str
) -> AsyncIterator[ClaimedLedger]:
    """Lock the name of a customer whose link ends, then the tenants that have it or share a
    subscription with it; the transaction holds no tenant.
    """
    connection = transaction.connection
    await store.lock_names(connection, claims("customer", [customer_id]))
    subscriptions = await customer_links_store.subscriptions_of(connection, customer_id)
    tenants = await store.lock_holders(connection, None, [customer_id], subscriptions)
    yield ClaimedLedger(transaction, tenants)


@asynccontextmanager
async def claim_tenant(
    transaction: LedgerTransaction, tenant_id: str, customers: Collection[str]
) -> AsyncIterator[ClaimedTenant]:
    """Lock what `ClaimedTenant.apply_parked` needs, so that no other transaction parks events for
    it or adds it; the transaction holds no tenant.

    That is the names of a new tenant, of its customers and of the subscriptions that events wait
    for, and then the tenants that have any of them.
    """
    async with transaction.connection.within(ACROSS_TENANTS):
        tenants = await _claim(transaction, tenant_id, customers)
    yield ClaimedTenant(transaction, tenants, tenant_id)


async def _claim(
    transaction: LedgerTransaction, tenant_id: str, customers: Collection[str]
) -> list[str]:
    connection = transaction.connection
    await store.lock_names(connection, [NameLock(f"tenant {tenant_id}", claimed=True)])
    held = frozenset[NameLock]()
    while True:
        named, subscriptions = await _named_by_waiting(transaction, tenant_id, customers)
        wanted = claims("customer", named) | claims("subscription", subscriptions)
        if wanted <= held:
            break
        # once more only if an event was parked in between: out of order, which may end in a
        # deadlock at worst
        await store.lock_names(connection, wanted - held)
        held |= wanted
    return await store.lock_holders(connection, tenant_id, named, subscriptions)


async def _named_by_waiting(
    transaction: LedgerTransaction, tenant_id: str, customers: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the customers and subscriptions of events that wait for a tenant, for its
    subscriptions or for these customers.

    A customer that an event of the tenant names may be linked by it, so events may wait for that
    one too.
    """
    connection = transaction.connection
    of_tenant = await store.read_parked(connection, [tenant_id], customers)
    named = present(each.event.customer_id for each in of_tenant).union(customers)
    known = await store.subscriptions_of(connection, tenant_id)
    waiting = await store.read_parked(connection, [tenant_id], sorted(named), known)
    return named, present(each.event.subscription_id for each in waiting)


def _owner(event: BillingEvent, owners: Mapping[str, str], context: BatchContext) -> str | None:
    """Return the tenant of an event that waited; ``owners`` has those of subscriptions.

    An invoice of another tenant's subscription stays that tenant's.
    """
    owner = owners.get(event.subscription_id or "")
    if owner is not None and event.type in INVOICE_TYPES:
        return owner
    return customer_links.tenant_of(event, context.known)
