"""The command line. A command is imported when it runs, so that every command starts fast."""

from typing import Final

import click

from tenantry import __version__
from tenantry.cli.lazy_group import Root

_COMMANDS: Final = {
    "login": ("tenantry.cli.sign_in", "Sign in with the browser, or with a code on another device."),
    "logout": ("tenantry.cli.sign_in", "Sign out and remove the stored tokens."),
    "whoami": ("tenantry.cli.sign_in", "Show who you are, where, and until when."),
    "keys": ("tenantry.cli.groups:keys", "Create, list, rotate and revoke API keys, and find leaked ones."),
    "projects": ("tenantry.cli.groups:projects", "Create, list, change and delete projects."),
    "tenants": ("tenantry.cli.groups:tenants", "Show tenants; explain and rebuild their billing state."),
    "members": ("tenantry.cli.groups:members", "List, invite, change and remove the users of an organization."),
    "memberships": ("tenantry.cli.groups:memberships", "List your own memberships; accept, decline and leave."),
    "events": ("tenantry.cli.groups:events", "Show the ledger of provider events; replay it."),
    "plans": ("tenantry.cli.tenants", "List the plans."),
    "completion": ("tenantry.cli.help", "Print a script for shell completion."),
    "serve": ("tenantry.cli.serve", "Run the service."),
    "worker": ("tenantry.cli.serve", "Run the background jobs alone."),
    "migrate": ("tenantry.cli.migrate", "Bring the database's schema up to date."),
    "doctor": ("tenantry.cli.doctor.command", "Check each setting and connection."),
    "admin": ("tenantry.cli.admin", "Work directly on the database."),
    "reconcile": ("tenantry.cli.reconcile", "Compare tenants with the payment provider, and repair them."),
    "backfill": ("tenantry.cli.reconcile", "Fetch provider events that never arrived."),
    "auth": ("tenantry.cli.auth", "Explain why bearer tokens are accepted or rejected."),
    "help": ("tenantry.cli.help:help_command", "Show the help of a command."),
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


def _installed_commands() -> dict[str, tuple[str, str]]:
    """Return the commands of other installed distributions (entry points of the group ``tenantry.commands``)."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import

    return {name: place for entry in entry_points(group="tenantry.commands") for name, place in entry.load().items()}


@click.command(
    cls=Root,
    commands=_COMMANDS,
    find_more=_installed_commands,
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--profile", metavar="NAME", help="The profile for commands that use a service. [TENANTRY_PROFILE; default]"
)
@click.version_option(__version__, prog_name="tenantry")
def main(profile: str | None) -> None:  # the commands read it: see `flags_of`
    """The account layer of a multi-tenant API: keys, tokens, plans and payment-provider webhooks."""
