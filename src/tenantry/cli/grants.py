"""The commands of ``tenantry admin`` for grants: what a tenant gets by contract."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeVar

import click

from tenantry.cli.operator import Operator
from tenantry.cli.operator_command import OperatorCommand
from tenantry.cli.operator_options import org_argument
from tenantry.common.encoding import camel_case
from tenantry.domain.features import FeatureValue
from tenantry.domain.grants import GrantInput
from tenantry_cli.options import json_option
from tenantry_cli.output import Column, columns, minute, print_json, print_table, report, say
from tenantry_cli.times import future

Value = TypeVar("Value")


@click.command("grant", cls=OperatorCommand)
@org_argument
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
    help="A limit, as the plan catalog names it: api_keys=50; repeatable.",
)
@click.option(
    "--until",
    type=future,
    metavar="TIME",
    help="When it ends: an RFC 3339 time, or 90d for in 90 days. [never]",
)
@click.option("--reason", help="Why the organization has it, which sees it.")
@click.option("--end", is_flag=True, help="End the grant now, instead of setting it.")
@json_option("The grant as the API gives it.")
def grant(
    operator: Operator,
    *,
    org_id: str,
    name: str,
    plan: str | None,
    features: Sequence[str],
    limits: Sequence[str],
    until: datetime | None,
    reason: str | None,
    end: bool,
    as_json: bool,
) -> None:
    """Give an organization a plan, features or limits by contract, under a NAME of your choice.

    The grant counts like a subscription that is always paid. Under the name of an existing grant,
    it replaces that one's terms. An organization may have 50.

    \b
      tenantry admin grant acme paid --plan pro --until 365d --reason "By invoice"
      tenantry admin grant acme more --limit projects=200 --reason "A migration"
      tenantry admin grant acme more --end
    """
    given = any((plan, features, limits, until, reason))
    if end == given:
        raise click.UsageError("Pass either --end, or the terms of the grant.")
    if end:
        ended = operator.end_grant(org_id, name)
        done = f"Ended grant {ended.name} of {org_id} {operator.where}."
        report(ended, done, as_json=as_json)
        return
    if reason is None:
        raise click.UsageError("Missing option '--reason'.")
    wanted = GrantInput(
        reason,
        plan,
        _named(features, _feature_value, "--feature"),
        {camel_case(name): number for name, number in _named(limits, int, "--limit").items()},
        until,
    )
    set_grant = operator.set_grant(org_id, name, wanted)
    done = f"Set grant {set_grant.name} of {org_id} {operator.where}."
    report(set_grant, done, as_json=as_json)


@click.command("grants", cls=OperatorCommand)
@org_argument
@json_option("The grants as the API gives them.")
def grants(operator: Operator, *, org_id: str, as_json: bool) -> None:
    """List the grants of an organization that count now.

    \b
      tenantry admin grants acme
    """
    listed = operator.list_grants(org_id)
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


_COLUMNS: Final = (
    *columns("name"),
    Column("GIVES", "gives", loose=True),
    Column("UNTIL (UTC)", "until", minute),
    *columns("reason", loose="reason"),
)
