"""Provider events as the billing oracle reads them: their types, and what a payload names."""

from typing import Any

from tests.support.provider_world import Event

FULL_STATE_TYPES = {
    "customer.subscription.updated",
    "customer.subscription.created",
    "customer.subscription.paused",
    "customer.subscription.resumed",
}
DELETED_TYPE = "customer.subscription.deleted"
SUBSCRIPTION_TYPES = FULL_STATE_TYPES | {DELETED_TYPE}
PAID_TYPES = {"invoice.payment_succeeded", "invoice.paid"}
CLOSED_TYPES = {"invoice.voided", "invoice.marked_uncollectible"}
FAILED_TYPE = "invoice.payment_failed"
INVOICE_TYPES = PAID_TYPES | CLOSED_TYPES | {FAILED_TYPE}
LINKING_TYPES = FULL_STATE_TYPES  # `deleted` makes three changes and no other


def id_of(value: Any) -> str | None:
    """Return the id of a reference, which is a string or an expanded object."""
    return value.get("id") if isinstance(value, dict) else value


def object_of(event: Event) -> dict[str, Any]:
    payload: dict[str, Any] = event["data"]["object"]
    return payload


def subscription_id_of(event: Event) -> str | None:
    payload = object_of(event)
    if event["type"].startswith("customer.subscription."):
        return payload.get("id")
    details = (payload.get("parent") or {}).get("subscription_details") or {}
    return id_of(payload.get("subscription")) or id_of(details.get("subscription"))


def invoice_id_of(event: Event) -> str | None:
    return object_of(event).get("id")


def customer_of(event: Event) -> str | None:
    return id_of(object_of(event).get("customer"))


def org_named_by(event: Event) -> str | None:
    return (object_of(event).get("metadata") or {}).get("orgId")
