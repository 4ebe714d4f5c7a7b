"""Durations and times: parsing and formatting."""

from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from tenantry.cli.output import ago, day, minute, parse_duration, parse_time

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "length"),
    [("90d", timedelta(days=90)), ("1h30m", timedelta(minutes=90)), ("0s", timedelta()), ("2w", timedelta(weeks=2))],
)
def test_duration_is_parsed(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


@pytest.mark.parametrize("text", ["", "90", "d", "1y", "-1d", "1d ", "1.5h", "90D", "999999999w", "1d1"])
def test_malformed_duration_is_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_duration(text)


def test_time_without_a_zone_is_in_utc() -> None:
    assert parse_time("2026-01-31T12:00:00") == NOW
    assert parse_time("2026-01-31T13:00:00+01:00") == NOW


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (timedelta(0), "now"),
        (timedelta(seconds=-5), "now"),
        (timedelta(seconds=59), "59 s ago"),
        (timedelta(minutes=59, seconds=59), "59 min ago"),
        (timedelta(hours=23), "23 h ago"),
        (timedelta(days=366), "366 d ago"),
        (timedelta(days=400), "2024-12-27"),
    ],
)
def test_age_in_the_largest_unit(before: timedelta, said: str) -> None:
    assert ago(NOW - before, NOW) == said


def test_none_is_never_or_a_dash() -> None:
    assert (ago(None, NOW), day(None), minute(None)) == ("never", "-", "-")


def test_days_and_minutes_are_in_utc() -> None:
    moment = NOW.astimezone(timezone(timedelta(hours=13)))
    assert (day(moment), minute(moment)) == ("2026-01-31", "2026-01-31 12:00")
