"""Durations and times: parsing and formatting."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import click
import pytest
from click.types import FuncParamType

from tenantry_cli.commands import main
from tenantry_cli.output import ago, day, minute
from tenantry_cli.times import future, parse_duration, past
from tests.support.cases import cases

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@cases(
    ("text", "length"),
    [
        ("90d", timedelta(days=90)),
        ("1h30m", timedelta(minutes=90)),
        ("0s", timedelta()),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_duration_is_parsed(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


@cases("text", ["", "90", "d", "1y", "-1d", "1d ", "1.5h", "90D", "999999999w", "1d1", "\u0661d"])
def test_malformed_duration_is_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_duration(text)


def moment(text: str, *, is_past: bool = True) -> datetime:
    """What an option makes of a text at `NOW`."""
    return (past if is_past else future)(text, lambda: NOW)


@cases(
    "text",
    [
        "2026-01-31T11:30:00",
        "2026-01-31T12:30:00+01:00",
        "2026-01-31T11:30:00Z",
        "2026-01-31t11:30:00.000z",
        "30m",
    ],
)
def test_past_is_a_time_or_a_duration_before_now(text: str) -> None:
    assert moment(text) == NOW - timedelta(minutes=30)


@cases("text", ["2026-02-02T12:00:00", "2026-02-02T13:00:00+01:00", "2d", "1d24h"])
def test_future_is_a_time_or_a_duration_after_now(text: str) -> None:
    assert moment(text, is_past=False) == NOW + timedelta(days=2)


def test_a_date_is_its_beginning_in_utc() -> None:
    assert moment("2026-01-30") == datetime(2026, 1, 30, tzinfo=UTC)


@cases(
    ("text", "is_past", "message"),
    [
        (
            "yesterday",
            True,
            "'yesterday' is neither a duration such as 90s, 15m, 1h, 2d or 1w nor an RFC 3339 time",
        ),
        (
            "1y",
            True,
            "'1y' is neither a duration such as 90s, 15m, 1h, 2d or 1w nor an RFC 3339 time",
        ),
        ("1798012300000", True, "'1798012300000' is neither a duration"),
        ("20260131", True, "'20260131' is neither a duration"),
        ("2026-W05-1", True, "'2026-W05-1' is neither a duration"),
        ("\u0662026-01-31", True, "is neither a duration"),
        (
            "-1h",
            True,
            "'-1h' is neither a duration such as 90s, 15m, 1h, 2d or 1w nor an RFC 3339 time",
        ),
        ("", False, "'' is neither a duration such as 90s, 15m, 1h, 2d or 1w nor an RFC 3339 time"),
        ("999999d", True, "'999999d' is too long"),
        ("2026-01-31T12:00:01Z", True, "2026-01-31T12:00:01Z is in the future"),
        ("2026-01-31", False, "2026-01-31 is in the past"),
        ("0s", False, "0s is in the past"),
        ("9999-12-31T23:59:59-01:00", False, "is neither a duration"),
    ],
)
def test_malformed_moments_and_those_on_the_other_side_of_now_are_rejected(
    text: str, message: str, *, is_past: bool
) -> None:
    with pytest.raises(click.BadParameter, match=re.escape(message)):
        moment(text, is_past=is_past)


def test_every_option_that_takes_a_time_parses_it_alike() -> None:
    parsers = {"since": [past], "until": [past, future], "expires_at": [future]}
    taken = [option for option in options(main) if option.name in parsers]
    assert {option.name for option in taken} == parsers.keys()
    for option in taken:
        assert isinstance(option.type, FuncParamType)
        assert option.type.func in parsers[option.name or ""]


def options(group: click.Group) -> Iterator[click.Option]:
    """The options of all commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.resolve_command(context, [name])[1]
        assert command is not None
        if isinstance(command, click.Group):
            yield from options(command)
        yield from (option for option in command.params if isinstance(option, click.Option))


@cases(
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
