"""The facts of a provider event, as the fold needs them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

SUBSCRIPTION_UPDATED: Final = "customer.subscription.updated"
SUBSCRIPTION_DELETED: Final = "customer.subscription.deleted"
PAYMENT_SUCCEEDED: Final = "invoice.payment_succeeded"
PAYMENT_FAILED: Final = "invoice.payment_failed"
CHECKOUT_COMPLETED: Final = "checkout.session.completed"

PAID: Final = "paid"
"""The status of an invoice that is paid."""

SNAPSHOT: Final = "tenantry.subscription.snapshot"
"""Not an event of the provider's: what its API answered, entered by ourselves."""

SUBSCRIPTION_TYPES: Final = frozenset({SUBSCRIPTION_UPDATED, SUBSCRIPTION_DELETED})
INVOICE_TYPES: Final = frozenset({PAYMENT_SUCCEEDED, PAYMENT_FAILED})
HANDLED_TYPES: Final = SUBSCRIPTION_TYPES | INVOICE_TYPES | {CHECKOUT_COMPLETED}
"""The five types of SPEC 6.2."""
FOLDED_TYPES: Final = SUBSCRIPTION_TYPES | INVOICE_TYPES | {SNAPSHOT}
"""The types that a tenant's billing state is made of."""


class Outcome(StrEnum):
    """What became of an event on arrival."""

    APPLIED = "applied"
    LATE = "late"
    PARKED = "parked"
    IGNORED = "ignored"
    NO_CHANGE = "no_change"
    INVALID = "invalid"


class Anomaly(StrEnum):
    """What is unexpected about an event, and somebody's to mend."""

    UNUSABLE_OBJECT = "unusable_object"
    MISSING_ORG_ID = "missing_org_id"
    MISSING_PRICE = "missing_price"
    UNKNOWN_PRICE = "unknown_price"
    WRONG_LIVEMODE = "wrong_livemode"
    IGNORED_LIVEMODE = "ignored_livemode"
    CONNECTED_ACCOUNT = "connected_account"
    FUTURE_DATED = "future_dated"
    CUSTOMER_TAKEN = "customer_taken"
    AMBIGUOUS_ORDER = "ambiguous_order"
    DRIFT = "drift"


Fact = str | int | bool | None


class BillingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one provider event. Times are seconds since the Unix epoch.

    ``previous`` holds the tracked values that the event says it replaced (the provider's
    ``previous_attributes``); where it is empty, the event says that it left them all as they were, and where it is
    None, it says nothing. ``status`` is the subscription's or the invoice's. ``arrival`` counts events in the order in
    which they came in.
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
    previous: Mapping[str, Fact] | None = None
    invoice_id: str | None = None
    invoice_url: str | None = None
    amount_due: int | None = None
    amount_remaining: int | None = None
    attempt_count: int | None = None
    currency: str | None = None
    checkout_mode: str | None = None
    problem: str | None = None
    """Why the event's object cannot be used, if it cannot."""
    account: str | None = None
    """The connected account (Stripe Connect) that the event is about; None for the platform's own."""
    is_thin: bool = False
    """Whether it is a thin (v2) event, which has no object. Not kept in the ledger; the reason says it."""


TRACKED: Final = ("status", "price_id", "current_period_end", "cancel_at_period_end")
"""The facts of a subscription that ``previous`` may name."""
