"""The plans as the Billing page shows them: prices of one period, and what the user can do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from tenantry.billing.prices import PriceList
from tenantry.dashboard.labels import isolated
from tenantry.domain.billing.customer_account import BilledItem, CustomerAccount
from tenantry.domain.features import feature_words
from tenantry.domain.plans import FREE, Catalog, Plan, limit_list
from tenantry.domain.prices import Interval, PlanPrice

CardAction = Literal["subscribe", "change", "seats", "cancel"]
_ADVERBS: Final[Mapping[Interval, str]] = {
    "day": "Daily",
    "week": "Weekly",
    "month": "Monthly",
    "year": "Yearly",
}


class BillingPeriod(msgspec.Struct, frozen=True):
    """How often plans are charged; ``key`` names it in addresses, such as ``year``."""

    key: str
    label: str
    is_chosen: bool


class PlanCard(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with one of its prices, and the form of its card: the text of its button, and the
    seats that it asks for; without ``action`` it has no form.
    """

    plan: Plan
    price: PlanPrice | None
    gives: list[str]
    is_current: bool
    action: CardAction | None
    button: str
    seats: int | None


class PlanCards(msgspec.Struct, frozen=True):
    """All plans, and the periods to choose from: none if there is only one."""

    cards: list[PlanCard]
    periods: list[BillingPeriod]


class CardSituation(msgspec.Struct, frozen=True, kw_only=True):
    """What decides what a user can do with a plan.

    ``current`` is the tenant's plan; None for a subscription without one. ``account`` is the
    customer, if the provider told it. With ``may_subscribe`` the user may begin a subscription,
    with ``may_change`` change the present one.
    """

    current: str | None
    account: CustomerAccount | None
    may_subscribe: bool
    may_change: bool

    @property
    def item(self) -> BilledItem | None:
        """The item that a link into the portal can change."""
        only = self.account.only_item if self.account else None
        return only[1] if only else None

    @property
    def is_cancelable(self) -> bool:
        subscriptions = self.account.subscriptions if self.account else ()
        return len(subscriptions) == 1 and not subscriptions[0].is_ending


def plan_cards(
    catalog: Catalog, price_list: PriceList, situation: CardSituation, chosen: str
) -> PlanCards:
    """Return the cards of all plans. ``chosen`` is the key of a period; any other text leaves the
    present one, or the shortest.
    """
    prices = {plan.id: price_list.of_plan(plan) or () for plan in catalog.plans}
    known = [price for each in prices.values() for price in each]
    billed = situation.item.price_id if situation.item else None
    present = next((price for price in known if price.id == billed), None)
    periods = _periods(known, present, chosen)
    period = next((each.key for each in periods if each.is_chosen), "")
    currency = present.currency if present else None
    cards = [
        _card(
            plan,
            _price_in(prices[plan.id], period, currency),
            catalog,
            situation,
        )
        for plan in catalog.plans
    ]
    return PlanCards(cards, periods if len(periods) > 1 else [])


def _periods(
    prices: Iterable[PlanPrice], present: PlanPrice | None, chosen: str
) -> list[BillingPeriod]:
    by_length = sorted(prices, key=lambda price: price.days)
    labels = {_key(price): _label(price) for price in by_length}
    if chosen not in labels:
        chosen = _key(present) if present else next(iter(labels), "")
    return [BillingPeriod(key, label, key == chosen) for key, label in labels.items()]


def _key(price: PlanPrice) -> str:
    if price.interval_count == 1:
        return price.interval
    return f"{price.interval_count}-{price.interval}s"


def _label(price: PlanPrice) -> str:
    if price.interval_count == 1:
        return _ADVERBS[price.interval]
    return f"Every {price.interval_count} {price.interval}s"


def _price_in(prices: Sequence[PlanPrice], period: str, currency: str | None) -> PlanPrice | None:
    """Return a plan's price of a period, rather in this currency; its first price where it has none
    of that period.
    """
    of_period = [price for price in prices if _key(price) == period]
    of_currency = [price for price in of_period if price.currency == currency]
    return next(iter([*of_currency, *of_period, *prices]), None)


def _card(
    plan: Plan, price: PlanPrice | None, catalog: Catalog, situation: CardSituation
) -> PlanCard:
    is_current = plan.id == situation.current
    action = _action(plan, price, situation, is_current=is_current)
    return PlanCard(
        plan=plan,
        price=price,
        gives=_gives(plan, catalog),
        is_current=is_current,
        action=action,
        button=_button(action, plan, price, catalog, situation),
        seats=_seats(action, plan, price, situation),
    )


def _gives(plan: Plan, catalog: Catalog) -> list[str]:
    features = [
        feature_words(catalog.features[name], value) for name, value in plan.features.items()
    ]
    return [*limit_list(plan.limits), *features] or ["no limits"]


def _action(
    plan: Plan, price: PlanPrice | None, situation: CardSituation, *, is_current: bool
) -> CardAction | None:
    if plan.id == FREE:
        return "cancel" if situation.may_change and situation.is_cancelable else None
    if situation.may_subscribe:
        return "subscribe" if plan.stripe_price_ids and not is_current else None
    item = situation.item
    if not situation.may_change or item is None or price is None:
        return None
    if price.id != item.price_id:
        return "change"
    return "seats" if _takes_seats(plan, price) else None


def _takes_seats(plan: Plan, price: PlanPrice | None) -> bool:
    """Whether the buyer chooses the quantity."""
    return not plan.seats_follow_members and price is not None and price.amount is not None


def _seats(
    action: CardAction | None, plan: Plan, price: PlanPrice | None, situation: CardSituation
) -> int | None:
    if action in (None, "cancel") or not _takes_seats(plan, price):
        return None
    return (situation.item.quantity if situation.item else None) or 1


def _button(
    action: CardAction | None,
    plan: Plan,
    price: PlanPrice | None,
    catalog: Catalog,
    situation: CardSituation,
) -> str:
    match action:
        case "subscribe":
            return f"Subscribe to {isolated(plan.name)}"
        case "seats":
            return "Change the seats"
        case "cancel":
            return "Cancel the subscription"
        case "change":
            return _change_words(plan, price, catalog, situation.current)
    return ""


def _change_words(
    plan: Plan, price: PlanPrice | None, catalog: Catalog, current: str | None
) -> str:
    if plan.id == current and price is not None:
        return f"Pay {_label(price).lower()}"
    if current is None:
        return f"Change to {isolated(plan.name)}"
    verb = "Upgrade" if catalog.rank(plan.id) > catalog.rank(current) else "Downgrade"
    return f"{verb} to {isolated(plan.name)}"
