"""Where things are in the provider's JSON, by API version, and the objects that are alike in all of them."""

from enum import StrEnum
from typing import Any, Final

from tenantry_devkit.simulator.objects import CheckoutSession, Customer, PortalSession, Price, WebhookEndpoint

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
