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

SUBSCRIPTION_TYPES: Final = frozenset({SUBSCRIPTION_UPDATED, SUBSCRIPTION_DELETED})
INVOICE_TYPES: Final = frozenset({PAYMENT_SUCCEEDED, PAYMENT_FAILED})
FOLDED_TYPES: Final = SUBSCRIPTION_TYPES | INVOICE_TYPES
"""The types that a tenant's billing state is made of."""
HANDLED_TYPES: Final = FOLDED_TYPES | {CHECKOUT_COMPLETED}
"""The five types of SPEC 6.2."""


class Outcome(StrEnum):
    """What became of an event on arrival."""

    APPLIED = "applied"
    LATE = "late"
    PARKED = "parked"
    IGNORED = "ignored"
    NO_CHANGE = "no_change"
    INVALID = "invalid"


Fact = str | int | bool | None


class BillingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one provider event. Times are seconds since the Unix epoch.

    ``previous`` holds the tracked values that the event says it replaced (the provider's
    ``previous_attributes``); ``arrival`` counts events in the order in which they came in.
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
    currency: str | None = None
    checkout_mode: str | None = None
    problem: str | None = None
    """Why the event's object cannot be used, if it cannot."""


TRACKED: Final = ("status", "price_id", "current_period_end", "cancel_at_period_end")
"""The facts of a subscription that ``previous`` may name."""
