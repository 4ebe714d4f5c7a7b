"""What a program learns of the features of its caller's tenant."""

import pytest

from tenantry.domain.access import NOTHING, AccessPhase
from tenantry.domain.errors import (
    FeatureNotGrantedError,
    InsufficientScopeError,
    UnknownFeatureError,
)
from tenantry.domain.feature_access import NO_FEATURES, FeatureAccess, feature_access_of, listed
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import parse_catalog
from tenantry.in_process.access_rules import requirement_of
from tests.support.cases import cases
from tests.support.feature_catalog import CATALOG
from tests.support.principals import ONLY_FREE, make_principal, with_features

PRO = AccessPhase("full", "pro", "The subscription is active.")
FEATURES = parse_catalog(CATALOG)


def caller(phase: AccessPhase = PRO) -> RequestPrincipal:
    return with_features(make_principal("reports:read"), feature_access_of(phase, FEATURES))


def test_features_are_those_of_the_plan_that_counts_now() -> None:
    assert caller().features == ("exports", "seats", "sso")
    assert caller(NOTHING).features == ()
    assert caller().has("sso")
    assert not caller().has("audit-log")


def test_scope_is_required_before_the_feature() -> None:
    with pytest.raises(InsufficientScopeError):
        caller().require("reports:write", feature="audit-log")
    with pytest.raises(FeatureNotGrantedError):
        caller().require("reports:read", feature="audit-log")
    caller().require("reports:read", feature="sso")


@pytest.mark.parametrize("phase", [PRO, NOTHING])
def test_unknown_feature_is_an_error_that_names_it_for_every_tenant(phase: AccessPhase) -> None:
    for ask in (caller(phase).has, caller(phase).feature_access.require):
        with pytest.raises(UnknownFeatureError, match="has no feature 'ssso'"):
            ask("ssso")


def test_catalog_without_features_has_one_value_for_all_callers() -> None:
    assert feature_access_of(PRO, ONLY_FREE) is NO_FEATURES
    assert make_principal().feature_access is NO_FEATURES
    with pytest.raises(UnknownFeatureError):
        make_principal().has("sso")


def test_principal_has_a_hash() -> None:
    assert hash(caller()) != hash(make_principal())
    assert hash(FeatureAccess({"sso": True}))


@cases("name", ["", "SSO", "sso ", "a" * 65, "é"])
def test_route_cannot_need_a_name_that_no_feature_has(name: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a feature"):
        requirement_of(None, "live", name)


@cases("lengths", [[64, 64, 64, 61], [10] * 23 + [3], [1] * 127 + [2]])
def test_list_of_256_characters_is_whole(lengths: list[int]) -> None:
    names = tuple("f" * length for length in lengths)
    assert len(",".join(names)) == 256
    assert listed(names) == ",".join(names)


@cases("lengths", [[64, 64, 64, 62], [10] * 23 + [4], [64] * 100, [1] * 129])
def test_longer_list_is_cut_at_a_name_and_says_so(lengths: list[int]) -> None:
    names = tuple("f" * length for length in lengths)
    text = listed(names)
    *kept, last = text.split(",")
    assert last == "..."
    assert tuple(kept) == names[: len(kept)]
    assert len(text) <= 256
    assert len(",".join(names[: len(kept) + 1])) + len(",...") > 256
