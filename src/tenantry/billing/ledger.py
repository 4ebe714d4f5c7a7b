"""Preparing and writing what a batch of events, or a tenant's parked ones, come to."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID, uuid4

import msgspec

from tenantry.billing import ledger_store as billing
from tenantry.db.connection import Connection
from tenantry.domain import owner_mails as notices
from tenantry.domain.billing.batch_application import (
    BatchApplication,
    Gaps,
    gaps,
    gives_way,
    may_link,
    reaches,
    tenant_of,
    useless,
    wants_link,
)
from tenantry.domain.billing.events import INVOICE_TYPES, PAYMENT_SUCCEEDED, BillingEvent
from tenantry.domain.billing.ledger import Arrival, BatchContext, Entry, Question
from tenantry.domain.billing.state import BillingPolicy, full_state_types
from tenantry.notifications import notices_store as notice_store

logger = logging.getLogger(__name__)


class Outbox(Protocol):
    """What is to be done once a transaction is committed, deferred on that transaction's own connection."""

    async def defer_mail(
        self, connection: Connection, ids: Sequence[UUID], traces: Mapping[UUID, str] = ..., /
    ) -> None:
        """Have these notifications delivered; ``traces`` are those that they belong to, where they are known."""

    async def defer_questions(
        self, connection: Connection, questions: Sequence[Question], traces: Mapping[str, str] = ..., /
    ) -> None:
        """Have the provider asked, where its API can be; ``traces`` likewise, by tenant."""


async def settle(
    connection: Connection, arrivals: Sequence[Arrival], policy: BillingPolicy, now: datetime
) -> BatchApplication:
    """What these new events come to, their tenants locked; events that the ledger has already are left out.

    Nothing is written: `write` it and commit, or roll back. Must come first in its transaction, unless the caller holds
    the one tenant that the events name and that their customer belongs to.
    """
    unique = {arrival.event.id: arrival for arrival in reversed(arrivals)}
    if len(unique) < len(arrivals):
        # of one id the first counts, but an invalid one only where all are
        valid = [arrival for arrival in arrivals if not gives_way(arrival.event, policy)]
        unique |= {arrival.event.id: arrival for arrival in reversed(valid)}
    context = await _read(connection, [arrival.event for arrival in unique.values()], policy)
    fresh = [arrival for arrival in arrivals if unique[arrival.event.id] is arrival]
    fresh = [arrival for arrival in fresh if arrival.event.id not in context.seen]
    numbered = [
        msgspec.structs.replace(
            arrival, event=msgspec.structs.replace(arrival.event, arrival=context.first_arrival + number)
        )
        if not arrival.event.arrival  # an answer has its number from when the question was asked
        else arrival
        for number, arrival in enumerate(fresh)
    ]
    usable = [arrival.event for arrival in numbered if not useless(arrival.event, policy)]
    links = {(event.customer_id, event.org_id) for event in usable if wants_link(event, context)}
    customers = [customer_id for customer_id, _ in links if customer_id]
    waiting = await billing.read_parked(connection, (), customers) if customers else []
    placed = [(tenant_of(event, context.tenant_of_customer), event) for event in usable]
    # an invoice event may have waited for its customer's link, or follow that link in this very batch
    invoices = [arrival.event for arrival in waiting]
    invoices += [event for event in usable if event.type in INVOICE_TYPES]
    placed += [
        (org_id, event) for customer_id, org_id in links for event in invoices if event.customer_id == customer_id
    ]
    settlement = await prepare(connection, context, policy, now, placed, waiting)
    for arrival in numbered:
        settlement.receive(arrival)
    return settlement


async def _read(connection: Connection, events: Sequence[BillingEvent], policy: BillingPolicy) -> BatchContext:
    """Lock and read what the batch needs; what is missing is held, so that nobody adds it meanwhile.

    Entries that one of these events replaces do not count as seen.
    """
    usable = [event for event in events if not useless(event, policy)]
    tenants = {event.org_id for event in usable if event.org_id}
    customers = {event.customer_id for event in usable if event.customer_id}
    ids = [event.id for event in events]
    held = Gaps()
    while True:
        context = await billing.read_standing(connection, tenants, customers, ids)
        if context.replaceable:
            replaced = context.replaceable & {event.id for event in events if not gives_way(event, policy)}
            context = msgspec.structs.replace(context, seen=context.seen - replaced, replaceable=replaced)
        wanted = held.union(gaps((event for event in usable if event.id not in context.seen), context))
        if wanted == held:
            return context
        held = wanted
        # names are locked before tenants: begin again (nothing is written; a rollback would unprepare statements)
        await connection.commit()
        await billing.lock_names(
            connection, claimed_customers=held.links, missing_tenants=held.tenants, missing_customers=held.customers
        )


async def prepare(
    connection: Connection,
    context: BatchContext,
    policy: BillingPolicy,
    now: datetime,
    placed: Sequence[tuple[str | None, BillingEvent]],
    waiting: Sequence[Arrival],
) -> BatchApplication:
    """A settlement with the histories that these events need, and the parked events that wait for a customer."""
    needed = reaches(context, placed)
    histories = await billing.read_events(connection, needed, full_state_types(policy)) if needed else {}
    parked = defaultdict(list)
    for arrival in waiting:
        parked[arrival.event.customer_id or ""].append(arrival)
    return BatchApplication(context, policy, now, reaches=needed, histories=histories, parked=parked)


async def write(
    connection: Connection, settlement: BatchApplication, outbox: Outbox, now: datetime, *, commit: bool = False
) -> None:
    """Write everything that a settlement changed; with ``commit`` the transaction ends with it.

    Raises `EntryTakenError` when another transaction has handled one of the events meanwhile: a new try will see it.
    """
    calls = [
        *billing.delete_replaced(settlement.replaced, settlement.entries),
        *billing.insert_entries(settlement.entries, now),
        *billing.delete_entries(settlement.superseded),
        *billing.update_accounts(settlement.changed_accounts(), now),
        *billing.insert_links(settlement.links),
        *billing.settle_parked(settlement.unparked),
    ]
    failures = settlement.failed_payments()
    followed = bool(failures or settlement.questions)
    await billing.write(connection, calls, commit=commit and not followed)
    if failures:
        requests = [
            (
                notices.payment_failed(uuid4(), failure.tenant_id, failure.owner_id, failure.invoice_url),
                failure.event_id,
            )
            for failure in failures
        ]
        traces = {entry.arrival.event.id: entry.arrival.trace for entry in settlement.entries}
        added = await notice_store.insert(connection, requests, now)
        of_mails = {notice.id: trace for notice, event_id in requests if (trace := traces.get(event_id))}
        await outbox.defer_mail(connection, added, of_mails)
    if settlement.questions:
        of_tenants = {
            entry.tenant_id: entry.arrival.trace
            for entry in settlement.entries
            if entry.tenant_id and entry.arrival.trace
        }
        await outbox.defer_questions(connection, settlement.questions, of_tenants)
    if commit and followed:
        await connection.commit()


async def claim(connection: Connection, tenant_id: str, customers: Sequence[str]) -> None:
    """Lock the names of a new tenant and its customers, so that no other transaction parks events for them.

    Call it before `apply_parked`, and before the transaction locks any tenant.
    """
    await billing.lock_names(connection, claimed_tenants=[tenant_id])
    waiting = await billing.read_parked(connection, [tenant_id], ())
    links = {arrival.event.customer_id for arrival in waiting if may_link(arrival.event)} - {None}
    await billing.lock_names(connection, claimed_customers={*customers, *filter(None, links)})


async def apply_parked(
    connection: Connection, tenant_id: str, policy: BillingPolicy, outbox: Outbox, now: datetime
) -> None:
    """Let the events that waited for this tenant, or for customers linked to it, take their place.

    The caller has called `claim`, so that no event is parked for them meanwhile, and commits.
    """
    customers = await billing.customers_of(connection, tenant_id)
    waiting = await billing.read_parked(connection, [tenant_id], customers)
    if not waiting:
        return
    named = {arrival.event.customer_id for arrival in waiting if arrival.event.customer_id}
    context = await billing.read_standing(connection, [tenant_id], named, ())
    links = {arrival.event.customer_id for arrival in waiting if wants_link(arrival.event, context)}
    waiting_for_link = await billing.read_parked(connection, (), [link for link in links if link])
    placed = [(tenant_id, arrival.event) for arrival in (*waiting, *waiting_for_link)]
    settlement = await prepare(connection, context, policy, now, placed, waiting_for_link)
    settlement.apply_parked(tenant_id, waiting)
    await write(connection, settlement, outbox, now)
    for entry in settlement.unparked:
        log_payment(entry)


def log_payment(entry: Entry) -> None:
    """Log a payment (SPEC 3)."""
    event = entry.arrival.event
    if event.type == PAYMENT_SUCCEEDED and entry.tenant_id is not None:
        logger.info(
            "payment received: tenant=%s invoice=%s event=%s status=%s",
            entry.tenant_id, event.invoice_id, event.id, entry.after.subscription_status if entry.after else None,
        )  # fmt: skip
