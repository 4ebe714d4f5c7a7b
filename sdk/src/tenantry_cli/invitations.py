"""``tenantry invitations``: to an organization by mail, and accepting one by its link."""

from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import click

from tenantry_cli.api_command import (
    ApiCommand,
    ApiContext,
    Rows,
    end_command,
    id_argument,
    show_command,
)
from tenantry_cli.listing import list_command
from tenantry_cli.options import role_option, status_option
from tenantry_cli.output import columns, pairs
from tenantry_sdk import Invitation
from tenantry_sdk.types import Role

_COLUMNS: Final = columns(
    "id",
    email="email",
    role="role",
    status="status",
    expires="expires_at",
    loose="email",
)


class LinkParts(NamedTuple):
    """What the link of a mail says: ``proof`` is empty except in a confirmation mail."""

    token: str
    proof: str


def _parse_link(text: str) -> LinkParts:
    parameters = parse_qs(urlsplit(text).query)
    token = parameters.get("token", [""])[0]
    proof = parameters.get("proof", [""])[0]
    if not token:
        raise click.BadParameter("this is not the link of an invitation: copy it from the mail")
    return LinkParts(token, proof)


_link_argument: Final = click.argument("link", metavar="LINK", type=_parse_link)


@click.command("create", cls=ApiCommand, json_help="The invitation as one JSON document.")
@click.argument("email", metavar="EMAIL")
@role_option
def create(api: ApiContext, *, email: str, role: Role) -> None:
    """Mail an invitation, and print its id on stdout.

    Only a user who receives mail at EMAIL can accept, for seven days.

    \b
      tenantry invitations create grace@acme.example --role admin
    """
    invitation = api.client.invitations.create(email=email, role=role)
    message = f"Invited {invitation.email} as {invitation.role} of {invitation.org_id}."
    how = f"To pass on the link yourself: tenantry invitations link {invitation.id}"
    api.done(invitation, f"{message}\n{how}", invitation.id)


@list_command(
    "invitations",
    "an invitation",
    _COLUMNS,
    status_option("invitations", "open", "accepted", "withdrawn", "expired"),
)
def list_invitations() -> str:
    """List invitations by mail, the newest first.

    \b
      tenantry invitations list --status open
    """
    return "There are no such invitations."


@show_command("invitations", "INVITATION")
def show(_: ApiContext, invitation: Invitation) -> Rows:
    """Show an invitation.

    \b
      tenantry invitations show inv_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    return pairs(
        invitation,
        "id",
        "email",
        "role",
        "status",
        "invited_by",
        created="created_at",
        expires="expires_at",
        sent="sent_at",
    )


@click.command("link", cls=ApiCommand)
@id_argument("invitation_id", "INVITATION", "invitations", status="open")
def link(api: ApiContext, *, invitation_id: str) -> None:
    """Print the link of an open invitation on stdout, to pass it on by another way than mail.

    \b
      tenantry invitations link inv_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    found = api.client.invitations.link(invitation_id)
    api.done(found, "Only a user who receives mail at the invited address can accept.", found.url)


@click.command("resend", cls=ApiCommand, json_help="The invitation as one JSON document.")
@id_argument("invitation_id", "INVITATION", "invitations", status="open")
def resend(api: ApiContext, *, invitation_id: str) -> None:
    """Mail an invitation again, at most three times in all. It is then valid for seven more days.

    \b
      tenantry invitations resend inv_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    invitation = api.client.invitations.resend(invitation_id)
    api.done(invitation, f"Sent the invitation to {invitation.email} again.")


@end_command(
    "withdraw", "invitations", "INVITATION", "Withdrew", completes="open", status="withdrawn"
)
def withdraw(api: ApiContext, invitation_id: str) -> str:
    """Withdraw invitations, whose links then no longer work.

    \b
      tenantry invitations withdraw inv_01a1f97751a3e4c5b6d7f8091a2b3c4d --yes
    """
    invitation = api.client.invitations.get(invitation_id)
    return f"Withdraw the invitation of {invitation.email} as {invitation.role}?"


@click.command("accept", cls=ApiCommand, json_help="The membership as one JSON document.")
@_link_argument
def accept(api: ApiContext, *, link: LinkParts) -> None:
    """Accept an invitation by the LINK of its mail, as the signed-in user.

    \b
      tenantry invitations accept 'https://app.example/invitation?token=...'
    """
    membership = api.client.invitations.accept(token=link.token, proof=link.proof)
    api.done(membership, f"You are now {membership.role} of {membership.org_id}.")


@click.command("confirm", cls=ApiCommand, json_help="As JSON: null.")
@_link_argument
def confirm(api: ApiContext, *, link: LinkParts) -> None:
    """Mail a link to the invited address, with which you accept.

    Only for a LINK that an owner or admin passed on, and where the identity provider verifies no
    mail addresses. The mail of an invitation has such a link already.

    \b
      tenantry invitations confirm 'https://app.example/invitation?token=...'
    """
    api.client.invitations.request_confirmation(token=link.token)
    message = "Sent a mail to the invited address. Accept with its link:"
    api.done(None, f"{message} tenantry invitations accept LINK")
