"""``tenantry events follow``: the changes of all tenants as they come."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import click
import msgspec

from tenantry.cli.database import on_database, tenant_id
from tenantry.cli.options import json_option
from tenantry.cli.output import discard_stdout, json_text, print_lines, printable, say, shown
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.outbound_events import OutboundEvent, parse_types
from tenantry.outbound.events_store import EventFilter
from tenantry.outbound.feed import LONGEST_WAIT, NOW, ChangeFeed

_OLDEST: Final = "oldest"
_AT_ONCE: Final = 100
_PAUSE_SECONDS: Final = 1.0
_WIDTH_OF_TYPE: Final = 25
_SHOWN_FIELDS: Final = {
    "tenant": ("plan", "subscriptionStatus"),
    "member": ("id", "userId", "role"),
    "invitation": ("id", "email", "role"),
    "api_key": ("id", "name"),
    "grant": ("name", "plan"),
    "entitlement": ("feature",),
    "audit": ("targetId", "actorKind"),
}
"""What a line says of an object, by its kind."""


@click.command("follow")
@click.option(
    "--types",
    metavar="TYPE,...",
    help="Only these: api_key.revoked, or all of a kind: member.*. [all but audit.*]",
)
@click.option("--tenant", "org_id", type=tenant_id, metavar="ORG", help="Only this tenant.")
@click.option(
    "--after",
    default=NOW,
    show_default=True,
    metavar="CURSOR",
    help="Begin after this event's id or nextCursor, with the oldest, or now.",
)
@json_option("One JSON document a line, also without it where stdout is no terminal.")
def follow(*, types: str | None, org_id: str | None, after: str, as_json: bool) -> None:
    """Show the changes of all tenants as they come, until Ctrl-C.

    They are those of GET /api/v1/operator/events, and kept for 30 days: changes of tenants,
    members, invitations, API keys and grants. Reads the database; waits while it is unreachable.

    \b
      tenantry events follow
      tenantry events follow --types 'tenant.*,api_key.revoked' --tenant acme
      tenantry events follow --after oldest --json > changes.ndjson

    Exits with 1 if events after CURSOR are not kept any more.
    """
    is_json = as_json or not sys.stdout.isatty()
    # of connections that Ctrl-C or a restart of the database ends, which the command says itself
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)

    async def show_all(_: object, database: Database) -> None:
        wanted = EventFilter(parse_types(types).types(), org_id)
        async for event in _followed(database, None if after == _OLDEST else after, wanted):
            _show(event, as_json=is_json)

    try:
        on_database(show_all)
    except (BrokenPipeError, KeyboardInterrupt):  # the reader has enough, as `head` does; Ctrl-C
        discard_stdout()


async def _followed(
    database: Database, after: str | None, wanted: EventFilter
) -> AsyncIterator[OutboundEvent]:
    """Yield events without an end. Raises `DatabaseUnavailableError` only for the first ones."""
    feed = ChangeFeed(database)
    is_waiting = False
    page = await feed.read(after, wanted, _AT_ONCE, timedelta())
    while True:
        for event in page.data:
            yield event
        try:
            page = await feed.read(page.next_cursor, wanted, _AT_ONCE, LONGEST_WAIT)
            is_waiting = False
        except DatabaseUnavailableError:
            if not is_waiting:
                say("The database is unreachable. Waiting for it.")
            is_waiting = True
            page = msgspec.structs.replace(page, data=[])
            await asyncio.sleep(_PAUSE_SECONDS)


def _show(event: OutboundEvent, *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(msgspec.json.encode(event)))
    else:
        print_lines([event_line(event)])


def event_line(event: OutboundEvent) -> str:
    """Describe an event in one line: the moment, the type, the tenant, and the object."""
    kind, _, _ = event.type.partition(".")
    data: dict[str, Any] = msgspec.json.decode(event.data)
    fields = [data.get(name) for name in _SHOWN_FIELDS.get(kind, ("id",))]
    words = [printable(str(each)) for each in fields if each is not None]
    return "  ".join(
        [shown(event.at), f"{event.type:<{_WIDTH_OF_TYPE}}", event.org_id, " ".join(words)]
    ).rstrip()
