"""Features of the plan catalog: what they are, and how much of them plans, add-ons and grants
give.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final, Literal

import msgspec

from tenantry.domain.catalog_texts import check_text

FeatureType = Literal["boolean", "limit", "metered"]
PeriodKind = Literal["month", "billing", "billing_month"]

LARGEST_VALUE: Final = 2**53 - 1
"""The largest number that every reader of JSON keeps exactly."""
FeatureValue = bool | Annotated[int, msgspec.Meta(ge=1, le=LARGEST_VALUE)]
"""How much is given of a feature: a number, or ``True``, which has no limit."""
Features = Mapping[str, FeatureValue]
"""What is given, by the feature's id. An absent feature is denied."""

_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)
_LONGEST_UNIT: Final = 32


def is_feature_id(text: str) -> bool:
    """Whether ``text`` has the form of a feature's id."""
    return _ID.fullmatch(text) is not None


class Feature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A feature of the catalog.

    A ``boolean`` feature is given or not. A ``limit`` is a number that the application enforces. A
    ``metered`` one counts its use in each ``period``, by itself where it ``counts`` requests.
    """

    id: str
    type: FeatureType
    unit: str | None = None
    period: PeriodKind | None = None
    counts: Literal["requests"] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not is_feature_id(self.id):
            raise ValueError("id must be 1 to 64 of a-z, 0-9, '_' and '-', and begin with a letter")
        if self.type != "metered" and self.period is not None:
            raise ValueError(f"a {self.type} feature has no period")
        if self.type != "metered" and self.counts is not None:
            raise ValueError("only a metered feature counts requests")
        self._check_unit()
        check_text("name", self.name)

    @property
    def label(self) -> str:
        """What people call it: its name, or its id without one."""
        return self.name or self.id

    @property
    def usage_period(self) -> PeriodKind:
        """The period of a metered feature, ``month`` unless the catalog says otherwise."""
        return self.period or "month"

    def _check_unit(self) -> None:
        if self.unit is None:
            return
        if self.type == "boolean":
            raise ValueError("a boolean feature has no unit")
        check_text("unit", self.unit, _LONGEST_UNIT)


def value_faults(given: Mapping[str, object], known: Mapping[str, Feature]) -> Iterator[str]:
    """Yield what is wrong with features that a plan, an add-on or a grant gives."""
    for name, value in given.items():
        feature = known.get(name)
        if feature is None:
            yield f"unknown feature {name!r}"
        elif value is False:
            yield f"feature {name!r} is false: leave it out, and it is denied"
        elif feature.type == "boolean" and value is not True:
            yield f"feature {name!r} is boolean: give true"
        elif not _is_value(value):
            yield f"feature {name!r}: give true or a whole number from 1 to {LARGEST_VALUE}"


def _is_value(value: object) -> bool:
    return isinstance(value, int) and 1 <= value <= LARGEST_VALUE


def counting_faults(features: Iterable[Feature], plans: Mapping[str, Features]) -> Iterator[str]:
    """Yield what is wrong with the feature that counts requests, given what each plan gives."""
    counting = [feature.id for feature in features if feature.counts]
    if len(counting) > 1:
        yield f"{', '.join(counting)}: only one feature may count requests"
    for name in counting:
        for plan, given in plans.items():
            if name not in given:
                yield (
                    f"plan {plan!r}: lacks the feature {name!r}, so that every request would be "
                    "rejected: give a number or true"
                )


def added(value: FeatureValue | None, more: FeatureValue, quantity: int = 1) -> FeatureValue:
    """Return a value with ``quantity`` times ``more``; what has no limit stays so."""
    if value is True or more is True:
        return True
    return min((value or 0) + more * quantity, LARGEST_VALUE)


def greater(value: FeatureValue | None, other: FeatureValue | None) -> FeatureValue | None:
    """Return the greater of two values; None is nothing."""
    if value is True or other is True:
        return True
    return max(value or 0, other or 0) or None


def number_of(value: FeatureValue) -> int | None:
    """Return the number of a value; None for True. See `access.GrantedFeatures`."""
    return None if value is True else value


def value_of(number: int | None) -> FeatureValue:
    """Return the value with this number, as `number_of`."""
    return True if number is None else number


def feature_words(feature: Feature, value: FeatureValue) -> str:
    """Say what is given of a feature: ``Single sign-on``, ``5 seats``, ``10,000 calls a month``."""
    if feature.type == "boolean":
        return feature.label
    return amount_words(feature, value, feature.unit or feature.label)


def amount_words(feature: Feature, value: FeatureValue, noun: str) -> str:
    """Say how much is given of a limit or a metered feature: ``10,000 calls a month``."""
    number = "unlimited" if value is True else f"{value:,}"
    words = f"{number} {noun}".rstrip()
    if feature.type != "metered" or value is True:
        return words
    return f"{words} {_PERIOD_WORDS[feature.usage_period]}"


_PERIOD_WORDS: Final[Mapping[PeriodKind, str]] = {
    "month": "a month",
    "billing": "a billing period",
    "billing_month": "a billing month",
}
