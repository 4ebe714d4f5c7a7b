"""Provider events as the provider sends them: whole objects, pretty-printed, in both API shapes."""

import itertools
import json
from enum import StrEnum
from typing import Any, Final

NOW: Final = 1_767_268_800
"""2026-01-01 12:00 UTC: when everything happens unless a test says otherwise."""
MONTH: Final = 30 * 24 * 3600
INVOICE_URL: Final = "https://invoice.stripe.com/i/acct_1M/test_YWNjdF8xTQ?s=ap"

_numbers = itertools.count(1)


class Shape(StrEnum):
    """Where the provider puts things, by API version."""

    OLD = "2024-06-20"
    NEW = "2025-03-31.basil"


def new_id(prefix: str) -> str:
    """An id that no other event of this test run has."""
    return f"{prefix}_1Q{next(_numbers):08d}TenantryTests"


def body(event: dict[str, Any]) -> bytes:
    """The event as the provider writes it."""
    return json.dumps(event, indent=2, ensure_ascii=False).encode()


def event(
    event_type: str,
    thing: dict[str, Any],
    *,
    event_id: str | None = None,
    created: int = NOW,
    previous: dict[str, Any] | None = None,
    shape: Shape = Shape.NEW,
) -> dict[str, Any]:
    """The envelope around an object."""
    data: dict[str, Any] = {"object": thing}
    if previous is not None:
        data["previous_attributes"] = previous
    return {
        "id": event_id or new_id("evt"),
        "object": "event",
        "api_version": shape.value,
        "created": created,
        "data": data,
        "livemode": False,
        "pending_webhooks": 1,
        "request": {
            "id": "req_8fGkQx2mVb1cZt",
            "idempotency_key": "4f7b9d2e-0a57-4c5e-9b61-7f0b7d1d9d10",
        },
        "type": event_type,
    }


def subscription(
    *,
    org: str | None = "acme",
    status: str = "active",
    price: str | None = "price_pro",
    period_end: int | None = NOW + MONTH,
    cancel: bool = False,
    customer: str | None = "cus_acme",
    subscription_id: str = "sub_acme",
    subscription_created: int = NOW - MONTH,
    shape: Shape = Shape.NEW,
    expanded: bool = False,
) -> dict[str, Any]:
    """A subscription object."""
    start = None if period_end is None else period_end - MONTH
    period = {"current_period_end": period_end, "current_period_start": start}
    item: dict[str, Any] = {
        "id": "si_QhR7sT2uV3wX4y",
        "object": "subscription_item",
        "billing_thresholds": None,
        "created": subscription_created,
        "discounts": [],
        "metadata": {},
        "plan": _plan(price),
        "price": _price(price),
        "quantity": 1,
        "subscription": subscription_id,
        "tax_rates": [],
        **(period if shape is Shape.NEW else {}),
    }
    items = [item] if price is not None else []
    return {
        "id": subscription_id,
        "object": "subscription",
        "application": None,
        "automatic_tax": {"disabled_reason": None, "enabled": False, "liability": None},
        "billing_cycle_anchor": subscription_created,
        "cancel_at": period_end if cancel else None,
        "cancel_at_period_end": cancel,
        "canceled_at": None,
        "collection_method": "charge_automatically",
        "created": subscription_created,
        "currency": "eur",
        "customer": _related(customer, "customer", expanded=expanded),
        "days_until_due": None,
        "default_payment_method": "pm_1QhR7sT2uV3wX4yZ",
        "description": None,
        "ended_at": None,
        "items": {
            "object": "list",
            "data": items,
            "has_more": False,
            "total_count": len(items),
            "url": f"/v1/subscription_items?subscription={subscription_id}",
        },
        "latest_invoice": "in_1QhR7sT2uV3wX4yZ",
        "livemode": False,
        "metadata": {} if org is None else {"orgId": org, "source": "checkout"},
        "next_pending_invoice_item_invoice": None,
        "on_behalf_of": None,
        "pause_collection": None,
        "payment_settings": {
            "payment_method_options": None,
            "payment_method_types": None,
            "save_default_payment_method": "off",
        },
        "pending_setup_intent": None,
        "pending_update": None,
        "schedule": None,
        "start_date": subscription_created,
        "status": status,
        "test_clock": None,
        "transfer_data": None,
        "trial_end": None,
        "trial_settings": {"end_behavior": {"missing_payment_method": "create_invoice"}},
        "trial_start": None,
        **(period if shape is Shape.OLD else {}),
    }


def invoice(
    *,
    customer: str | None = "cus_acme",
    invoice_id: str = "in_acme",
    url: str | None = INVOICE_URL,
    paid: bool = False,
    amount: int = 2900,
    next_attempt: int | None = NOW + 3 * 24 * 3600,
    subscription_id: str | None = "sub_acme",
    shape: Shape = Shape.NEW,
    expanded: bool = False,
) -> dict[str, Any]:
    """An invoice object."""
    billed = _related(subscription_id, "subscription", expanded=expanded)
    parent = {
        "quote_details": None,
        "subscription_details": {"metadata": {}, "subscription": billed},
        "type": "subscription_details",
    }
    line = {
        "id": "il_1QhR7sT2uV3wX4yZ",
        "object": "line_item",
        "amount": amount,
        "currency": "eur",
        "description": "1 × Pro (at €29.00 / month)",  # noqa: RUF001  # what the provider writes
        "discountable": True,
        "livemode": False,
        "metadata": {},
        "period": {"end": NOW + MONTH, "start": NOW},
        "quantity": 1,
    }
    return {
        "id": invoice_id,
        "object": "invoice",
        "account_country": "DE",
        "account_name": "Example GmbH",
        "amount_due": amount,
        "amount_paid": amount if paid else 0,
        "amount_remaining": 0 if paid else amount,
        "attempt_count": 1,
        "attempted": True,
        "auto_advance": not paid,
        "automatic_tax": {"enabled": False, "liability": None, "provider": None, "status": None},
        "billing_reason": "subscription_cycle",
        "collection_method": "charge_automatically",
        "created": NOW,
        "currency": "eur",
        "custom_fields": None,
        "customer": _related(customer, "customer", expanded=expanded),
        "customer_address": None,
        "customer_email": "billing@acme.example",
        "customer_name": "Acme Corp",
        "customer_tax_exempt": "none",
        "default_payment_method": None,
        "discounts": [],
        "due_date": None,
        "ending_balance": 0,
        "footer": None,
        "hosted_invoice_url": url,
        "invoice_pdf": None if url is None else f"{INVOICE_URL}/pdf",
        "issuer": {"type": "self"},
        "lines": {
            "object": "list",
            "data": [line],
            "has_more": False,
            "total_count": 1,
            "url": "/v1/invoices/lines",
        },
        "livemode": False,
        "metadata": {},
        "next_payment_attempt": None if paid else next_attempt,
        "number": "B2F7A9C1-0004",
        "period_end": NOW,
        "period_start": NOW - MONTH,
        "receipt_number": None,
        "starting_balance": 0,
        "status": "paid" if paid else "open",
        "status_transitions": {
            "finalized_at": NOW,
            "marked_uncollectible_at": None,
            "paid_at": NOW if paid else None,
        },
        "subtotal": amount,
        "total": amount,
        "webhooks_delivered_at": NOW,
        **({"parent": parent} if shape is Shape.NEW else {"subscription": billed, "paid": paid}),
    }


def checkout_session(
    *,
    org: str | None = "acme",
    customer: str | None = "cus_acme",
    mode: str = "subscription",
    reference: str | None = None,
    expanded: bool = False,
) -> dict[str, Any]:
    """A completed checkout session."""
    return {
        "id": new_id("cs_test"),
        "object": "checkout.session",
        "adaptive_pricing": {"enabled": False},
        "after_expiration": None,
        "allow_promotion_codes": None,
        "amount_subtotal": 2900,
        "amount_total": 2900,
        "automatic_tax": {"enabled": False, "liability": None, "provider": None, "status": None},
        "billing_address_collection": "auto",
        "cancel_url": "https://app.acme.example/billing",
        "client_reference_id": reference,
        "created": NOW,
        "currency": "eur",
        "custom_fields": [],
        "custom_text": {"after_submit": None, "shipping_address": None, "submit": None},
        "customer": _related(customer, "customer", expanded=expanded),
        "customer_creation": "always",
        "customer_details": {
            "email": "billing@acme.example",
            "name": "Acme Corp",
            "phone": None,
            "tax_ids": [],
        },
        "expires_at": NOW + 24 * 3600,
        "invoice": "in_acme",
        "livemode": False,
        "locale": "auto",
        "metadata": {} if org is None else {"orgId": org},
        "mode": mode,
        "payment_intent": None,
        "payment_method_types": ["card", "link"],
        "payment_status": "paid",
        "phone_number_collection": {"enabled": False},
        "status": "complete",
        "submit_type": None,
        "subscription": "sub_acme",
        "success_url": "https://app.acme.example/billing?done",
        "total_details": {"amount_discount": 0, "amount_shipping": 0, "amount_tax": 0},
        "ui_mode": "hosted",
        "url": None,
    }


def updated(
    *,
    event_id: str | None = None,
    created: int = NOW,
    previous: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A `customer.subscription.updated`; further fields are those of `subscription`."""
    return event(
        "customer.subscription.updated",
        subscription(**fields),
        event_id=event_id,
        created=created,
        previous=previous,
        shape=fields.get("shape", Shape.NEW),
    )


def subscription_created(
    *, event_id: str | None = None, created: int = NOW, **fields: Any
) -> dict[str, Any]:
    """A `customer.subscription.created`."""
    thing, shape = subscription(**fields), fields.get("shape", Shape.NEW)
    return event(
        "customer.subscription.created", thing, event_id=event_id, created=created, shape=shape
    )


def deleted(*, event_id: str | None = None, created: int = NOW, **fields: Any) -> dict[str, Any]:
    """A `customer.subscription.deleted`."""
    ended = {**subscription(**{"status": "canceled", **fields}), "ended_at": created}
    shape = fields.get("shape", Shape.NEW)
    return event(
        "customer.subscription.deleted", ended, event_id=event_id, created=created, shape=shape
    )


def failed(*, event_id: str | None = None, created: int = NOW, **fields: Any) -> dict[str, Any]:
    """An `invoice.payment_failed`; further fields are those of `invoice`."""
    shape = fields.get("shape", Shape.NEW)
    return event(
        "invoice.payment_failed", invoice(**fields), event_id=event_id, created=created, shape=shape
    )


def succeeded(*, event_id: str | None = None, created: int = NOW, **fields: Any) -> dict[str, Any]:
    """An `invoice.payment_succeeded`."""
    shape = fields.get("shape", Shape.NEW)
    thing = invoice(**{"paid": True, **fields})
    return event(
        "invoice.payment_succeeded", thing, event_id=event_id, created=created, shape=shape
    )


def completed(*, event_id: str | None = None, created: int = NOW, **fields: Any) -> dict[str, Any]:
    """A `checkout.session.completed`; further fields are those of `checkout_session`."""
    return event(
        "checkout.session.completed", checkout_session(**fields), event_id=event_id, created=created
    )


def _plan(price: str | None) -> dict[str, Any]:
    return {
        "id": price,
        "object": "plan",
        "active": True,
        "amount": 2900,
        "amount_decimal": "2900",
        "billing_scheme": "per_unit",
        "created": NOW - 12 * MONTH,
        "currency": "eur",
        "interval": "month",
        "interval_count": 1,
        "livemode": False,
        "metadata": {},
        "nickname": None,
        "product": "prod_QhR7sT2uV3wX4y",
        "usage_type": "licensed",
    }


def _price(price: str | None) -> dict[str, Any]:
    return {
        "id": price,
        "object": "price",
        "active": True,
        "billing_scheme": "per_unit",
        "created": NOW - 12 * MONTH,
        "currency": "eur",
        "custom_unit_amount": None,
        "livemode": False,
        "lookup_key": None,
        "metadata": {},
        "nickname": None,
        "product": "prod_QhR7sT2uV3wX4y",
        "recurring": {
            "interval": "month",
            "interval_count": 1,
            "meter": None,
            "usage_type": "licensed",
        },
        "tax_behavior": "unspecified",
        "tiers_mode": None,
        "transform_quantity": None,
        "type": "recurring",
        "unit_amount": 2900,
        "unit_amount_decimal": "2900",
    }


def _related(object_id: str | None, kind: str, *, expanded: bool) -> str | dict[str, Any] | None:
    """A related object: its id, or, expanded, the whole of it."""
    if object_id is None or not expanded:
        return object_id
    return {
        "id": object_id,
        "object": kind,
        "created": NOW - MONTH,
        "livemode": False,
        "metadata": {},
    }


def thin(*, event_id: str | None = None, context: str | None = None) -> dict[str, Any]:
    """A thin (v2) event: it has no object, and its time is a text."""
    return {
        "id": event_id or new_id("evt"),
        "object": "v2.core.event",
        "context": context,
        "created": "2026-01-01T12:00:00.134Z",
        "livemode": False,
        "reason": None,
        "related_object": {
            "id": "mtr_1",
            "type": "billing.meter",
            "url": "/v1/billing/meters/mtr_1",
        },
        "type": "v1.billing.meter.error_report_triggered",
    }
