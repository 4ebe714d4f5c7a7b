"""The groups of commands, whose commands are imported when they are called."""

import click

from tenantry.cli.lazy_group import LazyGroup


@click.command(
    cls=LazyGroup,
    commands={
        "create": ("tenantry.cli.keys:create", "Create a key and print its secret, alone, on stdout."),
        "list": ("tenantry.cli.keys:list_keys", "List keys, the newest first."),
        "show": ("tenantry.cli.keys:show", "Show a key, never its secret."),
        "rotate": ("tenantry.cli.keys:rotate", "Replace a key by a new one."),
        "revoke": ("tenantry.cli.keys:revoke", "Revoke keys: the very next request with one is rejected."),
        "scan": ("tenantry.cli.key_scan:scan_command", "Search files and folders for API keys."),
    },
)
def keys() -> None:
    """Create, list, rotate and revoke API keys, and find leaked ones."""


@click.command(
    cls=LazyGroup,
    commands={
        "create": ("tenantry.cli.projects:create", "Create a project and print its id on stdout."),
        "list": ("tenantry.cli.projects:list_projects", "List projects, the newest first."),
        "show": ("tenantry.cli.projects:show", "Show a project."),
        "update": ("tenantry.cli.projects:update", "Change a project's name or description."),
        "delete": ("tenantry.cli.projects:delete", "Delete projects."),
    },
)
def projects() -> None:
    """Create, list, change and delete projects."""


@click.command(
    cls=LazyGroup,
    commands={
        "add": ("tenantry.cli.members:add", "Invite a user of the identity provider."),
        "list": ("tenantry.cli.members:list_members", "List members, the newest first."),
        "show": ("tenantry.cli.members:show", "Show a member."),
        "update": ("tenantry.cli.members:update", "Give a member another role."),
        "remove": ("tenantry.cli.members:remove", "Remove members: their next request is rejected."),
    },
)
def members() -> None:
    """List, invite, change and remove the users of an organization."""


@click.command(
    cls=LazyGroup,
    commands={
        "list": ("tenantry.cli.memberships:list_memberships", "List your memberships and invitations."),
        "accept": ("tenantry.cli.memberships:accept", "Accept an invitation."),
        "leave": ("tenantry.cli.memberships:leave", "Leave organizations, or decline their invitations."),
    },
)
def memberships() -> None:
    """List your own memberships and invitations; accept, decline and leave. Sign in first: tenantry login."""


@click.command(
    cls=LazyGroup,
    commands={
        "list": ("tenantry.cli.tenants:list_tenants", "List the tenants that you belong to."),
        "show": ("tenantry.cli.tenants:show", "Show a tenant, by default your own."),
        "explain": ("tenantry.cli.ledger:explain", "Show why a tenant's billing state is what it is."),
        "rebuild": ("tenantry.cli.ledger:rebuild", "Rebuild tenants' billing state from their events."),
    },
    sections={"Through the API": ("list", "show"), "Directly on the database": ("explain", "rebuild")},
)
def tenants() -> None:
    """Show tenants; explain and rebuild their billing state."""


@click.command(
    cls=LazyGroup,
    commands={
        "list": ("tenantry.cli.events:list_events", "List your tenant's events, the newest first."),
        "show": ("tenantry.cli.events:show", "Show what an event changed, and why."),
        "replay": ("tenantry.cli.ledger:replay", "Fold tenants' events again, and repair what differs."),
        "body": ("tenantry.cli.ledger:body", "Print what the provider sent, byte for byte."),
    },
    sections={"Through the API": ("list", "show"), "Directly on the database": ("replay", "body")},
)
def events() -> None:
    """Show the ledger of provider events; replay it."""
