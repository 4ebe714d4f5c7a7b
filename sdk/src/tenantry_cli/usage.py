"""``tenantry usage``: how many requests API keys sent."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, Protocol

import click

from tenantry_cli.api_command import ApiCommand, ApiContext, parse_id
from tenantry_cli.output import Column, grouped, minute, print_json, print_table, say
from tenantry_cli.times import past
from tenantry_sdk import errors

BY_TIME: Final = "time"
_ALL_USERS: Final = "(all users)"
_PAGE: Final = 100
_TITLES: Final = {
    "key": "KEY",
    "tenant": "TENANT",
    "outcome": "OUTCOME",
    BY_TIME: "TIME (UTC)",
}


class UsageTotal(NamedTuple):
    """A row of a table: the requests of a key, a tenant, an outcome, an hour or a day."""

    what: str
    name: str
    number: int
    share: float
    """Of all requests in the table, 0 to 1."""


class AnyCount(Protocol):
    """A count of the SDK, or of the service."""

    @property
    def at(self) -> datetime: ...
    @property
    def count(self) -> int: ...


def usage_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the time."""
    since = click.option(
        "--since",
        type=past,
        metavar="TIME",
        help="The beginning: 1h, 7d or an RFC 3339 time. [24h; with --interval day 30d]",
    )
    until = click.option("--until", type=past, metavar="TIME", help="The end. [now]")
    interval = click.option(
        "--interval",
        type=click.Choice(["hour", "day"]),
        default="hour",
        show_default=True,
        help="Count by hour (kept for 90 days) or by day (kept for 400 days).",
    )
    return since(until(interval(command)))


def no_name(_: str) -> str:
    """Name nothing."""
    return ""


def print_usage(
    counts: Sequence[AnyCount],
    group: str,
    what: Callable[[Any], str],
    *,
    complete_until: datetime,
    name_of: Callable[[str], str] = no_name,
) -> None:
    """Print a table of counts by what they are of, the largest first, or by time, the newest first,
    and until when they are complete.
    """
    numbers = _by_time(counts) if group == BY_TIME else _totals(counts, what)
    total = sum(number for _, number in numbers)
    rows = [UsageTotal(of, name_of(of), number, number / total) for of, number in numbers]
    table = [
        Column(_TITLES[group], "what"),
        Column("NAME", "name", loose=True, optional=True),
        Column("REQUESTS", "number", grouped),
        Column("SHARE", "share", "{:.1%}".format),
    ]
    if print_table(rows, table):
        say(f"Complete until {minute(complete_until)} UTC.")
    else:
        say("No requests in that time.")


def _totals(counts: Iterable[AnyCount], what: Callable[[Any], str]) -> list[tuple[str, int]]:
    numbers = Counter[str]()
    for count in counts:
        numbers[what(count)] += count.count
    return numbers.most_common()


def _by_time(counts: Sequence[AnyCount]) -> list[tuple[str, int]]:
    return [(minute(count.at), count.count) for count in reversed(counts)]


@click.command("usage", cls=ApiCommand, json_help="The answer of the API as one JSON document.")
@click.option(
    "--by",
    "group",
    type=click.Choice(["key", "outcome", "time"]),
    default="key",
    show_default=True,
    help="How to group the requests.",
)
@click.option("--key", "key_id", type=parse_id, metavar="KEY", help="Only this API key.")
@usage_options
def usage(
    api: ApiContext,
    *,
    group: Literal["key", "outcome", "time"],
    key_id: str | None,
    since: datetime | None,
    until: datetime | None,
    interval: Literal["hour", "day"],
) -> None:
    """Show how many requests each API key sent, the busiest first.

    Needs the scope usage:read. The last minute may be missing.

    \b
      tenantry usage --by key --since 7d
      tenantry usage --by outcome --key key_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    report = api.client.usage.get(
        since=since,
        until=until,
        interval=interval,
        group_by="none" if group == BY_TIME else group,
        key_id=key_id,
    )
    if api.as_json:
        print_json(report)
        return
    what = attrgetter("outcome") if group == "outcome" else key_of
    name_of = _names(api) if group == "key" else no_name
    print_usage(report.data, group, what, complete_until=report.complete_until, name_of=name_of)


def key_of(count: Any) -> str:  # noqa: ANN401  # the SDK's or the service's
    """Return the id of a count's key, or the words for all users."""
    return count.key_id or _ALL_USERS


def _names(api: ApiContext) -> Callable[[str], str]:
    """Return a function that names keys, or names none if the credential may not list them."""
    try:
        names = {key.id: key.name for key in api.client.api_keys.list(limit=_PAGE)}
    except errors.PermissionDeniedError:
        names = {}
    return lambda key_id: names.get(key_id, "")
