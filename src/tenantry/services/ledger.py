"""Preparing and writing what a batch of events, or a tenant's parked ones, come to."""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from uuid import UUID, uuid4

from tenantry.db.database import Connection
from tenantry.domain import notices
from tenantry.domain.billing.events import PAYMENT_SUCCEEDED, BillingEvent
from tenantry.domain.billing.ledger import Arrival, Entry, Standing
from tenantry.domain.billing.settlement import Settlement, may_link, reaches, wants_link
from tenantry.domain.billing.state import BillingPolicy
from tenantry.store import billing
from tenantry.store import notices as notice_store

MailQueue = Callable[[Connection, Sequence[UUID]], Awaitable[None]]
"""Defers the jobs that deliver these notifications, in the connection's transaction."""

logger = logging.getLogger(__name__)


class LostClaimError(Exception):
    """Another transaction handled one of the batch's events meanwhile; a new try will see it."""


async def prepare(
    connection: Connection,
    standing: Standing,
    policy: BillingPolicy,
    now: datetime,
    placed: Sequence[tuple[str | None, BillingEvent]],
    waiting: Sequence[Arrival],
) -> Settlement:
    """A settlement with the histories that these events need, and the parked events that wait for a customer."""
    needed = reaches(standing, placed)
    histories = await billing.read_events(connection, needed) if needed else {}
    parked = defaultdict(list)
    for arrival in waiting:
        parked[arrival.event.customer_id or ""].append(arrival)
    return Settlement(standing, policy, now, reaches=needed, histories=histories, parked=parked)


async def write(connection: Connection, settlement: Settlement, queue_mail: MailQueue, now: datetime) -> None:
    """Write everything that a settlement changed. Raises `LostClaimError`; the caller commits."""
    entries, accounts = settlement.entries, settlement.changed_accounts()
    async with connection.pipeline():
        inserted = await billing.insert_entries(connection, entries) if entries else None
        if accounts:
            await billing.update_accounts(connection, accounts, now)
        if settlement.links:
            await billing.insert_links(connection, settlement.links)
        if settlement.healed:
            await billing.settle_parked(connection, settlement.healed)
    if inserted is not None and inserted.rowcount != len(entries):
        raise LostClaimError
    failures = settlement.failed_payments()
    if failures:
        requests = [
            (
                notices.payment_failed(uuid4(), failure.tenant_id, failure.owner_id, failure.invoice_url),
                failure.event_id,
            )
            for failure in failures
        ]
        await queue_mail(connection, await notice_store.insert(connection, requests, now))


async def claim(connection: Connection, tenant_id: str, customers: Sequence[str]) -> None:
    """Keep events from being parked for a tenant and customers that are about to be known, for what `heal` will do.

    Must come before the transaction locks any tenant.
    """
    await billing.lock_names(connection, claimed_tenants=[tenant_id])
    waiting = await billing.read_parked(connection, [tenant_id], ())
    links = {arrival.event.customer_id for arrival in waiting if may_link(arrival.event)} - {None}
    await billing.lock_names(connection, claimed_customers={*customers, *filter(None, links)})


async def heal(
    connection: Connection, tenant_id: str, policy: BillingPolicy, queue_mail: MailQueue, now: datetime
) -> None:
    """Let the events that waited for this tenant, or for customers linked to it, take their place.

    The caller has called `claim`, so that no event is parked for them meanwhile, and commits.
    """
    customers = await billing.customers_of(connection, tenant_id)
    waiting = await billing.read_parked(connection, [tenant_id], customers)
    if not waiting:
        return
    named = {arrival.event.customer_id for arrival in waiting if arrival.event.customer_id}
    standing = await billing.read_standing(connection, [tenant_id], named, ())
    links = {arrival.event.customer_id for arrival in waiting if wants_link(arrival.event, standing)}
    waiting_for_link = await billing.read_parked(connection, (), [link for link in links if link])
    placed = [(tenant_id, arrival.event) for arrival in (*waiting, *waiting_for_link)]
    settlement = await prepare(connection, standing, policy, now, placed, waiting_for_link)
    settlement.heal(tenant_id, waiting)
    await write(connection, settlement, queue_mail, now)
    for entry in settlement.healed:
        log_payment(entry)


def log_payment(entry: Entry) -> None:
    """Log a payment (SPEC 3)."""
    event = entry.arrival.event
    if event.type == PAYMENT_SUCCEEDED and entry.tenant_id is not None:
        logger.info(
            "payment received: tenant=%s invoice=%s event=%s status=%s",
            entry.tenant_id, event.invoice_id, event.id, entry.after.subscription_status if entry.after else None,
        )  # fmt: skip
