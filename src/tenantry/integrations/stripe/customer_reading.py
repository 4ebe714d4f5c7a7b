"""Read what the provider knows of a customer, for the pages of the plan and of invoices."""

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import aclosing
from typing import Annotated, Final, TypeVar
from urllib.parse import quote

import msgspec

from tenantry.common.clock import EPOCH_MAX, from_epoch
from tenantry.domain.billing.customer_account import (
    BilledItem,
    BilledSubscription,
    CustomerAccount,
    CustomerInvoice,
    NextCharge,
    PaymentMethodSummary,
)
from tenantry.domain.billing.state import UNBEGUN_OR_OVER
from tenantry.integrations.stripe.answers import ObjectId, read_object, read_pages
from tenantry.integrations.stripe.connection import (
    NotPermittedError,
    ProviderConnection,
    RequestRejectedError,
)

_MOST_SUBSCRIPTIONS: Final = 10
_MOST_INVOICES: Final = 12
_INVOICES: Final = "/v1/invoices"

Part = TypeVar("Part")
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]


async def read_customer(connection: ProviderConnection, customer_id: str) -> CustomerAccount:
    """Return what the provider knows of a customer: at most 10 subscriptions and 12 invoices.

    Raises `RequestRejectedError`, and `ProviderUnavailableError` or one of `NOT_JSON` for a
    malformed answer.
    """
    unreadable = list[str]()

    async def permitted(part: Awaitable[Part], name: str) -> Part | None:
        try:
            return await part
        except NotPermittedError:
            unreadable.append(name)
            return None

    bodies, customer, invoices = await asyncio.gather(
        permitted(_read_subscriptions(connection, customer_id), "subscriptions"),
        permitted(_read_customer(connection, customer_id), "the payment method"),
        permitted(_read_invoices(connection, customer_id), "invoices"),
    )
    bodies, customer = bodies or [], customer or _Customer()
    subscriptions = [body.to_subscription() for body in bodies]
    renewed = [each.id for each in subscriptions if not each.is_ending]
    charges = await permitted(_read_next_charges(connection, renewed), "the next charge")
    return CustomerAccount(
        tuple(subscriptions),
        _method_of_first(bodies) or customer.payment_method,
        tuple(charges or ()),
        tuple(invoices or ()),
        tuple(sorted(unreadable)),
        customer.currency or _currency_of_first(bodies),
    )


def _method_of_first(bodies: Iterable["_Subscription"]) -> PaymentMethodSummary | None:
    """Return the payment method of the first subscription that has its own."""
    own = (body.default_payment_method for body in bodies)
    return next((method.to_summary() for method in own if method), None)


def _currency_of_first(bodies: Iterable["_Subscription"]) -> str | None:
    return next((body.currency for body in bodies), None)


async def _read_subscriptions(
    connection: ProviderConnection, customer_id: str
) -> list["_Subscription"]:
    """Return the newest subscriptions that can be changed. Abandoned ones, which can be any number,
    do not count.
    """
    params = {"customer": customer_id, "expand": ["data.default_payment_method"]}
    found = list[_Subscription]()
    async with aclosing(read_pages(connection, "/v1/subscriptions", params)) as pages:
        async for page in pages:
            listed = [msgspec.json.decode(raw, type=_Subscription) for raw in page.objects]
            found += [each for each in listed if each.status not in UNBEGUN_OR_OVER]
            if len(found) >= _MOST_SUBSCRIPTIONS:
                break
    return found[:_MOST_SUBSCRIPTIONS]


async def _read_customer(connection: ProviderConnection, customer_id: str) -> "_Customer":
    params = {"expand": ["invoice_settings.default_payment_method"]}
    path = f"/v1/customers/{quote(customer_id, safe='')}"
    return await read_object(connection, _Customer, path, params)


async def _read_invoices(connection: ProviderConnection, customer_id: str) -> list[CustomerInvoice]:
    params = {"customer": customer_id, "limit": _MOST_INVOICES}
    listed = await read_object(connection, _Invoices, _INVOICES, params)
    return [each.to_invoice() for each in listed.data[:_MOST_INVOICES]]


async def _read_next_charges(
    connection: ProviderConnection, subscription_ids: list[str]
) -> list[NextCharge]:
    reading = [_read_next_charge(connection, each) for each in subscription_ids]
    return [charge for charge in await asyncio.gather(*reading) if charge is not None]


async def _read_next_charge(
    connection: ProviderConnection, subscription_id: str
) -> NextCharge | None:
    """Return the next charge of a subscription; None where the provider foresees none, or cannot
    calculate it, for example the tax without an address.
    """
    params = {"subscription": subscription_id}
    try:
        response = await connection.send("POST", f"{_INVOICES}/create_preview", params)
    except RequestRejectedError as error:
        if error.is_temporary or isinstance(error, NotPermittedError):
            raise
        return None
    return msgspec.json.decode(response.body, type=_Preview).to_charge()


class _Card(msgspec.Struct, frozen=True):
    brand: str | None = None
    last4: str | None = None
    exp_month: int | None = None
    exp_year: int | None = None


class _PaymentMethod(msgspec.Struct, frozen=True):
    type: str
    card: _Card | None = None

    def to_summary(self) -> PaymentMethodSummary:
        card = self.card or _Card()
        return PaymentMethodSummary(
            self.type,
            card.brand,
            card.last4,
            card.exp_month,
            card.exp_year,
        )


class _InvoiceSettings(msgspec.Struct, frozen=True):
    default_payment_method: _PaymentMethod | None = None


_NO_SETTINGS: Final = _InvoiceSettings()


class _Customer(msgspec.Struct):
    """A customer; of a deleted one the provider tells only that."""

    invoice_settings: _InvoiceSettings = _NO_SETTINGS
    currency: str | None = None

    @property
    def payment_method(self) -> PaymentMethodSummary | None:
        method = self.invoice_settings.default_payment_method
        return None if method is None else method.to_summary()


class _Item(msgspec.Struct):
    id: str
    price: ObjectId
    quantity: int | None = None


class _Items(msgspec.Struct):
    data: list[_Item]


class SubscriptionBody(msgspec.Struct, kw_only=True):
    """What a subscription bills, and whether it goes on."""

    id: str
    status: str
    items: _Items
    metadata: dict[str, str] = {}
    cancel_at_period_end: bool = False
    cancel_at: int | None = None

    def to_subscription(self) -> BilledSubscription:
        return BilledSubscription(
            self.id,
            self.status,
            self.metadata.get("orgId"),
            tuple(BilledItem(each.id, each.price.id, each.quantity) for each in self.items.data),
            is_ending=self.cancel_at_period_end or self.cancel_at is not None,
        )


class _Subscription(SubscriptionBody, kw_only=True):
    default_payment_method: _PaymentMethod | None = None
    currency: str | None = None


class _Preview(msgspec.Struct):
    amount_due: int
    currency: str
    next_payment_attempt: _Seconds | None = None
    period_end: _Seconds | None = None

    def to_charge(self) -> NextCharge:
        at = self.next_payment_attempt or self.period_end
        return NextCharge(self.amount_due, self.currency, from_epoch(at))


class _Invoice(msgspec.Struct):
    created: _Seconds
    total: int
    currency: str
    number: str | None = None
    status: str | None = None
    hosted_invoice_url: str | None = None

    def to_invoice(self) -> CustomerInvoice:
        return CustomerInvoice(
            self.number,
            from_epoch(self.created),
            self.status,
            self.total,
            self.currency,
            self.hosted_invoice_url,
        )


class _Invoices(msgspec.Struct):
    data: list[_Invoice]
