"""``tenantry events follow``: the changes of all tenants as they come."""

import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import click
import msgspec

from tenantry.cli.operator import Operator
from tenantry.cli.operator_command import OperatorCommand
from tenantry.cli.operator_options import only_org_option
from tenantry.domain.outbound_events import NOW, OutboundEvent
from tenantry_cli.options import json_option
from tenantry_cli.output import (
    OUT_OF_REACH,
    CommandError,
    discard_stdout,
    print_json_line,
    print_lines,
    printable,
    say,
    shown,
)

_OLDEST: Final = "oldest"
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


@click.command("follow", cls=OperatorCommand)
@click.option(
    "--types",
    metavar="TYPE,...",
    help="Only these: api_key.revoked, or all of a kind: member.*. [all but audit.*]",
)
@only_org_option
@click.option(
    "--after",
    default=NOW,
    show_default=True,
    metavar="CURSOR",
    help="Begin after this event's id or nextCursor, with the oldest, or now.",
)
@json_option("One JSON document a line, also without it where stdout is no terminal.")
def follow(
    operator: Operator, *, types: str | None, org_id: str | None, after: str, as_json: bool
) -> None:
    """Show the changes of all organizations as they come, until Ctrl-C.

    They are those of GET /api/v1/operator/events, and kept for 30 days: changes of organizations,
    members, invitations, API keys and grants. Waits while the service or the database is
    unreachable.

    \b
      tenantry events follow
      tenantry events follow --types 'tenant.*,api_key.revoked' --org acme
      tenantry events follow --after oldest --json > changes.ndjson

    Exits with 1 if events after CURSOR are not kept any more.
    """
    is_json = as_json or not sys.stdout.isatty()
    # of connections that Ctrl-C or a restart of the database ends, which the command says itself
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)

    try:
        for event in _followed(operator, None if after == _OLDEST else after, types, org_id):
            _show(event, as_json=is_json)
    except (BrokenPipeError, KeyboardInterrupt):  # the reader has enough, as `head` does; Ctrl-C
        discard_stdout()


def _followed(
    operator: Operator, after: str | None, types: str | None, org_id: str | None
) -> Iterator[OutboundEvent]:
    """Yield events without an end. Raises `CommandError`; once it has read, it waits while what it
    reads is out of reach.
    """
    page = operator.changes(after, types, org_id, waits=False)
    is_waiting = False
    while True:
        yield from page.data
        try:
            page = operator.changes(page.next_cursor, types, org_id, waits=True)
            is_waiting = False
        except CommandError as error:
            if error.exit_code != OUT_OF_REACH:
                raise
            if not is_waiting:
                say(f"{error.message} Waiting for it.")
            is_waiting = True
            page = msgspec.structs.replace(page, data=[])
            time.sleep(_PAUSE_SECONDS)


def _show(event: OutboundEvent, *, as_json: bool) -> None:
    if as_json:
        print_json_line(event)
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
