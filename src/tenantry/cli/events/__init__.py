"""``tenantry events``: the ledger of provider events."""

from typing import Final

import click

from tenantry.cli.lazy import LazyGroup

_COMMANDS: Final = {
    "list": ("tenantry.cli.events.over_api:list_events", "List your tenant's events, the newest first."),
    "show": ("tenantry.cli.events.over_api:show", "Show what an event did, and why."),
    "replay": ("tenantry.cli.events.on_database:replay", "Fold tenants' events again, and repair what differs."),
    "body": ("tenantry.cli.events.on_database:body", "Print what the provider sent, byte for byte."),
}
_SECTIONS: Final = {"Through the API": ("list", "show"), "Straight on the database": ("replay", "body")}


@click.command(cls=LazyGroup, commands=_COMMANDS, sections=_SECTIONS)
def events() -> None:
    """Show the ledger of provider events; replay it."""
