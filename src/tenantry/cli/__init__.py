"""The command line. Commands are imported when they are called, so that `--help` is quick."""

import importlib
from typing import Final

import click

from tenantry import __version__

_COMMANDS: Final = {
    "serve": ("tenantry.cli.serve", "Run the service."),
    "worker": ("tenantry.cli.worker", "Run the background jobs alone."),
    "migrate": ("tenantry.cli.migrate", "Bring the database's schema up to date."),
    "demo": ("tenantry.cli.demo", "Run everything on this machine, with example data."),
    "doctor": ("tenantry.cli.doctor", "Check each setting and connection."),
    "admin": ("tenantry.cli.admin", "Work straight on the database."),
    "tenants": ("tenantry.cli.tenants", "Explain and rebuild the billing state of tenants."),
    "events": ("tenantry.cli.events", "Work on the ledger of provider events."),
    "reconcile": ("tenantry.cli.reconcile", "Compare tenants with the payment provider, and repair them."),
    "backfill": ("tenantry.cli.reconcile", "Take in the provider's events that never came in."),
    "listen": ("tenantry.cli.listen", "Relay the payment provider's events to this machine."),
    "trigger": ("tenantry.cli.trigger", "Send made-up provider events, and show what they do."),
    "auth": ("tenantry.cli.auth", "Tell why bearer tokens are let in or refused."),
    "keys": ("tenantry.cli.keys", "Find API keys that lie where they should not."),
}


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order in which a newcomer meets them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command."""
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in _COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tenantry")
def main() -> None:
    """The account layer of a multi-tenant API: keys, tokens, plans and payment-provider webhooks."""
