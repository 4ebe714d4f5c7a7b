"""Queries of usage: the outcome of a request, intervals, and what a query asks for."""

from datetime import UTC, datetime, timedelta

import pytest

from tenantry.domain import errors
from tenantry.domain.usage import (
    RequestOutcome,
    UsageCount,
    UsageInterval,
    latest,
    outcome_of,
    series,
    usage_query,
)
from tenantry.server.problems import CODES

NOW = datetime(2026, 11, 27, 18, 41, 7, tzinfo=UTC)


def test_each_rejection_of_a_known_caller_has_its_outcome() -> None:
    assert outcome_of("rate_limited") is RequestOutcome.RATE_LIMITED
    assert outcome_of("quota_exceeded") is RequestOutcome.QUOTA_EXCEEDED
    assert outcome_of("api_key_expired") is RequestOutcome.EXPIRED_OR_REVOKED
    assert outcome_of("api_key_revoked") is RequestOutcome.EXPIRED_OR_REVOKED
    assert outcome_of("org_suspended") is RequestOutcome.SUSPENDED


def test_every_other_403_is_forbidden() -> None:
    own = {"org_suspended", "quota_exceeded"}
    found = {code: outcome_of(code) for code in CODES[403] if code not in own}
    assert set(found.values()) == {RequestOutcome.FORBIDDEN}, found


def test_a_fault_of_the_request_is_accepted() -> None:
    assert outcome_of("not_found") is RequestOutcome.ACCEPTED
    assert outcome_of("validation_failed") is RequestOutcome.ACCEPTED


def test_an_undecided_request_is_not_counted() -> None:
    assert outcome_of("auth_unavailable") is None


def test_an_interval_begins_at_the_full_hour_or_at_midnight_utc() -> None:
    there = NOW.astimezone(tz=None)
    assert UsageInterval.HOUR.begin(there) == datetime(2026, 11, 27, 18, tzinfo=UTC)
    assert UsageInterval.DAY.begin(there) == datetime(2026, 11, 27, tzinfo=UTC)


@pytest.mark.parametrize(
    ("interval", "first"),
    [
        (UsageInterval.HOUR, datetime(2026, 11, 26, 19, tzinfo=UTC)),
        (UsageInterval.DAY, datetime(2026, 10, 29, tzinfo=UTC)),
    ],
)
def test_a_query_covers_24_hours_or_30_days_by_default(
    interval: UsageInterval, first: datetime
) -> None:
    wanted = usage_query(interval, None, None, NOW)
    assert (wanted.since, wanted.until) == (first, NOW)
    number = 24 if interval is UsageInterval.HOUR else 30
    assert latest(interval, number, NOW)[0] == first


@pytest.mark.parametrize(("interval", "days"), [(UsageInterval.HOUR, 31), (UsageInterval.DAY, 400)])
def test_a_query_of_too_long_a_time_is_refused(interval: UsageInterval, days: int) -> None:
    longest = timedelta(days=days)
    assert usage_query(interval, NOW - longest, NOW, NOW).until == NOW
    with pytest.raises(errors.ValidationError) as refused:
        usage_query(interval, NOW - longest - timedelta(seconds=1), NOW, NOW)
    assert refused.value.faults[0][0] == "since"


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(errors.ValidationError) as refused:
        usage_query(UsageInterval.DAY, None, NOW.replace(tzinfo=None), NOW)
    assert refused.value.faults[0][0] == "until"


def test_a_series_has_a_zero_where_nothing_was_counted() -> None:
    times = latest(UsageInterval.HOUR, 3, NOW)
    counts = [UsageCount(times[2], 5), UsageCount(times[0], 2), UsageCount(times[2], 1)]
    assert series(counts, times) == (2, 0, 6)
