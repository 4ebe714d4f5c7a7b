"""Billing history: what happened to a tenant's plan and payments, in sentences for its users."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from markupsafe import Markup

from tenantry.billing.ledger_queries import HistoryEntry, HistoryState
from tenantry.dashboard.labels import isolated, labels, show_amount, show_time
from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.events import (
    GRANT_ENDED,
    GRANT_SET,
    INVOICE_PAID,
    INVOICE_TYPES,
    INVOICE_UNCOLLECTIBLE,
    INVOICE_VOIDED,
    PAYMENT_FAILED,
    PAYMENT_SUCCEEDED,
    REFUND_TYPES,
    SNAPSHOT,
    SUBSCRIPTION_CREATED,
    SUBSCRIPTION_DELETED,
    SUBSCRIPTION_TYPES,
)
from tenantry.domain.grants import GrantTerms, given_words
from tenantry.domain.plans import FREE, OVER, Catalog

_INVOICES: Final[Mapping[str, Markup]] = {
    PAYMENT_FAILED: Markup("The payment{} failed."),
    PAYMENT_SUCCEEDED: Markup("The payment{} was received."),
    INVOICE_PAID: Markup("The invoice{} was paid."),
    INVOICE_VOIDED: Markup("The invoice{} was canceled."),
    INVOICE_UNCOLLECTIBLE: Markup("The invoice{} was written off."),
}
_PAYMENTS: Final = (PAYMENT_FAILED, PAYMENT_SUCCEEDED)
_GRANTS: Final = (GRANT_SET, GRANT_ENDED)
_BEFORE_ALL: Final = HistoryState(FREE, NO_SUBSCRIPTION, None, cancel_at_period_end=False)
_WAITING: Final = frozenset({NO_SUBSCRIPTION, "incomplete", *OVER})
"""The statuses before a subscription begins."""
_CHANGES_OF_ENDS: Final = SUBSCRIPTION_TYPES - {SUBSCRIPTION_CREATED} | {SNAPSHOT}
"""The types of events about one subscription that may change its end and period."""
_RUNNING: Final = frozenset({"active", "trialing"})
_day = partial(show_time, text="%b %Y", attribute="data-day")


def sentences(entry: HistoryEntry, catalog: Catalog) -> list[Markup]:
    """Say what happened, and what it changed for the tenant; never empty."""
    said = list(_happened(entry, catalog))
    before, after = entry.before or _BEFORE_ALL, entry.after or entry.before or _BEFORE_ALL
    said += _changed(before, after, catalog)
    if not _may_be_another(entry.type, before, after):
        said += _period_changed(before, after)
    return said or [Markup("{}.").format(labels().event_types.get(entry.type, entry.type))]


def _happened(entry: HistoryEntry, catalog: Catalog) -> Iterator[Markup]:
    if entry.type in _PAYMENTS and entry.amount == 0:
        yield Markup("Nothing was to be paid.")
    elif entry.type in INVOICE_TYPES:
        amount = show_amount(entry.amount, entry.currency)
        of_amount = Markup(" of <bdi>{}</bdi>").format(amount) if amount else ""
        yield _INVOICES[entry.type].format(of_amount)
    elif entry.reversal is not None:
        table = labels().refunds if entry.type in REFUND_TYPES else labels().disputes
        amount = show_amount(entry.amount, entry.currency)
        of_amount = Markup(" of <bdi>{}</bdi>").format(amount) if amount else ""
        yield Markup(table.get(entry.reversal.status, table["other"])).format(of_amount)  # noqa: S704  # our own text
    elif entry.type in _GRANTS and entry.grant is not None:
        yield from _granted(entry.grant, catalog, is_over=entry.type == GRANT_ENDED)


def _granted(terms: GrantTerms, catalog: Catalog, *, is_over: bool) -> Iterator[Markup]:
    if is_over:
        yield Markup("Your contract <bdi>{}</bdi> ended.").format(terms.name)
        return
    gives = isolated(", ".join(given_words(terms, catalog)))
    until = Markup(" until {}").format(_day(terms.ends_at)) if terms.ends_at else ""
    yield Markup("Your contract <bdi>{}</bdi> gives {}{}.").format(terms.name, gives, until)


def _changed(before: HistoryState, after: HistoryState, catalog: Catalog) -> Iterator[Markup]:
    status = _status_change(before.subscription_status, after.subscription_status)
    if status:
        yield Markup("{}").format(status)
    if before.plan != after.plan:
        names = isolated(catalog.name(before.plan)), isolated(catalog.name(after.plan))
        yield Markup("Your plan changed from {} to {}.").format(*names)
    if before.seats != after.seats and before.seats and after.seats:
        yield Markup("Your seats changed from {:,} to {:,}.").format(before.seats, after.seats)


def _may_be_another(event_type: str, before: HistoryState, after: HistoryState) -> bool:
    """Whether another subscription may count since this event, whose end and period are then not
    those of the one before, changed.

    The states don't say which one counts. It may be another if the plan changed, if one ended and
    the tenant still has one, if the event does not change an end itself, or if there is no end any
    more and also another period: resuming a subscription leaves its period.
    """
    if before.subscription_status in _WAITING:
        return False
    is_left = event_type == SUBSCRIPTION_DELETED and after.subscription_status not in OVER
    has_lost_end = before.has_end and not after.has_end
    is_resumed = before.current_period_end == after.current_period_end
    is_other_end = has_lost_end and not is_resumed
    return (
        is_left or is_other_end or before.plan != after.plan or event_type not in _CHANGES_OF_ENDS
    )


def _period_changed(before: HistoryState, after: HistoryState) -> Iterator[Markup]:
    end = [] if after.subscription_status in OVER else list(_end_change(before, after))
    if not end and before.subscription_status == after.subscription_status:
        yield from _next_end(after.subscription_status, before, after)
    yield from end


def _status_change(before: str, after: str) -> str:
    """Say what became of the subscription; empty if its status stayed."""
    if before == after:
        return ""
    if after in _RUNNING:
        return _begin(before, after)
    return labels().status_changes.get(after, "")


def _begin(before: str, after: str) -> str:
    if after == "trialing":
        return "Your trial started."
    if before == "trialing":
        return "Your trial ended, and your paid subscription began."
    return (
        "Your subscription started." if before in _WAITING else "Your subscription is active again."
    )


def _end_change(before: HistoryState, after: HistoryState) -> Iterator[Markup]:
    if after.ends_at is not None and after.ends_at != before.ends_at:
        yield Markup("Your subscription will end on {}.").format(_day(after.ends_at))
    elif before.has_end and not after.has_end and before.subscription_status not in OVER:
        yield Markup("Your subscription will no longer end: it renews.")
    elif after.has_end and not before.has_end:
        yield Markup("Your subscription will end with the current period.")


def _next_end(status: str, before: HistoryState, after: HistoryState) -> Iterator[Markup]:
    """Say until when a subscription goes on. One that is neither paid nor on trial has periods too,
    which give nothing.
    """
    old, new = before.current_period_end, after.current_period_end
    if old is None or new is None or old == new:
        return
    if status == "trialing":
        yield Markup("Your trial now ends on {}.").format(_day(new))
    elif status == "active":
        renewed = Markup("Your subscription was renewed until {}.")
        words = renewed if new > old else Markup("Your period now ends on {}.")
        yield words.format(_day(new))
