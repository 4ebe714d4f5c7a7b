"""The commands of ``tenantry admin`` for grants: what a tenant gets by contract."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeVar

import click

from tenantry.cli.database import on_database
from tenantry.cli.operator_services import operator_services
from tenantry.cli.options import json_option
from tenantry.cli.output import Column, columns, minute, print_json, print_table, report, say, shown
from tenantry.cli.times import future
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.features import FeatureValue
from tenantry.domain.grants import Grant, GrantInput

Value = TypeVar("Value")


@click.command("grant", short_help="Give a tenant a plan, features or limits by contract.")
@click.argument("org_id", metavar="ORG")
@click.argument("name")
@click.option("--plan", metavar="PLAN", help="A plan of the catalog.")
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="NAME[=N]",
    help="A feature of the catalog, up to N or without a limit; repeatable.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=N",
    help="A limit of plans, such as projects=50; repeatable.",
)
@click.option(
    "--until",
    type=future,
    metavar="TIME",
    help="When it ends: an RFC 3339 time, or 90d for in 90 days. [never]",
)
@click.option("--reason", help="Why the tenant has it; the tenant sees it.")
@click.option("--end", is_flag=True, help="End the grant now, instead of setting it.")
@json_option("The grant as the API gives it.")
def grant(
    org_id: str,
    name: str,
    *,
    plan: str | None,
    features: Sequence[str],
    limits: Sequence[str],
    until: datetime | None,
    reason: str | None,
    end: bool,
    as_json: bool,
) -> None:
    """Give a tenant a plan, features or limits by contract, under a NAME of your choice.

    The grant counts like a subscription that is always paid. Under the name of an existing grant,
    it replaces that one's terms. A tenant may have 50.

    \b
      tenantry admin grant acme paid --plan pro --until 365d --reason "By invoice"
      tenantry admin grant acme more --limit projects=200 --reason "A migration"
      tenantry admin grant acme more --end
    """
    given = any((plan, features, limits, until, reason))
    if end == given:
        raise click.UsageError("Pass either --end, or the terms of the grant.")
    if end:
        ended = on_database(
            lambda settings, database: operator_services(settings, database).grants.end(
                BY_OPERATOR, org_id, name
            )
        )
        report(ended, f"Ended grant {ended.name} of {org_id}.", as_json=as_json)
        return
    if reason is None:
        raise click.UsageError("Missing option '--reason'.")
    wanted = GrantInput(
        reason,
        plan,
        _named(features, _feature_value, "--feature"),
        _named(limits, int, "--limit"),
        until,
    )
    set_grant = on_database(
        lambda settings, database: operator_services(settings, database).grants.put(
            BY_OPERATOR, org_id, name, wanted
        )
    )
    report(set_grant, f"Set grant {set_grant.name} of {org_id}.", as_json=as_json)


@click.command("grants", short_help="List what a tenant has by contract.")
@click.argument("org_id", metavar="ORG")
@json_option("The grants as the API gives them.")
def grants(org_id: str, *, as_json: bool) -> None:
    """List the grants of a tenant that count now.

    \b
      tenantry admin grants acme
    """
    listed = on_database(
        lambda settings, database: operator_services(settings, database).grants.list_all(org_id)
    )
    if as_json:
        print_json(listed)
    elif not print_table(listed, _COLUMNS):
        say(f"{org_id} has no grants.")


def _named(given: Sequence[str], parse: Callable[[str], Value], option: str) -> dict[str, Value]:
    """Parse values of the form ``NAME=N``. Raises `click.BadParameter`."""
    fault = click.BadParameter("give NAME=N with a whole number", param_hint=option)
    parts = [text.partition("=") for text in given]
    if any(separator and not number for _, separator, number in parts):
        raise fault  # an empty variable of a shell, which must not mean no limit
    try:
        return {name: parse(number) for name, _, number in parts}
    except ValueError as error:
        raise fault from error


def _feature_value(number: str) -> FeatureValue:
    return int(number) if number else True


def _until(item: Grant) -> str:
    return shown(None) if item.until is None else minute(item.until)


_COLUMNS: Final = (
    *columns("name"),
    Column("GIVES", lambda item: ", ".join(item.gives), loose=True),
    Column("UNTIL (UTC)", _until),
    *columns("reason", loose="reason"),
)
COMMANDS: Final = (grant, grants)
