"""What a tenant orders in a checkout, and the items at the provider that it means."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.access import is_subscribed
from tenantry.domain.billing.seats import seats_wanted
from tenantry.domain.billing.snapshot import ProviderSubscription
from tenantry.domain.errors import ValidationError
from tenantry.domain.plans import FREE, Catalog, Plan

MOST_SEATS: Final = 10_000
CURRENCY: Final = "^[a-z]{3}$"
MOST_ADDONS: Final = 19
"""A checkout of the provider has at most 20 recurring items, the plan's included."""
_METERED: Final = "must be 1: the price is metered, so the use is charged and not a quantity"

Quantity = Annotated[int, msgspec.Meta(ge=1, le=MOST_SEATS)]


class AddonOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An add-on of a checkout, and how many of it."""

    id: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=64,
            description="The id of an add-on of the catalog, which is sold at its first price.",
            examples=["storage"],
        ),
    ]
    quantity: Annotated[Quantity, doc("How many; only 1 of a metered price.", 2)]


class CheckoutOrder(msgspec.Struct, frozen=True):
    """What a tenant orders: a plan at one of its prices, by default the first, with add-ons.

    Without a ``quantity`` it is 1, or the number of active members where the plan's seats follow
    them. Without a ``currency`` the provider decides.
    """

    plan: str
    price: str | None = None
    quantity: int | None = None
    addons: tuple[AddonOrder, ...] = ()
    currency: str | None = None


class CheckoutItem(NamedTuple):
    """A price at the provider, and how many of it; a metered price has no quantity."""

    price_id: str
    quantity: int | None


class CheckoutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checkout session to create at the provider.

    ``customer_email`` counts without a customer. A trial of 0 days is none. With ``tax`` the
    provider calculates the tax and asks for the buyer's tax id.
    """

    tenant_id: str
    items: list[CheckoutItem]
    customer_id: str | None
    customer_email: str | None
    success_url: str
    cancel_url: str
    currency: str | None = None
    trial_days: int = 0
    promotion_codes: bool = False
    tax: bool = False


class CompletedCheckout(NamedTuple):
    """A checkout session that cannot be ended, and the subscription that it made.

    ``subscription`` is None while the buyer is paying: then the worst is assumed of it.
    """

    subscription: ProviderSubscription | None

    @property
    def took_trial(self) -> bool:
        """Whether the subscription began with a trial."""
        return self.subscription is None or self.subscription.details.trial_end is not None

    def is_charged_to(self, tenant_id: str) -> bool:
        """Whether the tenant has the subscription, and it has not ended."""
        made = self.subscription
        if made is None:
            return True
        return made.org_id in (None, tenant_id) and is_subscribed(made.status)

    def renews_for(self, tenant_id: str) -> bool:
        """Whether the tenant has the subscription, and its end is not scheduled."""
        made = self.subscription
        has_end = made is not None and (made.cancel_at_period_end or bool(made.details.cancel_at))
        return self.is_charged_to(tenant_id) and not has_end


def plan_to_sell(order: CheckoutOrder, catalog: Catalog) -> Plan:
    """Return the plan of an order. Raises `ValidationError` with every fault of the order."""
    faults = [
        *_plan_faults(order, catalog),
        *_addon_faults(order, catalog),
        *_currency_faults(order.currency),
    ]
    plan = catalog.plan(order.plan)
    if faults or plan is None:
        raise ValidationError(*faults)
    return plan


def checkout_items(
    order: CheckoutOrder, catalog: Catalog, active_members: int
) -> list[CheckoutItem]:
    """Return the items of an order, the plan's first. Raises `ValidationError` for a faulty one."""
    plan = plan_to_sell(order, catalog)
    return [
        CheckoutItem(
            order.price or plan.stripe_price_ids[0],
            order.quantity or _quantity_of(plan, active_members),
        ),
        *_addon_items(order, catalog),
    ]


def without_metered_quantities(
    items: Sequence[CheckoutItem], order: CheckoutOrder, metered: Collection[str]
) -> list[CheckoutItem]:
    """Return the items of an order, those at ``metered`` prices without a quantity. Raises
    `ValidationError` if the order asks for several of one.
    """
    locations = "quantity", *(f"addons[{number}].quantity" for number in range(len(order.addons)))
    ordered = order.quantity, *(addon.quantity for addon in order.addons)
    faults = [
        (location, _METERED)
        for item, location, quantity in zip(items, locations, ordered, strict=True)
        if item.price_id in metered and quantity not in (None, 1)
    ]
    if faults:
        raise ValidationError(*faults)
    return [item._replace(quantity=None) if item.price_id in metered else item for item in items]


def _quantity_of(plan: Plan, active_members: int) -> int:
    """Return the quantity of a plan without one in the order."""
    return seats_wanted(active_members) if plan.seats_follow_members else 1


def _addon_items(order: CheckoutOrder, catalog: Catalog) -> Iterator[CheckoutItem]:
    for ordered in order.addons:
        addon = catalog.addon(ordered.id)
        if addon is not None:
            yield CheckoutItem(addon.stripe_price_ids[0], ordered.quantity)


def _plan_faults(order: CheckoutOrder, catalog: Catalog) -> Iterator[tuple[str, str]]:
    plan = catalog.plan(order.plan)
    if order.plan == FREE:
        yield "plan", f"{FREE} needs no checkout"
    elif plan is None:
        yield "plan", "is not in the plan catalog"
    elif not plan.stripe_price_ids:
        yield "plan", "has no price in the plan catalog"
    else:
        yield from _choice_faults(order, plan)


def _choice_faults(order: CheckoutOrder, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the price and the quantity of a plan that can be bought."""
    if order.price is not None and order.price not in plan.stripe_price_ids:
        yield "price", f"is not a price of the plan {plan.id}: see the plan catalog"
    if plan.seats_follow_members and order.quantity is not None:
        yield "quantity", f"follows the active members in the plan {plan.id}: leave it out"


def _currency_faults(currency: str | None) -> Iterator[tuple[str, str]]:
    if currency is not None and not re.fullmatch(CURRENCY, currency):
        yield "currency", "must be three lowercase letters, such as usd"


def _addon_faults(order: CheckoutOrder, catalog: Catalog) -> Iterator[tuple[str, str]]:
    times = Counter(ordered.id for ordered in order.addons)
    for number, ordered in enumerate(order.addons):
        addon = catalog.addon(ordered.id)
        location = f"addons[{number}].id"
        if addon is None:
            yield location, "is not an add-on of the plan catalog"
        elif not addon.stripe_price_ids:
            yield location, "has no price in the plan catalog"
        elif times[ordered.id] > 1:
            yield location, "occurs more than once: give one entry with the whole quantity"
