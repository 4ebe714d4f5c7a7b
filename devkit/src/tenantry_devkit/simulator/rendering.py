"""Any object, and any event, as the provider's JSON."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tenantry_devkit.simulator.billing_shapes import invoice_json, subscription_json
from tenantry_devkit.simulator.objects import (
    CheckoutSession,
    Customer,
    Event,
    Invoice,
    PortalSession,
    Price,
    Subscription,
    WebhookEndpoint,
)
from tenantry_devkit.simulator.shapes import (
    Json,
    Shape,
    checkout_json,
    customer_json,
    endpoint_json,
    portal_json,
    price_json,
)

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
