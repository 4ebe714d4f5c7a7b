"""Words for what plans cost and allow. The client's commands have this file too, by a link."""

import re
from decimal import Decimal
from typing import Final, Protocol

_WITHOUT_DECIMALS: Final = "BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF VND VUV XAF XOF XPF"
_WITH_THREE: Final = "BHD IQD JOD KWD LYD OMR TND"
# Decimals of the provider's amounts by currency; two for all others. ISK and UGX have none, but are
# sent with two.
_DECIMALS: Final = {
    **dict.fromkeys(_WITHOUT_DECIMALS.split(), 0),
    **dict.fromkeys(_WITH_THREE.split(), 3),
}


class LimitValues(Protocol):
    """The limits of a plan, of the service or of the SDK."""

    @property
    def projects(self) -> int | None: ...
    @property
    def api_keys(self) -> int | None: ...
    @property
    def members(self) -> int | None: ...
    @property
    def requests_per_minute(self) -> int | None: ...
    @property
    def requests_per_minute_per_key(self) -> int | None: ...


class PriceValues(Protocol):
    """A price of the service or of the SDK."""

    @property
    def interval(self) -> str: ...
    @property
    def interval_count(self) -> int: ...
    @property
    def currency(self) -> str: ...
    @property
    def amount(self) -> int | None: ...


def limit_words(limits: LimitValues) -> str:
    """Say what a plan allows: ``3 projects, 10 API keys, 6,000 requests a minute``."""
    return ", ".join(limit_list(limits)) or "no limits"


def limit_list(limits: LimitValues) -> list[str]:
    """Return the words of each limit that a plan has."""
    parts = [
        _number_of(limits.projects, "project", "projects"),
        _number_of(limits.api_keys, "API key", "API keys"),
        _number_of(limits.members, "member", "members"),
        _number_of(limits.requests_per_minute, "request a minute", "requests a minute"),
        _number_of(
            limits.requests_per_minute_per_key,
            "request a minute per credential",
            "requests a minute per credential",
        ),
    ]
    return [part for part in parts if part]


def _number_of(number: int | None, one: str, many: str) -> str:
    if number is None:
        return ""
    return f"{number:,} {one if number == 1 else many}"


def price_words(price: PriceValues) -> str:
    """Say what a plan costs: ``29.00 EUR a month``, ``by use``."""
    amount = format_amount(price.amount, price.currency)
    return "by use" if amount is None else f"{amount} {period_words(price)}"


def period_words(price: PriceValues) -> str:
    """Say how often it is charged: ``a month``, ``every 2 weeks``."""
    if price.interval_count == 1:
        return f"a {price.interval}"
    return f"every {price.interval_count} {price.interval}s"


def format_amount(amount: int | None, currency: str | None) -> str | None:
    """Format an amount in the smallest unit: ``1,234.50 USD``, ``500 JPY``; None without a valid
    currency.
    """
    code = (currency or "").upper()
    if amount is None or not re.fullmatch("[A-Z]{3}", code):
        return None
    decimals = _DECIMALS.get(code, 2)
    return f"{Decimal(amount).scaleb(-decimals):,.{decimals}f} {code}"
