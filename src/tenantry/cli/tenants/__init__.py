"""``tenantry tenants``: organizations with their plan and subscription, and why these are what they are."""

from typing import Final

import click

from tenantry.cli.lazy import LazyGroup

_COMMANDS: Final = {
    "list": ("tenantry.cli.tenants.over_api:list_tenants", "List the tenants that you belong to."),
    "show": ("tenantry.cli.tenants.over_api:show", "Show a tenant, your own unless another is named."),
    "explain": ("tenantry.cli.tenants.on_database:explain", "Show why a tenant's billing state is what it is."),
    "rebuild": ("tenantry.cli.tenants.on_database:rebuild", "Make tenants' billing state anew from their events."),
}
_SECTIONS: Final = {"Through the API": ("list", "show"), "Straight on the database": ("explain", "rebuild")}


@click.command(cls=LazyGroup, commands=_COMMANDS, sections=_SECTIONS)
def tenants() -> None:
    """Show tenants; explain and rebuild their billing state."""
