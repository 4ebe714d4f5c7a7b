"""Provider events as the billing oracle reads them: their types, and what a payload says."""

from typing import Any

from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails, SubscriptionItem
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


def told_by(event: Event) -> BillingEvent:
    """Return what an event says of a subscription or an invoice, without the service's decoder."""
    if event["type"] in INVOICE_TYPES:
        return BillingEvent(
            id=event["id"],
            type=event["type"],
            created=event["created"],
            subscription_id=subscription_id_of(event),
            invoice_id=invoice_id_of(event),
        )
    payload = object_of(event)
    items = tuple(map(_item, (payload.get("items") or {}).get("data") or []))
    is_deleted = event["type"] == DELETED_TYPE
    details = SubscriptionDetails(
        items=items,
        cancel_at=payload.get("cancel_at"),
        trial_end=payload.get("trial_end"),
        pause=(payload.get("pause_collection") or {}).get("behavior"),
        ended_at=payload.get("ended_at"),
    )
    return BillingEvent(
        id=event["id"],
        type=event["type"],
        created=event["created"],
        subscription_id=payload.get("id"),
        subscription_created=payload.get("created"),
        status="canceled" if is_deleted else payload["status"],
        current_period_end=payload.get("current_period_end")
        or (items[0].period_end if items else None),
        cancel_at_period_end=payload.get("cancel_at_period_end"),
        details=details,
    )


def _item(item: dict[str, Any]) -> SubscriptionItem:
    """Return an item. That a metered one, which has no quantity, counts as one seat is not
    documented.
    """
    quantity = item.get("quantity")
    return SubscriptionItem(
        item["price"]["id"], 1 if quantity is None else quantity, item.get("current_period_end")
    )
