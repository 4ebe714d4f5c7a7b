"""What a tenant's pages show of its subscriptions and of its unpaid invoices."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from tenantry.common.clock import from_epoch
from tenantry.domain.billing.state import OWING, UNPAID, BillingPolicy, BillingState, unknown_prices
from tenantry.domain.billing.subscription_access import end_of
from tenantry.domain.billing.subscription_choice import RankedSubscription, choice
from tenantry.domain.plans import OVER


class FailedInvoice(msgspec.Struct, frozen=True):
    """The newest failed payment of an invoice, from the event. Times are seconds since the Unix
    epoch.

    ``amount`` remains to be paid, in the smallest unit of ``currency``; ``url`` is the provider's,
    unchecked. ``next_attempt`` is when the provider tries again to collect it; None if it will not,
    or did not say.
    """

    event_id: str
    failed_at: int
    url: str | None
    amount: int | None
    currency: str | None
    next_attempt: int | None
    invoice_id: str | None
    subscription_id: str | None


class Debt(msgspec.Struct, frozen=True):
    """An unpaid invoice of a subscription; without ``event_id`` no event of it is known.

    ``next_attempt`` is in the future; with ``is_given_up`` the provider makes none.
    """

    subscription_id: str | None
    failed_at: datetime | None
    is_given_up: bool
    event_id: str | None = None
    url: str | None = None
    amount: int | None = None
    currency: str | None = None
    next_attempt: datetime | None = None


class SubscriptionLine(msgspec.Struct, frozen=True):
    """One subscription of a tenant, and why it decides the record or does not.

    ``plan`` is None without an item whose price the catalog gives to a plan, and after the end;
    ``unknown_prices`` are those that the catalog does not have. ``ends_at`` is as in
    `tenantry.domain.tenants.Tenant`.
    """

    id: str
    plan: str | None
    addons: tuple[str, ...]
    unknown_prices: tuple[str, ...]
    status: str
    quantity: int | None
    period_end: datetime | None
    ends_at: datetime | None
    counts: bool
    reason: str


def debts_of(
    states: Iterable[BillingState],
    invoices: Sequence[FailedInvoice],
    policy: BillingPolicy,
    now: float,
) -> list[Debt]:
    """Return the unpaid invoices of these states at ``now``, in seconds since the Unix epoch,
    oldest first.

    ``invoices`` have each invoice once, the newest failure first.
    """
    debts = list[Debt]()
    for state in states:
        if state.subscription_status in OWING:
            own = _unpaid(state, invoices, policy)
            debts += [_to_debt(state, invoice, now) for invoice in own] or [_without_invoice(state)]
    return sorted(debts, key=_order)


def _unpaid(
    state: BillingState, invoices: Sequence[FailedInvoice], policy: BillingPolicy
) -> list[FailedInvoice]:
    unpaid = {invoice.id for invoice in state.unpaid_invoices}
    if unpaid:
        return [invoice for invoice in invoices if invoice.invoice_id in unpaid]
    # The events did not name their invoices, or only the subscription's event said that it is past
    # due.
    if policy.is_each and state.subscription_id is not None:
        invoices = [each for each in invoices if each.subscription_id == state.subscription_id]
    return list(invoices[:1])


def _order(debt: Debt) -> tuple[float, str]:
    return (math.inf if debt.failed_at is None else debt.failed_at.timestamp(), debt.event_id or "")


def _without_invoice(state: BillingState) -> Debt:
    return Debt(
        state.subscription_id, from_epoch(state.past_due_since), is_given_up=_is_given_up(state)
    )


def _to_debt(state: BillingState, invoice: FailedInvoice, now: float) -> Debt:
    next_attempt = invoice.next_attempt
    if _is_given_up(state) or (next_attempt is not None and next_attempt <= now):
        next_attempt = None
    return Debt(
        subscription_id=invoice.subscription_id or state.subscription_id,
        failed_at=from_epoch(invoice.failed_at),
        is_given_up=_is_given_up(state),
        event_id=invoice.event_id,
        url=invoice.url,
        amount=invoice.amount,
        currency=invoice.currency,
        next_attempt=from_epoch(next_attempt),
    )


def _is_given_up(state: BillingState) -> bool:
    return state.subscription_status == UNPAID


def subscription_lines(
    states: Sequence[BillingState],
    policy: BillingPolicy,
    now: float,
    grants: Sequence[BillingState],
) -> list[SubscriptionLine]:
    """Return a tenant's subscriptions, in the order in which they count, with what they give at
    ``now``.

    Where a grant's plan counts, no subscription does.
    """
    return [_line(each, policy) for each in choice(states, policy, now, grants)]


def _line(ranked: RankedSubscription, policy: BillingPolicy) -> SubscriptionLine:
    state, catalog = ranked.state, policy.catalog
    is_over = state.subscription_status in OVER
    items = () if is_over else state.details.items
    addons = filter(None, (catalog.addon_of_price(item.price_id) for item in items))
    return SubscriptionLine(
        id=state.subscription_id or "",
        plan=None if is_over or state.seats is None else state.plan,
        addons=tuple(addons),
        unknown_prices=unknown_prices(items, catalog),
        status=state.subscription_status,
        quantity=state.seats,
        period_end=from_epoch(state.current_period_end),
        ends_at=from_epoch(end_of(state, policy)),
        counts=ranked.counts,
        reason=ranked.reason,
    )
