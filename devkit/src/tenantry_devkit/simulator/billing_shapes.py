"""Subscriptions and invoices as JSON, in both shapes."""

from tenantry_devkit.simulator.objects import Invoice, Item, Line, Subscription
from tenantry_devkit.simulator.shapes import Json, Shape, as_list, plan_json, price_json


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
