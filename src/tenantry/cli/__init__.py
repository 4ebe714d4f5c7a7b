"""The command line. A command is imported when it runs, so that every command starts fast."""

import os
import signal
import sys
from typing import Final

import click

from tenantry import __version__
from tenantry.cli.command_group import Entry, Root


def _group(help: str, **commands: Entry) -> Entry:  # noqa: A002  # click's name
    return commands, help


_SECTIONS: Final[dict[str, dict[str, Entry]]] = {
    "Use a service": {
        "login": (
            "tenantry.cli.sign_in",
            "Sign in with the browser, or with a code on another device.",
        ),
        "logout": ("tenantry.cli.sign_in", "Sign out and remove the stored tokens."),
        "whoami": ("tenantry.cli.sign_in", "Show who you are, where, and until when."),
        "status": (
            "tenantry.cli.status",
            "Show the service's health, your credential, plan and limits.",
        ),
        "keys": _group(
            "Create, list, rotate and revoke API keys.",
            create=("tenantry.cli.keys", "Create a key and print its secret, alone, on stdout."),
            list=("tenantry.cli.keys:list_keys", "List keys, the newest first."),
            show=("tenantry.cli.keys", "Show a key, never its secret."),
            rotate=("tenantry.cli.keys", "Replace a key by a new one."),
            revoke=(
                "tenantry.cli.keys",
                "Revoke keys: the very next request with one is rejected.",
            ),
        ),
        "projects": _group(
            "Create, list, change and delete projects.",
            create=("tenantry.cli.projects", "Create a project and print its id on stdout."),
            list=("tenantry.cli.projects:list_projects", "List projects, the newest first."),
            show=("tenantry.cli.projects", "Show a project."),
            update=("tenantry.cli.projects", "Change a project's name or description."),
            delete=("tenantry.cli.projects", "Delete projects."),
        ),
        "tenants": _group(
            "Create, change and delete organizations; explain and rebuild their billing state.",
            create=("tenantry.cli.tenants", "Create an organization and print its id on stdout."),
            list=("tenantry.cli.tenants:list_tenants", "List the tenants that you belong to."),
            show=("tenantry.cli.tenants", "Show a tenant, by default your own."),
            update=("tenantry.cli.tenants", "Change the name, billing address or time zone."),
            transfer=("tenantry.cli.tenants", "Transfer an organization to another member."),
            delete=("tenantry.cli.tenants", "Delete an organization that you own."),
            explain=(
                "tenantry.cli.billing",
                "On the database: show why a tenant has its plan and status.",
            ),
            rebuild=(
                "tenantry.cli.replay",
                "On the database: rebuild tenants' billing state from their events.",
            ),
        ),
        "members": _group(
            "List, invite, change and remove the users of an organization.",
            add=("tenantry.cli.members", "Invite a user of the identity provider."),
            list=("tenantry.cli.members:list_members", "List members, the newest first."),
            roles=("tenantry.cli.members", "List the roles that members may have."),
            show=("tenantry.cli.members", "Show a member."),
            update=("tenantry.cli.members", "Give a member another role."),
            remove=("tenantry.cli.members", "Remove members: their next request is rejected."),
        ),
        "invitations": _group(
            "Invite users to an organization by mail; accept an invitation.",
            create=("tenantry.cli.invitations", "Mail an invitation, and print its id on stdout."),
            list=("tenantry.cli.invitations:list_invitations", "List invitations, newest first."),
            show=("tenantry.cli.invitations", "Show an invitation."),
            link=("tenantry.cli.invitations", "Print the link of an invitation."),
            resend=("tenantry.cli.invitations", "Mail an invitation again."),
            withdraw=("tenantry.cli.invitations", "Withdraw invitations: their links end."),
            accept=("tenantry.cli.invitations", "Accept an invitation by its link."),
            confirm=(
                "tenantry.cli.invitations",
                "Confirm the invited address, where the identity provider does not.",
            ),
        ),
        "memberships": _group(
            "List your own memberships and invitations; accept, decline and leave.",
            list=(
                "tenantry.cli.members:list_memberships",
                "List your memberships and invitations.",
            ),
            accept=("tenantry.cli.members", "Accept an invitation."),
            leave=("tenantry.cli.members", "Leave organizations, or decline their invitations."),
        ),
        "events": _group(
            "Show the ledger of provider events; replay it; follow changes of tenants.",
            list=(
                "tenantry.cli.tenants:list_events",
                "List your tenant's events, the newest first.",
            ),
            show=("tenantry.cli.tenants:show_event", "Show what an event changed, and why."),
            follow=(
                "tenantry.cli.change_feed",
                "On the database: show the changes of all tenants as they come.",
            ),
            resend=(
                "tenantry.cli.backfill",
                "On the database: fetch events from the provider, and process them anew.",
            ),
            replay=(
                "tenantry.cli.replay",
                "On the database: fold tenants' events again, and repair what differs.",
            ),
            body=(
                "tenantry.cli.billing",
                "On the database: print what the provider sent, byte for byte.",
            ),
        ),
        "plans": ("tenantry.cli.tenants", "List the plans."),
        "billing": _group(
            "Subscribe at the payment provider.",
            checkout=("tenantry.cli.checkout", "Begin a checkout of a plan and print its address."),
        ),
        "entitlements": _group(
            "List features and quotas, and count their use.",
            list=(
                "tenantry.cli.entitlements:list_entitlements",
                "List what your organization has of each feature.",
            ),
            show=("tenantry.cli.entitlements", "Show a feature and the use of its quota."),
            consume=("tenantry.cli.entitlements", "Count the use of a metered feature."),
        ),
        "usage": ("tenantry.cli.usage", "Show which API keys send how many requests."),
        "config": _group(
            "List and change the configuration file: services, profiles, defaults.",
            list=("tenantry.cli.config:list_values", "List the values of the profiles."),
            get=("tenantry.cli.config", "Print a value."),
            set=("tenantry.cli.config:set_value", "Set a value; creates a profile."),
            unset=("tenantry.cli.config", "Remove a value."),
            path=("tenantry.cli.config", "Print the path of the file."),
        ),
        "completion": ("tenantry.cli.command_group", "Print a script for shell completion."),
    },
    "Test on this machine": {},
    "Run a service": {
        "serve": ("tenantry.cli.serve", "Run the service."),
        "worker": ("tenantry.cli.serve", "Run the background jobs alone."),
        "migrate": ("tenantry.cli.database", "Bring the database's schema up to date."),
        "doctor": ("tenantry.cli.doctor.command", "Check each setting and connection."),
        "webhooks": _group(
            "List, test and enable the endpoints that receive events; send events again.",
            list=(
                "tenantry.cli.webhooks:list_webhooks",
                "List the endpoints, and what waits for them.",
            ),
            test=("tenantry.cli.webhooks:test_webhook", "Send a test message to an endpoint."),
            enable=(
                "tenantry.cli.webhooks:enable_webhook",
                "Enable an endpoint, and send it all that is held.",
            ),
            resend=("tenantry.cli.webhooks:resend_webhook", "Send events to an endpoint again."),
        ),
        "admin": ("tenantry.cli.admin", "Work directly on the database."),
        "reconcile": (
            "tenantry.cli.reconcile",
            "Compare tenants with the payment provider, and repair them.",
        ),
        "backfill": ("tenantry.cli.backfill", "Fetch provider events that never arrived."),
        "auth": ("tenantry.cli.auth", "Explain why bearer tokens are accepted or rejected."),
    },
    "Help": {
        "help": ("tenantry.cli.command_group:help_command", "Show the help of a command."),
        "version": ("tenantry.cli.command_group", "Show the version."),
    },
}


@click.command(
    cls=Root, sections=_SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--profile",
    metavar="NAME",
    help="The profile for commands that use a service. [TENANTRY_PROFILE; default]",
)
@click.version_option(__version__, prog_name="tenantry")
def main(profile: str | None) -> None:  # noqa: ARG001  # the commands read it: see `flags_of`
    """The account layer of a multi-tenant API: keys, tokens, plans and payment-provider
    webhooks.
    """
    # the kernel drops a signal that the first process of a container has no handler for
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
