"""The provider's objects, their ids, and the JSON of objects and events in both API versions."""

import random
import string
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

_ALPHABET: Final = string.ascii_letters + string.digits
_LENGTH: Final = 24
_EXPIRY_YEAR: Final = 2040

Metadata = Mapping[str, str]
MetadataChanges = Mapping[str, str | None]
"""An empty value, or null, removes its key."""


class Ids:
    """Generates ids: the same ones in the same order for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"ids {seed}")  # noqa: S311  # repeatable, no secret

    def new(self, prefix: str) -> str:
        return f"{prefix}_{''.join(self._random.choices(_ALPHABET, k=_LENGTH))}"


def merged(metadata: Metadata, changes: MetadataChanges | None) -> dict[str, str]:
    return {key: value for key, value in {**metadata, **(changes or {})}.items() if value}


class Card(StrEnum):
    """Whether charges of a customer's card succeed."""

    WORKS = "works"
    DECLINES = "declines"
    MISSING = "missing"
    """The customer has no payment method."""


Json = dict[str, Any]

OLD_VERSION: Final = "2024-06-20"
"""A version of the old shape."""
NEW_VERSION: Final = "2025-03-31.basil"
"""The first version of the new shape."""


class Shape(StrEnum):
    """Since API version 2025-03-31, billing periods are in the items, and an invoice's subscription
    in ``parent``.
    """

    OLD = "old"
    NEW = "new"

    @classmethod
    def of(cls, api_version: str) -> "Shape":
        return cls.NEW if api_version >= NEW_VERSION.partition(".")[0] else cls.OLD


@cache
def _templates() -> dict[str, Json]:
    """Return the attributes of each kind of object, with the values that all objects of the kind
    have.
    """
    templates: dict[str, Json] = msgspec.json.decode(
        (files(__package__) / "objects.json").read_bytes()
    )
    return templates


def _filled(kind: str, thing: object, **values: object) -> Json:
    """Return the attributes of a kind: from ``values``, else of the same name from ``thing``, else
    the template's.
    """
    return {
        name: getattr(thing, name, value) for name, value in _templates()[kind].items()
    } | values


_MOST_NESTED: Final = 10
"""How many objects of a list are in the object that has the list."""


def as_list(url: str, data: list[Json], **more: object) -> Json:
    return {"object": "list", "data": data, "has_more": False, "url": url, **more}


TAX_PERCENT: Final = 19
"""The tax where it is calculated, on top of the price."""


class Charge(NamedTuple):
    """What is charged for an amount, in the currency's smallest unit."""

    subtotal: int
    discount: int
    tax: int

    @property
    def total(self) -> int:
        return self.subtotal - self.discount + self.tax


class Terms(Struct, frozen=True):
    """What a promotion code and tax do to every invoice of a subscription."""

    percent_off: int = 0
    is_taxed: bool = False

    def charge(self, subtotal: int) -> Charge:
        discount = subtotal * self.percent_off // 100
        tax = (subtotal - discount) * TAX_PERCENT // 100 if self.is_taxed else 0
        return Charge(subtotal, discount, tax)


class ProviderObject(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """``created`` is in seconds since the Unix epoch, like all times."""

    id: str
    created: int

    def render(self, _shape: Shape, /) -> Json:
        """Return the JSON in this shape; that of a webhook endpoint is without its secret."""
        return _filled(type(self).__name__, self)


UsageType = Literal["licensed", "metered"]


class Price(ProviderObject, frozen=True, kw_only=True):
    """``currency_options`` has the amounts in other currencies than ``currency``, the default. A
    price of a checkout or a subscription is ``paid_in`` one of them; empty: the default.
    """

    product: str
    unit_amount: int
    currency: str = "eur"
    currency_options: Mapping[str, int] = {}
    paid_in: str = ""
    interval: str = "month"
    interval_count: int = 1
    usage_type: UsageType = "licensed"
    active: bool = True

    @property
    def is_metered(self) -> bool:
        return self.usage_type == "metered"

    @property
    def amounts(self) -> dict[str, int]:
        """What one costs in each currency, the default first."""
        return {self.currency: self.unit_amount, **self.currency_options}

    @property
    def charged_currency(self) -> str:
        return self.paid_in or self.currency

    def cost(self, quantity: int | None) -> int:
        """Return what a quantity costs; nothing where it is metered: no usage is simulated."""
        return 0 if quantity is None else self.amounts[self.charged_currency] * quantity

    def render(self, _shape: Shape, /) -> Json:
        decimal = str(self.unit_amount)
        recurring = _filled("recurring", self)
        return _filled("Price", self, recurring=recurring, unit_amount_decimal=decimal)

    def render_currency_options(self) -> Json:
        """Return what the provider includes only if a request expands it."""
        return {
            currency: {
                "custom_unit_amount": None,
                "tax_behavior": "unspecified",
                "unit_amount": amount,
                "unit_amount_decimal": str(amount),
            }
            for currency, amount in self.amounts.items()
        }

    def plan(self) -> Json:
        """Return the object that preceded prices, which subscriptions and lines still have."""
        return _filled(
            "plan",
            self,
            amount=self.unit_amount,
            amount_decimal=str(self.unit_amount),
        )


class Customer(ProviderObject, frozen=True, kw_only=True):
    """``currency`` is that of the first subscription. ``card`` is not part of the provider's
    object.
    """

    payment_method: str
    invoice_prefix: str
    email: str | None = None
    name: str | None = None
    currency: str | None = None
    metadata: Metadata = {}
    card: Card = Card.WORKS
    deleted: bool = False

    @property
    def default_payment_method(self) -> str | None:
        return None if self.card is Card.MISSING else self.payment_method

    def render(self, _shape: Shape, /) -> Json:
        if self.deleted:
            return {"id": self.id, "object": "customer", "deleted": True}
        return _filled("Customer", self, invoice_settings=_filled("invoice_settings", self))

    def render_payment_method(self) -> Json:
        """Return the JSON of the customer's card, whose number says whether it works."""
        last4 = "0341" if self.card is Card.DECLINES else "4242"
        card = {"brand": "visa", "exp_month": 12, "exp_year": _EXPIRY_YEAR, "last4": last4}
        return _filled("PaymentMethod", self, id=self.payment_method, card=card, customer=self.id)


class Item(ProviderObject, frozen=True, kw_only=True):
    """A price of a subscription, with a quantity unless it is metered."""

    price: Price
    quantity: int | None = 1


BillingMode = Literal["classic", "flexible"]
MissingPaymentMethod = Literal["create_invoice", "pause"]
"""What happens when a trial ends without a payment method."""
PauseBehavior = Literal["void", "keep_as_draft", "mark_uncollectible"]


class PauseCollection(Struct, frozen=True):
    """What happens to new invoices until the end of the pause; ``resumes_at`` is always None."""

    behavior: PauseBehavior
    resumes_at: None = None


class Subscription(ProviderObject, frozen=True, kw_only=True):
    """Periods are counted from ``anchor``."""

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
    billing_mode: BillingMode = "classic"
    pause_collection: PauseCollection | None = None
    missing_payment_method: MissingPaymentMethod = "create_invoice"
    terms: Terms = Terms()

    @property
    def price(self) -> str:
        """The id of the first item's price."""
        return self.items[0].price.id

    @property
    def has_ended(self) -> bool:
        return self.status in {"canceled", "incomplete_expired"}

    def _period(self) -> Json:
        return {
            "current_period_end": self.period_end,
            "current_period_start": self.period_start,
        }

    def render_items(self, shape: Shape) -> list[Json]:
        """Return the JSON of all items; that of the subscription has the first ten."""
        period = self._period() if shape is Shape.NEW else {}
        return [
            _filled(
                "Item",
                item,
                plan=item.price.plan(),
                price=item.price.render(shape),
                subscription=self.id,
                **period,
            )
            for item in self.items
        ]

    def render(self, shape: Shape, /) -> Json:
        first, count = self.items[0], len(self.items)
        items = self.render_items(shape)
        return _filled(
            "Subscription",
            self,
            automatic_tax=_automatic_tax(self.terms),
            billing_cycle_anchor=self.anchor,
            billing_mode=_BILLING_MODES[self.billing_mode],
            cancellation_details={
                "comment": None,
                "feedback": None,
                "reason": self.cancellation_reason,
            },
            currency=first.price.charged_currency,
            discounts=[f"di_{self.id}"] if self.terms.percent_off else [],
            items=as_list(
                f"/v1/subscription_items?subscription={self.id}",
                items[:_MOST_NESTED],
                has_more=count > _MOST_NESTED,
                total_count=count,
            ),
            pause_collection=msgspec.to_builtins(self.pause_collection),
            plan=first.price.plan() if count == 1 else None,
            quantity=first.quantity if count == 1 else None,
            start_date=self.created,
            trial_settings={
                "end_behavior": {"missing_payment_method": self.missing_payment_method}
            },
            **(self._period() if shape is Shape.OLD else {}),
        )


_BILLING_MODES: Final[Mapping[BillingMode, Json]] = {
    "classic": {"flexible": None, "type": "classic"},
    "flexible": {"flexible": {"proration_discounts": "included"}, "type": "flexible"},
}


def _automatic_tax(terms: Terms) -> Json:
    return {"disabled_reason": None, "enabled": terms.is_taxed, "liability": None}


class Line(Struct, frozen=True, kw_only=True):
    """A line of an invoice, for its period."""

    id: str
    item: Item
    amount: int

    def render(self, invoice: "Invoice", shape: Shape) -> Json:
        price, quantity = self.item.price, self.item.quantity
        billed: Json = {"subscription": invoice.subscription, "subscription_item": self.item.id}
        if shape is Shape.OLD:
            purpose = {
                **billed,
                "plan": price.plan(),
                "price": price.render(shape),
                "type": "subscription",
            }
        else:
            purpose = {
                "parent": {
                    "subscription_item_details": {
                        **billed,
                        "invoice_item": None,
                        "proration": False,
                    },
                    "type": "subscription_item_details",
                },
                "pricing": {
                    "price_details": {"price": price.id, "product": price.product},
                    "type": "price_details",
                    "unit_amount_decimal": str(price.cost(1)),
                },
            }
        return _filled(
            "Line",
            self,
            currency=price.charged_currency,
            description=f"{quantity or 0} x {price.id}",
            invoice=invoice.id,
            metadata=dict(invoice.subscription_metadata),
            period={"end": invoice.period_end, "start": invoice.period_start},
            quantity=quantity,
            **purpose,
        )


class Invoice(ProviderObject, frozen=True, kw_only=True):
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
    discount: int = 0
    tax: int = 0
    amount_paid: int = 0
    attempt_count: int = 0
    auto_advance: bool = True
    next_payment_attempt: int | None = None
    number: str | None = None
    hosted_invoice_url: str | None = None
    finalized_at: int | None = None
    paid_at: int | None = None
    voided_at: int | None = None
    marked_uncollectible_at: int | None = None

    def render(self, shape: Shape, /) -> Json:
        is_paid, is_payable = self.status == "paid", self.status in {"draft", "open"}
        lines = [line.render(self, shape) for line in self.lines]
        return _filled(
            "Invoice",
            self,
            amount_remaining=self.amount_due - self.amount_paid,
            attempted=is_paid or self.attempt_count > 0,
            effective_at=self.finalized_at,
            ending_balance=None if self.status == "draft" else 0,
            invoice_pdf=self.hosted_invoice_url and f"{self.hosted_invoice_url}/pdf",
            lines=as_list(
                f"/v1/invoices/{self.id}/lines",
                lines,
                total_count=len(lines),
            ),
            next_payment_attempt=self.next_payment_attempt if is_payable else None,
            status_transitions=_filled("status_transitions", self),
            subtotal=self.amount_due + self.discount - self.tax,
            total=self.amount_due,
            total_discount_amounts=[{"amount": self.discount}] if self.discount else [],
            total_excluding_tax=self.amount_due - self.tax,
            total_taxes=[{"amount": self.tax}] if self.tax else [],
            **self._purpose(shape),
        )

    def _purpose(self, shape: Shape) -> Json:
        """Return the attributes that lead to the subscription."""
        metadata = dict(self.subscription_metadata)
        if shape is Shape.OLD:
            return {
                "subscription": self.subscription,
                "subscription_details": {"metadata": metadata},
                "paid": self.status == "paid",
            }
        details = {"metadata": metadata, "subscription": self.subscription}
        parent = {
            "quote_details": None,
            "subscription_details": details,
            "type": "subscription_details",
        }
        return {"parent": parent}


class CheckoutSession(ProviderObject, frozen=True, kw_only=True):
    """``subscription_metadata`` and the fields from ``trial_days`` to ``terms`` are for its
    subscription. ``tax_id`` is the buyer's.

    ``payment_pending`` is not part of the provider's object.
    """

    expires_at: int
    url: str | None
    prices: tuple[tuple[Price, int | None], ...]
    success_url: str | None = None
    cancel_url: str | None = None
    customer: str | None = None
    customer_email: str | None = None
    client_reference_id: str | None = None
    metadata: Metadata = {}
    subscription_metadata: Metadata = {}
    trial_days: int = 0
    missing_payment_method: MissingPaymentMethod = "create_invoice"
    billing_mode: BillingMode | None = None
    terms: Terms = Terms()
    allow_promotion_codes: bool = False
    tax_id_collection: bool = False
    tax_id: str | None = None
    status: str = "open"
    payment_status: str = "unpaid"
    payment_pending: bool = False
    subscription: str | None = None
    invoice: str | None = None

    @property
    def currency(self) -> str:
        return self.prices[0][0].charged_currency

    @property
    def charge(self) -> Charge:
        """What its first paid period costs."""
        amounts = [price.cost(quantity) for price, quantity in self.prices]
        return self.terms.charge(sum(amounts))

    @property
    def is_due(self) -> bool:
        """Whether completing it needs a payment."""
        return self.charge.total > 0 and not self.trial_days

    def render(self, _shape: Shape, /) -> Json:
        charge = self.charge
        return _filled(
            "CheckoutSession",
            self,
            amount_subtotal=charge.subtotal,
            amount_total=charge.total,
            automatic_tax={
                "enabled": self.terms.is_taxed,
                "liability": None,
                "status": "complete" if self.terms.is_taxed else None,
            },
            currency=self.currency,
            customer_details=self._customer_details(),
            tax_id_collection={"enabled": self.tax_id_collection},
            total_details={
                "amount_discount": charge.discount,
                "amount_shipping": 0,
                "amount_tax": charge.tax,
            },
        )

    def _customer_details(self) -> Json | None:
        if not (self.customer_email or self.tax_id):
            return None
        tax_ids = [{"type": "eu_vat", "value": self.tax_id}] if self.tax_id else []
        return {"email": self.customer_email, "tax_ids": tax_ids}


FlowType = Literal[
    "payment_method_update",
    "subscription_cancel",
    "subscription_update",
    "subscription_update_confirm",
]


class PortalFlow(Struct, frozen=True, kw_only=True):
    """The one action of a portal session; ``return_url`` is where it leads.

    An update to confirm replaces the ``item``'s price and quantity, where they are given.
    """

    type: FlowType
    subscription: str | None = None
    item: str | None = None
    price: str | None = None
    quantity: int | None = None
    return_url: str | None = None


class PortalSession(ProviderObject, frozen=True, kw_only=True):
    customer: str
    url: str
    return_url: str | None = None
    flow: PortalFlow | None = None

    def render(self, _shape: Shape, /) -> Json:
        flow = self.flow and {"type": self.flow.type}
        return _filled("PortalSession", self, flow=flow)


class WebhookEndpoint(ProviderObject, frozen=True, kw_only=True):
    """An address that receives events, signed with ``secret``, in the shape of ``api_version`` or
    the account's.

    The simulator sets ``created``, and ``id`` if it is empty.
    """

    url: str
    secret: str
    enabled_events: tuple[str, ...] = ("*",)
    api_version: str | None = None
    id: str = ""
    created: int = 0

    def wants(self, event_type: str) -> bool:
        return "*" in self.enabled_events or event_type in self.enabled_events


BillingObject = Price | Customer | Subscription | Invoice | CheckoutSession


class ProviderEvent(ProviderObject, frozen=True, kw_only=True):
    """An object after a change and, for an update, ``before`` it."""

    type: str
    object: BillingObject
    before: BillingObject | None = None
    pending_webhooks: int = 0

    @property
    def customer(self) -> str | None:
        if isinstance(self.object, Customer):
            return self.object.id
        return None if isinstance(self.object, Price) else self.object.customer


def indented_json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def id_of(thing: ProviderObject | str) -> str:
    return thing if isinstance(thing, str) else thing.id


def render_event(event: ProviderEvent, api_version: str) -> Json:
    shape = Shape.of(api_version)
    data: Json = {"object": event.object.render(shape)}
    if event.before is not None:
        data["previous_attributes"] = previous_attributes(
            event.before.render(shape), data["object"]
        )
    return _filled(
        "Event",
        event,
        object="event",
        api_version=api_version,
        data=data,
    )


def previous_attributes(before: Json, after: Json) -> Json:
    """Return the old values of changed attributes: of objects the changed parts, of lists the whole
    old list.
    """
    previous: Json = {}
    for name in before | after:
        old: Any = before.get(name)
        new: Any = after.get(name)
        if old != new:
            nested = _is_same_object(old, new)
            previous[name] = previous_attributes(old, new) if nested else old
    return previous


def _is_same_object(old: Any, new: Any) -> bool:  # noqa: ANN401  # any JSON
    return isinstance(old, dict) and isinstance(new, dict) and old.get("id") == new.get("id")
