"""The plans as the Plan page shows them: prices of one period, and what the user can do."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Literal

import msgspec

from tenantry.dashboard.labels import isolated
from tenantry.domain.billing.customer_account import BilledItem, CustomerAccount
from tenantry.domain.features import feature_words
from tenantry.domain.plans import FREE, Catalog, Plan, limit_list
from tenantry.domain.prices import Interval, PlanPrice

PricesOf = Callable[[Plan], tuple[PlanPrice, ...] | None]
"""Returns the prices of a plan; None until they are known."""
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

    ``current`` is the tenant's plan; None for a subscription without one. With ``is_lent`` a grant
    gives it until a time. ``account`` is the customer, if the provider told it. With
    ``may_subscribe`` the user may begin a subscription, with ``may_change`` change the present one.
    """

    current: str | None
    account: CustomerAccount | None
    may_subscribe: bool
    may_change: bool
    is_lent: bool = False

    @property
    def item(self) -> BilledItem | None:
        """The item that a link into the portal can change."""
        only = self.account.only_item if self.account else None
        return only[1] if only else None

    @property
    def is_cancelable(self) -> bool:
        subscriptions = self.account.subscriptions if self.account else ()
        return len(subscriptions) == 1 and not subscriptions[0].is_ending


class _Offer(msgspec.Struct, frozen=True):
    """A plan at one of its prices; None where it has none, or the prices are not known yet."""

    plan: Plan
    price: PlanPrice | None
    is_for_sale: bool

    @property
    def takes_seats(self) -> bool:
        """Whether the buyer chooses the quantity."""
        is_by_use = self.price is None or self.price.amount is None
        return not is_by_use and not self.plan.seats_follow_members


def plan_cards(
    catalog: Catalog, prices_of: PricesOf, situation: CardSituation, chosen: str
) -> PlanCards:
    """Return the cards of all plans. ``chosen`` is the key of a period; any other text leaves the
    present one, or the shortest.
    """
    found = {plan.id: prices_of(plan) for plan in catalog.plans}
    known = list(chain.from_iterable(each or () for each in found.values()))
    present = _price_of(situation.item, known)
    periods = _periods(known, present, chosen)
    period = next((each.key for each in periods if each.is_chosen), "")
    cards = [
        _card(_offer(plan, found[plan.id], period, present), catalog, situation)
        for plan in catalog.plans
    ]
    return PlanCards(cards, periods if len(periods) > 1 else [])


def _price_of(item: BilledItem | None, known: Iterable[PlanPrice]) -> PlanPrice | None:
    if item is None:
        return None
    return next((price for price in known if price.id == item.price_id), None)


def _offer(
    plan: Plan,
    prices: Sequence[PlanPrice] | None,
    period: str,
    present: PlanPrice | None,
) -> _Offer:
    currency = present.currency if present else None
    price = _price_in(prices or (), period, currency)
    is_known_to_be_unsold = prices is not None and price is None
    return _Offer(plan, price, bool(plan.stripe_price_ids) and not is_known_to_be_unsold)


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


def _card(offer: _Offer, catalog: Catalog, situation: CardSituation) -> PlanCard:
    action = _action(offer, situation)
    return PlanCard(
        plan=offer.plan,
        price=offer.price,
        gives=_gives(offer.plan, catalog),
        is_current=offer.plan.id == situation.current,
        action=action,
        button=_button(action, offer, catalog, situation.current),
        seats=_seats(action, offer, situation.item),
    )


def _gives(plan: Plan, catalog: Catalog) -> list[str]:
    features = [
        feature_words(catalog.features[name], value) for name, value in plan.features.items()
    ]
    return [*limit_list(plan.limits), *features] or ["no limits"]


def _action(offer: _Offer, situation: CardSituation) -> CardAction | None:
    if offer.plan.id == FREE:
        return "cancel" if situation.may_change and situation.is_cancelable else None
    if situation.may_subscribe:
        is_wanted = offer.plan.id != situation.current or situation.is_lent
        return "subscribe" if is_wanted and offer.is_for_sale else None
    return _change(offer, situation.item) if situation.may_change else None


def _change(offer: _Offer, item: BilledItem | None) -> CardAction | None:
    if item is None or offer.price is None:
        return None
    if offer.price.id != item.price_id:
        return "change"
    return "seats" if offer.takes_seats else None


def _seats(action: CardAction | None, offer: _Offer, item: BilledItem | None) -> int | None:
    if action in (None, "cancel") or not offer.takes_seats:
        return None
    return (item.quantity if item else None) or 1


def _button(action: CardAction | None, offer: _Offer, catalog: Catalog, current: str | None) -> str:
    match action:
        case "subscribe":
            return f"Subscribe to {isolated(offer.plan.name)}"
        case "seats":
            return "Change the seats"
        case "cancel":
            return "Cancel the subscription"
        case "change":
            return _change_words(offer, catalog, current)
    return ""


def _change_words(offer: _Offer, catalog: Catalog, current: str | None) -> str:
    plan = offer.plan
    if plan.id == current and offer.price is not None:
        return f"Pay {_label(offer.price).lower()}"
    if current is None:
        return f"Change to {isolated(plan.name)}"
    verb = "Upgrade" if catalog.rank(plan.id) > catalog.rank(current) else "Downgrade"
    return f"{verb} to {isolated(plan.name)}"
