"""``tenantry members``: the users of an organization."""

from typing import Final

import click

from tenantry.cli.lazy import LazyGroup

_COMMANDS: Final = {
    "add": ("tenantry.cli.members.commands:add", "Invite a user of the identity provider."),
    "list": ("tenantry.cli.members.commands:list_members", "List members, the newest first."),
    "show": ("tenantry.cli.members.commands:show", "Show a member."),
    "update": ("tenantry.cli.members.commands:update", "Give a member another role."),
    "remove": ("tenantry.cli.members.commands:remove", "Remove members: their next request is refused."),
}


@click.command(cls=LazyGroup, commands=_COMMANDS)
def members() -> None:
    """List, invite, change and remove the users of an organization."""
