"""Seats that follow members: which item of a subscription has the quantity to set."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from tenantry.domain.billing.state import INCOMPLETE, BillingPolicy
from tenantry.domain.plans import OVER, Catalog

UNCHANGEABLE: Final = OVER | {INCOMPLETE}
"""The statuses in which the provider accepts no change of a subscription."""


class SeatItem(NamedTuple):
    """An item of a subscription at the provider. A metered price has no quantity."""

    id: str
    price_id: str
    quantity: int | None


class SeatSubscription(NamedTuple):
    """A subscription as the provider has it now; ``org_id`` is the tenant that it names."""

    status: str
    org_id: str | None
    is_ending: bool
    items: Sequence[SeatItem]


def seats_wanted(active_members: int) -> int:
    """Return the quantity for a number of active members: a subscription has at least one seat."""
    return max(1, active_members)


def item_to_set(
    subscription: SeatSubscription,
    org_id: str,
    wanted: int,
    policy: BillingPolicy,
) -> SeatItem | None:
    """Return the plan item if it needs another quantity.

    None if it has the wanted one, if the plan's seats do not follow members, for a subscription
    that has ended, was canceled to end later, or waits for its first payment, and for one that
    names another tenant by now.
    """
    is_changeable = subscription.status not in UNCHANGEABLE and not subscription.is_ending
    is_own = subscription.org_id in (None, org_id)
    item = _plan_item(subscription.items, policy)
    if not is_changeable or not is_own or item is None:
        return None
    return None if item.quantity in (None, wanted) else item


def _plan_item(items: Sequence[SeatItem], policy: BillingPolicy) -> SeatItem | None:
    """Return the item that decides the plan, as for events, if its plan's seats follow members."""
    catalog = policy.catalog
    candidates = items if policy.is_each else items[:1]
    sold = [item for item in candidates if catalog.plan_at(item.price_id)]
    item = max(sold, key=partial(_precedence, catalog), default=None)
    if item is None:
        return None
    plan = catalog.plan_at(item.price_id)
    return item if plan and plan.seats_follow_members else None


def _precedence(catalog: Catalog, item: SeatItem) -> tuple[bool, int]:
    """Return what orders plan items: those with a quantity first, then by the plan's rank."""
    plan = catalog.plan_at(item.price_id)
    return bool(item.quantity), plan.rank if plan else -1
