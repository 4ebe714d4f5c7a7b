"""When an answer of the provider was true, and which mode a key of its API acts in."""

import math
from datetime import UTC, datetime, timedelta
from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantry.common.clock import EPOCH_MAX
from tenantry.common.secret import Secret
from tenantry.integrations.stripe.client import mode_of_key
from tenantry.integrations.stripe.connection import second_sent
from tests.support.events import NOW
from tests.support.provider_api import DATE

OURS = datetime(2030, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)
OUR_SECOND = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("elapsed", "earlier"),
    [(0.0, 0), (1e-9, 1), (0.2, 1), (1.0, 1), (1.000001, 2), (30.5, 31), (3600.0, 3600)],
)
def test_the_question_came_before_the_answer_by_no_more_than_what_passed(
    elapsed: float, earlier: int
) -> None:
    assert second_sent(DATE, elapsed, OURS) == NOW - earlier


@settings(max_examples=100)
@given(
    asked=st.integers(10**15, 4 * 10**15),
    until_written=st.integers(0, 60 * 10**6),
    until_read=st.integers(0, 60 * 10**6),
)
def test_the_question_is_never_placed_too_late(
    asked: int, until_written: int, until_read: int
) -> None:
    # All in microseconds of the provider's clock.
    date = formatdate((asked + until_written) // 10**6, usegmt=True)
    elapsed = timedelta(microseconds=until_written + until_read).total_seconds()
    second = second_sent(date, elapsed, OURS)
    assert second <= asked // 10**6
    assert second >= asked // 10**6 - math.ceil(elapsed)


@pytest.mark.parametrize("date", ["Thursday, 01-Jan-26 12:00:00 GMT", "Thu Jan  1 12:00:00 2026"])
def test_the_old_forms_of_a_date(date: str) -> None:
    assert second_sent(date, 0.5, OURS) == NOW - 1


@pytest.mark.parametrize(
    "date",
    [
        None,
        "",
        "now",
        "1767268800",
        "Thu, 32 Jan 2026 12:00:00 GMT",
        "Thu, 01 Jan 99999 12:00:00 GMT",
        "Thu, 01 Jan 2026 12:00:00 +99999999999999999999",
        "Thu, 01 Jan 2026 12:00:00 +2400",
        "Fri, 31 Dec 1000 23:59:59 GMT",
        "Fri, 31 Dec 9999 23:59:59 -0500",
        "Thu, 01 Jan 1970 00:00:00 GMT",
    ],
)
def test_without_a_usable_date_our_clock_counts(date: str | None) -> None:
    assert second_sent(date, 0.5, OURS) == OUR_SECOND


@settings(max_examples=100)
@given(st.text(), st.floats(0, 100))
def test_any_text_is_a_date_or_none(date: str, elapsed: float) -> None:
    assert 0 <= second_sent(date, elapsed, OURS) <= EPOCH_MAX


@pytest.mark.parametrize(
    ("key", "live"),
    [
        ("sk_live_51Abc", True),
        ("rk_live_51Abc", True),
        ("sk_test_51Abc", False),
        ("rk_test_51Abc", False),
        ("pk_live_51Abc", None),
        ("sk_livelier", None),
        ("SK_LIVE_51Abc", None),
        ("whatever", None),
        ("", None),
    ],
)
def test_the_mode_of_a_key(key: str, live: bool | None) -> None:
    assert mode_of_key(Secret(key)) is live
