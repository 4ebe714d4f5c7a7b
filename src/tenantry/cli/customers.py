"""The commands of ``tenantry admin`` for customers of the payment provider, and for events that
belong to no organization.
"""

from typing import Final

import click

from tenantry.cli.operator import Operator
from tenantry.cli.operator_command import OperatorCommand
from tenantry.cli.operator_options import json_lines_option, reason_option, to_org_option
from tenantry.domain.billing.customer_links import CustomerMove
from tenantry_cli.options import json_option, limit_option, yes_option
from tenantry_cli.output import (
    Column,
    columns,
    confirm,
    minute,
    print_json,
    print_lines,
    print_list,
)

_customer_argument: Final = click.argument("customer")


@click.command("link", cls=OperatorCommand)
@_customer_argument
@to_org_option
@json_option()
def link(operator: Operator, *, customer: str, org_id: str, as_json: bool) -> None:
    """Link a customer of the payment provider to an organization.

    Fails if another organization has the customer, unless that one has ended: use `tenantry admin
    move`.

    \b
      tenantry admin link cus_NffrFeUfNV2Hib --org acme
    """
    _show(operator.link_customer(customer, org_id), as_json=as_json)


@click.command("unlink", cls=OperatorCommand)
@_customer_argument
@reason_option
@yes_option
@json_option()
def unlink(
    operator: Operator, *, customer: str, reason: str | None, yes: bool, as_json: bool
) -> None:
    """Remove the link of a customer of the payment provider.

    The customer's events no longer count for the organization, except those of subscriptions whose
    metadata names it. They wait for another link for 30 days.

    \b
      tenantry admin unlink cus_NffrFeUfNV2Hib --reason "Another product"
    """
    question = f"Unlink {customer} {operator.where}? Its events count for no organization then."
    confirm(question, yes=yes)
    _show(operator.unlink_customer(customer, reason), as_json=as_json)


@click.command("move", cls=OperatorCommand)
@_customer_argument
@to_org_option
@reason_option
@yes_option
@json_option()
def move(
    operator: Operator,
    *,
    customer: str,
    org_id: str,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Move a customer of the payment provider to another organization, with the customer's events.

    Both organizations are folded again. Subscriptions whose metadata names an organization stay
    with that one.

    \b
      tenantry admin move cus_NffrFeUfNV2Hib --org globex
    """
    question = f"Move {customer} with its events to {org_id} {operator.where}?"
    confirm(question, yes=yes)
    _show(operator.move_customer(customer, org_id, reason), as_json=as_json)


def _show(moved: CustomerMove, *, as_json: bool) -> None:
    former = moved.moved_from or "no organization"
    present = moved.moved_to or "no organization"
    if as_json:
        print_json(moved)
    else:
        print_lines([f"{moved.customer_id}  {former} -> {present}"])


@click.command("list-parked-events", cls=OperatorCommand)
@limit_option
@json_lines_option
def list_parked_events(operator: Operator, *, limit: int | None, as_json: bool) -> None:
    """List provider events that belong to no organization, the last received first, with the
    command that places each.

    These are the parked events, which wait up to 30 days for their organization or customer, and
    those of the last 30 days that name neither an organization nor a linked customer, or are
    invalid. Replace the words in capitals in a command.

    \b
      tenantry admin list-parked-events
    """
    events = operator.list_parked_events(limit)
    nothing = "Every event belongs to an organization."
    print_list(events, _EVENT_COLUMNS, nothing, as_json=as_json)


_EVENT_COLUMNS: Final = (
    Column("RECEIVED (UTC)", "received_at", minute),
    *columns("id", "type", "reason", loose="reason"),
    Column("PLACE IT WITH", "command"),
)
