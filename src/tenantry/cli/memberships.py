"""``tenantry memberships``: the caller's own memberships, in all organizations."""

import click

from tenantry.cli.api_client import PAGE, Api, Column
from tenantry.cli.api_command import ApiCommand, Id, completed, limit_option, yes_option
from tenantry_sdk import Membership

_COLUMNS = (
    Column[Membership]("ID", lambda one: one.id),
    Column[Membership]("ORGANIZATION", lambda one: one.org_id),
    Column[Membership]("NAME", lambda one: one.org_name, loose=True),
    Column[Membership]("ROLE", lambda one: one.role),
    Column[Membership]("STATUS", lambda one: one.status),
)


@click.command("list", cls=ApiCommand, json_help="One line of JSON a membership.")
@click.option("--status", type=click.Choice(["active", "invited"]), help="Only those.")
@limit_option
def list_memberships(api: Api, *, status: str | None, limit: int | None) -> None:
    """List your memberships and invitations, the newest first."""
    pager = api.client.memberships.list(status=status, limit=min(limit or PAGE, PAGE))
    api.list(pager, limit, _COLUMNS, "You have no such memberships.")


@click.command("accept", cls=ApiCommand, json_help="The membership as one JSON document.")
@click.argument("membership_id", metavar="MEMBERSHIP", type=Id(), shell_complete=completed("invitations"))
def accept(api: Api, *, membership_id: str) -> None:
    """Accept an invitation."""
    membership = api.client.memberships.accept(membership_id)
    if api.as_json:
        api.document(membership)
    else:
        api.say(f"You are {membership.role} of {membership.org_id} now.")


@click.command("leave", cls=ApiCommand, json_help="One line of JSON a membership.")
@click.argument(
    "membership_ids", metavar="MEMBERSHIP...", nargs=-1, required=True, type=Id(),
    shell_complete=completed("memberships"),
)  # fmt: skip
@yes_option
def leave(api: Api, *, membership_ids: tuple[str, ...], yes: bool) -> None:
    """Leave organizations, or decline their invitations."""
    api.end_each(
        membership_ids,
        question=lambda membership_id: f"End your membership {membership_id}? Only a new invitation brings it back.",
        end=api.client.memberships.delete,
        verb="Ended",
        outcome={"status": "removed"},
        yes=yes,
    )
