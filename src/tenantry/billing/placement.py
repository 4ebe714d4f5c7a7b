"""Applying events in memory to locked tenants, each to its own.

Which tenant an invoice belongs to depends on all events of its subscription, of other tenants too.
So the events are applied, and then again where they have changed that. Invoices in the ledger leave
their tenant in the same transaction.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from tenantry.billing import ledger_store as store
from tenantry.db.connection import Connection
from tenantry.domain.billing import customer_links
from tenantry.domain.billing.batch_application import (
    BatchApplication,
    BatchChanges,
    Moves,
    StoredEvents,
    Work,
)
from tenantry.domain.billing.batch_needs import (
    invoices_without_fold,
    new_subscriptions,
    replay_needs,
)
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import BatchContext, ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.billing.subscription_history import PlacedEvent, SubscriptionHistory


async def apply_work(
    connection: Connection, context: BatchContext, work: Work, policy: BillingPolicy, now: datetime
) -> BatchChanges:
    """Apply events in memory; return the changes to write.

    The context has all tenants of their subscriptions, locked.
    """
    first = (*work.usable(policy), *(each.event for each in work.parked))
    moves = Moves(new_subscriptions(first, context, policy))
    while True:
        application = await _apply(connection, context, work, moves, policy, now)
        begun = application.new_subscriptions()
        is_complete = begun.keys() <= moves.begun.keys()
        if is_complete and not application.contested:
            return application.changes()  # the common case
        stored = await store.read_subscriptions(connection, application.contested, context.accounts)
        histories = _histories(application, stored)
        owners = _misplaced(histories.values())
        misplaced = {name: tenant for name, tenant in owners.items() if tenant in context.accounts}
        if is_complete and not misplaced:
            return application.changes(histories, _unread_owners(application, owners))
        moves = await _park_misplaced(connection, moves, begun, stored, misplaced, now)


async def _apply(
    connection: Connection,
    context: BatchContext,
    work: Work,
    moves: Moves,
    policy: BillingPolicy,
    now: datetime,
) -> BatchApplication:
    """Apply the events, given what they move."""
    waiting = await _read_waiting(connection, context, work, moves, policy)
    placed = _placed(context, work, moves, waiting, policy)
    needs = replay_needs(context, placed, policy)
    without_fold = invoices_without_fold(placed, policy)
    stored = StoredEvents(
        needs,
        await store.read_events(connection, needs, policy) if needs else {},
        waiting,
        await store.read_payments(connection, without_fold) if without_fold else {},
    )
    return BatchApplication(context, policy, now, work, moves, stored)


async def _read_waiting(
    connection: Connection, context: BatchContext, work: Work, moves: Moves, policy: BillingPolicy
) -> list[ReceivedEvent]:
    """Return the parked events that wait for a link or a subscription of these events."""
    customers = {customer_id for customer_id, _ in _links(context, work, policy)}
    if not customers and not moves.begun:
        return []
    found = await store.read_parked(connection, (), sorted(customers), sorted(moves.begun))
    applied = {each.event.id for each in (*work.parked, *moves.leaving)}
    return [each for each in found if each.event.id not in applied]


def _links(context: BatchContext, work: Work, policy: BillingPolicy) -> set[tuple[str, str]]:
    """Return the customers that these events would link, each with its tenant."""
    events = (*work.usable(policy), *(each.event for each in work.parked))
    return {
        (event.customer_id, event.org_id)
        for event in events
        if event.customer_id and event.org_id and customer_links.wants_link(event, context)
    }


def _placed(
    context: BatchContext,
    work: Work,
    moves: Moves,
    waiting: Sequence[ReceivedEvent],
    policy: BillingPolicy,
) -> list[tuple[str | None, BillingEvent]]:
    """Return the events with each tenant that they may belong to.

    An event without a tenant's name may have waited for the link of its customer, or an invoice for
    its subscription, or follow it in this very batch.
    """
    usable = work.usable(policy)
    nameless = [each.event for each in waiting]
    nameless += [event for event in usable if customer_links.goes_by_customer(event)]
    moved = (*nameless, *(each.event for each in (*work.parked, *moves.leaving)))
    return [
        *((customer_links.tenant_of(event, context.known), event) for event in usable),
        *((work.tenant_id, each.event) for each in work.parked),
        *_placed_by_new_names(nameless, _links(context, work, policy), moves.begun),
        *((moves.placements.get(event.id), event) for event in moved),
    ]


def _placed_by_new_names(
    events: Sequence[BillingEvent],
    links: Iterable[tuple[str, str]],
    of_subscriptions: Mapping[str, str],
) -> list[tuple[str | None, BillingEvent]]:
    """Return the events with the tenants that their customers and subscriptions may get."""
    placed: list[tuple[str | None, BillingEvent]] = []
    for customer_id, tenant_id in links:  # of several tenants the first to come gets it
        placed += [(tenant_id, event) for event in events if event.customer_id == customer_id]
    return placed + [(of_subscriptions.get(event.subscription_id or ""), event) for event in events]


async def _park_misplaced(
    connection: Connection,
    moves: Moves,
    begun: Mapping[str, str],
    stored: Sequence[tuple[str, ReceivedEvent]],
    misplaced: Mapping[str, str],
    now: datetime,
) -> Moves:
    """Park the ``stored`` invoices that are in a wrong ledger; return the moves with these and new
    subscriptions.
    """
    leaving = [(tenant_id, each) for tenant_id, each in stored if each.event.id in misplaced]
    if leaving:
        await store.park_again(connection, [each.event.id for _, each in leaving], now)
    ledgers = {
        *moves.left,
        *((tenant_id, each.event.subscription_id or "") for tenant_id, each in leaving),
    }
    left = {ledger: _left_in(ledger, stored, misplaced) for ledger in ledgers}
    gone = (*moves.leaving, *(each for _, each in leaving))
    return Moves({**moves.begun, **begun}, {**moves.placements, **misplaced}, gone, left)


def _unread_owners(application: BatchApplication, misplaced: Mapping[str, str]) -> set[str]:
    """Return the tenants that new invoices belong to and that are not read yet."""
    new = {entry.received.event.id for entry in application.entries}
    owners = {tenant_id for name, tenant_id in misplaced.items() if name in new}
    return owners - application.context.accounts.keys()


def _histories(
    application: BatchApplication, stored: Iterable[tuple[str, ReceivedEvent]]
) -> dict[str, SubscriptionHistory]:
    """Return the contested subscriptions with their events, the ``stored`` ones and those of the
    batch.
    """
    placed = [PlacedEvent(tenant_id, each.event) for tenant_id, each in stored]
    placed += application.placed_events()
    return {
        name: SubscriptionHistory(each for each in placed if each.event.subscription_id == name)
        for name in application.contested
    }


def _misplaced(histories: Iterable[SubscriptionHistory]) -> dict[str, str]:
    """Return the tenants of invoices that are in another tenant's ledger, by event."""
    return {each.event.id: each.tenant_id for history in histories for each in history.misplaced()}


def _left_in(
    ledger: tuple[str, str], stored: Sequence[tuple[str, ReceivedEvent]], misplaced: Collection[str]
) -> list[BillingEvent]:
    """Return the events of a tenant and subscription that stay in the tenant's ledger."""
    return [
        each.event
        for tenant_id, each in stored
        if (tenant_id, each.event.subscription_id) == ledger and each.event.id not in misplaced
    ]
