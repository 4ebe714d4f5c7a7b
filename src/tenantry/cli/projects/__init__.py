"""``tenantry projects``: the projects of an organization."""

from typing import Final

import click

from tenantry.cli.lazy import LazyGroup

_COMMANDS: Final = {
    "create": ("tenantry.cli.projects.commands:create", "Make a project and print its id on stdout."),
    "list": ("tenantry.cli.projects.commands:list_projects", "List projects, the newest first."),
    "show": ("tenantry.cli.projects.commands:show", "Show a project."),
    "update": ("tenantry.cli.projects.commands:update", "Change a project's name or description."),
    "delete": ("tenantry.cli.projects.commands:delete", "Delete projects."),
}


@click.command(cls=LazyGroup, commands=_COMMANDS)
def projects() -> None:
    """Make, list, change and delete projects."""
