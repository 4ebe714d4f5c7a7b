"""Refunds and disputes as the provider sends them: whole objects, in the shapes of API versions."""

from typing import Any, Final

from tests.support import events
from tests.support.events import NOW, Shape

WITH_REFUNDS: Final = "2022-08-01"
"""The last API version in which a charge lists its refunds."""


def refund(
    refund_id: str = "re_1",
    *,
    charge: str | None = "ch_1",
    intent: str | None = "pi_1",
    status: str | None = "succeeded",
    amount: object = 1000,
    currency: object = "eur",
    reason: object = "requested_by_customer",
    failure: str | None = None,
    created: int = NOW,
) -> dict[str, Any]:
    """A refund object."""
    return {
        "id": refund_id,
        "object": "refund",
        "amount": amount,
        "balance_transaction": "txn_1QhR7sT2uV3wX4yZ",
        "charge": charge,
        "created": created,
        "currency": currency,
        "destination_details": {"type": "card", "card": {"type": "refund"}},
        "metadata": {},
        "payment_intent": intent,
        "reason": reason,
        "receipt_number": None,
        "source_transfer_reversal": None,
        "status": status,
        "transfer_reversal": None,
        **({"failure_reason": failure} if failure else {}),
    }


def refunded(
    event_type: str = "refund.created",
    *,
    at: int = NOW,
    event_id: str | None = None,
    shape: Shape = Shape.NEW,
    **fields: Any,
) -> dict[str, Any]:
    """An event of a refund; further fields are those of `refund`."""
    return events.event(event_type, refund(**fields), created=at, event_id=event_id, shape=shape)


def charge_refunded(
    total: int,
    before: int | None = 0,
    *,
    charge: str = "ch_1",
    intent: str | None = "pi_1",
    customer: str | None = "cus_acme",
    invoice: str | None = None,
    listed: list[dict[str, Any]] | None = None,
    at: int = NOW,
    shape: Shape = Shape.NEW,
) -> dict[str, Any]:
    """A `charge.refunded`: what was refunded of the charge by now and before, and the refunds that
    old API versions list. Since `Shape.NEW` a charge does not name its invoice.
    """
    thing = {
        "id": charge,
        "object": "charge",
        "amount": 2900,
        "amount_captured": 2900,
        "amount_refunded": total,
        "captured": True,
        "created": NOW - 3600,
        "currency": "eur",
        "customer": customer,
        "disputed": False,
        "livemode": False,
        "metadata": {},
        "paid": True,
        "payment_intent": intent,
        "refunded": total >= 2900,
        "status": "succeeded",
        **({"invoice": invoice} if shape is Shape.OLD else {}),
        **({"refunds": {"object": "list", "data": listed, "has_more": False}} if listed else {}),
    }
    previous = None if before is None else {"amount_refunded": before, "refunded": False}
    return events.event("charge.refunded", thing, created=at, previous=previous, shape=shape)


def disputed(
    event_type: str = "charge.dispute.created",
    *,
    dispute_id: str = "dp_1",
    charge: str | None = "ch_1",
    intent: str | None = "pi_1",
    status: str | None = "needs_response",
    amount: object = 2900,
    currency: str = "eur",
    reason: object = "fraudulent",
    at: int = NOW,
    shape: Shape = Shape.NEW,
) -> dict[str, Any]:
    """An event of a dispute."""
    thing = {
        "id": dispute_id,
        "object": "dispute",
        "amount": amount,
        "balance_transactions": [],
        "charge": charge,
        "created": NOW,
        "currency": currency,
        "enhanced_eligibility_types": [],
        "evidence": {},
        "evidence_details": {"due_by": NOW + 7 * 86400, "has_evidence": False},
        "is_charge_refundable": False,
        "livemode": False,
        "metadata": {},
        "payment_intent": intent,
        "payment_method_details": {"card": {"brand": "visa", "case_type": "chargeback"}},
        "reason": reason,
        "status": status,
    }
    return events.event(event_type, thing, created=at, shape=shape)


def paid_invoice(
    customer: str, *, invoice_id: str = "in_acme", charge: str = "ch_1", intent: str = "pi_1"
) -> dict[str, Any]:
    """An `invoice.payment_succeeded` that names its charge, as before `Shape.NEW`."""
    event = events.succeeded(customer=customer, invoice_id=invoice_id, shape=Shape.OLD)
    event["data"]["object"] |= {"charge": charge, "payment_intent": intent}
    return event
