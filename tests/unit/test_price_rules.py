"""Amounts and prices in words."""

import pytest

from tenantry.dashboard.labels import show_amount
from tenantry.domain.plan_words import format_amount, price_words
from tenantry.domain.prices import PlanPrice


@pytest.mark.parametrize(
    ("amount", "currency", "shown"),
    [
        (123450, "usd", "1,234.50 USD"),
        (5, "EUR", "0.05 EUR"),
        (0, "eur", "0.00 EUR"),
        (500, "jpy", "500 JPY"),
        (1234567, "krw", "1,234,567 KRW"),
        (5120, "kwd", "5.120 KWD"),
        (1, "bhd", "0.001 BHD"),
        (-250, "usd", "-2.50 USD"),
        (10**15, "usd", "10,000,000,000,000.00 USD"),
        (500, "isk", "5.00 ISK"),
    ],
)
def test_amounts(amount: int, currency: str, shown: str) -> None:
    assert format_amount(amount, currency) == shown


@pytest.mark.parametrize("currency", ["", "us", "usdt", "u$d", "<b>", "ußd"])
def test_invalid_currency_has_no_amount(currency: str) -> None:
    assert format_amount(100, currency) is None
    assert show_amount(100, currency) is None


def test_amount_on_a_page_has_its_number_for_the_script() -> None:
    assert show_amount(123450, "usd") == (
        '<data value="1234.50" data-currency="USD">1,234.50 USD</data>'
    )


@pytest.mark.parametrize(
    ("price", "words"),
    [
        (PlanPrice("p", "month", 1, "eur", 2900), "29.00 EUR a month"),
        (PlanPrice("p", "year", 1, "jpy", 29000), "29,000 JPY a year"),
        (PlanPrice("p", "week", 2, "usd", 0), "0.00 USD every 2 weeks"),
        (PlanPrice("p", "month", 1, "eur", None), "by use"),
        (PlanPrice("p", "month", 3, "eur", 2900), "29.00 EUR every 3 months"),
    ],
)
def test_price_in_words(price: PlanPrice, words: str) -> None:
    assert price_words(price) == words
