"""The JSON of the provider's objects and events, in both API versions."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

from tenantry_devkit.simulator.objects import (
    CheckoutSession,
    Customer,
    Event,
    Invoice,
    Item,
    Line,
    PortalSession,
    Price,
    Subscription,
    WebhookEndpoint,
)

Json = dict[str, Any]

OLD_VERSION: Final = "2024-06-20"
"""A version of the old shape."""
NEW_VERSION: Final = "2025-03-31.basil"
"""The first version of the new shape."""
_DATE_LENGTH: Final = 10


class Shape(StrEnum):
    """Since API version 2025-03-31, billing periods are in the items, and an invoice's subscription in ``parent``."""

    OLD = "old"
    NEW = "new"

    @classmethod
    def of(cls, api_version: str) -> "Shape":
        return cls.NEW if api_version[:_DATE_LENGTH] >= NEW_VERSION[:_DATE_LENGTH] else cls.OLD


def as_list(url: str, data: list[Json], *, has_more: bool = False) -> Json:
    return {"object": "list", "data": data, "has_more": has_more, "url": url}


def _fields(thing: object, *names: str) -> Json:
    return {name: getattr(thing, name) for name in names}


def _nulls(*names: str) -> Json:
    return dict.fromkeys(names)


def _price(price: Price) -> Json:
    return {
        **_fields(price, "id", "active", "created", "currency", "lookup_key", "metadata", "nickname", "product"),
        **_nulls("custom_unit_amount", "tiers_mode", "transform_quantity"),
        "object": "price",
        "billing_scheme": "per_unit",
        "livemode": False,
        "recurring": {
            **_fields(price, "interval", "interval_count"),
            **_nulls("meter", "trial_period_days"),
            "usage_type": "licensed",
        },
        "tax_behavior": "unspecified",
        "type": "recurring",
        "unit_amount": price.unit_amount,
        "unit_amount_decimal": str(price.unit_amount),
    }


def _plan(price: Price) -> Json:
    return {
        **_fields(price, "id", "active", "created", "currency", "metadata", "nickname", "product"),
        **_fields(price, "interval", "interval_count"),
        "object": "plan",
        "amount": price.unit_amount,
        "amount_decimal": str(price.unit_amount),
        "billing_scheme": "per_unit",
        "livemode": False,
        "usage_type": "licensed",
    }


def _customer(customer: Customer) -> Json:
    if customer.deleted:
        return {"id": customer.id, "object": "customer", "deleted": True}
    return {
        **_fields(customer, "id", "created", "description", "email", "invoice_prefix", "metadata", "name"),
        **_nulls("address", "currency", "default_source", "discount", "phone", "shipping", "test_clock"),
        "object": "customer",
        "balance": 0,
        "delinquent": False,
        "invoice_settings": {
            **_nulls("custom_fields", "footer", "rendering_options"),
            "default_payment_method": customer.payment_method,
        },
        "livemode": False,
        "preferred_locales": [],
        "tax_exempt": "none",
    }


def _checkout(session: CheckoutSession) -> Json:
    return {
        **_fields(session, "id", "cancel_url", "client_reference_id", "created", "customer", "customer_email"),
        **_fields(session, "expires_at", "invoice", "metadata", "mode", "payment_status", "status", "subscription"),
        **_fields(session, "success_url", "url"),
        "object": "checkout.session",
        "amount_subtotal": session.amount,
        "amount_total": session.amount,
        "currency": session.prices[0][0].currency if session.prices else None,
        "customer_details": {"email": session.customer_email} if session.customer_email else None,
        "livemode": False,
        "payment_intent": None,
        "payment_method_types": ["card"],
        "ui_mode": "hosted",
    }


def _portal(session: PortalSession) -> Json:
    fields = _fields(session, "id", "created", "customer", "return_url", "url")
    return {**fields, "object": "billing_portal.session", "livemode": False}


def _endpoint(endpoint: WebhookEndpoint) -> Json:
    """Render a webhook endpoint without its secret."""
    fields = _fields(
        endpoint, "id", "api_version", "created", "description", "enabled_events", "metadata", "status", "url"
    )
    return {**fields, "object": "webhook_endpoint", "application": None, "livemode": False}


def _subscription(subscription: Subscription, shape: Shape) -> Json:
    first, is_single = subscription.items[0], len(subscription.items) == 1
    url = f"/v1/subscription_items?subscription={subscription.id}"
    items = as_list(url, [_item(item, subscription, shape) for item in subscription.items])
    return {
        **_fields(subscription, "id", "cancel_at", "cancel_at_period_end", "canceled_at", "created", "customer"),
        **_fields(subscription, "default_payment_method", "ended_at", "latest_invoice", "metadata", "status"),
        **_fields(subscription, "trial_end", "trial_start"),
        **_nulls("application", "days_until_due", "description", "on_behalf_of", "pause_collection"),
        **_nulls("pending_setup_intent", "pending_update", "schedule", "test_clock"),
        "object": "subscription",
        "automatic_tax": {"disabled_reason": None, "enabled": False, "liability": None},
        "billing_cycle_anchor": subscription.anchor,
        "cancellation_details": {"comment": None, "feedback": None, "reason": subscription.cancellation_reason},
        "collection_method": "charge_automatically",
        "currency": first.price.currency,
        "discounts": [],
        "items": {**items, "total_count": len(subscription.items)},
        "livemode": False,
        "plan": _plan(first.price) if is_single else None,
        "quantity": first.quantity if is_single else None,
        "start_date": subscription.created,
        "trial_settings": {"end_behavior": {"missing_payment_method": "create_invoice"}},
        **(_period(subscription) if shape is Shape.OLD else {}),
    }


def _period(subscription: Subscription) -> Json:
    return {"current_period_end": subscription.period_end, "current_period_start": subscription.period_start}


def _item(item: Item, subscription: Subscription, shape: Shape) -> Json:
    return {
        **_fields(item, "id", "created", "quantity"),
        "object": "subscription_item",
        "billing_thresholds": None,
        "discounts": [],
        "metadata": {},
        "plan": _plan(item.price),
        "price": _price(item.price),
        "subscription": subscription.id,
        "tax_rates": [],
        **(_period(subscription) if shape is Shape.NEW else {}),
    }


def _invoice(invoice: Invoice, shape: Shape) -> Json:
    details = {"metadata": dict(invoice.subscription_metadata)}
    is_paid = invoice.status == "paid"
    if shape is Shape.OLD:
        purpose = {"subscription": invoice.subscription, "subscription_details": details, "paid": is_paid}
    else:
        billed = {**details, "subscription": invoice.subscription}
        purpose = {
            "parent": {"quote_details": None, "subscription_details": billed, "type": "subscription_details"}
        }  # fmt: skip
    lines = as_list(f"/v1/invoices/{invoice.id}/lines", [_line(line, invoice, shape) for line in invoice.lines])
    return {
        **_fields(invoice, "id", "amount_due", "amount_paid", "attempt_count", "auto_advance", "billing_reason"),
        **_fields(invoice, "created", "currency", "customer", "customer_email", "customer_name", "hosted_invoice_url"),
        **_fields(invoice, "number", "period_end", "period_start", "status"),
        **_nulls("custom_fields", "customer_address", "default_payment_method", "description", "due_date", "footer"),
        "object": "invoice",
        "account_country": "DE",
        "account_name": "Simulated",
        "amount_remaining": invoice.amount_due - invoice.amount_paid,
        "attempted": is_paid or invoice.attempt_count > 0,
        "automatic_tax": {"enabled": False, "liability": None, "provider": None, "status": None},
        "collection_method": "charge_automatically",
        "customer_tax_exempt": "none",
        "discounts": [],
        "effective_at": invoice.finalized_at,
        "ending_balance": None if invoice.status == "draft" else 0,
        "invoice_pdf": invoice.hosted_invoice_url and f"{invoice.hosted_invoice_url}/pdf",
        "lines": {**lines, "total_count": len(invoice.lines)},
        "livemode": False,
        "metadata": {},
        "next_payment_attempt": invoice.next_payment_attempt if invoice.status in {"draft", "open"} else None,
        "starting_balance": 0,
        "status_transitions": {
            **_fields(invoice, "finalized_at", "paid_at", "voided_at"), "marked_uncollectible_at": None,
        },
        "subtotal": invoice.amount_due,
        "total": invoice.amount_due,
        **purpose,
    }  # fmt: skip


def _line(line: Line, invoice: Invoice, shape: Shape) -> Json:
    price, quantity = line.item.price, line.item.quantity
    if shape is Shape.OLD:
        purpose: Json = {
            "plan": _plan(price),
            "price": _price(price),
            "subscription": invoice.subscription,
            "subscription_item": line.item.id,
            "type": "subscription",
        }
    else:
        billed = {"invoice_item": None, "proration": False, "subscription": invoice.subscription}
        details = {**billed, "subscription_item": line.item.id}
        purpose = {
            "parent": {"subscription_item_details": details, "type": "subscription_item_details"},
            "pricing": {
                "price_details": {"price": price.id, "product": price.product},
                "type": "price_details",
                "unit_amount_decimal": str(price.unit_amount),
            },
        }
    return {
        "id": line.id,
        "object": "line_item",
        "amount": line.amount,
        "currency": price.currency,
        "description": f"{quantity} x {price.nickname or price.id}",
        "discountable": True,
        "invoice": invoice.id,
        "livemode": False,
        "metadata": dict(invoice.subscription_metadata),
        "period": {"end": line.period_end, "start": line.period_start},
        "quantity": quantity,
        **purpose,
    }


_RENDERERS: Final[Mapping[type, Callable[[Any, Shape], Json]]] = {
    Subscription: _subscription,
    Invoice: _invoice,
    Price: lambda price, _: _price(price),
    Customer: lambda customer, _: _customer(customer),
    CheckoutSession: lambda session, _: _checkout(session),
    PortalSession: lambda session, _: _portal(session),
    WebhookEndpoint: lambda endpoint, _: _endpoint(endpoint),
}


def render(thing: object, shape: Shape) -> Json:
    return _RENDERERS[type(thing)](thing, shape)


def render_event(event: Event, api_version: str) -> Json:
    shape = Shape.of(api_version)
    data: Json = {"object": render(event.object, shape)}
    if event.before is not None:
        data["previous_attributes"] = previous_attributes(render(event.before, shape), data["object"])
    return {
        **_fields(event, "id", "created", "pending_webhooks", "type"),
        "object": "event",
        "api_version": api_version,
        "data": data,
        "livemode": False,
        "request": {"id": event.request_id, "idempotency_key": event.idempotency_key},
    }


def previous_attributes(before: Json, after: Json) -> Json:
    """Return the old values of changed attributes: of objects the changed parts, of lists the whole old list."""
    previous: Json = {}
    for name in before | after:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        nested = isinstance(old, dict) and isinstance(new, dict) and old.get("id") == new.get("id")
        previous[name] = previous_attributes(old or {}, new or {}) if nested else old
    return previous
