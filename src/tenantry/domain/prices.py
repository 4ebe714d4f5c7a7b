"""What plans cost: prices of the provider, and amounts in words."""

import re
from decimal import Decimal
from typing import Annotated, Final, Literal, Protocol

import msgspec

from tenantry.common.encoding import doc

Interval = Literal["day", "week", "month", "year"]
_DAYS: Final[dict[Interval, int]] = {"day": 1, "week": 7, "month": 30, "year": 365}
_WITHOUT_DECIMALS: Final = "BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF VND VUV XAF XOF XPF"
_WITH_THREE: Final = "BHD IQD JOD KWD LYD OMR TND"
# Decimals of the provider's amounts by currency; two for all others. ISK and UGX have none, but are
# sent with two.
_DECIMALS: Final = {
    **dict.fromkeys(_WITHOUT_DECIMALS.split(), 0),
    **dict.fromkeys(_WITH_THREE.split(), 3),
}


class PlanPrice(msgspec.Struct, frozen=True, rename="camel"):
    """What a plan costs each period, for each seat where the plan has seats."""

    id: Annotated[str, doc("The provider's price id.", "price_pro")]
    interval: Annotated[
        Interval, doc("The unit of the period: `day`, `week`, `month` or `year`.", "month")
    ]
    interval_count: Annotated[int, doc("How many of these units a period has.", 1)]
    currency: Annotated[str, doc("The currency, as three lowercase letters (ISO 4217).", "eur")]
    amount: Annotated[
        int | None,
        doc(
            "The amount in the currency's smallest unit, such as cents, or yen; null where it "
            "depends on use: tiered, metered and packaged prices.",
            2900,
        ),
    ]

    @property
    def days(self) -> int:
        """About how long a period is; to sort by."""
        return _DAYS[self.interval] * self.interval_count


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
