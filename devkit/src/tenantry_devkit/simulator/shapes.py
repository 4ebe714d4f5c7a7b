"""How the provider's objects and events look as JSON, in both API versions."""

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
    """Where things are in an object.

    Since API version 2025-03-31 a billing period is the items', no longer the subscription's, and an invoice says what
    it is for in its ``parent``.
    """

    OLD = "old"
    NEW = "new"

    @classmethod
    def of(cls, api_version: str) -> "Shape":
        """The shape that an API version has."""
        return cls.NEW if api_version[:_DATE_LENGTH] >= NEW_VERSION[:_DATE_LENGTH] else cls.OLD


def as_list(url: str, data: list[Json], *, has_more: bool = False) -> Json:
    """Objects in the provider's list."""
    return {"object": "list", "data": data, "has_more": has_more, "url": url}


def price_json(price: Price) -> Json:
    """A price, alike in both shapes."""
    return {
        "id": price.id,
        "object": "price",
        "active": price.active,
        "billing_scheme": "per_unit",
        "created": price.created,
        "currency": price.currency,
        "custom_unit_amount": None,
        "livemode": False,
        "lookup_key": price.lookup_key,
        "metadata": dict(price.metadata),
        "nickname": price.nickname,
        "product": price.product,
        "recurring": {
            "interval": price.interval,
            "interval_count": price.interval_count,
            "meter": None,
            "trial_period_days": None,
            "usage_type": "licensed",
        },
        "tax_behavior": "unspecified",
        "tiers_mode": None,
        "transform_quantity": None,
        "type": "recurring",
        "unit_amount": price.unit_amount,
        "unit_amount_decimal": str(price.unit_amount),
    }


def plan_json(price: Price) -> Json:
    """A price as the plan that came before prices."""
    return {
        "id": price.id,
        "object": "plan",
        "active": price.active,
        "amount": price.unit_amount,
        "amount_decimal": str(price.unit_amount),
        "billing_scheme": "per_unit",
        "created": price.created,
        "currency": price.currency,
        "interval": price.interval,
        "interval_count": price.interval_count,
        "livemode": False,
        "metadata": dict(price.metadata),
        "nickname": price.nickname,
        "product": price.product,
        "usage_type": "licensed",
    }


def customer_json(customer: Customer) -> Json:
    """A customer, or what is left of a deleted one."""
    if customer.deleted:
        return {"id": customer.id, "object": "customer", "deleted": True}
    return {
        "id": customer.id,
        "object": "customer",
        "address": None,
        "balance": 0,
        "created": customer.created,
        "currency": None,
        "default_source": None,
        "delinquent": False,
        "description": customer.description,
        "discount": None,
        "email": customer.email,
        "invoice_prefix": customer.invoice_prefix,
        "invoice_settings": {
            "custom_fields": None,
            "default_payment_method": customer.payment_method,
            "footer": None,
            "rendering_options": None,
        },
        "livemode": False,
        "metadata": dict(customer.metadata),
        "name": customer.name,
        "phone": None,
        "preferred_locales": [],
        "shipping": None,
        "tax_exempt": "none",
        "test_clock": None,
    }


def checkout_json(session: CheckoutSession) -> Json:
    """A checkout session."""
    return {
        "id": session.id,
        "object": "checkout.session",
        "amount_subtotal": session.amount,
        "amount_total": session.amount,
        "cancel_url": session.cancel_url,
        "client_reference_id": session.client_reference_id,
        "created": session.created,
        "currency": session.prices[0][0].currency if session.prices else None,
        "customer": session.customer,
        "customer_details": {"email": session.customer_email} if session.customer_email else None,
        "customer_email": session.customer_email,
        "expires_at": session.expires_at,
        "invoice": session.invoice,
        "livemode": False,
        "metadata": dict(session.metadata),
        "mode": session.mode,
        "payment_intent": None,
        "payment_method_types": ["card"],
        "payment_status": session.payment_status,
        "status": session.status,
        "subscription": session.subscription,
        "success_url": session.success_url,
        "ui_mode": "hosted",
        "url": session.url,
    }


def portal_json(session: PortalSession) -> Json:
    """A portal session."""
    return {
        "id": session.id,
        "object": "billing_portal.session",
        "created": session.created,
        "customer": session.customer,
        "livemode": False,
        "return_url": session.return_url,
        "url": session.url,
    }


def endpoint_json(endpoint: WebhookEndpoint) -> Json:
    """A webhook endpoint, without its secret."""
    return {
        "id": endpoint.id,
        "object": "webhook_endpoint",
        "api_version": endpoint.api_version,
        "application": None,
        "created": endpoint.created,
        "description": endpoint.description,
        "enabled_events": list(endpoint.enabled_events),
        "livemode": False,
        "metadata": dict(endpoint.metadata),
        "status": endpoint.status,
        "url": endpoint.url,
    }


def subscription_json(subscription: Subscription, shape: Shape) -> Json:
    """A subscription."""
    first = subscription.items[0]
    return {
        "id": subscription.id,
        "object": "subscription",
        "application": None,
        "automatic_tax": {"disabled_reason": None, "enabled": False, "liability": None},
        "billing_cycle_anchor": subscription.anchor,
        "cancel_at": subscription.cancel_at,
        "cancel_at_period_end": subscription.cancel_at_period_end,
        "canceled_at": subscription.canceled_at,
        "cancellation_details": {"comment": None, "feedback": None, "reason": subscription.cancellation_reason},
        "collection_method": "charge_automatically",
        "created": subscription.created,
        "currency": first.price.currency,
        "customer": subscription.customer,
        "days_until_due": None,
        "default_payment_method": subscription.default_payment_method,
        "description": None,
        "discounts": [],
        "ended_at": subscription.ended_at,
        "items": {
            **as_list(
                f"/v1/subscription_items?subscription={subscription.id}",
                [_item(item, subscription, shape) for item in subscription.items],
            ),
            "total_count": len(subscription.items),
        },
        "latest_invoice": subscription.latest_invoice,
        "livemode": False,
        "metadata": dict(subscription.metadata),
        "on_behalf_of": None,
        "pause_collection": None,
        "pending_setup_intent": None,
        "pending_update": None,
        "plan": plan_json(first.price) if len(subscription.items) == 1 else None,
        "quantity": first.quantity if len(subscription.items) == 1 else None,
        "schedule": None,
        "start_date": subscription.created,
        "status": subscription.status,
        "test_clock": None,
        "trial_end": subscription.trial_end,
        "trial_settings": {"end_behavior": {"missing_payment_method": "create_invoice"}},
        "trial_start": subscription.trial_start,
        **(_period(subscription) if shape is Shape.OLD else {}),
    }


def _period(subscription: Subscription) -> Json:
    return {"current_period_end": subscription.period_end, "current_period_start": subscription.period_start}


def _item(item: Item, subscription: Subscription, shape: Shape) -> Json:
    return {
        "id": item.id,
        "object": "subscription_item",
        "billing_thresholds": None,
        "created": item.created,
        "discounts": [],
        "metadata": {},
        "plan": plan_json(item.price),
        "price": price_json(item.price),
        "quantity": item.quantity,
        "subscription": subscription.id,
        "tax_rates": [],
        **(_period(subscription) if shape is Shape.NEW else {}),
    }


def invoice_json(invoice: Invoice, shape: Shape) -> Json:
    """An invoice."""
    details = {"metadata": dict(invoice.subscription_metadata)}
    is_paid = invoice.status == "paid"
    is_open = invoice.status in {"draft", "open"}
    if shape is Shape.OLD:
        purpose = {"subscription": invoice.subscription, "subscription_details": details, "paid": is_paid}
    else:
        billed = {**details, "subscription": invoice.subscription}
        purpose = {
            "parent": {"quote_details": None, "subscription_details": billed, "type": "subscription_details"}
        }  # fmt: skip
    return {
        "id": invoice.id,
        "object": "invoice",
        "account_country": "DE",
        "account_name": "Simulated",
        "amount_due": invoice.amount_due,
        "amount_paid": invoice.amount_paid,
        "amount_remaining": invoice.amount_due - invoice.amount_paid,
        "attempt_count": invoice.attempt_count,
        "attempted": is_paid or invoice.attempt_count > 0,
        "auto_advance": invoice.auto_advance,
        "automatic_tax": {"enabled": False, "liability": None, "provider": None, "status": None},
        "billing_reason": invoice.billing_reason,
        "collection_method": "charge_automatically",
        "created": invoice.created,
        "currency": invoice.currency,
        "custom_fields": None,
        "customer": invoice.customer,
        "customer_address": None,
        "customer_email": invoice.customer_email,
        "customer_name": invoice.customer_name,
        "customer_tax_exempt": "none",
        "default_payment_method": None,
        "description": None,
        "discounts": [],
        "due_date": None,
        "effective_at": invoice.finalized_at,
        "ending_balance": None if invoice.status == "draft" else 0,
        "footer": None,
        "hosted_invoice_url": invoice.hosted_invoice_url,
        "invoice_pdf": invoice.hosted_invoice_url and f"{invoice.hosted_invoice_url}/pdf",
        "lines": {
            **as_list(f"/v1/invoices/{invoice.id}/lines", [_line(line, invoice, shape) for line in invoice.lines]),
            "total_count": len(invoice.lines),
        },
        "livemode": False,
        "metadata": {},
        "next_payment_attempt": invoice.next_payment_attempt if is_open else None,
        "number": invoice.number,
        "period_end": invoice.period_end,
        "period_start": invoice.period_start,
        "starting_balance": 0,
        "status": invoice.status,
        "status_transitions": {
            "finalized_at": invoice.finalized_at,
            "marked_uncollectible_at": None,
            "paid_at": invoice.paid_at,
            "voided_at": invoice.voided_at,
        },
        "subtotal": invoice.amount_due,
        "total": invoice.amount_due,
        **purpose,
    }


def _line(line: Line, invoice: Invoice, shape: Shape) -> Json:
    price, quantity = line.item.price, line.item.quantity
    if shape is Shape.OLD:
        purpose: Json = {
            "plan": plan_json(price),
            "price": price_json(price),
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
    Subscription: subscription_json,
    Invoice: invoice_json,
    Price: lambda price, _: price_json(price),
    Customer: lambda customer, _: customer_json(customer),
    CheckoutSession: lambda session, _: checkout_json(session),
    PortalSession: lambda session, _: portal_json(session),
    WebhookEndpoint: lambda endpoint, _: endpoint_json(endpoint),
}


def render(thing: object, shape: Shape) -> Json:
    """An object of the provider's in a shape."""
    return _RENDERERS[type(thing)](thing, shape)


def render_event(event: Event, api_version: str) -> Json:
    """An event in the shape of an API version."""
    shape = Shape.of(api_version)
    data: Json = {"object": render(event.object, shape)}
    if event.before is not None:
        data["previous_attributes"] = previous_attributes(render(event.before, shape), data["object"])
    return {
        "id": event.id,
        "object": "event",
        "api_version": api_version,
        "created": event.created,
        "data": data,
        "livemode": False,
        "pending_webhooks": event.pending_webhooks,
        "request": {"id": event.request_id, "idempotency_key": event.idempotency_key},
        "type": event.type,
    }


def previous_attributes(before: Json, after: Json) -> Json:
    """The old values of what is different; of objects only the different parts, of lists the whole old list."""
    previous: Json = {}
    for name in before | after:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        nested = isinstance(old, dict) and isinstance(new, dict) and old.get("id") == new.get("id")
        previous[name] = previous_attributes(old or {}, new or {}) if nested else old
    return previous
