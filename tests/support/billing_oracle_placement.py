"""Which tenant an event belongs to, in the billing oracle."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.billing_oracle_events import (
    INVOICE_TYPES,
    SUBSCRIPTION_TYPES,
    customer_of,
    org_named_by,
    subscription_id_of,
)
from tests.support.provider_world import History


@dataclass(frozen=True)
class Placement:
    """Which tenant each event that has arrived counts for. Positions are those of the history's
    events.
    """

    tenant_of: dict[int, str]  # without those that are parked
    moved_away: dict[str, dict[str, int]]  # tenant -> subscription -> when another tenant was named


def place(history: History, arrived: set[int], links: Mapping[str, str]) -> Placement:
    """Find the tenant of each event that has arrived.

    A subscription event belongs to the tenant of its metadata, else to that of its customer. An
    invoice event belongs to the tenant that its subscription named at the invoice's second
    (`each`), or to that of its customer (`any`, or where no tenant has the subscription).
    """
    known = {tenant.id for tenant in history.tenants}
    tenant_of: dict[int, str] = {}
    # subscription -> (created, tenant), as it happened
    named: dict[str, list[tuple[int, str]]] = {}
    before: dict[str, str] = {}  # subscription -> the tenant that its first event replaced
    for position in sorted(arrived):
        event = history.events[position]
        if event["type"] not in SUBSCRIPTION_TYPES:
            continue
        tenant = org_named_by(event) or links.get(customer_of(event) or "")
        if tenant in known:
            tenant_of[position] = str(tenant)
            replaced = (event["data"].get("previous_attributes") or {}).get("metadata") or {}
            if str(subscription_id_of(event)) not in named and replaced.get("orgId") in known:
                before[str(subscription_id_of(event))] = replaced["orgId"]
            named.setdefault(str(subscription_id_of(event)), []).append(
                (event["created"], str(tenant))
            )
    for position in sorted(arrived):
        event = history.events[position]
        if event["type"] not in INVOICE_TYPES:
            continue
        customer = customer_of(event)
        by_customer = links.get(customer or "")
        subscription = subscription_id_of(event) or ""
        by_subscription = _named_at(
            named.get(subscription, []), before.get(subscription), event["created"]
        )
        by_name = history.mode == "each" or customer is None
        tenant = (by_subscription or by_customer) if by_name else by_customer
        if tenant is not None:
            tenant_of[position] = tenant
    return Placement(tenant_of, _moved_away(named, before) if history.mode == "each" else {})


def _named_at(named: list[tuple[int, str]], before: str | None, second: int) -> str | None:
    """Return the tenant that a subscription named at the end of a second.

    Before its first event that is the tenant that this event replaced, else the one that it names.
    """
    until_then = [tenant for created, tenant in named if created <= second]
    if until_then:
        return until_then[-1]
    return (before or named[0][1]) if named else None


def _moved_away(
    named: dict[str, list[tuple[int, str]]], before: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    """Return the subscriptions that ended for a tenant because a newer event names another one."""
    away: dict[str, dict[str, int]] = {}
    for subscription, mentions in named.items():
        owner = mentions[-1][1]
        former = before.get(subscription)
        if former not in {None, owner}:
            # named by no event that has arrived, unless it is one of those below
            away.setdefault(str(former), {})[subscription] = mentions[0][0]
        for position, (_, tenant) in enumerate(mentions):
            if tenant != owner:
                later = [created for created, other in mentions[position + 1 :] if other != tenant]
                away.setdefault(tenant, {})[subscription] = later[0]
    return away
