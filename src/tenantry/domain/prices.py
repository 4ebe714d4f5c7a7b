"""What plans cost: prices of the provider."""

from typing import Annotated, Final, Literal

import msgspec

from tenantry.common.encoding import doc

Interval = Literal["day", "week", "month", "year"]
_DAYS: Final[dict[Interval, int]] = {"day": 1, "week": 7, "month": 30, "year": 365}


class CurrencyAmount(msgspec.Struct, frozen=True, rename="camel"):
    """What a price costs in a currency."""

    currency: Annotated[str, doc("The currency, as three lowercase letters (ISO 4217).", "usd")]
    amount: Annotated[
        int | None, doc("The amount, as that of the price: null where it depends on use.", 3100)
    ]


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
    currencies: Annotated[
        tuple[CurrencyAmount, ...],
        doc("What it costs in each currency that it is sold in, its own first."),
    ] = ()

    @property
    def days(self) -> int:
        """About how long a period is; to sort by."""
        return _DAYS[self.interval] * self.interval_count

    def shown_in(self, currency: str | None) -> "PlanPrice":
        """Return the price in a currency, or as it is where it is not sold in that."""
        for option in self.currencies:
            if option.currency == currency:
                return msgspec.structs.replace(self, currency=option.currency, amount=option.amount)
        return self
