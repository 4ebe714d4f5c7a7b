"""The ledgers that a transaction has locked, and everything that may be done to them.

The functions that begin with ``lock`` or ``claim`` take locks and give a `LockedLedger`. Its
methods alone apply, park and settle events, so none of this is possible without the locks. All
transactions lock in one order, which prevents deadlocks: first names (of tenants, then
subscriptions, then customers), then tenants in the order of their ids.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import filterfalse
from typing import NamedTuple

import msgspec

from tenantry.billing import batch_store, customer_links_store, reversals_store
from tenantry.billing import ledger_store as store
from tenantry.billing.batch_store import BatchNames
from tenantry.billing.whole_ledgers import fold_ledgers
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.outbox import Outbox
from tenantry.db.standby_waits import PREPARE_CHANGE, CommittedChange
from tenantry.domain.billing import customer_links
from tenantry.domain.billing.anomalies import is_replaceable, rejection
from tenantry.domain.billing.batch import (
    BatchChanges,
    Moves,
    StoredEvents,
    Work,
    WorkToPlace,
    invoices_without_fold,
    needed_locks,
    replay_needs,
    reversals_among,
)
from tenantry.domain.billing.batch_application import BatchApplication
from tenantry.domain.billing.events import (
    CUSTOMER_GONE_TYPES,
    PAYMENT_TYPES,
    BillingEvent,
    Outcome,
)
from tenantry.domain.billing.ledger import (
    AccountChange,
    BatchContext,
    BillingAccount,
    LedgerEntry,
    NameLock,
    ReceivedEvent,
)
from tenantry.domain.billing.state import WHOLE_TENANT, BillingPolicy, is_grant_key
from tenantry.domain.billing.subscription_history import former_tenant, owners_of_misplaced
from tenantry.notifications.mail_outbox import MailOutbox
from tenantry.notifications.mails_store import withdraw

logger = logging.getLogger(__name__)


class LedgerTransaction(NamedTuple):
    """A transaction that may change the ledgers of tenants, at the time ``now``.

    Without an ``outbox`` owners get no mail, and the provider is not asked.
    """

    connection: Connection
    policy: BillingPolicy
    now: datetime
    outbox: Outbox | None = None


class Batch(NamedTuple):
    """The events of a batch, each once, and the ``usable`` ones: those that can have an effect."""

    received: Sequence[ReceivedEvent]
    usable: Sequence[BillingEvent]

    @classmethod
    def of(cls, received: Sequence[ReceivedEvent], policy: BillingPolicy) -> "Batch":
        unique = _without_duplicates(received, policy)
        usable = [each.event for each in unique if not rejection(each.event, policy)]
        return cls(unique, usable)


class LockedLedger:
    """The ledgers of the tenants that a transaction has locked, until it ends.

    Only the functions of this module make one.
    """

    def __init__(
        self,
        transaction: LedgerTransaction,
        names: Collection[NameLock] = (),
        *,
        may_begin_again: bool = True,
    ) -> None:
        """``names`` are locked; ``may_begin_again`` if the transaction has written nothing."""
        self.transaction = transaction
        self._connection = transaction.connection
        self._policy = transaction.policy
        self._names = frozenset(names)
        self._may_begin_again = may_begin_again

    async def apply(self, received: Sequence[ReceivedEvent]) -> BatchChanges:
        """Apply events in memory; skip those that the ledger has already. `write` the changes, or
        roll back.

        Events may name what is not locked yet: names go before tenants, and tenants in one order.
        Then the transaction begins again with these locks, having written nothing.
        """
        batch = Batch.of(received, self._policy)
        named, locks = self._named_by(batch.usable), self._names
        while True:
            context = await self._read_context(batch, named)
            fresh = [event for event in batch.usable if event.id not in context.seen]
            further = await self._further(fresh, context, named, locks)
            if further != (named, locks) or context.missing:
                named, locks = further
                # nothing is written: a rollback would unprepare statements
                await self._begin_again(locks, self._connection.commit)
                continue
            changes = await self._apply_fresh(batch, fresh, context, named)
            if changes.unread <= named.tenants:
                return changes
            # an invoice may belong to a tenant that its subscription named before
            named = named._replace(tenants=named.tenants | changes.unread)
            await self._begin_again(locks, self._connection.rollback)

    async def write(self, changes: BatchChanges) -> None:
        """Write what `apply` has changed. Raises `EntryTakenError` if another transaction has
        handled one of the events meanwhile: try again.
        """
        await self._withdraw_mails(changes)
        calls = batch_store.batch_calls(changes, self.transaction.now)
        await batch_store.write(self._connection, calls, commit=False)
        await self._defer_jobs(changes)

    async def _withdraw_mails(self, changes: BatchChanges) -> None:
        if changes.withdrawn:
            await withdraw(self._connection, changes.withdrawn)

    async def _defer_jobs(self, changes: BatchChanges) -> None:
        """Let the worker notify owners, and ask the provider about tenants."""
        connection, _, now, outbox = self.transaction
        if outbox is None:
            return
        mails = MailOutbox(connection, outbox, now)
        if changes.failed_payments:
            traces = {entry.received.event.id: entry.received.trace for entry in changes.entries}
            await mails.add(changes.failed_payments, traces)
        if changes.notices:  # after the failures: the notice of a recovered payment looks for them
            await mails.add_billing_notices(changes.notices)
        if changes.snapshot_requests:
            of_tenants = {
                entry.tenant_id: entry.received.trace
                for entry in changes.entries
                if entry.tenant_id and entry.received.trace
            }
            await outbox.defer_snapshots(connection, changes.snapshot_requests, of_tenants)
        if changes.has_unknown_payments:
            await outbox.defer_placing(connection)

    async def release(self, account: BillingAccount, customers: Sequence[str]) -> None:
        """Remove the links of these customers of a tenant, park the events that it has by them
        alone except refunds and disputes, and fold it again. The customers' names are locked.
        """
        connection, now = self._connection, self.transaction.now
        await customer_links_store.unlink(
            connection, account.tenant_id, customers, now, each=self._policy.is_each
        )
        [folded] = await fold_ledgers(connection, [account], self._policy)
        present = account.customer_id
        if present in customers:
            present = await customer_links_store.newest_customer(connection, account.tenant_id)
        changed = msgspec.structs.replace(folded.account, customer_id=present)
        calls = batch_store.write_accounts([AccountChange(changed, account)], self._policy, now)
        await batch_store.write(connection, calls, commit=False)

    def _named_by(self, events: Sequence[BillingEvent]) -> BatchNames:
        """Return what events name, with the former tenants of their subscriptions."""
        tenants = present(event.org_id for event in events)
        customers = present(event.customer_id for event in events)
        if not self._policy.is_each:
            return BatchNames(tenants, customers)
        tenants |= present(map(former_tenant, events))
        return BatchNames(tenants, customers, present(event.subscription_id for event in events))

    async def _apply_fresh(
        self,
        batch: Batch,
        fresh: Sequence[BillingEvent],
        context: BatchContext,
        named: BatchNames,
    ) -> BatchChanges:
        """Apply the events that the ledger lacks; all that they need is locked."""
        if await self._release_from_ended(fresh, context):
            context = await self._read_context(batch, named)
        new = [each for each in batch.received if each.event.id not in context.seen]
        return await self._apply_work(context, Work(_numbered(new, context), fresh))

    async def _read_context(self, batch: Batch, named: BatchNames) -> BatchContext:
        """Lock tenants and read what the batch needs of them. Entries that one of these events
        replaces do not count as seen.
        """
        connection, policy = self._connection, self._policy
        nameless = customer_links.without_customer(batch.usable, policy)
        current = await store.tenants_of_current(connection, nameless)
        payments = await self._tenants_of_payments(batch.usable)
        if payments:
            named = named._replace(tenants=named.tenants.union(payments.values()))
        events = [each.event for each in batch.received]
        ids = [event.id for event in events]
        context = await batch_store.read_context(connection, policy, named, ids, current)
        context.known.tenant_of_payment.update(payments)
        if context.gone_customers or any(event.type in CUSTOMER_GONE_TYPES for event in events):
            linked = await store.linked_customers(connection, context.accounts)
            context = msgspec.structs.replace(context, linked_customers=linked)
        if not context.replaceable:
            return context
        replaced = context.replaceable & {
            event.id for event in events if not is_replaceable(event, policy)
        }
        return msgspec.structs.replace(context, seen=context.seen - replaced, replaceable=replaced)

    async def _tenants_of_payments(self, events: Sequence[BillingEvent]) -> dict[str, str]:
        """Return the tenants of the payments of refunds and disputes; other events ask nothing."""
        reversals = [event for event in events if event.reversal is not None]
        if not reversals:
            return {}
        by_invoice = self._policy.is_each  # otherwise the customer decides, as of the invoice
        return await reversals_store.tenants_of_payments(
            self._connection, reversals, by_invoice=by_invoice
        )

    async def _further(
        self,
        events: Sequence[BillingEvent],
        context: BatchContext,
        named: BatchNames,
        locks: frozenset[NameLock],
    ) -> tuple[BatchNames, frozenset[NameLock]]:
        """Return what new events need locked, by what the ledger has: the subscriptions that will
        count for a tenant by a link of these events, and the names that they miss or may add.
        """
        released = await self._released_subscriptions(events, context)
        locks |= needed_locks(events, context, self._policy) | claims("subscription", released)
        return named._replace(subscriptions=named.subscriptions | released), locks

    async def _begin_again(
        self, names: Collection[NameLock], end: Callable[[], Awaitable[None]]
    ) -> None:
        """End the transaction, and begin it with the locks of these names."""
        if not self._may_begin_again:
            raise RuntimeError("The transaction has written without the locks of these events.")
        await end()
        then = [PREPARE_CHANGE(), store.locked_names(names)]
        await self._connection.enter(ACROSS_TENANTS, then=then)

    async def _release_from_ended(
        self, events: Iterable[BillingEvent], context: BatchContext
    ) -> bool:
        """Take the customers that these events take over from ended tenants, as the operator does;
        return whether any.

        Then the events that name no tenant wait for the new link, so that it does not matter which
        of them came before.
        """
        taken = customer_links.taken_from_ended(events, context)
        for tenant_id, customers in taken.items():
            await self.release(context.accounts[tenant_id], customers)
        return bool(taken)

    async def _released_subscriptions(
        self, events: Sequence[BillingEvent], context: BatchContext
    ) -> frozenset[str]:
        """Return the subscriptions of events, parked or among these, that will count for a tenant
        by a link of these; none with `SubscriptionRule.ANY`.
        """
        if not self._policy.is_each:
            return frozenset()
        customers = customer_links.wanted_links(events, context)
        if not customers:
            return frozenset()
        parked = await store.read_parked(self._connection, (), sorted(customers))
        waiting = [each.event for each in parked]
        waiting += [
            event
            for event in events
            if customer_links.goes_by_customer(event) and event.customer_id in customers
        ]
        ended = customer_links.taken_from_ended(events, context)
        of_ended = [context.accounts[tenant_id].folds for tenant_id in ended]
        named = present(event.subscription_id for event in waiting)
        found = named.union(*of_ended) - {WHOLE_TENANT}
        return frozenset(filterfalse(is_grant_key, found))

    async def _apply_work(self, context: BatchContext, work: Work) -> BatchChanges:
        """Apply events in memory; return the changes to write. The context has all tenants of their
        subscriptions, locked.

        Which tenant an invoice belongs to depends on all events of its subscription, of other
        tenants too. So the events are applied, and then again where they have changed that.
        Invoices in the ledger leave their tenant in the same transaction.
        """
        policy, now = self._policy, self.transaction.now
        to_place = WorkToPlace.of(context, work)
        moves = to_place.first_moves(policy)
        while True:
            stored = await self._stored(to_place, moves)
            application = BatchApplication(context, policy, now, work, moves, stored)
            begun = application.new_subscriptions()
            is_complete = begun.keys() <= moves.begun.keys()
            if is_complete and not application.contested:
                return application.changes()  # the common case
            ledgers = await store.read_subscriptions(
                self._connection, application.contested, context.accounts
            )
            histories = application.histories(ledgers)
            owners = owners_of_misplaced(histories.values())
            misplaced = {name: each for name, each in owners.items() if each in context.accounts}
            if is_complete and not misplaced:
                return application.changes(histories, application.unread_owners(owners))
            further = moves.further(begun, ledgers, misplaced)
            await self._park_again(further.leaving[len(moves.leaving) :])
            moves = further

    async def _stored(self, to_place: WorkToPlace, moves: Moves) -> StoredEvents:
        """Read what the ledger has that these events depend on, given what they move."""
        connection, policy = self._connection, self._policy
        waiting = await self._read_waiting(to_place, moves)
        placed = to_place.with_tenants(moves, waiting)
        needs = replay_needs(to_place.context, placed, policy)
        without_fold = invoices_without_fold(placed, policy)
        reversals = reversals_among(placed)
        return StoredEvents(
            needs,
            await store.read_events(connection, needs, policy) if needs else {},
            waiting,
            await store.read_payments(connection, without_fold) if without_fold else {},
            await reversals_store.read_earlier(connection, reversals) if reversals else {},
        )

    async def _read_waiting(self, to_place: WorkToPlace, moves: Moves) -> list[ReceivedEvent]:
        """Return the parked events that wait for a link or a subscription of these events."""
        found = list[ReceivedEvent]()
        if to_place.links or moves.begun:
            customers = sorted({customer_id for customer_id, _ in to_place.links})
            found += await store.read_parked(self._connection, (), customers, sorted(moves.begun))
        if payments := to_place.placed_payments():
            found += await reversals_store.read_parked_of(self._connection, payments)
        applied = {each.event.id for each in (*to_place.work.parked, *moves.leaving)}
        return [each for each in found if each.event.id not in applied]

    async def _park_again(self, invoices: Sequence[ReceivedEvent]) -> None:
        if invoices:
            ids = [each.event.id for each in invoices]
            await store.park_again(self._connection, ids, self.transaction.now)


class LockedBatch(LockedLedger):
    """The ledgers that a batch of events needs, and what the events change of them."""

    def __init__(self, transaction: LedgerTransaction, changes: BatchChanges) -> None:
        super().__init__(transaction)
        self.changes = changes

    async def commit(self, *, has_duplicates: bool) -> CommittedChange | None:
        """Write the changes and end the transaction. Return the change if checks read it, or what
        duplicates repeat. Raises `EntryTakenError` as `write`.
        """
        changes, connection = self.changes, self._connection
        await self._withdraw_mails(changes)
        calls = batch_store.batch_calls(changes, self.transaction.now)
        is_read_by_checks = bool(changes.read_by_checks)
        if is_read_by_checks:
            calls.insert(0, PREPARE_CHANGE())
        if self.transaction.outbox is not None and changes.has_jobs:
            await batch_store.write(connection, calls, commit=False)
            await self._defer_jobs(changes)
            calls = []
        if is_read_by_checks or has_duplicates:
            return await batch_store.write_change(connection, calls)
        await batch_store.write(connection, calls, commit=True)
        return None


@asynccontextmanager
async def lock_events(
    transaction: LedgerTransaction, received: Sequence[ReceivedEvent]
) -> AsyncIterator[LockedBatch]:
    """Lock the tenants of events, and apply the events in memory; first in the transaction."""
    changes = await LockedLedger(transaction).apply(received)
    yield LockedBatch(transaction, changes)


def _without_duplicates(
    received: Sequence[ReceivedEvent], policy: BillingPolicy
) -> Sequence[ReceivedEvent]:
    """Return the event that counts of each id: the first valid one, or the first if none is."""
    if len({each.event.id for each in received}) == len(received):
        return received
    valid_first = sorted(received, key=lambda each: is_replaceable(each.event, policy))
    unique = {each.event.id: each for each in reversed(valid_first)}
    return [each for each in received if unique[each.event.id] is each]


def _numbered(received: Sequence[ReceivedEvent], context: BatchContext) -> list[ReceivedEvent]:
    """Number events by their arrival; a snapshot has the number that was taken when it was
    requested.
    """
    return [
        each
        if each.event.arrival
        else msgspec.structs.replace(
            each, event=msgspec.structs.replace(each.event, arrival=context.first_arrival + number)
        )
        for number, each in enumerate(received)
    ]


def present(names: Iterable[str | None]) -> frozenset[str]:
    return frozenset(name for name in names if name)


def claims(kind: str, names: Iterable[str]) -> frozenset[NameLock]:
    return frozenset(NameLock(f"{kind} {name}", claimed=True) for name in names)


def log_payments(entries: Sequence[LedgerEntry]) -> None:
    """Log the successful payments of tenants (SPEC 3), their refunds and disputes."""
    for entry in entries:
        event = entry.received.event
        if event.reversal is not None and entry.outcome is Outcome.APPLIED:
            logger.info("tenant %s: %s event=%s", entry.tenant_id, entry.reason, event.id)
        if event.type in PAYMENT_TYPES and entry.tenant_id is not None:
            logger.info(
                "payment received: tenant=%s invoice=%s event=%s status=%s",
                entry.tenant_id,
                event.invoice_id,
                event.id,
                entry.after.subscription_status if entry.after else None,
            )
