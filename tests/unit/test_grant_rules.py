"""The rules of grants: their terms, and what several give together."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import pytest

from tenantry.domain.errors import GrantLimitReachedError, ValidationError
from tenantry.domain.grants import (
    MOST_GRANTS,
    GrantInput,
    GrantTerms,
    HeldGrant,
    check_number_of_grants,
    combined_features,
    combined_limits,
    new_terms,
    terms_words,
)
from tenantry.domain.plans import parse_catalog

NOW: Final = datetime(2026, 12, 1, tzinfo=UTC)
CATALOG: Final = parse_catalog('[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\n')
terms: Final = partial(GrantTerms, "one")


def test_terms_name_limits_as_the_catalog_does() -> None:
    wanted = GrantInput("why", limits={"requestsPerMinute": 7, "apiKeys": 3})
    assert new_terms("one", wanted, CATALOG, NOW).limits == (
        ("api_keys", 3),
        ("requests_per_minute", 7),
    )


@pytest.mark.parametrize("microseconds", [0, 999_999])
def test_grant_that_would_end_at_once_is_refused(microseconds: int) -> None:
    until = NOW + timedelta(microseconds=microseconds)
    with pytest.raises(ValidationError) as refused:
        new_terms("one", GrantInput("why", "pro", until=until), CATALOG, NOW)
    assert refused.value.faults == (("until", "must be in the future"),)


def test_every_fault_is_named_at_once() -> None:
    wanted = GrantInput("", "gold", {"sso": True}, {"seats": 1}, NOW)
    with pytest.raises(ValidationError) as refused:
        new_terms("no name", wanted, CATALOG, NOW)
    locations = [location for location, _ in refused.value.faults]
    assert locations == ["name", "plan", "features", "limits", "reason", "until"]


def test_of_several_values_the_greatest_counts_and_true_has_no_limit() -> None:
    some = terms(features=(("exports", 5), ("sso", None)), limits=(("projects", 9),))
    more = terms(features=(("exports", None),), limits=(("members", 2), ("projects", 3)))
    for grants in ([some, more], [more, some]):
        assert combined_features(grants) == (("exports", None), ("sso", None))
        assert combined_limits(grants) == (("members", 2), ("projects", 9))


def test_ended_grants_do_not_count_for_the_most() -> None:
    held = [HeldGrant(terms(plan="pro"), 0) for _ in range(MOST_GRANTS - 1)]
    past, ended = HeldGrant(terms(until=1), 0), HeldGrant(terms(), 0, ended_at=1)
    check_number_of_grants([*held, past, ended], NOW)
    with pytest.raises(GrantLimitReachedError):
        check_number_of_grants([*held, HeldGrant(terms(), 0)], NOW)


def test_words_say_what_a_grant_gives_and_until_when() -> None:
    given = terms(
        plan="pro",
        features=(("exports", 5), ("sso", None)),
        limits=(("api_keys", 7),),
        until=int(NOW.timestamp()),
    )
    assert terms_words(given) == (
        "plan pro, exports 5, sso, apiKeys 7, until 2026-12-01 00:00:00 UTC"
    )


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("by invoice", "By contract: by invoice."),
        ("Paid by invoice.", "By contract: Paid by invoice."),
    ],
)
def test_reason_is_a_sentence(reason: str, sentence: str) -> None:
    assert terms(reason=reason).sentence == sentence
