"""The provider's objects, and their ids."""

import random
import string
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

_ALPHABET: Final = string.ascii_letters + string.digits
_LENGTH: Final = 24
ENDED: Final = frozenset({"canceled", "incomplete_expired"})
"""The final statuses of a subscription."""

Metadata = Mapping[str, str]


class Ids:
    """Generates ids: the same ones in the same order for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"ids {seed}")  # noqa: S311  # repeatable, no secret

    def new(self, prefix: str) -> str:
        return f"{prefix}_{''.join(self._random.choices(_ALPHABET, k=_LENGTH))}"


class Card(StrEnum):
    """Whether charges of a customer's card succeed."""

    WORKS = "works"
    DECLINES = "declines"


class Price(Struct, frozen=True, kw_only=True, tag=True):
    id: str
    created: int
    product: str
    unit_amount: int
    currency: str = "eur"
    interval: str = "month"
    interval_count: int = 1
    nickname: str | None = None
    lookup_key: str | None = None
    active: bool = True
    metadata: Metadata = {}


class Customer(Struct, frozen=True, kw_only=True, tag=True):
    """``card`` is not part of the provider's object."""

    id: str
    created: int
    payment_method: str
    invoice_prefix: str
    email: str | None = None
    name: str | None = None
    description: str | None = None
    metadata: Metadata = {}
    card: Card = Card.WORKS
    deleted: bool = False


class Item(Struct, frozen=True, kw_only=True):
    """A price of a subscription, with a quantity."""

    id: str
    created: int
    price: Price
    quantity: int = 1


class Subscription(Struct, frozen=True, kw_only=True, tag=True):
    """Periods are counted from ``anchor``, in seconds since the Unix epoch like all times."""

    id: str
    created: int
    customer: str
    status: str
    items: tuple[Item, ...]
    anchor: int
    period_start: int
    period_end: int
    metadata: Metadata = {}
    default_payment_method: str | None = None
    latest_invoice: str | None = None
    cancel_at_period_end: bool = False
    cancel_at: int | None = None
    canceled_at: int | None = None
    ended_at: int | None = None
    cancellation_reason: str | None = None
    trial_start: int | None = None
    trial_end: int | None = None

    @property
    def price(self) -> str:
        """The id of the first item's price."""
        return self.items[0].price.id

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class Line(Struct, frozen=True, kw_only=True):
    """A line of an invoice."""

    id: str
    item: Item
    amount: int
    period_start: int
    period_end: int


class Invoice(Struct, frozen=True, kw_only=True, tag=True):
    id: str
    created: int
    customer: str
    customer_email: str | None
    customer_name: str | None
    subscription: str
    subscription_metadata: Metadata
    status: str
    billing_reason: str
    currency: str
    amount_due: int
    lines: tuple[Line, ...]
    period_start: int
    period_end: int
    amount_paid: int = 0
    attempt_count: int = 0
    auto_advance: bool = True
    next_payment_attempt: int | None = None
    number: str | None = None
    hosted_invoice_url: str | None = None
    finalized_at: int | None = None
    paid_at: int | None = None
    voided_at: int | None = None


class CheckoutSession(Struct, frozen=True, kw_only=True, tag=True):
    """``subscription_metadata`` and ``trial_days`` are for the subscription that it creates."""

    id: str
    created: int
    expires_at: int
    mode: str
    url: str | None
    prices: tuple[tuple[Price, int], ...]
    success_url: str | None = None
    cancel_url: str | None = None
    customer: str | None = None
    customer_email: str | None = None
    client_reference_id: str | None = None
    metadata: Metadata = {}
    subscription_metadata: Metadata = {}
    trial_days: int = 0
    status: str = "open"
    payment_status: str = "unpaid"
    subscription: str | None = None
    invoice: str | None = None

    @property
    def amount(self) -> int:
        return sum(price.unit_amount * quantity for price, quantity in self.prices)


class PortalSession(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    customer: str
    url: str
    return_url: str | None = None


class WebhookEndpoint(Struct, frozen=True, kw_only=True):
    """An address that receives events, signed with ``secret``, in the shape of ``api_version`` or the account's.

    The simulator sets ``id`` and ``created``.
    """

    url: str
    secret: str
    enabled_events: tuple[str, ...] = ("*",)
    api_version: str | None = None
    status: str = "enabled"
    description: str | None = None
    metadata: Metadata = {}
    id: str = ""
    created: int = 0

    def wants(self, event_type: str) -> bool:
        return self.status == "enabled" and ("*" in self.enabled_events or event_type in self.enabled_events)


BillingObject = Price | Customer | Subscription | Invoice | CheckoutSession


class Event(Struct, frozen=True, kw_only=True):
    """An object after a change and, for an update, ``before`` it. ``number`` counts the account's events from 1."""

    id: str
    type: str
    created: int
    object: BillingObject
    before: BillingObject | None = None
    request_id: str | None = None
    idempotency_key: str | None = None
    pending_webhooks: int = 0
    number: int = 0

    @property
    def customer(self) -> str | None:
        if isinstance(self.object, Customer):
            return self.object.id
        return None if isinstance(self.object, Price) else self.object.customer
