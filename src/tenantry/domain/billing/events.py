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

SNAPSHOT: Final = "tenantry.subscription.snapshot"
"""Not a provider event: state that the service fetched from the provider's API."""

SUBSCRIPTION_TYPES: Final = frozenset({SUBSCRIPTION_UPDATED, SUBSCRIPTION_DELETED})
INVOICE_TYPES: Final = frozenset({PAYMENT_SUCCEEDED, PAYMENT_FAILED})
HANDLED_TYPES: Final = SUBSCRIPTION_TYPES | INVOICE_TYPES | {CHECKOUT_COMPLETED}
"""The five types of SPEC 6.2."""
FOLDED_TYPES: Final = SUBSCRIPTION_TYPES | INVOICE_TYPES | {SNAPSHOT}
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
    AMBIGUOUS_ORDER = "ambiguous_order"
    DRIFT = "drift"


Fact = str | int | bool | None


class BillingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one provider event. Times are seconds since the Unix epoch.

    ``previous`` holds the tracked values that the event replaced (the provider's ``previous_attributes``). Empty means
    that it replaced none of them; None means unknown. ``status`` is the subscription's or the invoice's. ``arrival``
    numbers events in the order in which they came in. ``problem`` is why the event's object is malformed, if it is.
    ``account`` is the connected account (Stripe Connect) of the event; None for the platform's own. ``is_thin`` marks a
    thin (v2) event, which has no object; the ledger does not store this flag.
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
    account: str | None = None
    is_thin: bool = False


TRACKED: Final = ("status", "price_id", "current_period_end", "cancel_at_period_end")
"""The facts of a subscription that ``previous`` may name."""
