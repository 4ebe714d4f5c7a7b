"""Charts of the requests of API keys."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from tenantry.auth.usage import OTHER_KEYS, GroupedUsage
from tenantry.dashboard.context import PageContext
from tenantry.dashboard.labels import isolated, labels, shown_name
from tenantry.domain.usage import ALL_USERS, RequestOutcome, UsageInterval, series

USAGE_SCOPE: Final = "usage:read"
_MOST_KEYS: Final = 5
"""More colors could not be told apart; the file has every key."""
_ALL: Final = "Requests"
_SHOWN_OF_ID: Final = 6


class UsageSpan(NamedTuple):
    """Consecutive hours or days, oldest first."""

    interval: UsageInterval
    times: tuple[datetime, ...]


class Grouping(StrEnum):
    """What a chart tells apart."""

    ALL = "all"
    KEY = "key"
    OUTCOME = "outcome"


class UsageChart(msgspec.Struct, frozen=True):
    """Requests by hour or day: a series for each group that occurred."""

    series: list[tuple[str, str]]
    """The name and the color of each."""
    bars: list[tuple[str, list[int]]]
    """The time, and the number of each series."""
    total: int
    complete_until: datetime


class _Group(NamedTuple):
    name: str
    color: str
    numbers: Sequence[int]


async def usage_chart(ctx: PageContext, key_id: str) -> UsageChart | None:
    """Return the requests of a key in the last 30 days by outcome; None for users who may not see
    usage.
    """
    if not ctx.user.may(USAGE_SCOPE):
        return None
    usage = await ctx.services.usage.outcomes_of_key(ctx.principal, key_id)
    span = UsageSpan(UsageInterval.DAY, usage.times)
    return _chart(ctx, span, _by_outcome(usage), usage.complete_until)


async def tenant_chart(ctx: PageContext, span: UsageSpan, grouping: Grouping) -> UsageChart:
    """Return the requests of the tenant in a time."""
    service = ctx.services.usage
    if grouping is Grouping.KEY:
        by_key = await service.by_key(ctx.principal, span.interval, span.times, _MOST_KEYS)
        of_keys = _by_key(by_key.usage.numbers, by_key.names)
        return _chart(ctx, span, of_keys, by_key.usage.complete_until)
    if grouping is Grouping.OUTCOME:
        usage = await service.by_outcome(ctx.principal, span.interval, span.times)
        return _chart(ctx, span, _by_outcome(usage), usage.complete_until)
    report = await service.in_total(ctx.principal, span.interval, span.times)
    groups = [_Group(_ALL, "accent", series(report.data, span.times))]
    return _chart(ctx, span, groups, report.complete_until)


def key_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of keys for people, by id; several of one name have the end of their id."""
    shown = {key_id: isolated(shown_name(name, key_id)) for key_id, name in names.items()}
    count = Counter(shown.values())
    return {
        key_id: name if count[name] == 1 else f"{name} (…{key_id[-_SHOWN_OF_ID:]})"
        for key_id, name in shown.items()
    }


def _by_outcome(usage: GroupedUsage[RequestOutcome]) -> list[_Group]:
    return [
        _Group(label.short, label.color, numbers)
        for outcome, numbers in usage.numbers.items()
        for label in [labels().request_outcomes[outcome]]
    ]


def _by_key(numbers: Mapping[str, Sequence[int]], names: Mapping[str, str]) -> list[_Group]:
    shown = key_names(names)
    others = {ALL_USERS: ("Users", "soft"), OTHER_KEYS: ("Other keys", "")}
    keys = [key_id for key_id in numbers if key_id not in others]
    colors = {key_id: f"key-{place}" for place, key_id in enumerate(keys, 1)}
    return [
        _Group(*others.get(key_id, (shown.get(key_id, key_id), colors.get(key_id, ""))), counts)
        for key_id, counts in numbers.items()
    ]


def _chart(
    ctx: PageContext, span: UsageSpan, groups: Sequence[_Group], complete_until: datetime
) -> UsageChart:
    occurring = [group for group in groups if any(group.numbers)]
    year = ctx.services.clock().year
    return UsageChart(
        series=[(group.name, group.color) for group in occurring],
        bars=[
            (_time_text(time, span.interval, year), [group.numbers[place] for group in occurring])
            for place, time in enumerate(span.times)
        ],
        total=sum(sum(group.numbers) for group in occurring),
        complete_until=complete_until,
    )


def _time_text(time: datetime, interval: UsageInterval, present_year: int) -> str:
    day = f"{time.day} {time:%b}" if time.year == present_year else f"{time.day} {time:%b %Y}"
    return day if interval is UsageInterval.DAY else f"{day}, {time:%H:%M}"
