"""``tenantry memberships``: the caller's own, in all organizations."""

from typing import Final

import click

from tenantry.cli.lazy import LazyGroup

_COMMANDS: Final = {
    "list": ("tenantry.cli.memberships.commands:list_memberships", "List your memberships and invitations."),
    "accept": ("tenantry.cli.memberships.commands:accept", "Accept an invitation."),
    "leave": ("tenantry.cli.memberships.commands:leave", "Leave organizations, or decline their invitations."),
}


@click.command(cls=LazyGroup, commands=_COMMANDS)
def memberships() -> None:
    """List your own memberships and invitations; accept, decline and leave. Sign in first: tenantry login."""
