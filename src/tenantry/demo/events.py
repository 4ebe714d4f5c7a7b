"""Provider events for trying things out, in the provider's present shape."""

import secrets

import msgspec

from tenantry.demo.setup import CUSTOMER, TENANT
from tenantry.domain.billing.events import CHECKOUT_COMPLETED, INVOICE_TYPES, SUBSCRIPTION_DELETED

_MONTH_SECONDS = 30 * 24 * 3600


def sample_event(event_type: str, *, plan: str, status: str, created: int) -> bytes:
    """An event of the demo tenant, ``created`` in a second since the Unix epoch."""
    if event_type in INVOICE_TYPES:
        thing = _invoice()
    elif event_type == CHECKOUT_COMPLETED:
        thing = {
            "id": f"cs_{secrets.token_hex(8)}", "object": "checkout.session", "mode": "subscription",
            "customer": CUSTOMER, "subscription": "sub_demo", "metadata": {"orgId": TENANT},
        }  # fmt: skip
    else:
        thing = _subscription(plan, "canceled" if event_type == SUBSCRIPTION_DELETED else status, created)
    event = {
        "id": f"evt_{secrets.token_hex(12)}", "object": "event", "type": event_type, "created": created,
        "livemode": False, "api_version": "2025-03-31.basil", "data": {"object": thing},
    }  # fmt: skip
    return msgspec.json.encode(event)


def _subscription(plan: str, status: str, now: int) -> dict[str, object]:
    item = {
        "id": "si_demo", "object": "subscription_item", "price": {"id": f"price_{plan}", "object": "price"},
        "current_period_start": now, "current_period_end": now + _MONTH_SECONDS,
    }  # fmt: skip
    return {
        "id": "sub_demo", "object": "subscription", "customer": CUSTOMER, "status": status, "created": now,
        "cancel_at_period_end": False, "metadata": {"orgId": TENANT}, "items": {"object": "list", "data": [item]},
    }  # fmt: skip


def _invoice() -> dict[str, object]:
    invoice = f"in_{secrets.token_hex(8)}"
    return {
        "id": invoice, "object": "invoice", "customer": CUSTOMER, "amount_due": 2900, "currency": "eur",
        "hosted_invoice_url": f"https://invoice.example/{invoice}",
        "parent": {"type": "subscription_details", "subscription_details": {"subscription": "sub_demo"}},
    }  # fmt: skip
