"""The commands that use a service. A command is imported when it runs, so that every command
starts fast.
"""

import os
import signal
import sys
from typing import Final

import click

from tenantry_cli.command_group import Root, Sections, group, version

_SECTIONS: Final[Sections] = {
    "Use a service": {
        "login": (
            "tenantry_cli.sign_in",
            "Sign in with the browser, or with a code on another device.",
        ),
        "logout": ("tenantry_cli.sign_in", "Sign out and remove the stored tokens."),
        "whoami": ("tenantry_cli.sign_in", "Show who you are, where, and until when."),
        "status": (
            "tenantry_cli.status",
            "Show the service's health, your credential, plan and limits.",
        ),
        "keys": group(
            "Create, list, rotate, switch off and revoke API keys.",
            "tenantry_cli.keys",
            create="Create a key and print its secret, alone, on stdout.",
            list=("list_keys", "List keys, the newest first."),
            show="Show a key, never its secret.",
            rotate="Replace a key by a new one.",
            disable="Switch keys off until you enable them.",
            enable="Switch keys on again.",
            revoke="Revoke keys: the very next request with one is rejected.",
        ),
        "projects": group(
            "Create, list, change and delete projects.",
            "tenantry_cli.projects",
            create="Create a project and print its id on stdout.",
            list=("list_projects", "List projects, the newest first."),
            show="Show a project.",
            update="Change a project's name or description.",
            delete="Delete projects.",
        ),
        "tenants": group(
            "Create, change and delete organizations.",
            "tenantry_cli.tenants",
            create="Create an organization and print its id on stdout.",
            list=("list_tenants", "List the organizations that you belong to."),
            show="Show an organization, by default yours.",
            update="Change the name, billing address or time zone.",
            transfer="Transfer an organization to another member.",
            delete="Delete an organization that you own.",
        ),
        "members": group(
            "List, invite, change and remove the users of an organization.",
            "tenantry_cli.members",
            add="Invite a user of the identity provider.",
            list=("list_members", "List members, the newest first."),
            roles="List the roles that members may have.",
            show="Show a member.",
            update="Give a member another role.",
            remove="Remove members: their next request is rejected.",
        ),
        "invitations": group(
            "Invite users to an organization by mail; accept an invitation.",
            "tenantry_cli.invitations",
            create="Mail an invitation, and print its id on stdout.",
            list=("list_invitations", "List invitations, newest first."),
            show="Show an invitation.",
            link="Print the link of an invitation.",
            resend="Mail an invitation again.",
            withdraw="Withdraw invitations: their links end.",
            accept="Accept an invitation by its link.",
            confirm="Confirm the invited address, where the identity provider does not.",
        ),
        "memberships": group(
            "List your own memberships and invitations; accept, decline and leave.",
            "tenantry_cli.members",
            list=(
                "list_memberships",
                "List your memberships and invitations.",
            ),
            accept="Accept an invitation.",
            leave="Leave organizations, or decline their invitations.",
        ),
        "events": group(
            "Show the ledger of provider events.",
            "tenantry_cli.tenants",
            list=(
                "list_events",
                "List your organization's events, the newest first.",
            ),
            show=("show_event", "Show what an event changed, and why."),
        ),
        "plans": ("tenantry_cli.tenants", "List the plans."),
        "billing": group(
            "Subscribe at the payment provider.",
            "tenantry_cli.checkout",
            checkout="Begin a checkout of a plan and print its address.",
        ),
        "entitlements": group(
            "List features and quotas, and count their use.",
            "tenantry_cli.entitlements",
            list=(
                "list_entitlements",
                "List what your organization has of each feature.",
            ),
            show="Show a feature and the use of its quota.",
            consume="Count the use of a metered feature.",
        ),
        "usage": ("tenantry_cli.usage", "Show which API keys send how many requests."),
        "config": group(
            "List and change the configuration file: services, profiles, defaults.",
            "tenantry_cli.config",
            list=("list_values", "List the values of the profiles."),
            get="Print a value.",
            set=("set_value", "Set a value; creates a profile."),
            unset="Remove a value.",
            path="Print the path of the file.",
        ),
        "completion": ("tenantry_cli.command_group", "Print a script for shell completion."),
    },
    "Test on this machine": {},
    "Run a service": {},
    "Help": {
        "help": ("tenantry_cli.command_group:help_command", "Show the help of a command."),
        "version": ("tenantry_cli.command_group", "Show the version."),
    },
}


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001  # click's
    if wanted and not ctx.resilient_parsing:
        ctx.invoke(version)
        ctx.exit()


@click.command(
    cls=Root, sections=_SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--profile",
    metavar="NAME",
    help="The profile for commands that use a service. [TENANTRY_PROFILE; default]",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main(profile: str | None) -> None:  # noqa: ARG001  # the commands read it: see `flags_of`
    """The account layer of a multi-tenant API: keys, tokens, plans and payment-provider
    webhooks.
    """
    # the kernel drops a signal that the first process of a container has no handler for
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
