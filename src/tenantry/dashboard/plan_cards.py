"""The plans as the Plan page shows them: prices of one period, and what the user can do."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Literal

import msgspec

from tenantry.dashboard.labels import isolated, labels
from tenantry.domain.billing.customer_account import BilledItem, CustomerAccount
from tenantry.domain.features import Feature, FeatureValue, amount_words
from tenantry.domain.plans import FREE, Catalog, Plan
from tenantry.domain.prices import Interval, PlanPrice

PricesOf = Callable[[Plan], tuple[PlanPrice, ...] | None]
"""Returns the prices of a plan; None until they are known."""
CardAction = Literal["subscribe", "change", "seats", "cancel"]
_UNLIMITED: Final = "Unlimited"
_ADVERBS: Final[Mapping[Interval, str]] = {
    "day": "Daily",
    "week": "Weekly",
    "month": "Monthly",
    "year": "Yearly",
}


class PlanChoice(msgspec.Struct, frozen=True):
    """How often plans are charged, or in which currency; ``key`` names it in addresses, such as
    ``year``.
    """

    key: str
    label: str
    is_chosen: bool


class CardSituation(msgspec.Struct, frozen=True, kw_only=True):
    """What decides what a user can do with a plan.

    ``current`` is the tenant's plan; None for a subscription without one. With ``is_lent`` a grant
    gives it until a time. ``account`` is the customer, if the provider told it. With
    ``may_subscribe`` the user may begin a subscription, with ``may_change`` change the present one.
    With ``lacks_role`` the user may do neither. With ``owes`` an invoice is unpaid.
    """

    current: str | None
    account: CustomerAccount | None
    may_subscribe: bool
    may_change: bool
    is_lent: bool = False
    lacks_role: bool = False
    owes: bool = False

    @property
    def currency(self) -> str | None:
        """The currency that the customer pays in; None if there is none, or it is not known."""
        return self.account.currency if self.account else None

    @property
    def item(self) -> BilledItem | None:
        """The item that a link into the portal can change."""
        only = self.account.only_item if self.account else None
        return only[1] if only else None

    @property
    def obstacle(self) -> str:
        """Why the user can choose no plan; empty if they can, or if the page says it elsewhere."""
        if self.lacks_role:
            return "Only an owner or admin can change the plan."
        if not self.may_change or self.account is None or self.item is not None:
            return ""
        if self.owes:
            return "Pay the open invoice first."
        return "Change this subscription at the payment provider, by the button above."

    @property
    def is_cancelable(self) -> bool:
        subscriptions = self.account.subscriptions if self.account else ()
        return len(subscriptions) == 1 and not subscriptions[0].is_ending


class CardLine(msgspec.Struct, frozen=True):
    """What a plan gives of one limit or feature, such as "Projects" and "Unlimited"."""

    label: str
    value: str


class PlanCard(msgspec.Struct, frozen=True):
    """A plan at one of its prices; None where it has none, or its prices are not known yet.

    All cards have the same ``lines``, in the same order.
    """

    plan: Plan
    price: PlanPrice | None
    has_known_prices: bool
    catalog: Catalog
    situation: CardSituation
    lines: tuple[CardLine, ...]

    @property
    def is_current(self) -> bool:
        return self.plan.id == self.situation.current

    @property
    def takes_seats(self) -> bool:
        """Whether the buyer chooses the quantity."""
        is_by_use = self.price is None or self.price.amount is None
        return not is_by_use and not self.plan.seats_follow_members

    @property
    def action(self) -> CardAction | None:
        """What the form of the card does; without an action it has no form."""
        situation = self.situation
        if self.plan.id == FREE:
            return "cancel" if situation.may_change and situation.is_cancelable else None
        if situation.may_subscribe:
            is_wanted = not self.is_current or situation.is_lent
            return "subscribe" if is_wanted and self._is_for_sale else None
        return self._change if situation.may_change else None

    @property
    def obstacle(self) -> str:
        """Why the user cannot choose another plan here; empty if they can."""
        if self.is_current or self.action is not None:
            return ""
        if self.situation.obstacle:
            return self.situation.obstacle
        is_buyable = self.situation.may_subscribe or self.situation.may_change
        is_missing = self.plan.id != FREE and is_buyable and not self._is_for_sale
        return "This plan is not sold here." if is_missing else ""

    @property
    def _is_for_sale(self) -> bool:
        has_price = self.price is not None or not self.has_known_prices
        return has_price and bool(self.plan.stripe_price_ids)

    @property
    def _change(self) -> CardAction | None:
        item = self.situation.item
        if item is None or self.price is None:
            return None
        if self.price.id != item.price_id:
            return "change"
        return "seats" if self.takes_seats else None

    @property
    def seats(self) -> int | None:
        """The seats that the form asks for."""
        if self.action in (None, "cancel") or not self.takes_seats:
            return None
        item = self.situation.item
        return (item.quantity if item else None) or 1

    @property
    def button(self) -> str:
        """The text of the form's button."""
        match self.action:
            case "subscribe":
                return f"Subscribe to {isolated(self.plan.name)}"
            case "seats":
                return "Change the seats"
            case "cancel":
                return "Cancel the subscription"
            case "change":
                return self._words_of_change
        return ""

    @property
    def _words_of_change(self) -> str:
        name = isolated(self.plan.name)
        current = self.situation.current
        if self.is_current and self.price is not None:
            return f"Pay {_label(self.price).lower()}"
        if current is None:
            return f"Change to {name}"
        rank = self.catalog.rank
        return f"{'Upgrade' if rank(self.plan.id) > rank(current) else 'Downgrade'} to {name}"


class PlanCards(msgspec.Struct, frozen=True):
    """All plans, and the periods and currencies to choose from: none if there is only one.

    ``currency`` is the one that the user has chosen; empty otherwise.
    """

    cards: list[PlanCard]
    periods: list[PlanChoice]
    currencies: list[PlanChoice] = []
    currency: str = ""

    @property
    def period(self) -> str:
        """The key of the period that is shown."""
        return _chosen(self.periods)


def _bound_currency(situation: CardSituation, present: PlanPrice | None) -> str | None:
    """Return the currency that a customer pays in; None before the first subscription."""
    return situation.currency or (present.currency if present else None)


def _if_several(choices: list[PlanChoice]) -> list[PlanChoice]:
    return choices if len(choices) > 1 else []


def _chosen(choices: Sequence[PlanChoice]) -> str:
    return next((each.key for each in choices if each.is_chosen), "")


def _asked_for(choices: Sequence[PlanChoice], key: str) -> str:
    """Return the key of a choice that a user has made; empty for any other text."""
    return key if any(each.key == key for each in choices) else ""


def plan_cards(
    catalog: Catalog,
    prices_of: PricesOf,
    situation: CardSituation,
    chosen: str,
    currency: str = "",
) -> PlanCards:
    """Return the cards of all plans. ``chosen`` is the key of a period; any other text leaves the
    present one, or the shortest. The ``currency`` counts for users who may subscribe, while the
    customer has none.
    """
    found = {plan.id: prices_of(plan) for plan in catalog.plans}
    known = list(chain.from_iterable(each or () for each in found.values()))
    present = _price_of(situation.item, known)
    periods = _periods(known, present, chosen)
    period = _chosen(periods)
    bound = _bound_currency(situation, present)
    is_offered = bound is None and situation.may_subscribe
    currencies = _currencies(known if is_offered else (), currency)
    shown_in = bound or _chosen(currencies)
    lines = _lines(catalog)
    cards = []
    for plan in catalog.plans:
        prices = found[plan.id]
        price = _price_in(prices or (), period, shown_in)
        known_prices = prices is not None
        cards.append(PlanCard(plan, price, known_prices, catalog, situation, lines[plan.id]))
    return PlanCards(cards, _if_several(periods), currencies, _asked_for(currencies, currency))


def _lines(catalog: Catalog) -> dict[str, tuple[CardLine, ...]]:
    """Return the lines of each plan: the limits that some plan has, then the features that some
    plan gives.
    """
    plans = catalog.plans
    limits = [
        (field, label)
        for field, label in labels().plan_limits.items()
        if any(getattr(plan.limits, field) is not None for plan in plans)
    ]
    features = [
        feature
        for feature in catalog.features.values()
        if any(feature.id in plan.features for plan in plans)
    ]
    return {
        plan.id: (
            *(CardLine(label, _limit(getattr(plan.limits, field))) for field, label in limits),
            *(CardLine(each.label, _given(each, plan.features.get(each.id))) for each in features),
        )
        for plan in plans
    }


def _limit(number: int | None) -> str:
    return _UNLIMITED if number is None else f"{number:,}"


def _given(feature: Feature, value: FeatureValue | None) -> str:
    if value is None:
        return "Not included"
    if feature.type == "boolean":
        return "Included"
    return _UNLIMITED if value is True else amount_words(feature, value, feature.unit or "")


def _price_of(item: BilledItem | None, known: Iterable[PlanPrice]) -> PlanPrice | None:
    if item is None:
        return None
    return next((price for price in known if price.id == item.price_id), None)


def _periods(
    prices: Iterable[PlanPrice], present: PlanPrice | None, chosen: str
) -> list[PlanChoice]:
    by_length = sorted(prices, key=lambda price: price.days)
    labels = {_key(price): _label(price) for price in by_length}
    if chosen not in labels:
        chosen = _key(present) if present else next(iter(labels), "")
    return [PlanChoice(key, label, key == chosen) for key, label in labels.items()]


def _currencies(prices: Sequence[PlanPrice], chosen: str) -> list[PlanChoice]:
    """Return the currencies in which the provider sells some price, the default first; none unless
    a price has several.
    """
    options = [[option.currency for option in price.currencies] for price in prices]
    if not any(len(each) > 1 for each in options):
        return []
    names = list(dict.fromkeys(chain.from_iterable(options)))
    if chosen not in names:
        chosen = names[0]
    return [PlanChoice(name, name.upper(), name == chosen) for name in names]


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
    of_period = [price.shown_in(currency) for price in prices if _key(price) == period]
    of_currency = [price for price in of_period if price.currency == currency]
    others = (price.shown_in(currency) for price in prices)
    return next(iter([*of_currency, *of_period, *others]), None)
