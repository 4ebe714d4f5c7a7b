"""Which features a tenant has, how much of each, and what they come from."""

import pytest

from tenantry.domain.access import AccessPhase
from tenantry.domain.entitlements import Source, features_of, source_of
from tenantry.domain.features import LARGEST_VALUE, FeatureValue, added, greater
from tenantry.domain.plans import parse_catalog

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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
