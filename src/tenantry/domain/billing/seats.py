"""Seats that follow members: which item of a subscription has the quantity to set."""

from collections.abc import Sequence
from functools import partial

from tenantry.domain.billing.customer_account import BilledItem, BilledSubscription
from tenantry.domain.billing.state import UNBEGUN_OR_OVER, BillingPolicy
from tenantry.domain.plans import Catalog


def seats_wanted(active_members: int) -> int:
    """Return the quantity for a number of active members: a subscription has at least one seat."""
    return max(1, active_members)


def item_to_set(
    subscription: BilledSubscription,
    org_id: str,
    wanted: int,
    policy: BillingPolicy,
) -> BilledItem | None:
    """Return the plan item if it needs another quantity.

    None if it has the wanted one, if the plan's seats do not follow members, for a subscription
    that has ended, was canceled to end later, or waits for its first payment, and for one that
    names another tenant by now.
    """
    is_changeable = subscription.status not in UNBEGUN_OR_OVER and not subscription.is_ending
    is_own = subscription.org_id in (None, org_id)
    item = _plan_item(subscription.items, policy)
    if not is_changeable or not is_own or item is None:
        return None
    return None if item.quantity in (None, wanted) else item


def _plan_item(items: Sequence[BilledItem], policy: BillingPolicy) -> BilledItem | None:
    """Return the item that decides the plan, as for events, if its plan's seats follow members."""
    catalog = policy.catalog
    candidates = items if policy.is_each else items[:1]
    sold = [item for item in candidates if catalog.plan_at(item.price_id)]
    item = max(sold, key=partial(_precedence, catalog), default=None)
    if item is None:
        return None
    plan = catalog.plan_at(item.price_id)
    return item if plan and plan.seats_follow_members else None


def _precedence(catalog: Catalog, item: BilledItem) -> tuple[bool, int]:
    """Return what orders plan items: those with a quantity first, then by the plan's rank."""
    plan = catalog.plan_at(item.price_id)
    return bool(item.quantity), plan.rank if plan else -1
