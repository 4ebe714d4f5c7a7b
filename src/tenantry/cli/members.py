"""``tenantry members``."""

from collections.abc import Iterator

import click

from tenantry.cli.api_client import PAGE, Api, Column
from tenantry.cli.api_command import ApiCommand, Id, completed, limit_option, yes_option
from tenantry.cli.text import day, shown
from tenantry_sdk import Member

_ROLES = click.Choice(["owner", "admin", "member"])
_COLUMNS = (
    Column[Member]("ID", lambda member: member.id),
    Column[Member]("USER", lambda member: member.user_id, loose=True),
    Column[Member]("ROLE", lambda member: member.role),
    Column[Member]("STATUS", lambda member: member.status),
    Column[Member]("SINCE", lambda member: day(member.created_at)),
)


@click.command("list", cls=ApiCommand, json_help="One line of JSON a member.")
@click.option("--role", type=_ROLES, help="Only those.")
@click.option("--status", type=click.Choice(["active", "invited", "removed"]), help="Only those.")
@limit_option
def list_members(api: Api, *, role: str | None, status: str | None, limit: int | None) -> None:
    """List the members and the invited users of the organization, the newest first."""
    pager = api.client.members.list(role=role, status=status, limit=min(limit or PAGE, PAGE))
    api.list(pager, limit, _COLUMNS, "There are no such members.")


@click.command("show", cls=ApiCommand)
@click.argument("member_id", metavar="MEMBER", type=Id(), shell_complete=completed("members"))
def show(api: Api, *, member_id: str) -> None:
    """Show a member."""
    member = api.client.members.get(member_id)
    api.record(member, _rows(member))


@click.command("add", cls=ApiCommand, json_help="The member as one JSON document.")
@click.argument("user_id", metavar="USER", type=Id())
@click.option("--role", type=_ROLES, default="member", show_default=True, help="What the user may do.")
def add(api: Api, *, user_id: str, role: str) -> None:
    """Invite a user, and print the member's id on stdout.

    USER is the user's id at the identity provider, the sub of their tokens. The user has to accept.
    """
    member = api.client.members.create(user_id=user_id, role=role)
    if api.as_json:
        api.document(member)
        return
    done = "Invited" if member.status == "invited" else "Added"
    api.say(f"{done} {member.user_id} as {member.role} of {member.org_id}.")
    if member.status == "invited":
        api.say(f"They accept on the dashboard, or with: tenantry memberships accept {member.id}")
    api.result(member.id)


@click.command("update", cls=ApiCommand, json_help="The member as one JSON document.")
@click.argument("member_id", metavar="MEMBER", type=Id(), shell_complete=completed("members"))
@click.option("--role", type=_ROLES, required=True, help="The new role.")
def update(api: Api, *, member_id: str, role: str) -> None:
    """Give a member another role."""
    member = api.client.members.update(member_id, role=role)
    if api.as_json:
        api.document(member)
    else:
        api.say(f"{member.user_id} is {member.role} of {member.org_id} now.")


@click.command("remove", cls=ApiCommand, json_help="One line of JSON a member.")
@click.argument(
    "member_ids", metavar="MEMBER...", nargs=-1, required=True, type=Id(), shell_complete=completed("members")
)
@yes_option
def remove(api: Api, *, member_ids: tuple[str, ...], yes: bool) -> None:
    """Remove members, whose next request is refused, or withdraw their invitations."""

    def question(member_id: str) -> str:
        member = api.client.members.get(member_id)
        return f"Remove {member.user_id}, {member.role} of {member.org_id}?"

    api.end_each(
        member_ids,
        question=question,
        end=api.client.members.delete,
        verb="Removed",
        outcome={"status": "removed"},
        yes=yes,
    )


def _rows(member: Member) -> Iterator[tuple[str, str]]:
    yield "id", member.id
    yield "user", member.user_id
    yield "role", member.role
    yield "status", member.status
    yield "organization", member.org_id
    yield "created", shown(member.created_at)
    yield "updated", shown(member.updated_at)
    if member.removed_at:
        yield "removed", shown(member.removed_at)
