"""What the provider knows of a customer: subscriptions, payment method, next charges, invoices."""

from datetime import datetime

import msgspec


class PaymentMethodSummary(msgspec.Struct, frozen=True):
    """How a customer pays: a card, or another ``kind``, such as ``sepa_debit``."""

    kind: str
    brand: str | None = None
    last4: str | None = None
    exp_month: int | None = None
    exp_year: int | None = None


class BilledItem(msgspec.Struct, frozen=True):
    """A price of a subscription, and how many of it; metered prices have no quantity."""

    id: str
    price_id: str
    quantity: int | None


class BilledSubscription(msgspec.Struct, frozen=True):
    """What a subscription bills now; ``org_id`` is the tenant that it names.

    With ``is_ending`` it ends with its period, or before.
    """

    id: str
    status: str
    org_id: str | None
    items: tuple[BilledItem, ...]
    is_ending: bool


class NextCharge(msgspec.Struct, frozen=True):
    """The next invoice of a subscription, in the smallest unit of ``currency``."""

    amount: int
    currency: str
    at: datetime | None


class CustomerInvoice(msgspec.Struct, frozen=True):
    """An invoice; ``url`` is its page at the provider, unchecked. Drafts have none."""

    number: str | None
    created: datetime
    status: str | None
    amount: int
    currency: str
    url: str | None


class CustomerAccount(msgspec.Struct, frozen=True):
    """A customer at the provider, the newest invoice first.

    Its ``subscriptions`` can be changed: they have not ended nor wait for their first payment.
    ``unreadable`` names what the API key has no permission to read. ``currency`` is the one that
    the customer pays in; None before the first subscription.
    """

    subscriptions: tuple[BilledSubscription, ...] = ()
    payment_method: PaymentMethodSummary | None = None
    next_charges: tuple[NextCharge, ...] = ()
    invoices: tuple[CustomerInvoice, ...] = ()
    unreadable: tuple[str, ...] = ()
    currency: str | None = None

    @property
    def only_item(self) -> tuple[BilledSubscription, BilledItem] | None:
        """The subscription and its item, if the customer has exactly one of each: only such a one
        can be changed by a link into the portal.
        """
        if len(self.subscriptions) != 1 or len(self.subscriptions[0].items) != 1:
            return None
        return self.subscriptions[0], self.subscriptions[0].items[0]
