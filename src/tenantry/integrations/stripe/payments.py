"""Read whose a payment is: refunds and disputes name neither a customer nor an invoice."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote

import msgspec

from tenantry.integrations.stripe.answers import ObjectId, read_object
from tenantry.integrations.stripe.connection import (
    MissingError,
    NotPermittedError,
    ProviderConnection,
)

_INVOICE_PAYMENTS: Final = "/v1/invoice_payments"
_PATHS: Final[Mapping[str, str]] = {"pi": "/v1/payment_intents"}
_CHARGES: Final = "/v1/charges"

_Id = Annotated[str, msgspec.Meta(max_length=255, pattern="^[!-~]+$")]


class PaymentOwner(NamedTuple):
    """The customer of a payment, None for a guest, and the invoice that it paid, if known."""

    customer_id: str | None
    invoice_id: str | None = None


async def read_payment_owner(
    connection: ProviderConnection, payment_id: str, *, by_invoice: bool
) -> PaymentOwner:
    """Return whose a charge or payment intent is, with ``by_invoice`` its invoice too.

    The provider links these by invoice payments (since API version 2025-03-31). Raises
    `MissingError` for an unknown payment.
    """
    path = _PATHS.get(payment_id.partition("_")[0], _CHARGES)
    payment = await read_object(connection, _Payment, f"{path}/{quote(payment_id, safe='')}", {})
    intent_id = payment_id if path != _CHARGES else _id_of(payment.payment_intent)
    customer_id = _id_of(payment.customer)
    if customer_id is None or intent_id is None or not by_invoice:
        return PaymentOwner(customer_id)
    return PaymentOwner(customer_id, await _read_invoice(connection, intent_id))


async def _read_invoice(connection: ProviderConnection, payment_intent_id: str) -> str | None:
    """Return the invoice of a payment intent; None without one, or without the permission."""
    params = {"payment": {"type": "payment_intent", "payment_intent": payment_intent_id}}
    with suppress(NotPermittedError, MissingError):
        listed = await read_object(
            connection, _InvoicePayments, _INVOICE_PAYMENTS, {**params, "limit": 1}
        )
        return _id_of(listed.data[0].invoice) if listed.data else None
    return None


class _Payment(msgspec.Struct):
    customer: _Id | ObjectId | None = None
    payment_intent: _Id | ObjectId | None = None


class _InvoicePayment(msgspec.Struct):
    invoice: _Id | ObjectId | None = None


class _InvoicePayments(msgspec.Struct):
    data: list[_InvoicePayment]


def _id_of(reference: str | ObjectId | None) -> str | None:
    return reference.id if isinstance(reference, ObjectId) else reference
