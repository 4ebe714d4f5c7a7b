"""What the provider refuses of the prices, quantities and texts of a request, in its words."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tenantry_devkit.simulator.account import ApiError
from tenantry_devkit.simulator.objects import Price

Priced = Sequence[tuple[Price, int | None]]
"""Prices with quantities; those that are metered have none."""

_MOST_ITEMS: Final = 20
_MOST_TRIAL_DAYS: Final = 730
_MOST_METADATA: Final = 50
_LONGEST_KEY: Final = 40
_LONGEST_VALUE: Final = 500
_LONGEST_REFERENCE: Final = 200
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


def check_line_items(items: Priced, mode: str) -> None:
    """Raise `ApiError` unless a checkout of a mode can have these prices
    (https://docs.stripe.com/api/checkout/sessions/create).
    """
    for number, (price, quantity) in enumerate(items):
        place = f"line_items[{number}]"
        _check_active(price, f"{place}[price]")
        _check_line_quantity(price, quantity, place)
    recurring = [price for price, _ in items if price.is_recurring]
    _check_mode(mode, recurring)
    _check_recurring(recurring)
    check_currencies(items, "line_items")


def _check_mode(mode: str, recurring: Sequence[Price]) -> None:
    if mode == "subscription" and not recurring:
        raise ApiError(
            400,
            "You must provide at least one recurring price in `subscription` mode when using prices.",
        )
    if mode == "payment" and recurring:
        message = (
            "You specified `payment` mode but passed a recurring price. "
            "Either switch to `subscription` mode or use only one-time prices."
        )
        raise ApiError(400, message)


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
        if not price.is_recurring:
            message = (
                "The price specified is set to `type=one_time` but this field only accepts "
                "prices with `type=recurring`."
            )
            raise ApiError(400, message, param=f"{param}[price]")
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
    first = items[0][0].currency
    for price, _ in items[1:]:
        if price.currency != first:
            message = (
                f"The price specified only supports `{price.currency}`. "
                f"This doesn't match the expected currency: `{first}`."
            )
            raise ApiError(400, message, param=param)


def check_customer_currency(customer_currency: str | None, items: Priced) -> None:
    """Raise `ApiError` where a customer pays in another currency already."""
    if customer_currency not in (None, items[0][0].currency):
        message = (
            "You cannot combine currencies on a single customer. This customer has an active "
            "subscription, subscription schedule, discount, quote, or invoice item with currency "
            f"{customer_currency}."
        )
        raise ApiError(400, message)


def check_trial(days: int, param: str) -> None:
    if days > _MOST_TRIAL_DAYS:
        message = f"The maximum number of trial period days is {_MOST_TRIAL_DAYS} (2 years)."
        raise ApiError(400, message, param=param)
    if days < 0:
        raise _invalid_integer("This value must be greater than or equal to 1.", param)


def check_buyer(email: str | None, reference: str | None) -> None:
    """Raise `ApiError` for texts that a checkout does not accept of its buyer."""
    if email is not None and not _EMAIL.fullmatch(email):
        message = f"Invalid email address: {email}"
        raise ApiError(400, message, code="email_invalid", param="customer_email")
    if reference is not None and len(reference) > _LONGEST_REFERENCE:
        message = f"Invalid string: it must be at most {_LONGEST_REFERENCE} characters"
        raise ApiError(400, message, param="client_reference_id")


def check_metadata(metadata: Mapping[str, str | None], param: str) -> None:
    """Raise `ApiError` for more or longer metadata than an object can have
    (https://docs.stripe.com/metadata).
    """
    if len(metadata) > _MOST_METADATA:
        message = f"Metadata can have at most {_MOST_METADATA} keys."
        raise ApiError(400, message, param=param)
    for name, value in metadata.items():
        if len(name) > _LONGEST_KEY:
            message = f"Metadata keys can have up to {_LONGEST_KEY} characters."
            raise ApiError(400, message, param=f"{param}[{name}]")
        if len(value or "") > _LONGEST_VALUE:
            message = f"Metadata values can have up to {_LONGEST_VALUE} characters."
            raise ApiError(400, message, param=f"{param}[{name}]")
