"""``tenantry members``, and ``memberships``: the caller's own, in all organizations."""

import click

from tenantry.cli.api_command import (
    ApiCommand,
    ApiContext,
    id_argument,
    parse_id,
)
from tenantry.cli.options import limit_option, yes_option
from tenantry.cli.output import Column, columns, pairs
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
    Column("SCOPES", lambda role: ", ".join(role.scopes), loose=True),
    Column("GIVES", lambda role: ", ".join(role.gives) or "-"),
]
_MEMBERSHIP_COLUMNS = columns(
    "id",
    organization="org_id",
    name="org_name",
    role="role",
    status="status",
    loose="name",
)


@click.command("list", cls=ApiCommand, json_help="One line of JSON a member.")
@click.option("--role", help="Only members with this role.")
@click.option(
    "--status",
    type=click.Choice(["active", "invited", "removed"]),
    help="Only members of this status.",
)
@limit_option
def list_members(
    api: ApiContext,
    *,
    role: str | None,
    status: str | None,
    limit: int | None,
) -> None:
    """List the members and the invited users of the organization, the newest first.

    \b
      tenantry members list --status invited
    """
    none = "There are no such members."
    api.list(
        api.client.members.list,
        _MEMBER_COLUMNS,
        none,
        limit=limit,
        role=role,
        status=status,
    )


@click.command("show", cls=ApiCommand)
@id_argument("member_id", "MEMBER", "members")
def show(api: ApiContext, *, member_id: str) -> None:
    """Show a member.

    \b
      tenantry members show mbr_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    member = api.client.members.get(member_id)
    names = {"user": "user_id", "role": "role", "status": "status", "organization": "org_id"}
    dates = {"created": "created_at", "updated": "updated_at", "removed": "removed_at"}
    api.record(
        member,
        pairs(
            member,
            "id",
            **names,
            **dates,
        ),
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
@click.option(
    "--role",
    default="member",
    show_default=True,
    help="The user's role: owner, admin, member, or one of the service's own.",
)
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


@click.command("remove", cls=ApiCommand, json_help="One line of JSON a member.")
@id_argument("member_ids", "MEMBER", "members", many=True)
@yes_option
def remove(api: ApiContext, *, member_ids: tuple[str, ...], yes: bool) -> None:
    """Remove members, whose next request is rejected, or withdraw their invitations.

    \b
      tenantry members remove mbr_01a1f97751a3e4c5b6d7f8091a2b3c4d --yes
    """

    def question(member_id: str) -> str:
        member = api.client.members.get(member_id)
        return f"Remove {member.user_id}, {member.role} of {member.org_id}?"

    api.end_each(
        member_ids,
        question,
        api.client.members.delete,
        "Removed",
        yes=yes,
        status="removed",
    )


@click.command("list", cls=ApiCommand, json_help="One line of JSON a membership.")
@click.option(
    "--status", type=click.Choice(["active", "invited"]), help="Only memberships of this status."
)
@limit_option
def list_memberships(api: ApiContext, *, status: str | None, limit: int | None) -> None:
    """List your memberships and invitations, the newest first.

    \b
      tenantry memberships list --status invited
    """
    none = "You have no such memberships."
    api.list(
        api.client.memberships.list,
        _MEMBERSHIP_COLUMNS,
        none,
        limit=limit,
        status=status,
    )


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


@click.command("leave", cls=ApiCommand, json_help="One line of JSON a membership.")
@id_argument(
    "membership_ids",
    "MEMBERSHIP",
    "memberships",
    many=True,
)
@yes_option
def leave(api: ApiContext, *, membership_ids: tuple[str, ...], yes: bool) -> None:
    """Leave organizations, or decline their invitations.

    \b
      tenantry memberships leave mbr_01a1f97751a3e4c5b6d7f8091a2b3c4d --yes
    """
    question = "End your membership {}? Only a new invitation brings it back.".format
    api.end_each(
        membership_ids,
        question,
        api.client.memberships.delete,
        "Ended",
        yes=yes,
        status="removed",
    )
