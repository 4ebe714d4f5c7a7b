"""``tenantry invitations``: by mail, and accepting one by its link."""

import json

from tests.cli.command_support import Workspace


async def test_invitation_is_created_listed_and_accepted(workspace: Workspace) -> None:
    organization = workspace.organization.id
    user = workspace.served.service.user("cli-grace", email="g@x.example", email_verified=True)
    made = await workspace.run("invitations", "create", "g@x.example", "--role", "admin")
    invited = made.out.strip()
    assert made.err == (
        f"Invited g@x.example as admin of {organization}.\n"
        f"To pass on the link yourself: tenantry invitations link {invited}\n"
    )
    table = await workspace.done("invitations", "list", "--status", "open")
    assert (invited in table, "g@x.example" in table) == (True, True)
    link = (await workspace.done("invitations", "link", invited)).strip()
    accepted = await workspace.run(
        "invitations", "accept", link, TENANTRY_API_KEY=str(user.credential)
    )
    assert (accepted.code, accepted.err) == (0, f"You are now admin of {organization}.\n")
    shown = json.loads(await workspace.done("invitations", "show", invited, "--json"))
    assert (shown["id"], shown["status"]) == (invited, "accepted")


async def test_invitation_is_sent_again_and_withdrawn(workspace: Workspace) -> None:
    made = (await workspace.done("invitations", "create", "w@x.example")).strip()
    again = await workspace.run("invitations", "resend", made)
    assert (again.code, again.err) == (0, "Sent the invitation to w@x.example again.\n")
    asked = await workspace.run("invitations", "withdraw", made)
    assert (asked.code, "pass --yes" in asked.err) == (2, True)
    ended = await workspace.run("invitations", "withdraw", made, "--yes")
    assert (ended.code, ended.err) == (0, f"Withdrew {made}.\n")
    late = await workspace.run("invitations", "resend", made)
    assert (late.code, "was withdrawn" in late.err) == (1, True)


async def test_confirmation_is_requested_where_the_provider_verifies_no_address(
    workspace: Workspace,
) -> None:
    user = {"TENANTRY_API_KEY": str(workspace.served.service.user("cli-unverified").credential)}
    made = (await workspace.done("invitations", "create", "c@x.example")).strip()
    link = (await workspace.done("invitations", "link", made)).strip()
    refused = await workspace.run("invitations", "accept", link, **user)
    assert (refused.code, "tenantry invitations confirm" in refused.err) == (4, True)
    sent = await workspace.run("invitations", "confirm", link, **user)
    assert (sent.code, "Sent a mail to the invited address." in sent.err) == (0, True)


async def test_text_that_is_no_link_is_a_usage_error(workspace: Workspace) -> None:
    refused = await workspace.run("invitations", "accept", "inv_0123")
    assert (refused.code, "copy it from the mail" in refused.err) == (2, True)
