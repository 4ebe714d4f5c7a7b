"""``tenantry webhooks``: the endpoints of the plan catalog that receive events."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click
import msgspec

from tenantry.cli.database import admin_settings, on_database, operator_values
from tenantry.cli.options import json_option
from tenantry.cli.output import (
    NOT_FOUND,
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
from tenantry.cli.times import past
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.webhooks import WebhookEndpoint
from tenantry.integrations.webhook_client import DeliveryResult, WebhookClient
from tenantry.outbound.webhooks import EndpointState, OutboundWebhooks, send_test_message
from tenantry.settings import Settings

_NONE: Final = "The plan catalog has no [[webhooks]]: see docs/how-to/send-webhooks.md."


class ListedEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """An endpoint as ``webhooks list --json`` prints it: what the catalog says, and its state."""

    name: str
    url: str
    types: Sequence[str]
    state: str
    waiting: int
    held: int
    last_success_at: datetime | None
    failing_since: datetime | None
    paused_until: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None


class WebhookTestResult(msgspec.Struct, frozen=True, rename="camel"):
    """What ``webhooks test --json`` prints."""

    name: str
    accepted: bool
    status: int | None
    error: str | None


class ResentCount(msgspec.Struct, frozen=True, rename="camel"):
    """What ``webhooks enable --json`` and ``resend --json`` print."""

    name: str
    events: int


@click.command("list", short_help="List the endpoints, and what waits for them.")
@json_option("The endpoints with their state.")
def list_webhooks(*, as_json: bool) -> None:
    """List the endpoints of the plan catalog: their state, and how many events wait for each.

    Waiting events are sent at their next attempt. Held ones wait for you: all attempts failed, or
    the endpoint is disabled. `tenantry webhooks enable` and `resend` send them.

    \b
      tenantry webhooks list
    """

    async def read(settings: Settings, database: Database) -> list[ListedEndpoint]:
        service = webhook_service(settings, database)
        states = await service.states()
        return [_listed(*each) for each in zip(service.endpoints, states, strict=True)]

    listed = on_database(read)
    if as_json:
        print_json(listed)
    elif not print_table(listed, _COLUMNS):
        say(_NONE)


@click.command("test", short_help="Send a test message to an endpoint.")
@click.argument("name")
@json_option("The receiver's status, or the error.")
def test_webhook(name: str, *, as_json: bool) -> None:
    """Send a signed message of the type webhook.test to an endpoint at once.

    It is sent once, also to an endpoint that is disabled, and changes no state. Needs no database.
    Exits with 1 if the receiver does not accept the message, and with 6 if it does not answer.

    \b
      tenantry webhooks test app
    """
    values, _ = operator_values()
    endpoint = _endpoint(admin_settings(values), name)
    result = asyncio.run(send_test_message(WebhookClient(), endpoint, system_clock()))
    if as_json:
        print_json(WebhookTestResult(name, result.is_success, result.status, result.error))
    if not result.is_success:
        raise _not_accepted(name, result)
    if not as_json:
        say(f"{name} accepted the message (status {result.status}).")


@click.command("enable", short_help="Enable an endpoint, and send it all that is held.")
@click.argument("name")
@json_option("The number of events.")
def enable_webhook(name: str, *, as_json: bool) -> None:
    """Enable an endpoint that was disabled, and send it all events that are held.

    The receiver gets them in any order: the highest version of an object is its newest state. A
    running `tenantry serve` or `worker` sends them.

    \b
      tenantry webhooks test app && tenantry webhooks enable app
    """

    async def enable(settings: Settings, database: Database) -> int:
        service = webhook_service(settings, database)
        await service.enable(name)
        return sum(state.waiting for state in await service.states() if state.name == name)

    number = on_database(enable)
    message = f"Enabled {name}; {counted(number, 'event')} will be sent."
    report(ResentCount(name, number), message, as_json=as_json)


@click.command("resend", short_help="Send events to an endpoint again.")
@click.argument("name")
@click.option("--event", metavar="ID", help="This event, such as evt_1795843200000123.")
@click.option(
    "--since",
    type=past,
    metavar="TIME",
    help="All events since then, delivered or not: an RFC 3339 time, or 2h for two hours ago.",
)
@json_option("The number of events.")
def resend_webhook(name: str, *, event: str | None, since: datetime | None, as_json: bool) -> None:
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

    async def resend(settings: Settings, database: Database) -> tuple[int, EndpointState]:
        service = webhook_service(settings, database)
        number = await service.resend(name, event=event, since=since)
        [state] = [each for each in await service.states() if each.name == name]
        return number, state

    number, state = on_database(resend)
    message = f"{counted(number, 'event')} will be sent to {name}."
    if state.disabled_at is not None:
        message = f"{name} is disabled. `tenantry webhooks enable {name}` sends {counted(number, 'event')}."
    report(ResentCount(name, number), message, as_json=as_json)


def webhook_service(settings: Settings, database: Database) -> OutboundWebhooks:
    """Return the webhooks of the plan catalog as operator commands use them."""
    return OutboundWebhooks(
        database, Outbox(), WebhookClient(), system_clock, settings.billing.catalog.webhooks
    )


async def read_disabled(settings: Settings, conninfo: str) -> list[EndpointState]:
    """Return the endpoints that are disabled. Raises `DatabaseUnavailableError` and
    `psycopg.Error`.
    """
    async with Database(conninfo, 1) as database:
        states = await webhook_service(settings, database).states()
    return [state for state in states if state.disabled_at is not None]


def _endpoint(settings: Settings, name: str) -> WebhookEndpoint:
    for endpoint in settings.billing.catalog.webhooks:
        if endpoint.name == name:
            return endpoint
    raise CommandError(f"There is no such webhook in the plan catalog: {name!r}.", NOT_FOUND)


def _not_accepted(name: str, result: DeliveryResult) -> CommandError:
    if result.status is None:
        return CommandError(f"{name} did not answer: {result.error}.", OUT_OF_REACH)
    return CommandError(f"{name} did not accept the message: it answered {result.status}.")


def _listed(endpoint: WebhookEndpoint, state: EndpointState) -> ListedEndpoint:
    return ListedEndpoint(
        endpoint.name,
        endpoint.shown_url,
        endpoint.types.patterns,
        _word(state),
        state.waiting,
        state.held,
        state.last_success_at,
        state.failing_since,
        state.paused_until,
        state.disabled_at,
        state.disabled_reason,
    )


def _word(state: EndpointState) -> str:
    if state.disabled_at is not None:
        return "disabled"
    return "active" if state.failing_since is None else "failing"


def _since(item: ListedEndpoint) -> str:
    """Say since when an endpoint fails or is disabled, and why."""
    if item.disabled_at is not None:
        return f"{minute(item.disabled_at)}: {item.disabled_reason}"
    return minute(item.failing_since) if item.failing_since else ""


_COLUMNS: Final = (
    *columns("name", "url", "state", "waiting", "held", loose="url"),
    Column("LAST SUCCESS (UTC)", lambda item: minute(item.last_success_at)),
    Column("SINCE (UTC)", _since, loose=True, optional=True),
)
