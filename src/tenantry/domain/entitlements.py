"""Entitlements: which features a tenant has now, how much of each, and the periods in which use is
counted.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from tenantry.common.clock import from_epoch
from tenantry.common.encoding import doc
from tenantry.domain.access import AccessPhase
from tenantry.domain.billing_months import BillingMonths
from tenantry.domain.errors import (
    FeatureNotGrantedError,
    FeatureNotMeteredError,
    QuotaExceededError,
    UnknownFeatureError,
)
from tenantry.domain.features import (
    LARGEST_VALUE,
    Feature,
    Features,
    FeatureType,
    FeatureValue,
    greater,
    value_of,
)
from tenantry.domain.plans import Catalog

Source = Literal["plan", "addon", "grant"]
MOST_AT_ONCE: Final = 1_000_000_000
"""The most that one request may consume."""
_REMEMBERED: Final = 256
_DECEMBER: Final = 12


class UsagePeriod(NamedTuple):
    """A period in which use is counted, in seconds since the Unix epoch; ``end`` is the first
    second after it.
    """

    start: int
    end: int


class BillingPhase(msgspec.Struct, frozen=True, omit_defaults=True):
    """The billing period and the billing months that quotas of a tenant follow until a second,
    which is None without an end; without a ``period``, or ``months``, they follow the calendar
    month.
    """

    period: UsagePeriod | None = None
    until: int | None = None
    months: BillingMonths | None = None


class Usage(NamedTuple):
    """What a tenant used of a feature in a period."""

    used: int
    period: UsagePeriod


class Entitlement(msgspec.Struct, frozen=True, rename="camel"):
    """What a tenant has of a feature now."""

    feature: Annotated[str, doc("The feature's id in the catalog.", "exports")]
    type: Annotated[
        FeatureType,
        doc(
            "`boolean`: given or not. `limit`: a number that your application enforces. `metered`: "
            "counted in each period.",
            "metered",
        ),
    ]
    granted: Annotated[bool, doc("Whether the tenant has the feature.", example=True)]
    limit: Annotated[
        int | None,
        doc(
            "How much it has; null without a limit and for a boolean feature, 0 if it is not granted.",
            1000,
        ),
    ]
    used: Annotated[
        int | None, doc("What a metered feature counts in this period; else null.", 120)
    ]
    remaining: Annotated[
        int | None,
        doc("The rest of a metered feature's limit, never below 0; else null.", 880),
    ]
    resets_at: Annotated[
        datetime | None,
        doc(
            "When the next period of a metered feature begins; else null.",
            "2026-12-01T00:00:00Z",
        ),
    ]
    source: Annotated[
        Source | None,
        doc(
            "What gives it: the `plan`; an `addon`, also where that adds to the plan's; a `grant`, "
            "where that gives more than both. Null if it is not granted.",
            "plan",
        ),
    ]


class Consumed(msgspec.Struct, frozen=True, rename="camel"):
    """What is used of a metered feature after a request consumed some or gave some back."""

    used: Annotated[int, doc("What is used in this period after the request.", 121)]
    remaining: Annotated[int | None, doc("The rest in this period; null without a limit.", 879)]
    resets_at: Annotated[datetime, doc("When the next period begins.", "2026-12-01T00:00:00Z")]


@lru_cache(_REMEMBERED)  # where requests are counted, every request asks
def features_of(phase: AccessPhase, catalog: Catalog) -> Features:
    """Return the features that count now, by id; an absent one is denied.

    True means that a boolean feature is given, or that another one has no limit. What has left the
    catalog does not count.
    """
    given = catalog.given_features(phase.plan, phase.addons)
    if not phase.features:
        return given
    granted = {name: value_of(number) for name, number in phase.features}
    return _with_granted(given, granted, catalog)


def _with_granted(given: Features, granted: Features, catalog: Catalog) -> Features:
    names = [name for name in catalog.features if name in given or name in granted]
    values = {name: greater(given.get(name), granted.get(name)) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def source_of(name: str, phase: AccessPhase, catalog: Catalog) -> Source | None:
    """Return what a feature comes from, as `Entitlement.source`."""
    value = features_of(phase, catalog).get(name)
    if value is None:
        return None
    if _is_same(value, catalog.given_features(phase.plan), name):
        return "plan"
    if _is_same(value, catalog.given_features(phase.plan, phase.addons), name):
        return "addon"
    return "grant"


def _is_same(value: FeatureValue, given: Features, name: str) -> bool:
    other = given.get(name)
    return value == other and (value is True) == (other is True)  # True is 1, but not the number


def limit_of(value: FeatureValue | None) -> int | None:
    """Return the limit that a value of a feature means: None without one, 0 if it is absent."""
    return None if value is True else value or 0


def known_feature(name: str, catalog: Catalog) -> Feature:
    """Return a feature of the catalog. Raises `UnknownFeatureError`."""
    feature = catalog.features.get(name)
    if feature is None:
        raise UnknownFeatureError(name)
    return feature


def consumable_feature(name: str, catalog: Catalog) -> Feature:
    """Return a metered feature that callers consume. Raises `UnknownFeatureError` and
    `FeatureNotMeteredError`.
    """
    feature = known_feature(name, catalog)
    if feature.type != "metered":
        raise FeatureNotMeteredError(
            f"The feature {name!r} is a {feature.type} feature: only metered ones are consumed."
        )
    if feature.counts:
        raise FeatureNotMeteredError(
            f"The feature {name!r} counts requests by itself: it cannot be consumed."
        )
    return feature


def given_value(feature: Feature, phase: AccessPhase, catalog: Catalog) -> FeatureValue:
    """Return how much a tenant has of a feature now. Raises `FeatureNotGrantedError`."""
    value = features_of(phase, catalog).get(feature.id)
    if value is None:
        raise FeatureNotGrantedError(feature.id)
    return value


def entitlement_of(
    feature: Feature, phase: AccessPhase, catalog: Catalog, usage: Usage | None
) -> Entitlement:
    """Return what a tenant has of a feature; ``usage`` is that of a metered one."""
    value = features_of(phase, catalog).get(feature.id)
    limit = None if feature.type == "boolean" else limit_of(value)
    return Entitlement(
        feature.id,
        feature.type,
        value is not None,
        limit,
        usage and usage.used,
        remaining_of(limit, usage.used) if usage else None,
        from_epoch(usage and usage.period.end),
        source_of(feature.id, phase, catalog),
    )


def remaining_of(limit: int | None, used: int) -> int | None:
    """Return the rest of a limit: never below 0, though a limit may have been lowered; None without
    one.
    """
    return None if limit is None else max(0, limit - used)


def consume(usage: Usage, limit: int | None, amount: int, feature: str) -> Usage:
    """Return the usage with ``amount`` more. Raises `QuotaExceededError` if less than that is
    left.
    """
    remaining = remaining_of(limit, usage.used)
    if remaining is not None and amount > remaining:
        reset = from_epoch(usage.period.end).isoformat().replace("+00:00", "Z")
        raise QuotaExceededError(
            f"{remaining:,} of {limit:,} are left of the feature {feature!r} until {reset}, and "
            f"{amount:,} were asked for. Nothing was counted.",
            needed=feature,
        )
    return usage._replace(used=min(usage.used + amount, LARGEST_VALUE))


def consumed_of(usage: Usage, limit: int | None) -> Consumed:
    """Return a usage as the API shows it."""
    return Consumed(usage.used, remaining_of(limit, usage.used), from_epoch(usage.period.end))


NO_BILLING: Final = BillingPhase()


def billing_phase_at(phases: Sequence[BillingPhase], now: float) -> BillingPhase:
    """Return the first phase that has not ended at ``now``, in seconds since the Unix epoch."""
    given = (phase for phase in phases if phase.until is None or now < phase.until)
    return next(given, NO_BILLING)


def period_at(feature: Feature, now: datetime, billing: BillingPhase) -> UsagePeriod:
    """Return the period of a metered feature at ``now``: the calendar month in UTC, or the tenant's
    billing period or month, if it has one.

    A billing period that has ended is followed by others of its length, until the provider reports
    the next one. Periods of the provider follow each other without a gap, so the next one begins
    when the last one ended, however late its event arrives.
    """
    if feature.usage_period == "billing_month" and billing.months is not None:
        return UsagePeriod(*billing.months.at(now.timestamp()))
    if feature.usage_period != "billing" or billing.period is None:
        return _month(now)
    known, length = billing.period, billing.period.end - billing.period.start
    passed = (int(now.timestamp()) - known.start) // length
    start = known.start + max(0, passed) * length
    return UsagePeriod(start, start + length)


def _month(now: datetime) -> UsagePeriod:
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    years, month = divmod(now.month, _DECEMBER)
    end = datetime(now.year + years, month + 1, 1, tzinfo=UTC)
    return UsagePeriod(int(start.timestamp()), int(end.timestamp()))
