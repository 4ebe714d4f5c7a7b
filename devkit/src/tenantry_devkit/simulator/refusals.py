"""What the provider refuses of the prices and quantities of a request, in its words."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from tenantry_devkit.simulator.account import ApiError
from tenantry_devkit.simulator.objects import Price

Priced = Sequence[tuple[Price, int | None]]
"""Prices with quantities; those that are metered have none."""

_MOST_ITEMS: Final = 20
_MOST_TRIAL_DAYS: Final = 730


def check_line_items(items: Priced) -> None:
    """Raise `ApiError` unless a checkout of a subscription can have these prices
    (https://docs.stripe.com/api/checkout/sessions/create).
    """
    for number, (price, quantity) in enumerate(items):
        place = f"line_items[{number}]"
        _check_active(price, f"{place}[price]")
        _check_line_quantity(price, quantity, place)
    _check_recurring([price for price, _ in items])


def _check_recurring(recurring: Sequence[Price]) -> None:
    if len(recurring) > _MOST_ITEMS:
        message = f"Checkout supports at most {_MOST_ITEMS} recurring prices."
        raise ApiError(400, message, param="line_items")
    if len({(price.interval, price.interval_count) for price in recurring}) > 1:
        message = "Checkout does not support multiple prices with different billing intervals."
        raise ApiError(400, message, param="line_items")


def _check_line_quantity(price: Price, quantity: int | None, place: str) -> None:
    if price.is_metered and quantity is not None:
        message = (
            "Quantity should not be specified where usage_type is `metered`. "
            f"Remove quantity from `{place}`"
        )
        raise ApiError(400, message, param=f"{place}[quantity]")
    if not price.is_metered and quantity is None:
        message = f"Quantity is required. Add `quantity` to `{place}`"
        raise ApiError(400, message, param=f"{place}[quantity]")
    if quantity is not None and quantity < 1:
        message = "This value must be greater than or equal to 1."
        raise _invalid_integer(message, f"{place}[quantity]")


def check_items(items: Priced, *, params: Sequence[str]) -> None:
    """Raise `ApiError` unless a subscription can have these prices together; ``params`` name their
    places in the request.
    """
    seen = set[str]()
    for (price, quantity), param in zip(items, params, strict=True):
        if price.id in seen:
            message = f"Cannot add multiple subscription items with the same plan: {price.id}"
            raise ApiError(400, message, param=param)
        seen.add(price.id)
        check_quantity(price, quantity, f"{param}[quantity]")
    check_currencies(items, "items")


def check_quantity(price: Price, quantity: int | None, param: str) -> None:
    """Raise `ApiError` for a quantity that an item of a subscription cannot have."""
    if price.is_metered and quantity is not None:
        raise ApiError(400, "You cannot set the quantity for metered plans.", param=param)
    if quantity is not None and quantity < 0:
        raise _invalid_integer("This value must be greater than or equal to 0.", param)


def _invalid_integer(message: str, param: str) -> ApiError:
    return ApiError(400, message, code="parameter_invalid_integer", param=param)


def check_new_prices(prices: Iterable[Price], param: str) -> None:
    """Raise `ApiError` for an archived price: none can be sold any more."""
    for price in prices:
        _check_active(price, param)


def _check_active(price: Price, param: str) -> None:
    if not price.active:
        message = (
            f"The price specified is inactive. This field only accepts active prices: {price.id}"
        )
        raise ApiError(400, message, param=param)


def check_currencies(items: Priced, param: str) -> None:
    first = items[0][0].charged_currency
    for price, _ in items[1:]:
        if price.charged_currency != first:
            raise _unsupported(price, first, param)


def paid_in(items: Priced, currency: str, param: str) -> list[tuple[Price, int | None]]:
    """Return these prices paid in a currency. Raises `ApiError` for one without it
    (https://docs.stripe.com/payments/checkout/localize-prices/manual-currency-prices).
    """
    for price, _ in items:
        if currency not in price.amounts:
            raise _unsupported(price, currency, param)
    return [
        (replace(price, paid_in="" if currency == price.currency else currency), quantity)
        for price, quantity in items
    ]


def _unsupported(price: Price, currency: str, param: str) -> ApiError:
    supported = ", ".join(f"`{each}`" for each in price.amounts)
    if len(price.amounts) > 1:
        message = (
            f"The price specified supports currencies of {supported} "
            f"which doesn't include the expected currency of `{currency}`."
        )
    else:
        message = (
            f"The price specified only supports {supported}. "
            f"This doesn't match the expected currency: `{currency}`."
        )
    return ApiError(400, message, param=param)


def check_customer_currency(customer_currency: str | None, items: Priced) -> None:
    """Raise `ApiError` where a customer pays in another currency already."""
    if customer_currency not in (None, items[0][0].charged_currency):
        message = (
            "You cannot combine currencies on a single customer. This customer has an active "
            "subscription, subscription schedule, discount, quote, invoice item or active "
            f"subscription mode checkout session with currency {customer_currency}."
        )
        raise ApiError(400, message)


def check_trial(days: int, param: str) -> None:
    if days > _MOST_TRIAL_DAYS:
        message = f"The maximum number of trial period days is {_MOST_TRIAL_DAYS} (2 years)."
        raise ApiError(400, message, param=param)
    if days < 0:
        raise _invalid_integer("This value must be greater than or equal to 1.", param)
