"""``tenantry admin usage``: how many requests the API keys of all tenants sent."""

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Final, Literal

import click

from tenantry.cli.operator import Operator, UsageQuestion
from tenantry.cli.operator_command import OperatorCommand
from tenantry.cli.operator_options import only_org_option
from tenantry.domain.usage import UsageCount
from tenantry_cli.options import json_option
from tenantry_cli.output import print_json
from tenantry_cli.usage import BY_TIME, key_of, print_usage, usage_options


def _key_of(count: UsageCount) -> str:
    return f"{count.org_id} {key_of(count)}"


_WHAT: Final[dict[str, Callable[[UsageCount], str]]] = {
    "tenant": attrgetter("org_id"),
    "key": _key_of,
    "outcome": attrgetter("outcome"),
    BY_TIME: str,
}


@click.command("usage", cls=OperatorCommand)
@click.option(
    "--by",
    "group",
    type=click.Choice(list(_WHAT)),
    default="tenant",
    show_default=True,
    help="How to group the requests.",
)
@only_org_option
@usage_options
@json_option("Print the counts as one JSON document.")
def admin_usage(
    operator: Operator,
    *,
    group: Literal["tenant", "key", "outcome", "time"],
    org_id: str | None,
    since: datetime | None,
    until: datetime | None,
    interval: Literal["hour", "day"],
    as_json: bool,
) -> None:
    """Show how many requests each organization sent, the busiest first.

    The last minute may be missing.

    \b
      tenantry admin usage --since 7d
      tenantry admin usage --by key --org acme
    """

    question = UsageQuestion(
        since,
        until,
        interval,
        "none" if group == BY_TIME else group,
        org_id,
    )
    report = operator.usage(question)
    if as_json:
        print_json(report)
    else:
        print_usage(report.data, group, _WHAT[group], complete_until=report.complete_until)
