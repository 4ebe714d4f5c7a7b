"""``tenantry keys``: API keys of an organization, and those that lie where they should not."""

from typing import Final

import click

from tenantry.cli.lazy import LazyGroup

_COMMANDS: Final = {
    "create": ("tenantry.cli.keys.making:create", "Make a key and print its secret, alone, on stdout."),
    "list": ("tenantry.cli.keys.looking:list_keys", "List keys, the newest first."),
    "show": ("tenantry.cli.keys.looking:show", "Show a key, never its secret."),
    "rotate": ("tenantry.cli.keys.making:rotate", "Put a new key in the place of one."),
    "revoke": ("tenantry.cli.keys.ending:revoke", "Revoke keys: the very next request with one is refused."),
    "scan": ("tenantry.cli.keys.scan:scan_command", "Look for API keys in files and folders."),
}


@click.command(cls=LazyGroup, commands=_COMMANDS)
def keys() -> None:
    """Make, list, rotate and revoke API keys, and find those that got out."""
