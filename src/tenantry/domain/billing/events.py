"""The facts of a provider event, as the fold needs them."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from tenantry.domain.grants import GrantTerms

SUBSCRIPTION_UPDATED: Final = "customer.subscription.updated"
SUBSCRIPTION_DELETED: Final = "customer.subscription.deleted"
PAYMENT_SUCCEEDED: Final = "invoice.payment_succeeded"
PAYMENT_FAILED: Final = "invoice.payment_failed"
CHECKOUT_COMPLETED: Final = "checkout.session.completed"
SUBSCRIPTION_CREATED: Final = "customer.subscription.created"
SUBSCRIPTION_PAUSED: Final = "customer.subscription.paused"
SUBSCRIPTION_RESUMED: Final = "customer.subscription.resumed"
TRIAL_WILL_END: Final = "customer.subscription.trial_will_end"
INVOICE_PAID: Final = "invoice.paid"
INVOICE_VOIDED: Final = "invoice.voided"
INVOICE_UNCOLLECTIBLE: Final = "invoice.marked_uncollectible"
ASYNC_PAYMENT_SUCCEEDED: Final = "checkout.session.async_payment_succeeded"
ASYNC_PAYMENT_FAILED: Final = "checkout.session.async_payment_failed"
CUSTOMER_DELETED: Final = "customer.deleted"
CHARGE_REFUNDED: Final = "charge.refunded"
REFUND_FAILED: Final = "refund.failed"
FUNDS_WITHDRAWN: Final = "charge.dispute.funds_withdrawn"
FUNDS_REINSTATED: Final = "charge.dispute.funds_reinstated"

PAID: Final = "paid"

SNAPSHOT: Final = "tenantry.subscription.snapshot"
"""Not a provider event: state that the service fetched from the provider's API."""
CUSTOMER_MISSING: Final = "tenantry.customer.missing"
"""Not a provider event: the provider answered that it does not know a tenant's customer."""
GRANT_SET: Final = "tenantry.grant.set"
"""Not a provider event: the operator gave the tenant a grant, or changed its terms."""
GRANT_ENDED: Final = "tenantry.grant.ended"
"""Not a provider event: the operator ended a grant."""
ACCESS_ENDED: Final = "tenantry.access.ended"
"""Not a provider event: access ended by time. It says so in the ledger, and changes nothing."""

REQUIRED_TYPES: Final = frozenset(
    {
        SUBSCRIPTION_UPDATED,
        SUBSCRIPTION_DELETED,
        PAYMENT_SUCCEEDED,
        PAYMENT_FAILED,
        CHECKOUT_COMPLETED,
    }
)
"""The five types that must be enabled at the provider (SPEC 6.2)."""
WHOLE_SUBSCRIPTION_TYPES: Final = frozenset(
    {SUBSCRIPTION_UPDATED, SUBSCRIPTION_CREATED, SUBSCRIPTION_PAUSED, SUBSCRIPTION_RESUMED}
)
"""The types that set every fact of a subscription."""
SUBSCRIPTION_TYPES: Final = WHOLE_SUBSCRIPTION_TYPES | {SUBSCRIPTION_DELETED, TRIAL_WILL_END}
PAYMENT_TYPES: Final = frozenset({PAYMENT_SUCCEEDED, INVOICE_PAID})
INVOICE_TYPES: Final = PAYMENT_TYPES | {PAYMENT_FAILED, INVOICE_VOIDED, INVOICE_UNCOLLECTIBLE}
CHECKOUT_TYPES: Final = frozenset(
    {CHECKOUT_COMPLETED, ASYNC_PAYMENT_SUCCEEDED, ASYNC_PAYMENT_FAILED}
)
CUSTOMER_GONE_TYPES: Final = frozenset({CUSTOMER_DELETED, CUSTOMER_MISSING})
"""The types after which a customer can be used no more."""
KNOWN_TYPES: Final = SUBSCRIPTION_TYPES | INVOICE_TYPES | CHECKOUT_TYPES | {CUSTOMER_DELETED}
"""Every type that concerns the plan or the subscription (CONTRACT 6). The provider decides which
ones it sends.
"""
REFUND_TYPES: Final = frozenset(
    {
        CHARGE_REFUNDED,
        "charge.refund.updated",
        "refund.created",
        "refund.updated",
        REFUND_FAILED,
    }
)
"""The types about a refund. API versions before 2024-10-28 report it by the first two."""
DISPUTE_TYPES: Final = frozenset(
    {
        "charge.dispute.created",
        "charge.dispute.updated",
        "charge.dispute.closed",
        FUNDS_WITHDRAWN,
        FUNDS_REINSTATED,
    }
)
REVERSAL_TYPES: Final = REFUND_TYPES | DISPUTE_TYPES
"""The types about money that goes back to a payer. They change no plan and no status."""
HANDLED_TYPES: Final = KNOWN_TYPES | REVERSAL_TYPES
CUSTOMER_PROVING_TYPES: Final = KNOWN_TYPES - CUSTOMER_GONE_TYPES
"""The types that the provider creates only while it has the customer."""
FOLDED_TYPES: Final = (
    SUBSCRIPTION_TYPES - {TRIAL_WILL_END} | INVOICE_TYPES | {SNAPSHOT, GRANT_SET, GRANT_ENDED}
)
"""The types that the fold applies."""


class Outcome(StrEnum):
    """The outcome of an event on arrival."""

    APPLIED = "applied"
    LATE = "late"
    PARKED = "parked"
    IGNORED = "ignored"
    NO_CHANGE = "no_change"
    INVALID = "invalid"


class Anomaly(StrEnum):
    """Something unexpected about an event that the operator should look into."""

    UNUSABLE_OBJECT = "unusable_object"
    MISSING_ORG_ID = "missing_org_id"
    MISSING_PRICE = "missing_price"
    UNKNOWN_PRICE = "unknown_price"
    WRONG_LIVEMODE = "wrong_livemode"
    IGNORED_LIVEMODE = "ignored_livemode"
    CONNECTED_ACCOUNT = "connected_account"
    FUTURE_DATED = "future_dated"
    CUSTOMER_TAKEN = "customer_taken"
    REFERENCE_REFUSED = "reference_refused"
    AMBIGUOUS_ORDER = "ambiguous_order"
    DRIFT = "drift"
    SEVERAL_PLANS = "several_plans"
    TOO_MANY_SUBSCRIPTIONS = "too_many_subscriptions"
    TRUNCATED_ITEMS = "truncated_items"
    DISPUTED = "disputed"
    REFUNDED = "refunded"
    REFUND_FAILED = "refund_failed"


Fact = str | int | bool | None


class SubscriptionItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An item of a subscription. Its period is that of the subscription where the provider gives
    only that. It keeps its ``id`` when its price changes.
    """

    price_id: str | None = None
    quantity: int = 1
    period_end: int | None = None
    period_start: int | None = None
    id: str | None = None


class SubscriptionDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts of a subscription that SPEC does not name. Times are seconds since the Unix epoch.

    ``items`` is empty for a single item of quantity 1: the event's ``price_id`` says everything
    then. ``pause`` is the behavior of a paused collection of payments (the provider's
    ``pause_collection``), ``anchor`` the second from which its billing days follow
    (``billing_cycle_anchor``). ``has_moved`` is of a snapshot only: the subscription names another
    tenant by now. ``by_reference`` is of a checkout session only: its buyer can have chosen the
    tenant, by ``client_reference_id``. ``next_attempt`` is of a failed payment only: when the
    provider tries again. ``is_truncated`` says that the subscription has more items, which the
    provider left out.
    """

    items: tuple[SubscriptionItem, ...] = ()
    period_start: int | None = None
    cancel_at: int | None = None
    trial_end: int | None = None
    pause: str | None = None
    ended_at: int | None = None
    has_moved: bool = False
    by_reference: bool = False
    next_attempt: int | None = None
    is_truncated: bool = False
    anchor: int | None = None

    @property
    def has_empty_item(self) -> bool:
        return any(not item.quantity for item in self.items)


NO_DETAILS: Final = SubscriptionDetails()
PreviousFact = Fact | tuple[SubscriptionItem, ...]


class Reversal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refund or a dispute, as an event reports it; ``amount`` is in the smallest unit of the
    event's ``currency``.

    A charge that lists no refunds (``charge.refunded``) names none: then ``id`` is None. If it does
    not say what was refunded before either, ``total`` is all that was refunded of the charge, and
    the earlier events decide the ``amount``.

    ``position`` numbers the applied events of the charge: one that was parked arrived before others
    that were applied before it.
    """

    id: str | None
    status: str
    amount: int | None
    charge_id: str | None = None
    payment_intent_id: str | None = None
    reason: str | None = None
    failure_reason: str | None = None
    total: int | None = None
    position: int = 0


class BillingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one provider event. Times are seconds since the Unix epoch.

    ``previous`` holds the values of `EVENT_FACTS` and `DETAILED_FACTS` that the event replaced (the
    provider's ``previous_attributes``). Empty means that it replaced none of them; None means
    unknown. ``status`` is the subscription's or the invoice's. ``arrival`` numbers events in the
    order in which they came in. ``problem`` is why the event's object is malformed, if it is.
    ``account`` is the connected account (Stripe Connect) of the event; None for the platform's own.
    ``grant`` is of the operator's grants alone: the terms of the one that the event sets or ends.
    ``payments`` are the charge and the payment intent that an invoice, a refund or a dispute names.
    ``is_thin`` marks a thin (v2) event, which has no object; the ledger does not store this flag.
    """

    id: str
    type: str
    created: int
    arrival: int = 0
    livemode: bool | None = None
    api_version: str | None = None
    org_id: str | None = None
    customer_id: str | None = None
    subscription_id: str | None = None
    subscription_created: int | None = None
    status: str | None = None
    price_id: str | None = None
    current_period_end: int | None = None
    cancel_at_period_end: bool | None = None
    previous: Mapping[str, PreviousFact] | None = None
    invoice_id: str | None = None
    invoice_url: str | None = None
    amount_due: int | None = None
    amount_remaining: int | None = None
    attempt_count: int | None = None
    currency: str | None = None
    checkout_mode: str | None = None
    problem: str | None = None
    account: str | None = None
    details: SubscriptionDetails = NO_DETAILS
    grant: GrantTerms | None = None
    payments: tuple[str, ...] = ()
    reversal: Reversal | None = None
    is_thin: bool = False


EVENT_FACTS: Final = ("org_id", "status", "price_id", "current_period_end", "cancel_at_period_end")
DETAILED_FACTS: Final = ("items", "period_start", "cancel_at", "trial_end", "pause", "anchor")
"""The facts of a subscription that ``previous`` may name: `EVENT_FACTS` of `BillingEvent`, and
these of its ``details``.

The end of a subscription is left out: it comes with a change of ``status``.
"""


def as_before(event: BillingEvent) -> BillingEvent:
    """Return a subscription's event with the facts that it replaced."""
    previous = event.previous
    if not previous:
        return event
    facts = {name: previous[name] for name in EVENT_FACTS if name in previous}
    detailed = {name: previous[name] for name in DETAILED_FACTS if name in previous}
    details = msgspec.structs.replace(event.details, **detailed) if detailed else event.details
    return msgspec.structs.replace(event, details=details, **facts)


def is_settled(failure: BillingEvent, newer: Iterable[BillingEvent]) -> bool:
    """Whether a ``newer`` event is a success of the invoice that failed: then the owner gets no
    mail.
    """
    return failure.invoice_id is not None and any(
        event.type in PAYMENT_TYPES and event.invoice_id == failure.invoice_id for event in newer
    )
