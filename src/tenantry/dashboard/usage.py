"""The usage page: requests over time, and the same as a file."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Response, get

from tenantry.auth.usage import ExportedUsage
from tenantry.dashboard import forms
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.csv_files import CSV_TYPE, csv_lines
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.dashboard.rejections import latest_rejections
from tenantry.dashboard.usage_charts import (
    USAGE_SCOPE,
    Grouping,
    UsageChart,
    UsageSpan,
    tenant_chart,
)
from tenantry.domain.operator_acts import OperatorAction
from tenantry.domain.usage import (
    UsageCount,
    UsageInterval,
    UsageQuery,
    days_between,
    latest,
)

PATH: Final = ORG + "/usage"
_MOST_BARS: Final = 92
_LATEST_REJECTIONS: Final = 20
_DAYS: Final = ("since", "until")


class _Preset(NamedTuple):
    """A time that ends now."""

    interval: UsageInterval
    number: int
    words: str


_PRESETS: Final[Mapping[str, _Preset]] = {
    "24h": _Preset(UsageInterval.HOUR, 24, "24 hours"),
    "7d": _Preset(UsageInterval.DAY, 7, "7 days"),
    "30d": _Preset(UsageInterval.DAY, 30, "30 days"),
    "90d": _Preset(UsageInterval.DAY, 90, "90 days"),
}
_USUAL: Final = "30d"
_GROUPINGS: Final = {
    Grouping.ALL: "All requests",
    Grouping.KEY: "By key",
    Grouping.OUTCOME: "By outcome",
}


class _DaysForm(msgspec.Struct, frozen=True):
    """The first and the last day."""

    since: date | None
    until: date | None


class _Wanted(NamedTuple):
    """What the address asks for: the name of a preset, or days."""

    preset: str
    days: dict[str, str]
    grouping: Grouping

    @property
    def filters(self) -> dict[str, str]:
        """The parameters of the address of the same time; the usual one has none."""
        if any(self.days.values()):
            return self.days
        return {} if self.preset == _USUAL else {"range": self.preset}


@get(PATH, guards=[PageGuard(USAGE_SCOPE)])
async def show_usage(ctx: Context) -> Response[str]:
    wanted = _wanted(ctx)
    rejection = None
    span: UsageSpan | None = None
    chart: UsageChart | None = None
    try:
        span = _span(ctx, wanted)
        _check_bars(span)
        chart = await tenant_chart(ctx, span, wanted.grouping)
    except forms.InvalidFormError as error:
        rejection = error
    return ctx.render(
        "usage.html",
        rejection,
        wanted=wanted,
        chart=chart,
        by_hour=span is not None and span.interval is UsageInterval.HOUR,
        may_export=span is not None,
        presets=_PRESETS,
        groupings=_GROUPINGS,
        usual=_USUAL,
        in_time=_time_words(wanted),
        query=forms.query_string(wanted.filters),
        quotas=await ctx.services.entitlements.quotas(ctx.principal),
        rejections=await latest_rejections(ctx, _LATEST_REJECTIONS),
    )


@get(PATH + "/export", guards=[PageGuard(USAGE_SCOPE)])
async def export_usage(ctx: Context) -> Response[Any]:
    wanted = _wanted(ctx)
    try:
        span = _span(ctx, wanted)
    except forms.InvalidFormError:
        # that page shows the errors beside the fields
        return ctx.redirect(f"{ctx.user.base}/usage?{forms.query_string(wanted.days)}")
    query = UsageQuery(
        interval=span.interval,
        since=span.times[0],
        until=span.times[-1] + span.interval.length,
        by_key=wanted.grouping is Grouping.KEY,
        by_outcome=wanted.grouping is Grouping.OUTCOME,
    )
    parts = ctx.services.usage.export(ctx.principal, query)
    first = await anext(parts)  # raises before the answer begins
    await ctx.record_act(OperatorAction.USAGE_EXPORTED, "csv")
    name = f"usage-{ctx.principal.org_id}-{span.times[0]:%Y-%m-%d}-{span.times[-1]:%Y-%m-%d}.csv"
    return ctx.renderer.file(_lines(wanted.grouping, first, parts), name, CSV_TYPE)


def _wanted(ctx: PageContext) -> _Wanted:
    preset = ctx.query("range")
    return _Wanted(
        preset if preset in _PRESETS else _USUAL,
        {name: ctx.query(name) for name in _DAYS},
        ctx.choice("by", Grouping) or Grouping.ALL,
    )


def _span(ctx: PageContext, wanted: _Wanted) -> UsageSpan:
    """Return the times to show. Raises `InvalidFormError`."""
    now = ctx.services.clock()
    if not any(wanted.days.values()):
        preset = _PRESETS[wanted.preset]
        return UsageSpan(preset.interval, latest(preset.interval, preset.number, now))
    first, last = _days(wanted.days, UsageInterval.DAY.begin(now))
    return UsageSpan(UsageInterval.DAY, days_between(first, last))


def _days(submitted: Mapping[str, str], today: datetime) -> tuple[date, date]:
    """Return the first and the last day, at the latest ``today``. Raises `InvalidFormError`."""
    valid = forms.validate(
        _DaysForm,
        {name: text or None for name, text in submitted.items()},
        {name: forms.day_fault(text) for name, text in submitted.items()},
    )
    oldest = (today - UsageInterval.DAY.most + UsageInterval.DAY.length).date()
    if valid.since is None:
        raise forms.InvalidFormError({"since": "Enter the first day, too."})
    if valid.since > today.date():
        raise forms.InvalidFormError({"since": "Enter today or an earlier day."})
    if valid.since < oldest:
        text = f"Counts are kept for {UsageInterval.DAY.kept.days} days. Enter {oldest} or a later day."
        raise forms.InvalidFormError({"since": text})
    last = min(valid.until or today.date(), today.date())
    if last < valid.since:
        raise forms.InvalidFormError({"until": "Enter the first day or a later one."})
    return valid.since, last


def _check_bars(span: UsageSpan) -> None:
    """Raise `InvalidFormError` for more days than a chart shows."""
    if len(span.times) > _MOST_BARS:
        text = f"The chart shows at most {_MOST_BARS} days. Enter fewer, or export these as CSV."
        raise forms.InvalidFormError({"until": text})


def _time_words(wanted: _Wanted) -> str:
    """Return the time of a chart as the end of "1,284 requests ..."."""
    if not any(wanted.days.values()):
        return f"in {_PRESETS[wanted.preset].words}"
    since, until = wanted.days.values()
    return f"from {since} through {until}" if until else f"since {since}"


# The file


async def _lines(
    grouping: Grouping, first: ExportedUsage, rest: AsyncIterator[ExportedUsage]
) -> AsyncIterator[bytes]:
    yield csv_lines([_COLUMNS[grouping], *_rows(grouping, first)])
    async for part in rest:
        yield csv_lines(_rows(grouping, part))


_COLUMNS: Final[Mapping[Grouping, Sequence[str]]] = {
    Grouping.ALL: ("time", "requests"),
    Grouping.KEY: ("time", "keyId", "keyName", "requests"),
    Grouping.OUTCOME: ("time", "outcome", "requests"),
}


def _rows(grouping: Grouping, part: ExportedUsage) -> Iterator[Sequence[Any]]:
    for count in part.counts:
        yield (f"{count.at:%Y-%m-%dT%H:%M:%SZ}", *_group_cells(grouping, count, part), count.count)


def _group_cells(grouping: Grouping, count: UsageCount, part: ExportedUsage) -> Sequence[Any]:
    if grouping is Grouping.OUTCOME:
        return (str(count.outcome),)
    if grouping is Grouping.KEY:
        name = part.names.get(count.key_id or "", "") if count.key_id else "All users"
        return (count.key_id, name)
    return ()
