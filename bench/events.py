"""Events as the provider sends them: ``customer.subscription.updated`` of a renewal, in the newer shape, 5 KiB."""

import functools
import hmac
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.contestant import World

MONTH: Final = 30 * 24 * 3600
PRICE: Final = "price_pro"
BEGIN: Final = 1_735_689_600
"""When the subscriptions began."""

_MARK: Final = re.compile(rb"<(id|created|end)>")


def compose(tenant: int, event_id: str, created: int, price: str = PRICE) -> bytes:
    """The body of an event: a renewal at ``created`` (Unix seconds) of the tenant's subscription, for a month."""
    values = {b"id": event_id.encode(), b"created": b"%d" % created, b"end": b"%d" % (created + MONTH)}
    return b"".join([values.get(part, part) for part in _parts(tenant, price)])


def sign(body: bytes, secret: str, stamp: int | None = None) -> str:
    """The value of the header that vouches for a body, made now or at another Unix time."""
    stamp = int(time.time()) if stamp is None else stamp
    return f"t={stamp},v1={hmac.digest(secret.encode(), b'%d.%b' % (stamp, body), 'sha256').hex()}"


def write_events(folder: Path, count: int, world: World, run: str, first: int, price: str = PRICE) -> dict[str, str]:
    """Write ``count`` distinct events for webhook.lua; returns the variables that tell it where they are.

    The tenants come in turn. Ids begin with ``evt_<run>_``. A tenant's first event is of the second ``first``, each
    further one of the next second: `seconds_of` says how many seconds are used.
    """
    stamp = int(time.time())
    with (folder / "events").open("w") as out:
        for position in range(count):
            tenant, created = position % world.tenants, first + position // world.tenants
            event_id = f"evt_{run}_{position:08d}"
            header = sign(compose(tenant, event_id, created, price), world.secret, stamp)
            out.write(f"{tenant} {event_id} {created} {header.rpartition('=')[2]}\n")
    (folder / "template").write_text(_template().replace("<price>", price))
    return {
        "BENCH_EVENTS": str(folder / "events"),
        "BENCH_TEMPLATE": str(folder / "template"),
        "BENCH_STAMP": str(stamp),
        "BENCH_MONTH": str(MONTH),
        "BENCH_TENANTS": str(world.tenants),
    }


def seconds_of(count: int, world: World) -> int:
    """How many seconds ``count`` events take from the tenants' histories."""
    return count // world.tenants + 1


@functools.lru_cache(maxsize=4096)
def _parts(tenant: int, price: str) -> list[bytes]:
    """The template for a tenant, cut at its marks; every second part is a mark's name."""
    return _MARK.split(_template().replace("<tenant>", str(tenant)).replace("<price>", price).encode())


@functools.cache
def _template() -> str:
    """The event with marks: ``<id>``, ``<created>``, ``<end>``, ``<tenant>``, ``<price>``; indented as sent."""
    text = json.dumps(_event(), indent=2)
    return re.sub(r'"<(created|end)>"', r"<\1>", text)


def _event() -> dict[str, Any]:
    return {
        "id": "<id>",
        "object": "event",
        "api_version": "2025-03-31.basil",
        "created": "<created>",
        "data": {"object": _subscription(), "previous_attributes": _previous()},
        "livemode": True,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "type": "customer.subscription.updated",
    }


def _subscription() -> dict[str, Any]:
    return {
        "id": "sub_<tenant>",
        "object": "subscription",
        "application": None,
        "application_fee_percent": None,
        "automatic_tax": {"disabled_reason": None, "enabled": False, "liability": None},
        "billing_cycle_anchor": BEGIN,
        "billing_cycle_anchor_config": None,
        "cancel_at": None,
        "cancel_at_period_end": False,
        "canceled_at": None,
        "cancellation_details": {"comment": None, "feedback": None, "reason": None},
        "collection_method": "charge_automatically",
        "created": BEGIN,
        "currency": "eur",
        "customer": "cus_<tenant>",
        "days_until_due": None,
        "default_payment_method": "pm_<tenant>",
        "default_source": None,
        "default_tax_rates": [],
        "description": None,
        "discounts": [],
        "ended_at": None,
        "invoice_settings": {"account_tax_ids": None, "issuer": {"type": "self"}},
        "items": {
            "object": "list",
            "data": [_item()],
            "has_more": False,
            "total_count": 1,
            "url": "/v1/subscription_items?subscription=sub_<tenant>",
        },
        "latest_invoice": "in_<tenant>_2",
        "livemode": True,
        "metadata": {"orgId": "t<tenant>"},
        "next_pending_invoice_item_invoice": None,
        "on_behalf_of": None,
        "pause_collection": None,
        "payment_settings": {
            "payment_method_options": None,
            "payment_method_types": None,
            "save_default_payment_method": "off",
        },
        "pending_invoice_item_interval": None,
        "pending_setup_intent": None,
        "pending_update": None,
        "plan": _plan(),
        "quantity": 1,
        "schedule": None,
        "start_date": BEGIN,
        "status": "active",
        "test_clock": None,
        "transfer_data": None,
        "trial_end": None,
        "trial_settings": {"end_behavior": {"missing_payment_method": "create_invoice"}},
        "trial_start": None,
    }


def _item() -> dict[str, Any]:
    return {
        "id": "si_<tenant>",
        "object": "subscription_item",
        "billing_thresholds": None,
        "created": BEGIN,
        "current_period_end": "<end>",
        "current_period_start": "<created>",
        "discounts": [],
        "metadata": {},
        "plan": _plan(),
        "price": _price(),
        "quantity": 1,
        "subscription": "sub_<tenant>",
        "tax_rates": [],
    }


def _plan() -> dict[str, Any]:
    return {
        "id": "<price>",
        "object": "plan",
        "active": True,
        "amount": 2900,
        "amount_decimal": "2900",
        "billing_scheme": "per_unit",
        "created": BEGIN,
        "currency": "eur",
        "interval": "month",
        "interval_count": 1,
        "livemode": True,
        "metadata": {},
        "meter": None,
        "nickname": None,
        "product": "prod_bench",
        "tiers_mode": None,
        "transform_usage": None,
        "trial_period_days": None,
        "usage_type": "licensed",
    }


def _price() -> dict[str, Any]:
    return {
        "id": "<price>",
        "object": "price",
        "active": True,
        "billing_scheme": "per_unit",
        "created": BEGIN,
        "currency": "eur",
        "custom_unit_amount": None,
        "livemode": True,
        "lookup_key": None,
        "metadata": {},
        "nickname": None,
        "product": "prod_bench",
        "recurring": {
            "interval": "month",
            "interval_count": 1,
            "meter": None,
            "trial_period_days": None,
            "usage_type": "licensed",
        },
        "tax_behavior": "unspecified",
        "tiers_mode": None,
        "transform_quantity": None,
        "type": "recurring",
        "unit_amount": 2900,
        "unit_amount_decimal": "2900",
    }


def _previous() -> Mapping[str, Any]:
    """What a renewal changes beside its items' period."""
    return {"latest_invoice": "in_<tenant>_1"}
