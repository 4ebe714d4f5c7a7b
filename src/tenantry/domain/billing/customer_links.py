"""Which tenant an event belongs to, and when an event links a customer of the provider to a tenant
(CONTRACT 6).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.ledger import BatchContext, BillingAccount, KnownTenants
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import OVER


def tenant_of(event: BillingEvent, known: KnownTenants) -> str | None:
    """Return the tenant that an event belongs to (SPEC 6.1, CONTRACT 6).

    A subscription event names it in its metadata; one that names none belongs to the tenant of its
    customer. Of invoices see `KnownTenants.of_invoice`, of refunds and disputes
    `KnownTenants.of_reversal`.
    """
    if event.type in ev.INVOICE_TYPES:
        return known.of_invoice(event)
    if event.reversal is not None:
        return known.of_reversal(event)
    return event.org_id or known.tenant_of_customer.get(event.customer_id or "")


def goes_by_customer(event: BillingEvent) -> bool:
    """Whether the event names no tenant, so that the link of its customer decides."""
    return event.type in ev.INVOICE_TYPES or event.org_id is None


def without_customer(events: Iterable[BillingEvent], policy: BillingPolicy) -> set[str]:
    """Return the subscriptions of invoice events that name no customer, which
    `SubscriptionRule.ANY` goes by.
    """
    return {
        event.subscription_id
        for event in events
        if not policy.is_each
        and event.customer_id is None
        and event.subscription_id
        and event.type in ev.INVOICE_TYPES
    }


def may_link(event: BillingEvent) -> bool:
    """Whether an event can link its customer to the tenant in its metadata."""
    return event.type in _LINKING_TYPES and bool(event.customer_id and event.org_id)


def wants_link(event: BillingEvent, context: BatchContext) -> bool:
    """Whether the event would link its customer to its tenant, by what is known before the
    batch.
    """
    account = context.accounts.get(event.org_id or "")
    return (
        may_link(event)
        and account is not None
        and is_free(context.known.tenant_of_customer.get(event.customer_id or ""), context.accounts)
        and (account.customer_id is None or _may_add_customer(event))
    )


def wanted_links(events: Iterable[BillingEvent], context: BatchContext) -> set[str]:
    """Return the customers that these events would link."""
    return {
        event.customer_id for event in events if event.customer_id and wants_link(event, context)
    }


def taken_from_ended(events: Iterable[BillingEvent], context: BatchContext) -> dict[str, list[str]]:
    """Return the customers that these events would take over from tenants that have ended, by
    these.
    """
    taken = defaultdict[str, list[str]](list)
    for customer_id in sorted(wanted_links(events, context)):
        holder = context.known.tenant_of_customer.get(customer_id)
        if holder is not None:
            taken[holder].append(customer_id)
    return dict(taken)


def _may_add_customer(event: BillingEvent) -> bool:
    """Whether an event links a customer to a tenant that has another one: a checkout session whose
    metadata name it.

    A buyer can name any tenant in a session's ``client_reference_id``.
    """
    return event.type == ev.CHECKOUT_COMPLETED and not event.details.by_reference


def proves_customer(event: BillingEvent) -> bool:
    """Whether the provider had the event's customer when it created the event.

    It ends the subscriptions of a customer that it deletes, so of its answers only those of
    unended subscriptions prove it.
    """
    if event.type == ev.SNAPSHOT:
        return event.status not in OVER
    return event.type in ev.CUSTOMER_PROVING_TYPES


_LINKING_TYPES: Final = ev.WHOLE_SUBSCRIPTION_TYPES | {ev.CHECKOUT_COMPLETED, ev.SNAPSHOT}


def is_free(holder: str | None, accounts: Mapping[str, BillingAccount]) -> bool:
    """Whether a customer can be linked, which ``holder`` has: it has none, or an ended tenant."""
    return holder is None or (holder in accounts and accounts[holder].deleted)


class LinkResult(NamedTuple):
    """The outcome of an event for the link of its customer. With `Outcome.APPLIED` the event links
    the customer.
    """

    outcome: Outcome
    reason: str
    anomaly: Anomaly | None = None


def link_result(
    event: BillingEvent,
    account: BillingAccount,
    holder: str | None,
    accounts: Mapping[str, BillingAccount],
) -> LinkResult | None:
    """Return what an event does to the link of its customer, which ``holder`` has; None if there is
    nothing to do.

    The first claim on a customer stands until its tenant ends. A subscription event links only
    where neither side has a link yet, and so does a checkout session that only its buyer's
    reference gives to the tenant.
    """
    if holder == account.tenant_id:
        return None
    if not is_free(holder, accounts):
        reason = f"Customer {event.customer_id} belongs to another organization already."
        return LinkResult(Outcome.NO_CHANGE, reason, Anomaly.CUSTOMER_TAKEN)
    if account.customer_id is not None and not _may_add_customer(event):
        if not event.details.by_reference:
            return None
        reason = (
            "The buyer's reference names this organization, which has a customer: "
            f"{event.customer_id} is not linked."
        )
        return LinkResult(Outcome.NO_CHANGE, reason, Anomaly.REFERENCE_REFUSED)
    return LinkResult(
        Outcome.APPLIED, f"Customer {event.customer_id} now belongs to this organization."
    )


class CustomerMove(msgspec.Struct, frozen=True, rename="camel"):
    """A change of a customer's link."""

    customer_id: Annotated[str, doc("The payment provider's customer.", "cus_Rk2pXw7Lm3")]
    moved_from: Annotated[str | None, doc("The tenant before it; null without one.", "acme")]
    moved_to: Annotated[str | None, doc("The tenant after it; null without one.", "globex")]
