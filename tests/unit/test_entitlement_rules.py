"""Which features a tenant has, how much of each, and what they come from."""

from datetime import UTC, datetime

import msgspec
import pytest

from tenantry.domain.access import AccessPhase
from tenantry.domain.entitlements import (
    NO_BILLING,
    BillingPhase,
    Source,
    Usage,
    UsagePeriod,
    consume,
    features_of,
    known_feature,
    limit_of,
    period_at,
    remaining_of,
    source_of,
)
from tenantry.domain.errors import QuotaExceededError, UnknownFeatureError
from tenantry.domain.features import LARGEST_VALUE, Feature, FeatureValue, added, greater
from tenantry.domain.grants import GrantInput, new_terms
from tenantry.domain.plans import parse_catalog
from tests.support.cases import cases

CATALOG = parse_catalog("""
[[features]]
id = "sso"
type = "boolean"
[[features]]
id = "seats"
type = "limit"
[[features]]
id = "exports"
type = "metered"

[[plans]]
id = "free"
[[plans]]
id = "pro"
[plans.features]
seats = 5
exports = 100
[[plans]]
id = "enterprise"
[plans.features]
sso = true
seats = true

[[addons]]
id = "team"
[addons.features]
sso = true
seats = 10
""")


def phase(plan: str, *addons: tuple[str, int]) -> AccessPhase:
    return AccessPhase("full", plan, "", addons=addons)


def test_absent_feature_is_denied() -> None:
    assert features_of(phase("free"), CATALOG) == {}
    assert source_of("sso", phase("free"), CATALOG) is None


def test_addon_is_added_for_each_unit() -> None:
    bought = phase("pro", ("team", 3))
    assert features_of(bought, CATALOG) == {"sso": True, "seats": 35, "exports": 100}


def test_addon_gives_what_the_plan_lacks() -> None:
    assert features_of(phase("free", ("team", 2)), CATALOG) == {"sso": True, "seats": 20}


def test_addon_that_has_left_the_catalog_gives_nothing() -> None:
    assert features_of(phase("free", ("gone", 2)), CATALOG) == {}


def test_what_has_no_limit_stays_so() -> None:
    assert features_of(phase("enterprise", ("team", 3)), CATALOG)["seats"] is True


@cases(
    ("given", "feature", "source"),
    [
        (phase("pro"), "seats", "plan"),
        (phase("pro", ("team", 1)), "seats", "addon"),
        (phase("pro", ("team", 1)), "exports", "plan"),
        (phase("free", ("team", 1)), "sso", "addon"),
        (phase("enterprise", ("team", 1)), "sso", "plan"),
        (phase("enterprise", ("team", 1)), "seats", "plan"),
    ],
)
def test_source_says_what_gives_a_feature(given: AccessPhase, feature: str, source: Source) -> None:
    assert source_of(feature, given, CATALOG) == source


@cases(
    ("value", "other", "result"),
    [
        (None, None, None),
        (None, 3, 3),
        (5, 3, 5),
        (3, True, True),
        (True, 7, True),
        (True, None, True),
    ],
)
def test_greater_value(
    value: FeatureValue | None, other: FeatureValue | None, result: FeatureValue | None
) -> None:
    assert greater(value, other) is result
    assert greater(other, value) is result


def test_sum_stays_a_number_of_json() -> None:
    assert added(LARGEST_VALUE, LARGEST_VALUE, 10_000) == LARGEST_VALUE


def test_grant_counts_where_it_gives_more() -> None:
    granted = msgspec.structs.replace(
        phase("pro", ("team", 1)),
        features=(("exports", 50), ("seats", 20), ("sso", None), ("gone", None)),
    )
    assert features_of(granted, CATALOG) == {"sso": True, "seats": 20, "exports": 100}
    assert source_of("seats", granted, CATALOG) == "grant"
    assert source_of("exports", granted, CATALOG) == "plan"


@cases(
    ("name", "detail"),
    [
        ("backups", "The plan catalog has no feature 'backups'."),
        ("Exports", "The plan catalog has no such feature."),
        ("", "The plan catalog has no such feature."),
        ("svc_live_0aA1bB2cC3dD4eE5fF", "The plan catalog has no such feature."),
    ],
)
def test_unknown_feature_is_named_if_it_may_be_one(name: str, detail: str) -> None:
    with pytest.raises(UnknownFeatureError) as error:
        known_feature(name, CATALOG)
    assert error.value.detail == detail


def test_grant_may_be_without_a_limit() -> None:
    granted = msgspec.structs.replace(phase("free"), features=(("exports", None),))
    assert features_of(granted, CATALOG) == {"exports": True}
    assert source_of("exports", granted, CATALOG) == "grant"


def test_grant_of_one_is_not_taken_for_one_without_a_limit() -> None:
    terms = [
        new_terms(
            "a",
            GrantInput("why", features={"exports": value}),
            CATALOG,
            datetime(2026, 1, 1, tzinfo=UTC),
        )
        for value in (1, True)
    ]
    assert terms[0] != terms[1]
    of_one, unlimited = (
        msgspec.structs.replace(phase("free"), features=each.features) for each in terms
    )
    assert limit_of(features_of(of_one, CATALOG)["exports"]) == 1
    assert limit_of(features_of(unlimited, CATALOG)["exports"]) is None


def test_number_one_is_not_without_a_limit() -> None:
    one = parse_catalog(
        '[[features]]\nid = "seats"\ntype = "limit"\n[[plans]]\nid = "free"\n[plans.features]\nseats = 1\n'
    )
    granted = msgspec.structs.replace(phase("free"), features=(("seats", None),))
    assert features_of(granted, one) == {"seats": True}
    assert source_of("seats", granted, one) == "grant"


DAY = 86_400
JANUARY = UsagePeriod(1_767_225_600, 1_767_225_600 + 31 * DAY)


def moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize("second", [JANUARY.start, JANUARY.end - 1])
def test_month_is_that_of_the_calendar_in_utc(second: int) -> None:
    assert period_at(Feature("exports", "metered"), moment(second), NO_BILLING) == JANUARY


def test_december_ends_with_the_year() -> None:
    december = period_at(Feature("exports", "metered"), moment(JANUARY.start - 1), NO_BILLING)
    assert december == UsagePeriod(JANUARY.start - 31 * DAY, JANUARY.start)


BY_BILLING = Feature("exports", "metered", period="billing")
BILLING = UsagePeriod(JANUARY.start + DAY, JANUARY.start + 31 * DAY)
PHASE = BillingPhase(BILLING)


@cases(
    ("second", "start"),
    [
        (BILLING.start, BILLING.start),
        (BILLING.end - 1, BILLING.start),
        (BILLING.end, BILLING.end),
        (BILLING.end + 30 * DAY - 1, BILLING.end),
        (BILLING.end + 30 * DAY, BILLING.end + 30 * DAY),
        (BILLING.start - 1, BILLING.start),
    ],
)
def test_billing_period_is_followed_by_others_of_its_length(second: int, start: int) -> None:
    assert period_at(BY_BILLING, moment(second), PHASE) == UsagePeriod(start, start + 30 * DAY)


def test_feature_by_month_ignores_the_billing_period() -> None:
    feature = Feature("exports", "metered", period="month")
    assert period_at(feature, moment(BILLING.start), PHASE) == JANUARY


def test_tenant_without_a_billing_period_has_the_calendar_month() -> None:
    assert period_at(BY_BILLING, moment(JANUARY.start), NO_BILLING) == JANUARY


def test_rest_of_a_lowered_limit_is_zero() -> None:
    assert remaining_of(10, 21) == 0
    with pytest.raises(QuotaExceededError):
        consume(Usage(21, JANUARY), 10, 1, "exports")


def test_last_of_a_quota_is_consumed() -> None:
    assert consume(Usage(7, JANUARY), 10, 3, "exports") == Usage(10, JANUARY)


def test_more_than_the_rest_is_refused_whole() -> None:
    with pytest.raises(QuotaExceededError) as error:
        consume(Usage(997, JANUARY), 1000, 5, "exports")
    assert error.value.detail == (
        "3 of 1,000 are left of the feature 'exports' until 2026-02-01T00:00:00Z, and 5 were asked "
        "for. Nothing was counted."
    )


def test_use_without_a_limit_stays_a_number_of_json() -> None:
    assert consume(Usage(LARGEST_VALUE, JANUARY), None, 5, "exports").used == LARGEST_VALUE
