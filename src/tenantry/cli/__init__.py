"""The command line. Commands are imported when they are called, so that `--help` is quick."""

from importlib.metadata import entry_points
from typing import Final

import click

from tenantry import __version__
from tenantry.cli.lazy import Root

_COMMANDS: Final = {
    "login": ("tenantry.cli.sign_in", "Sign in with the browser, or with a code on another device."),
    "logout": ("tenantry.cli.sign_in", "End the sign-in and remove what was kept."),
    "whoami": ("tenantry.cli.sign_in", "Show who you are, where, and until when."),
    "keys": ("tenantry.cli.groups:keys", "Make, list, rotate and revoke API keys, and find those that got out."),
    "projects": ("tenantry.cli.groups:projects", "Make, list, change and delete projects."),
    "tenants": ("tenantry.cli.groups:tenants", "Show tenants; explain and rebuild their billing state."),
    "members": ("tenantry.cli.groups:members", "List, invite, change and remove the users of an organization."),
    "memberships": ("tenantry.cli.groups:memberships", "List your own memberships; accept, decline and leave."),
    "events": ("tenantry.cli.groups:events", "Show the ledger of provider events; replay it."),
    "plans": ("tenantry.cli.tenants", "List the plans."),
    "completion": ("tenantry.cli.help", "Print what completes commands in a shell."),
    "serve": ("tenantry.cli.serve", "Run the service."),
    "worker": ("tenantry.cli.serve", "Run the background jobs alone."),
    "migrate": ("tenantry.cli.migrate", "Bring the database's schema up to date."),
    "doctor": ("tenantry.cli.doctor.command", "Check each setting and connection."),
    "admin": ("tenantry.cli.admin", "Work straight on the database."),
    "reconcile": ("tenantry.cli.reconcile", "Compare tenants with the payment provider, and repair them."),
    "backfill": ("tenantry.cli.reconcile", "Take in the provider's events that never came in."),
    "auth": ("tenantry.cli.auth", "Tell why bearer tokens are let in or refused."),
    "help": ("tenantry.cli.help:help_command", "Show what a command does and takes."),
    "version": ("tenantry.cli.help", "Show the version."),
}
_SECTIONS: Final = {
    "Use a service": (
        "login", "logout", "whoami", "keys", "projects", "tenants", "members", "memberships", "events", "plans",
        "completion",
    ),
    "Test on this machine": ("listen", "trigger"),
    "Run a service": ("demo", "serve", "worker", "migrate", "doctor", "admin", "reconcile", "backfill", "auth"),
    "Help": ("help", "version"),
}  # fmt: skip


def _all_commands() -> dict[str, tuple[str, str]]:
    """The commands above and those of installed distributions (entry points of the group ``tenantry.commands``)."""
    added = {name: place for entry in entry_points(group="tenantry.commands") for name, place in entry.load().items()}
    return {**added, **_COMMANDS}


@click.command(
    cls=Root, commands=_all_commands(), sections=_SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--profile", metavar="NAME", help="The profile for commands that use a service. [TENANTRY_PROFILE; default]"
)
@click.version_option(__version__, prog_name="tenantry")
def main(profile: str | None) -> None:  # the commands read it: see `flags_of`
    """The account layer of a multi-tenant API: keys, tokens, plans and payment-provider webhooks."""
