"""``tenantry members``, and ``memberships``: the caller's own, in all organizations."""

import click

from tenantry_cli.api_command import (
    ApiCommand,
    ApiContext,
    Rows,
    end_command,
    id_argument,
    parse_id,
    show_command,
)
from tenantry_cli.listing import list_command
from tenantry_cli.options import role_option, status_option
from tenantry_cli.output import Column, columns, pairs
from tenantry_sdk import Member
from tenantry_sdk.types import Role

_MEMBER_COLUMNS = columns(
    "id",
    user="user_id",
    role="role",
    status="status",
    since="created_at",
    loose="user",
)
_ROLE_COLUMNS = [
    *columns("id", "name"),
    Column("SCOPES", "scopes", loose=True),
    Column("GIVES", lambda role: role.gives or None),
]
_MEMBERSHIP_COLUMNS = columns(
    "id",
    organization="org_id",
    name="org_name",
    role="role",
    status="status",
    loose="name",
)


@list_command(
    "members",
    "a member",
    _MEMBER_COLUMNS,
    click.option("--role", help="Only members with this role."),
    status_option("members", "active", "invited", "removed"),
)
def list_members() -> str:
    """List the members and the invited users of the organization, the newest first.

    \b
      tenantry members list --status invited
    """
    return "There are no such members."


@show_command("members", "MEMBER")
def show(_: ApiContext, member: Member) -> Rows:
    """Show a member.

    \b
      tenantry members show mbr_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    return pairs(
        member,
        "id",
        user="user_id",
        role="role",
        status="status",
        organization="org_id",
        created="created_at",
        updated="updated_at",
        removed="removed_at",
    )


@click.command("roles", cls=ApiCommand, json_help="One line of JSON a role.")
def roles(api: ApiContext) -> None:
    """List the roles that members may have, the highest first, and which roles each may give.

    \b
      tenantry members roles
    """
    api.list(lambda **_: api.client.roles.list(), _ROLE_COLUMNS, "There are no roles.")


@click.command("add", cls=ApiCommand, json_help="The member as one JSON document.")
@click.argument("user_id", metavar="USER", type=parse_id)
@role_option
def add(api: ApiContext, *, user_id: str, role: Role) -> None:
    """Invite a user, and print the member's id on stdout.

    USER is the user's id at the identity provider, the sub of their tokens. The user has to accept.
    To invite by mail: tenantry invitations create.

    \b
      tenantry members add user_0123 --role admin
    """
    member = api.client.members.create(user_id=user_id, role=role)
    message = f"Added {member.user_id} as {member.role} of {member.org_id}."
    if member.status == "invited":
        how = f"They accept on the dashboard, or with: tenantry memberships accept {member.id}"
        message = f"Invited {message.removeprefix('Added ')}\n{how}"
    api.done(member, message, member.id)


@click.command("update", cls=ApiCommand, json_help="The member as one JSON document.")
@id_argument("member_id", "MEMBER", "members")
@click.option(
    "--role",
    required=True,
    help="The new role: owner, admin, member, or one of the service's own.",
)
def update(api: ApiContext, *, member_id: str, role: Role) -> None:
    """Give a member another role.

    \b
      tenantry members update mbr_01a1f97751a3e4c5b6d7f8091a2b3c4d --role owner
    """
    member = api.client.members.update(member_id, role=role)
    api.done(member, f"{member.user_id} is now {member.role} of {member.org_id}.")


@end_command("remove", "members", "MEMBER", "Removed", status="removed")
def remove(api: ApiContext, member_id: str) -> str:
    """Remove members, whose next request is rejected, or withdraw their invitations.

    \b
      tenantry members remove mbr_01a1f97751a3e4c5b6d7f8091a2b3c4d --yes
    """
    member = api.client.members.get(member_id)
    return f"Remove {member.user_id}, {member.role} of {member.org_id}?"


@list_command(
    "memberships",
    "a membership",
    _MEMBERSHIP_COLUMNS,
    status_option("memberships", "active", "invited"),
)
def list_memberships() -> str:
    """List your memberships and invitations, the newest first.

    \b
      tenantry memberships list --status invited
    """
    return "You have no such memberships."


@click.command("accept", cls=ApiCommand, json_help="The membership as one JSON document.")
@id_argument(
    "membership_id",
    "MEMBERSHIP",
    "memberships",
    status="invited",
)
def accept(api: ApiContext, *, membership_id: str) -> None:
    """Accept an invitation.

    \b
      tenantry memberships accept mbr_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    membership = api.client.memberships.accept(membership_id)
    api.done(membership, f"You are now {membership.role} of {membership.org_id}.")


@end_command("leave", "memberships", "MEMBERSHIP", "Ended", status="removed")
def leave(_: ApiContext, membership_id: str) -> str:
    """Leave organizations, or decline their invitations.

    \b
      tenantry memberships leave mbr_01a1f97751a3e4c5b6d7f8091a2b3c4d --yes
    """
    return f"End your membership {membership_id}? Only a new invitation brings it back."
