"""Charts of the requests of API keys."""

from datetime import datetime
from itertools import repeat
from typing import Final

import msgspec

from tenantry.dashboard.context import PageContext
from tenantry.dashboard.labels import labels

USAGE_SCOPE: Final = "usage:read"


class UsageChart(msgspec.Struct, frozen=True):
    """The requests of an API key by day: a series for each outcome that occurred."""

    series: list[tuple[str, str]]
    """The name and the color of each."""
    bars: list[tuple[str, list[int]]]
    """The day, and the number of each series."""
    total: int
    complete_until: datetime


async def usage_chart(ctx: PageContext, key_id: str) -> UsageChart | None:
    """Return the requests of the last 30 days; None for users who may not see usage."""
    if not ctx.user.may(USAGE_SCOPE):
        return None
    usage = await ctx.services.usage.outcomes_of_key(ctx.principal, key_id)
    counted = {outcome: numbers for outcome, numbers in usage.numbers.items() if any(numbers)}
    shown = [labels().request_outcomes[outcome] for outcome in counted]
    days = [f"{day.day} {day:%b}" for day in usage.times]
    columns = zip(*counted.values(), strict=True) if counted else repeat(())
    return UsageChart(
        series=[(label.short, label.color) for label in shown],
        bars=[(day, list(numbers)) for day, numbers in zip(days, columns, strict=False)],
        total=sum(map(sum, counted.values())),
        complete_until=usage.complete_until,
    )
