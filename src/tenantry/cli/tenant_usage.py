"""``tenantry admin usage``: how many requests the API keys of all tenants sent."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import click

from tenantry.auth.usage import UsageService
from tenantry.cli.database import on_database, tenant_id
from tenantry.cli.options import json_option
from tenantry.cli.output import minute, print_json, say
from tenantry.cli.usage import BY_TIME, key_of, print_usage, usage_options
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.domain.usage import OperatorGroup, UsageCount, UsageInterval, UsageReport, usage_query

_GROUPS: Final[dict[str, OperatorGroup]] = {
    "tenant": "tenant",
    "key": "key",
    "outcome": "outcome",
    BY_TIME: "none",
}


def _tenant_of(count: UsageCount) -> str:
    return str(count.org_id)


def _key_of(count: UsageCount) -> str:
    return f"{count.org_id} {key_of(count)}"


def _outcome_of(count: UsageCount) -> str:
    return str(count.outcome)


_WHAT: Final[dict[str, Callable[[UsageCount], str]]] = {
    "tenant": _tenant_of,
    "key": _key_of,
    "outcome": _outcome_of,
    BY_TIME: str,
}


@click.command("usage", short_help="Show which tenants and keys send how many requests.")
@click.option(
    "--by",
    "group",
    type=click.Choice(list(_GROUPS)),
    default="tenant",
    show_default=True,
    help="How to group the requests.",
)
@click.option("--tenant", "org_id", type=tenant_id, metavar="ORG", help="Only this tenant.")
@usage_options
@json_option("Print the counts as one JSON document.")
def admin_usage(
    *,
    group: str,
    org_id: str | None,
    since: datetime | None,
    until: datetime | None,
    interval: str,
    as_json: bool,
) -> None:
    """Show how many requests each tenant sent, the busiest first.

    The last minute may be missing.

    \b
      tenantry admin usage --since 7d
      tenantry admin usage --by key --tenant acme
    """

    async def read(_: object, database: Database) -> UsageReport:
        wanted = usage_query(
            UsageInterval(interval),
            since,
            until,
            system_clock(),
            group=_GROUPS[group],
            org_id=org_id,
        )
        return await UsageService(database, system_clock).read_any(wanted)

    report = on_database(read)
    if as_json:
        print_json(report)
    elif print_usage(report.data, group, _WHAT[group]):
        say(f"Complete until {minute(report.complete_until)} UTC.")
    else:
        say("No requests in that time.")
