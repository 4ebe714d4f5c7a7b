"""The cards of plans: periods, prices, and what a user can do."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from tenantry.dashboard.plan_cards import CardSituation, PlanCard, PlanCards, plan_cards
from tenantry.domain.billing.customer_account import BilledItem, BilledSubscription, CustomerAccount
from tenantry.domain.plans import Plan, parse_catalog
from tenantry.domain.prices import CurrencyAmount, PlanPrice

CATALOG: Final = parse_catalog("""
[[plans]]
id = "free"
[[plans]]
id = "pro"
stripe_price_id = ["pro_month", "pro_month_usd", "pro_quarter", "pro_year"]
[[plans]]
id = "business"
stripe_price_id = ["business_month", "business_year", "business_year_usd"]
[[plans]]
id = "metered"
stripe_price_id = "by_use"
""")
PRICES: Final = {
    "pro_month": PlanPrice("pro_month", "month", 1, "eur", 2900),
    "pro_month_usd": PlanPrice("pro_month_usd", "month", 1, "usd", 3100),
    "pro_quarter": PlanPrice("pro_quarter", "month", 3, "eur", 8000),
    "pro_year": PlanPrice("pro_year", "year", 1, "eur", 29000),
    "business_month": PlanPrice("business_month", "month", 1, "eur", 9900),
    "business_year": PlanPrice("business_year", "year", 1, "eur", 99000),
    "business_year_usd": PlanPrice("business_year_usd", "year", 1, "usd", 105000),
    "by_use": PlanPrice("by_use", "month", 1, "eur", None),
}
NEW: Final = CardSituation(current="free", account=None, may_subscribe=True, may_change=False)


def shown(
    situation: CardSituation = NEW,
    chosen: str = "",
    prices: Mapping[str, PlanPrice] | None = PRICES,
    currency: str = "",
) -> PlanCards:
    """The cards, where these prices are known; None are not known yet."""

    def prices_of(plan: Plan) -> tuple[PlanPrice, ...] | None:
        if prices is None:
            return None
        return tuple(prices[each] for each in plan.stripe_price_ids if each in prices)

    return plan_cards(CATALOG, prices_of, situation, chosen, currency)


def card(cards: PlanCards, plan_id: str) -> PlanCard:
    [found] = [card for card in cards.cards if card.plan.id == plan_id]
    return found


GRANTED: Final = CardSituation(current="pro", account=None, may_subscribe=True, may_change=False)
LENT: Final = msgspec.structs.replace(GRANTED, is_lent=True)


def subscribed(price_id: str, current: str | None = "pro", **more: Any) -> CardSituation:
    """The situation of an owner with a subscription to this price."""
    items = (BilledItem("si_1", price_id, 3),)
    is_ending = more.get("is_ending", False)
    subscription = BilledSubscription("sub_1", "active", None, items, is_ending)
    account = CustomerAccount((subscription,) * more.get("subscriptions", 1))
    return CardSituation(current=current, account=account, may_subscribe=False, may_change=True)


def test_periods_are_sorted_by_their_length() -> None:
    periods = shown().periods
    assert [(each.key, each.label) for each in periods] == [
        ("month", "Monthly"),
        ("3-months", "Every 3 months"),
        ("year", "Yearly"),
    ]
    assert [each.key for each in periods if each.is_chosen] == ["month"]


@pytest.mark.parametrize(
    ("chosen", "price_id"),
    [("", "pro_month"), ("year", "pro_year"), ("3-months", "pro_quarter"), ("<b>", "pro_month")],
)
def test_card_has_the_price_of_the_chosen_period(chosen: str, price_id: str) -> None:
    assert card(shown(chosen=chosen), "pro").price == PRICES[price_id]


def test_plan_without_a_price_of_the_period_has_its_first() -> None:
    assert card(shown(chosen="3-months"), "business").price == PRICES["business_month"]


def test_one_period_is_no_choice() -> None:
    assert shown(prices={"pro_month": PRICES["pro_month"]}).periods == []


def test_subscriber_sees_the_present_period_and_currency() -> None:
    cards = shown(subscribed("business_year_usd", "business"))
    assert card(cards, "business").price == PRICES["business_year_usd"]
    assert card(cards, "pro").price == PRICES["pro_year"]  # it has none in dollars


@pytest.mark.parametrize(
    ("situation", "plan_id", "action", "button", "seats"),
    [
        (NEW, "free", None, "", None),
        (NEW, "pro", "subscribe", "Subscribe to pro", 1),
        (NEW, "metered", "subscribe", "Subscribe to metered", None),
        (GRANTED, "pro", None, "", None),
        (LENT, "pro", "subscribe", "Subscribe to pro", 1),
        (LENT, "business", "subscribe", "Subscribe to business", 1),
        (subscribed("pro_month"), "free", "cancel", "Cancel the subscription", None),
        (subscribed("pro_month", is_ending=True), "free", None, "", None),
        (subscribed("pro_month"), "pro", "seats", "Change the seats", 3),
        (subscribed("pro_month"), "business", "change", "Upgrade to business", 3),
        (subscribed("business_month", "business"), "pro", "change", "Downgrade to pro", 3),
        (subscribed("pro_month", subscriptions=2), "business", None, "", None),
        (subscribed("unknown", None), "pro", "change", "Change to pro", 3),
    ],
)
def test_what_a_user_can_do(
    situation: CardSituation, plan_id: str, action: str | None, button: str, seats: int | None
) -> None:
    found = card(shown(situation), plan_id)
    assert (found.action, found.button, found.seats) == (action, button, seats)


def test_other_period_of_the_present_plan_is_a_change() -> None:
    found = card(shown(subscribed("pro_month"), chosen="year"), "pro")
    assert (found.action, found.button) == ("change", "Pay yearly")


def test_plan_is_for_sale_until_it_is_known_that_it_is_not() -> None:
    assert card(shown(prices=None), "pro").action == "subscribe"
    assert card(shown(prices={"business_month": PRICES["business_month"]}), "pro").action is None


def test_reader_can_do_nothing() -> None:
    account = subscribed("pro_month").account
    reader = CardSituation(current="pro", account=account, may_subscribe=False, may_change=False)
    assert {each.action for each in shown(reader).cards} == {None}


IN_TWO: Final = (CurrencyAmount("eur", 2900), CurrencyAmount("jpy", 4800))
IN_CURRENCIES: Final = {
    "pro_month": PlanPrice("pro_month", "month", 1, "eur", 2900, IN_TWO),
    "business_month": PlanPrice(
        "business_month", "month", 1, "eur", 9900, (CurrencyAmount("eur", 9900),)
    ),
}


def paying_in(currency: str | None, situation: CardSituation = NEW) -> CardSituation:
    account = situation.account or CustomerAccount()
    account = msgspec.structs.replace(account, currency=currency)
    return msgspec.structs.replace(situation, account=account)


def amounts(cards: PlanCards) -> list[tuple[str, int | None]]:
    prices = [card(cards, plan).price for plan in ("pro", "business")]
    return [(price.currency, price.amount) for price in prices if price]


@pytest.mark.parametrize("currency", ["", "<b>", "JPY", "chf"])
def test_plans_are_shown_in_the_default_currency_until_another_is_chosen(currency: str) -> None:
    cards = shown(prices=IN_CURRENCIES, currency=currency)
    assert amounts(cards) == [("eur", 2900), ("eur", 9900)]
    assert [(one.label, one.is_chosen) for one in cards.currencies] == [
        ("EUR", True),
        ("JPY", False),
    ]
    assert cards.currency == ""


def test_chosen_currency_counts_where_a_plan_is_sold_in_it() -> None:
    cards = shown(prices=IN_CURRENCIES, currency="jpy")
    assert amounts(cards) == [("jpy", 4800), ("eur", 9900)]
    assert cards.currency == "jpy"


@pytest.mark.parametrize("situation", [NEW, subscribed("pro_month")])
def test_customer_sees_the_own_currency_and_no_choice(situation: CardSituation) -> None:
    cards = shown(paying_in("jpy", situation), prices=IN_CURRENCIES, currency="eur")
    assert amounts(cards) == [("jpy", 4800), ("eur", 9900)]
    assert (cards.currencies, cards.currency) == ([], "")


def test_currency_is_no_choice_without_options_or_for_those_who_cannot_subscribe() -> None:
    assert shown(currency="usd").currencies == []
    reader = msgspec.structs.replace(NEW, may_subscribe=False)
    assert shown(reader, prices=IN_CURRENCIES, currency="jpy").currencies == []
