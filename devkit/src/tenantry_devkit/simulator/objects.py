"""Identifiers of the provider's look, the same ones for the same seed."""

import random
import string
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

_ALPHABET: Final = string.ascii_letters + string.digits
_LENGTH: Final = 24


class Ids:
    """Makes ids; two of them with one seed make the same ids in the same order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"ids {seed}")  # noqa: S311  # to be the same again, not to be secret

    def new(self, prefix: str) -> str:
        """``prefix_`` and 24 letters and digits."""
        return f"{prefix}_{''.join(self._random.choices(_ALPHABET, k=_LENGTH))}"


Metadata = Mapping[str, str]


class Card(StrEnum):
    """How a customer's card answers when it is charged."""

    WORKS = "works"
    DECLINES = "declines"


class Price(Struct, frozen=True, kw_only=True, tag=True):
    """What something costs, and how often."""

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
    """Who pays; ``card`` is not part of the provider's object."""

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
    """A price of a subscription."""

    id: str
    created: int
    price: Price
    quantity: int = 1


ENDED: Final = frozenset({"canceled", "incomplete_expired"})
"""The statuses in which nothing happens to a subscription any more."""


class Subscription(Struct, frozen=True, kw_only=True, tag=True):
    """A customer's subscription; ``anchor`` is what its periods are counted from."""

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
        """Whether nothing happens to it any more."""
        return self.status in ENDED


class Line(Struct, frozen=True, kw_only=True):
    """What an invoice asks money for."""

    id: str
    item: Item
    amount: int
    period_start: int
    period_end: int


class Invoice(Struct, frozen=True, kw_only=True, tag=True):
    """A bill of a subscription's period."""

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
    """A purchase that a buyer is sent to; ``subscription_metadata`` and ``trial_days`` are for what it makes."""

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
        """What its prices come to."""
        return sum(price.unit_amount * quantity for price, quantity in self.prices)


class PortalSession(Struct, frozen=True, kw_only=True):
    """A customer's stay in the portal."""

    id: str
    created: int
    customer: str
    url: str
    return_url: str | None = None


class WebhookEndpoint(Struct, frozen=True, kw_only=True):
    """An address that events are sent to, signed with ``secret``, in the shape of ``api_version``.

    Without ``api_version`` that is the account's. ``id`` and ``created`` are given by the simulator.
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
        """Whether events of this type are sent to it."""
        return self.status == "enabled" and ("*" in self.enabled_events or event_type in self.enabled_events)


BillingObject = Price | Customer | Subscription | Invoice | CheckoutSession


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened: the object after it and, for an update, before it."""

    id: str
    type: str
    created: int
    object: BillingObject
    before: BillingObject | None = None
    request_id: str | None = None
    idempotency_key: str | None = None
    pending_webhooks: int = 0
    number: int = field(default=0)
    """Counts the account's events from 1."""

    @property
    def customer(self) -> str | None:
        """The customer whom it concerns."""
        if isinstance(self.object, Customer):
            return self.object.id
        return None if isinstance(self.object, Price) else self.object.customer
