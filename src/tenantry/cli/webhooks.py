"""``tenantry webhooks``: the endpoints of the plan catalog that receive events."""

from datetime import datetime
from typing import Final

import click

from tenantry.cli.operator import Operator
from tenantry.cli.operator_command import OperatorCommand
from tenantry.domain.webhook_endpoints import ListedEndpoint, WebhookTest
from tenantry_cli.options import json_option
from tenantry_cli.output import (
    OUT_OF_REACH,
    Column,
    CommandError,
    columns,
    counted,
    minute,
    print_json,
    print_table,
    report,
    say,
)
from tenantry_cli.times import past

_name_argument: Final = click.argument("name")
_NONE: Final = "The plan catalog has no [[webhooks]]: see docs/how-to/send-webhooks.md."


@click.command("list", cls=OperatorCommand)
@json_option("The endpoints with their state.")
def list_webhooks(operator: Operator, *, as_json: bool) -> None:
    """List the endpoints of the plan catalog: their state, and how many events wait for each.

    Waiting events are sent at their next attempt. Held ones wait for you: all attempts failed, or
    the endpoint is disabled. `tenantry webhooks enable` and `resend` send them.

    \b
      tenantry webhooks list
    """

    listed = operator.list_webhooks()
    if as_json:
        print_json(listed)
    elif not print_table(listed, _COLUMNS):
        say(_NONE)


@click.command("test", cls=OperatorCommand)
@_name_argument
@json_option("The receiver's status, or the error.")
def test_webhook(operator: Operator, *, name: str, as_json: bool) -> None:
    """Send a signed message of the type webhook.test to an endpoint at once.

    It is sent once, also to an endpoint that is disabled, and changes no state.
    Exits with 1 if the receiver does not accept the message, and with 6 if it does not answer.

    \b
      tenantry webhooks test app
    """
    result = operator.test_webhook(name)
    if as_json:
        print_json(result)
    if not result.accepted:
        raise _not_accepted(result)
    if not as_json:
        say(f"{name} accepted the message (status {result.status}).")


@click.command("enable", cls=OperatorCommand)
@_name_argument
@json_option("The number of events.")
def enable_webhook(operator: Operator, *, name: str, as_json: bool) -> None:
    """Enable an endpoint that was disabled, and send it all events that are held.

    The receiver gets them in any order: the highest version of an object is its newest state. A
    running `tenantry serve` or `worker` sends them.

    \b
      tenantry webhooks test app && tenantry webhooks enable app
    """

    queued = operator.enable_webhook(name)
    message = f"Enabled {name}; {counted(queued.events, 'event')} will be sent."
    report(queued, message, as_json=as_json)


@click.command("resend", cls=OperatorCommand)
@_name_argument
@click.option("--event", metavar="ID", help="This event, such as evt_1795843200000123.")
@click.option(
    "--since",
    type=past,
    metavar="TIME",
    help="All events since then, delivered or not: an RFC 3339 time, or 2h for two hours ago.",
)
@json_option("The number of events.")
def resend_webhook(
    operator: Operator,
    *,
    name: str,
    event: str | None,
    since: datetime | None,
    as_json: bool,
) -> None:
    """Send an endpoint the events that are held or wait for another attempt; or others again.

    Events are kept for 30 days. The receiver gets an event under its first id: it can detect
    duplicates. While the endpoint is disabled, they are held.

    \b
      tenantry webhooks resend app
      tenantry webhooks resend app --since 2d
      tenantry webhooks resend app --event evt_1795843200000123
    """
    if event is not None and since is not None:
        raise click.UsageError("Pass either --event or --since.")

    queued = operator.resend_webhook(name, event=event, since=since)
    endpoint = next(each for each in operator.list_webhooks() if each.name == name)
    number = counted(queued.events, "event")
    message = f"{number} will be sent to {name}."
    if endpoint.disabled_at is not None:
        message = f"{name} is disabled. `tenantry webhooks enable {name}` sends {number}."
    report(queued, message, as_json=as_json)


def _not_accepted(result: WebhookTest) -> CommandError:
    name = result.name
    if result.status is None:
        return CommandError(f"{name} did not answer: {result.error}.", OUT_OF_REACH)
    return CommandError(f"{name} did not accept the message: it answered {result.status}.")


def _since(item: ListedEndpoint) -> str:
    """Say since when an endpoint fails or is disabled, and why."""
    if item.disabled_at is not None:
        return f"{minute(item.disabled_at)}: {item.disabled_reason}"
    return minute(item.failing_since) if item.failing_since else ""


_COLUMNS: Final = (
    *columns("name", "url", "state", "waiting", "held", loose="url"),
    Column("LAST SUCCESS (UTC)", "last_success_at", minute),
    Column("SINCE (UTC)", _since, loose=True, optional=True),
)
