"""``tenantry events list`` and ``show``."""

from collections.abc import Iterator

import click

from tenantry.cli.api_client import PAGE, Api, Column
from tenantry.cli.api_command import ApiCommand, Id, completed, limit_option
from tenantry.cli.text import ago, minute, shown
from tenantry_sdk import BillingEvent, BillingState

_FIELDS = (
    ("plan", "plan"),
    ("subscription", "subscription_status"),
    ("period ends", "current_period_end"),
    ("cancelled at its end", "cancel_at_period_end"),
)


@click.command("list", cls=ApiCommand, json_help="One line of JSON an event.")
@limit_option
def list_events(api: Api, *, limit: int | None) -> None:
    """List your tenant's provider events, the newest first, with what became of each."""
    columns = (
        Column[BillingEvent]("AGE", lambda event: ago(event.created, api.now).removesuffix(" ago")),
        Column[BillingEvent]("OUTCOME", lambda event: event.outcome),
        Column[BillingEvent]("TYPE", lambda event: event.type, loose=True),
        Column[BillingEvent]("ID", lambda event: event.id),
        Column[BillingEvent]("CREATED (UTC)", lambda event: minute(event.created), wide=True),
        Column[BillingEvent]("REASON", lambda event: event.reason, loose=True, wide=True),
    )
    pager = api.client.billing.events.list(limit=min(limit or PAGE, PAGE))
    api.list(pager, limit, columns, "There are no events.")


@click.command("show", cls=ApiCommand)
@click.argument("event_id", metavar="EVENT", type=Id(), shell_complete=completed("events"))
def show(api: Api, *, event_id: str) -> None:
    """Show what an event did to your tenant, and why."""
    event = api.client.billing.events.get(event_id)
    api.record(event, _rows(event))


def _rows(event: BillingEvent) -> Iterator[tuple[str, str]]:
    yield "id", event.id
    yield "type", event.type
    yield "created", shown(event.created)
    yield "received", shown(event.received_at)
    yield "live mode", shown(event.livemode)
    yield "outcome", event.outcome
    yield "reason", event.reason
    if event.anomalies:
        yield "unexpected", ", ".join(event.anomalies)
    if event.before is not None and event.after is not None:
        yield from _changes(event.before, event.after)


def _changes(before: BillingState, after: BillingState) -> Iterator[tuple[str, str]]:
    for name, field in _FIELDS:
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            yield name, f"{shown(old)} -> {shown(new)}"
