"""Ingesting provider events: many requests, one transaction; and applying a tenant's parked
events.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import filterfalse
from typing import Final, NamedTuple, TypeVar

import msgspec

from tenantry.billing import ledger_store as store
from tenantry.billing.placement import apply_work
from tenantry.billing.published_accounts import write_accounts
from tenantry.billing.whole_ledgers import release_customers
from tenantry.common.clock import Clock
from tenantry.db.batcher import GATHER_SECONDS, Batcher
from tenantry.db.connection import Connection
from tenantry.db.database import Lane, retry_on_conflict
from tenantry.db.outbox import Outbox
from tenantry.db.standby_waits import PREPARE_CHANGE, CommittedChange
from tenantry.db.statements import BoundStatement
from tenantry.domain.billing import customer_links
from tenantry.domain.billing.anomalies import is_replaceable, rejection
from tenantry.domain.billing.batch_application import BatchChanges, Work
from tenantry.domain.billing.batch_needs import needed_locks
from tenantry.domain.billing.events import (
    CUSTOMER_GONE_TYPES,
    INVOICE_TYPES,
    PAYMENT_TYPES,
    BillingEvent,
)
from tenantry.domain.billing.ledger import (
    BatchContext,
    LedgerEntry,
    NameLock,
    ReceivedEvent,
)
from tenantry.domain.billing.state import WHOLE_TENANT, BillingPolicy, is_grant_key
from tenantry.domain.billing.subscription_history import former_tenant
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.notifications.mail_delivery_store import (
    insert_notices,
    insert_notifications,
    withdraw_notifications,
)

FAILED: Final = "failed"
"""Shown as the outcome of an event whose handling failed."""
DUPLICATE: Final = "duplicate"
"""Shown as the outcome of an event that the ledger already has."""
_Name = TypeVar("_Name")
_Answer = LedgerEntry | None | asyncio.Task[LedgerEntry | None]
"""The entry of an event, None for a duplicate; or a task that returns it once standbys have
replayed what the event changed.
"""

logger = logging.getLogger(__name__)


class HandlingFailedError(Exception):
    """Handling of the event failed and was rolled back; the provider should send it again."""


def shown_outcome(result: LedgerEntry | BaseException | None) -> str:
    """Return the outcome of an event in a report. Raises an error other than
    `HandlingFailedError`.
    """
    if isinstance(result, HandlingFailedError):
        return FAILED
    if isinstance(result, BaseException):
        raise result
    return result.outcome.value if result else DUPLICATE


class WebhookService:
    """Applies verified events in batches: locked, deduplicated, folded and committed together."""

    def __init__(
        self, lanes: Sequence[Lane], policy: BillingPolicy, outbox: Outbox | None, clock: Clock
    ) -> None:
        """Run as many batches at a time as there are ``lanes``."""
        self._lanes = asyncio.LifoQueue[Lane]()
        for lane in lanes:
            self._lanes.put_nowait(lane)
        self._policy = policy
        self._outbox = outbox
        self._clock = clock
        self._standby_waits = lanes[0].standby_waits
        self._batcher: Batcher[ReceivedEvent, LedgerEntry | None] = Batcher(
            self._apply,
            max_concurrent=len(lanes),
            gather_seconds=GATHER_SECONDS,
            start_timeout=lanes[0].timeouts.batch_start,
            deadline=lanes[0].timeouts.batch,
            metrics=lanes[0].metrics,
        )

    def receive(self, received: ReceivedEvent) -> Awaitable[LedgerEntry | None]:
        """Apply one event; return its entry after the commit, or None for a duplicate.

        Raises `HandlingFailedError` or `DatabaseUnavailableError`; then the event was rolled back.
        """
        return self._batcher.submit(received)

    async def close(self) -> None:
        await self._batcher.close()

    async def apply(self, batch: Sequence[ReceivedEvent]) -> list[LedgerEntry | Exception | None]:
        """Apply a batch, and return when checks see its changes. Only a faulty event fails."""
        answers = await self._apply(batch)
        return [await each if isinstance(each, asyncio.Task) else each for each in answers]

    async def _apply(self, batch: Sequence[ReceivedEvent]) -> list[_Answer | Exception]:
        """Apply a batch. If it fails, halve it, so that only the faulty event fails."""
        try:
            transact = partial(self._transact, batch)
            return list(await retry_on_conflict(transact, store.EntryTakenError))
        except DatabaseUnavailableError as error:
            return [error] * len(batch)
        except Exception as error:
            if len(batch) == 1:
                logger.exception("event %s could not be handled", batch[0].event.id)
                return [HandlingFailedError(str(error))]
            middle = len(batch) // 2
            return [*await self._apply(batch[:middle]), *await self._apply(batch[middle:])]

    async def _transact(self, batch: Sequence[ReceivedEvent]) -> list[_Answer]:
        now = self._clock()
        lane = await self._lanes.get()
        try:
            async with lane.use() as connection:
                changes = await apply_batch(connection, batch, self._policy, now)
                committed = await write_and_commit(
                    connection,
                    changes,
                    self._outbox,
                    now,
                    has_duplicates=len(changes.entries) < len(batch),
                )
        finally:
            self._lanes.put_nowait(lane)
        log_payments((*changes.entries, *changes.unparked))
        entries = {_key(entry.received): entry for entry in changes.entries}
        # a later event of the batch may have let a parked one be applied
        entries |= {
            key: entry for entry in changes.unparked if (key := _key(entry.received)) in entries
        }
        results = [entries.pop(_key(received), None) for received in batch]
        if committed is None or not committed.is_awaited:
            return [*results]
        return self._answer_later(results, changes, committed)

    def _answer_later(
        self,
        results: Sequence[LedgerEntry | None],
        changes: BatchChanges,
        committed: CommittedChange,
    ) -> list[_Answer]:
        """Let the events of tenants whose checks change wait for standbys; all of them if such a
        tenant has no event in the batch. Duplicates wait too: the first delivery may still do so.
        """
        replayed = asyncio.create_task(self._standby_waits.wait(committed))
        changed = changes.read_by_checks
        concerns_all = not changed <= {entry.tenant_id for entry in results if entry is not None}
        return [
            asyncio.create_task(_after(replayed, entry))
            if entry is None or concerns_all or entry.tenant_id in changed
            else entry
            for entry in results
        ]


async def _after(replayed: asyncio.Task[bool], entry: LedgerEntry | None) -> LedgerEntry | None:
    await asyncio.wait([replayed])
    return entry


def _key(received: ReceivedEvent) -> tuple[str, bool]:
    """Tell apart a valid and an invalid event of one id in one batch."""
    return received.event.id, received.event.problem is None


async def apply_batch(
    connection: Connection,
    received: Sequence[ReceivedEvent],
    policy: BillingPolicy,
    now: datetime,
    held: Collection[NameLock] = (),
) -> BatchChanges:
    """Lock the tenants of new events and apply the events in memory; skip events that the ledger
    has already.

    `write` the result and commit, or roll back. Must be first in its transaction, unless the caller
    holds the one tenant that the events name and that their customer belongs to, and before that
    has locked the names ``held`` that the events may add.
    """
    unique = _without_duplicates(received, policy)
    events, former = [each.event for each in unique], set[str]()
    while True:
        context = await _lock_context(connection, events, policy, now, held, former)
        fresh = [each for each in unique if each.event.id not in context.seen]
        work = Work(new=_numbered(fresh, context.first_arrival))
        changes = await apply_work(connection, context, work, policy, now)
        if changes.unread <= former:
            return changes
        # an invoice may belong to a tenant that its subscription named before: tenants are locked
        # in one order
        former |= changes.unread
        await connection.rollback()


def _without_duplicates(
    received: Sequence[ReceivedEvent], policy: BillingPolicy
) -> Sequence[ReceivedEvent]:
    """Return the event that counts of each id: the first valid one, or the first if none is."""
    if len({each.event.id for each in received}) == len(received):
        return received
    valid_first = sorted(received, key=lambda each: is_replaceable(each.event, policy))
    unique = {each.event.id: each for each in reversed(valid_first)}
    return [each for each in received if unique[each.event.id] is each]


def _numbered(received: Sequence[ReceivedEvent], first_arrival: int) -> list[ReceivedEvent]:
    """Number events by their arrival; a snapshot has the number that was taken when it was
    requested.
    """
    return [
        each
        if each.event.arrival
        else msgspec.structs.replace(
            each, event=msgspec.structs.replace(each.event, arrival=first_arrival + number)
        )
        for number, each in enumerate(received)
    ]


async def settle_moves(
    connection: Connection,
    subscriptions: Sequence[str],
    policy: BillingPolicy,
    outbox: Outbox | None,
    now: datetime,
) -> None:
    """Let subscriptions that several tenants have count for the tenant that they name, with the
    invoices of that time.

    Locks these tenants, in the order of their ids, unless the caller has.
    """
    if not subscriptions:
        return
    names = (), (), subscriptions, ()
    while (context := await store.read_context(connection, policy, *names)).missing:
        continue
    changes = await apply_work(connection, context, Work(moved=subscriptions), policy, now)
    await write(connection, changes, outbox, now)


class _Names(NamedTuple):
    """What events name. Subscriptions matter only with `SubscriptionRule.EACH`."""

    tenants: set[str]
    customers: set[str]
    subscriptions: set[str]


async def _lock_context(
    connection: Connection,
    events: Sequence[BillingEvent],
    policy: BillingPolicy,
    now: datetime,
    locked: Collection[NameLock],
    former: Collection[str],
) -> BatchContext:
    """Lock and read what the batch needs, and lock missing names so that no other transaction adds
    them.

    The tenants in ``former`` are read too. Entries that one of these events replaces do not count
    as seen. Ended tenants lose the customers that these events take over.
    """
    usable = _usable(events, policy)
    names = _named_by(usable, policy, former)
    held = set(locked)
    while True:
        context = await _read_context(connection, events, policy, names)
        fresh = [event for event in usable if event.id not in context.seen]
        released = await _released_subscriptions(connection, fresh, context, policy)
        wanted = held | needed_locks(fresh, context, policy) | _claims("subscription", released)
        further = names._replace(subscriptions=names.subscriptions | released)
        if (wanted, further) == (held, names) and not context.missing:
            break
        held, names = wanted, further
        # names are locked before tenants: begin again (nothing is written; a rollback would
        # unprepare statements)
        await connection.commit()
        await store.lock_names(connection, held)
    if await _release_from_ended(connection, fresh, context, policy, now):
        return await _read_context(connection, events, policy, names)
    return context


def _usable(events: Iterable[BillingEvent], policy: BillingPolicy) -> list[BillingEvent]:
    return [event for event in events if not rejection(event, policy)]


def _present(names: Iterable[str | None]) -> set[str]:
    return {name for name in names if name}


def _claims(kind: str, names: Iterable[str]) -> set[NameLock]:
    return {NameLock(f"{kind} {name}", claimed=True) for name in names}


def _named_by(
    events: Sequence[BillingEvent], policy: BillingPolicy, former: Collection[str]
) -> _Names:
    """Return what events name, with the ``former`` tenants of their subscriptions."""
    tenants = _present(event.org_id for event in events).union(former)
    customers = _present(event.customer_id for event in events)
    if not policy.is_each:
        return _Names(tenants, customers, set())
    tenants |= _present(map(former_tenant, events))
    return _Names(tenants, customers, _present(event.subscription_id for event in events))


async def _read_context(
    connection: Connection, events: Sequence[BillingEvent], policy: BillingPolicy, names: _Names
) -> BatchContext:
    nameless = customer_links.without_customer(_usable(events, policy), policy)
    current = await store.tenants_of_current(connection, nameless)
    ids = [event.id for event in events]
    context = await store.read_context(connection, policy, *names, ids, current)
    if context.gone_customers or any(event.type in CUSTOMER_GONE_TYPES for event in events):
        linked = await store.linked_customers(connection, context.accounts)
        context = msgspec.structs.replace(context, linked_customers=linked)
    if not context.replaceable:
        return context
    replaced = context.replaceable & {
        event.id for event in events if not is_replaceable(event, policy)
    }
    return msgspec.structs.replace(context, seen=context.seen - replaced, replaceable=replaced)


async def _release_from_ended(
    connection: Connection,
    events: Iterable[BillingEvent],
    context: BatchContext,
    policy: BillingPolicy,
    now: datetime,
) -> bool:
    """Take the customers that these events take over from ended tenants, as the operator does;
    return whether any.

    Then the events that name no tenant wait for the new link, so that it does not matter which of
    them came before.
    """
    taken = customer_links.taken_from_ended(events, context)
    for tenant_id, customers in taken.items():
        await release_customers(connection, context.accounts[tenant_id], customers, policy, now)
    return bool(taken)


async def _released_subscriptions(
    connection: Connection,
    events: Sequence[BillingEvent],
    context: BatchContext,
    policy: BillingPolicy,
) -> set[str]:
    """Return the subscriptions of events, parked or among these, that will count for a tenant by a
    link of these; none with `SubscriptionRule.ANY`.
    """
    customers = customer_links.wanted_links(events, context) if policy.is_each else set[str]()
    if not customers:
        return set()
    waiting = [each.event for each in await store.read_parked(connection, (), sorted(customers))]
    waiting += [
        event
        for event in events
        if customer_links.goes_by_customer(event) and event.customer_id in customers
    ]
    ended = customer_links.taken_from_ended(events, context)
    of_ended = [context.accounts[tenant_id].folds for tenant_id in ended]
    named = _present(event.subscription_id for event in waiting)
    found = named.union(*of_ended) - {WHOLE_TENANT}
    return set(filterfalse(is_grant_key, found))


async def write(
    connection: Connection, changes: BatchChanges, outbox: Outbox | None, now: datetime
) -> None:
    """Write all changes of a batch.

    Raises `EntryTakenError` if another transaction has handled one of the events meanwhile: try
    again.
    """
    await _withdraw_mails(connection, changes)
    await store.write(connection, _calls(changes, now), commit=False)
    if outbox is not None:
        await _defer_jobs(connection, changes, outbox, now)


async def write_and_commit(
    connection: Connection,
    changes: BatchChanges,
    outbox: Outbox | None,
    now: datetime,
    *,
    has_duplicates: bool,
) -> CommittedChange | None:
    """As `write`, and end the transaction. Return the change if checks read it, or what duplicates
    repeat.
    """
    await _withdraw_mails(connection, changes)
    calls = _calls(changes, now)
    is_read_by_checks = bool(changes.read_by_checks)
    if is_read_by_checks:
        calls.insert(0, PREPARE_CHANGE())
    if outbox is not None and _has_jobs(changes):
        await store.write(connection, calls, commit=False)
        await _defer_jobs(connection, changes, outbox, now)
        calls = []
    if is_read_by_checks or has_duplicates:
        return await store.write_change(connection, calls)
    await store.write(connection, calls, commit=True)
    return None


def _calls(changes: BatchChanges, now: datetime) -> list[BoundStatement]:
    return [
        *store.delete_replaced(changes.replaceable, changes.entries),
        *store.insert_entries(changes.entries),
        *store.insert_bodies(changes.entries, changes.policy.raw_bodies, now),
        *store.delete_entries(changes.superseded),
        *write_accounts(changes.changed_accounts, changes.policy, now),
        *store.insert_links(changes.links),
        *store.set_customer_uses(changes.customer_uses),
        *store.update_parked(changes.unparked),
    ]


async def _withdraw_mails(connection: Connection, changes: BatchChanges) -> None:
    if changes.withdrawn:
        await withdraw_notifications(connection, changes.withdrawn)


def _has_jobs(changes: BatchChanges) -> bool:
    return bool(changes.failed_payments or changes.notices or changes.snapshot_requests)


async def _defer_jobs(
    connection: Connection, changes: BatchChanges, outbox: Outbox, now: datetime
) -> None:
    """Let the worker notify owners, and ask the provider about tenants."""
    if changes.failed_payments:
        await _defer_mails(connection, changes, outbox, now)
    if changes.notices:  # after the failures: the notice of a recovered payment looks for them
        notices = await insert_notices(connection, changes.notices, now)
        await outbox.defer_mail(connection, notices)
    if changes.snapshot_requests:
        traces = [(entry.tenant_id, entry.received.trace) for entry in changes.entries]
        await outbox.defer_snapshots(connection, changes.snapshot_requests, _known(traces))


async def _defer_mails(
    connection: Connection, changes: BatchChanges, outbox: Outbox, now: datetime
) -> None:
    """Notify owners of failed payments."""
    mails = await insert_notifications(connection, changes.failed_payments, now)
    traces = {entry.received.event.id: entry.received.trace for entry in changes.entries}
    of_mails = [(mail_id, traces.get(event_id)) for mail_id, event_id in mails.items()]
    await outbox.defer_mail(connection, list(mails), _known(of_mails))


def _known(traces: Iterable[tuple[_Name | None, str | None]]) -> dict[_Name, str]:
    """Return the traces that are known, by what they are of."""
    return {name: trace for name, trace in traces if name and trace}


async def claim(connection: Connection, tenant_id: str, customers: Sequence[str]) -> None:
    """Lock what `apply_parked` needs, so that no other transaction parks events for it or adds it.

    That is the names of a new tenant, of its customers and of the subscriptions that events wait
    for, and then the tenants that have any of them. Call it before the transaction locks any
    tenant.
    """
    await store.lock_names(connection, [NameLock(f"tenant {tenant_id}", claimed=True)])
    held = set[NameLock]()
    while True:
        named, subscriptions = await _named_by_waiting(connection, tenant_id, customers)
        wanted = _claims("customer", named) | _claims("subscription", subscriptions)
        if wanted <= held:
            break
        # once more only if an event was parked in between: out of order, which may end in a
        # deadlock at worst
        await store.lock_names(connection, wanted - held)
        held |= wanted
    await store.lock_holders(connection, tenant_id, named, subscriptions)


async def _named_by_waiting(
    connection: Connection, tenant_id: str, customers: Sequence[str]
) -> tuple[set[str], set[str]]:
    """Return the customers and subscriptions of events that wait for a tenant, for its
    subscriptions or for these customers.

    A customer that an event of the tenant names may be linked by it, so events may wait for that
    one too.
    """
    of_tenant = await store.read_parked(connection, [tenant_id], customers)
    named = _present(each.event.customer_id for each in of_tenant).union(customers)
    known = await store.subscriptions_of(connection, tenant_id)
    waiting = await store.read_parked(connection, [tenant_id], sorted(named), known)
    return named, _present(each.event.subscription_id for each in waiting)


async def apply_parked(
    connection: Connection,
    tenant_id: str,
    policy: BillingPolicy,
    outbox: Outbox | None,
    now: datetime,
) -> None:
    """Apply the parked events of this tenant, of the customers linked to it, and of its
    subscriptions. Call `claim` before; then commit.
    """
    customers = await store.customers_of(connection, tenant_id)
    begun = await _begun_by_waiting(connection, tenant_id, customers, policy)
    known = await store.subscriptions_of(connection, tenant_id)
    waiting = await store.read_parked(connection, [tenant_id], customers, [*begun, *known])
    if not waiting:
        return
    events = [each.event for each in waiting]
    context = await _read_with_holders(connection, events, policy, tenant_id, customers)
    if await _release_from_ended(connection, events, context, policy, now):
        context = await _read_with_holders(connection, events, policy, tenant_id, customers)
    owners = dict.fromkeys(begun, tenant_id) | context.known.tenant_of_subscription
    waiting = [each for each in waiting if _tenant_of(each.event, owners, context) == tenant_id]
    changes = await apply_work(
        connection, context, Work(tenant_id=tenant_id, parked=waiting), policy, now
    )
    await write(connection, changes, outbox, now)
    connection.after_commit(partial(log_payments, changes.unparked))


async def _begun_by_waiting(
    connection: Connection, tenant_id: str, customers: Sequence[str], policy: BillingPolicy
) -> set[str]:
    """Return the subscriptions of events that wait for a tenant or its customers, which
    `SubscriptionRule.EACH` goes by.
    """
    if not policy.is_each:
        return set()
    waiting = await store.read_parked(connection, [tenant_id], customers)
    return _present(each.event.subscription_id for each in waiting)


async def _read_with_holders(
    connection: Connection,
    events: Sequence[BillingEvent],
    policy: BillingPolicy,
    tenant_id: str,
    customers: Sequence[str],
) -> BatchContext:
    """Read the context of parked events, with all tenants that have one of their subscriptions.

    `claim` has locked them.
    """
    named, found = await _named_by_waiting(connection, tenant_id, customers)
    subscriptions = found if policy.is_each else set[str]()
    return await _read_context(
        connection, events, policy, _Names({tenant_id}, named, subscriptions)
    )


def _tenant_of(event: BillingEvent, owners: Mapping[str, str], context: BatchContext) -> str | None:
    """Return the tenant of an event that waited; ``owners`` has those of subscriptions.

    An invoice of another tenant's subscription stays that tenant's.
    """
    owner = owners.get(event.subscription_id or "")
    if owner is not None and event.type in INVOICE_TYPES:
        return owner
    return customer_links.tenant_of(event, context.known)


def log_payments(entries: Sequence[LedgerEntry]) -> None:
    """Log the successful payments of tenants (SPEC 3)."""
    for entry in entries:
        event = entry.received.event
        if event.type in PAYMENT_TYPES and entry.tenant_id is not None:
            logger.info(
                "payment received: tenant=%s invoice=%s event=%s status=%s",
                entry.tenant_id,
                event.invoice_id,
                event.id,
                entry.after.subscription_status if entry.after else None,
            )
