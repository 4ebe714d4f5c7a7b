"""The pages of invitations by mail: invite, list, copy the link, send again, withdraw."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.dashboard import (
    ACME,
    ADAM,
    AT_ACME,
    AT_BETA,
    BERTA,
    MIA,
    OLIVIA,
    Dashboard,
    dashboard_of_file,
)
from tests.support.dashboard_page import Page
from tests.support.postgres import PostgresServer

MEMBERS: Final = f"{AT_ACME}/settings/members"
INVITATIONS: Final = f"{MEMBERS}/invitations"
INVITE: Final = f"{INVITATIONS}/new"
INVITING: Final = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
}


@pytest.fixture(scope="module")
async def shared_dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    async with dashboard_of_file(postgres, people, **INVITING) as dashboard:
        yield dashboard


async def invited(dashboard: Dashboard, email: str = "grace@acme.example") -> Page:
    """The page of a new invitation."""
    olivia = await dashboard.sign_in(OLIVIA)
    return await olivia.send(await olivia.open(INVITE), email=email, role="admin")


async def test_owner_invites_by_mail_and_copies_the_link(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    assert INVITE in (await olivia.open(MEMBERS)).links
    page = await invited(dashboard)
    assert page.path.startswith(f"{INVITATIONS}/inv_")
    assert "Invitation on its way." in page.text
    assert "Role Admin Status open" in page.text
    assert "Invited by Olivia Owner" in page.text
    assert f"{dashboard.url}/invitation?token=inv_" in page.html


async def test_invitation_names_the_key_that_invited(dashboard: Dashboard) -> None:
    made = await dashboard.call(
        "POST", "/api-keys", {"orgId": ACME, "name": "Onboarding", "scopes": ["*:*"]}
    )
    invitation = {"email": "grace@acme.example", "role": "member"}
    answer = await dashboard.request("POST", "/invitations", made["secret"], invitation)
    assert answer.status_code == 201
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(f"{INVITATIONS}/{answer.json()['id']}")
    assert "Invited by Onboarding" in page.text
    assert f"{AT_ACME}/settings/api-keys/{made['id']}" in page.links


async def test_checklist_of_the_overview_leads_to_invitations_by_mail(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    assert INVITE in (await olivia.open(f"{AT_ACME}/")).links


async def test_open_invitations_count_as_members_of_the_plan(dashboard: Dashboard) -> None:
    await invited(dashboard)
    olivia = await dashboard.sign_in(OLIVIA)
    said = (await olivia.open(f"{AT_ACME}/billing")).text
    assert "Members and invitations 2 of 100" in said


async def test_address_of_a_member_is_refused_beside_the_field(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await olivia.open(MEMBERS)  # records the owner's address
    form = await olivia.open(INVITE)
    page = await olivia.send(form, email=str(OLIVIA.email), role="member")
    assert page.path == INVITE
    assert "The user of this address is a member already." in page.text


async def test_double_click_invites_once(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    form = await olivia.open(INVITE)
    first = await olivia.send(form, email="grace@acme.example", role="member")
    assert (await olivia.send(form, email="grace@acme.example", role="member")).path == first.path


@pytest.mark.parametrize(
    ("email", "role", "field", "fault"),
    [
        ("", "member", "email", "Fill in this field."),
        ("grace", "member", "email", "Enter one email address"),
        ("new@x.example", "emperor", "role", "Choose one of the roles."),
        ("taken@x.example", "member", "email", "This address has an open invitation."),
    ],
)
async def test_invalid_invitation_shows_an_error_beside_the_field(
    dashboard: Dashboard, email: str, role: str, field: str, fault: str
) -> None:
    await invited(dashboard, "taken@x.example")
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.send(await olivia.open(INVITE), email=email, role=role)
    assert (page.status, page.focused) == (422, [field])
    assert fault in page.text


async def test_invitation_is_sent_again_until_the_limit(dashboard: Dashboard) -> None:
    page = await invited(dashboard)
    olivia = await dashboard.sign_in(OLIVIA)
    for _ in range(2):
        page = await olivia.send(await olivia.open(page.path), f"{page.path}/resend")
        assert "Invitation on its way." in page.text
    refused = await olivia.send(await olivia.open(page.path), f"{page.path}/resend")
    assert refused.status == 429
    assert "This invitation was sent 3 times" in refused.text


async def test_invitation_is_withdrawn(dashboard: Dashboard) -> None:
    path = (await invited(dashboard)).path
    olivia = await dashboard.sign_in(OLIVIA)
    asked = await olivia.open(f"{path}/withdraw")
    assert "grace@acme.example received stops working" in asked.text
    ended = await olivia.send(asked, f"{path}/withdraw")
    assert ended.path == INVITATIONS
    assert "Invitation withdrawn." in ended.text
    assert path not in ended.links
    assert path in (await olivia.open(f"{INVITATIONS}?status=closed")).links
    closed = await olivia.open(path)
    assert "invitation?token=" not in closed.html
    assert f"{INVITE}?email=grace%40acme.example&role=admin" in closed.links


async def test_every_form_writes_an_audit_entry_of_its_user(dashboard: Dashboard) -> None:
    path = (await invited(dashboard)).path
    olivia = await dashboard.sign_in(OLIVIA)
    for action in ("resend", "withdraw"):
        await olivia.force(f"{path}/{action}")
    target = path.rpartition("/")[2]
    entries = (await dashboard.call("GET", f"/audit-events?targetId={target}"))["data"]
    assert [(one["action"], one["actorId"]) for one in entries] == [
        ("invitation.withdrawn", "olivia"),
        ("invitation.resent", "olivia"),
        ("invitation.created", "olivia"),
    ]


async def test_admin_neither_sees_the_link_of_an_owner_nor_withdraws_it(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    made = await olivia.send(await olivia.open(INVITE), email="owner@x.example", role="owner")
    adam = await dashboard.sign_in(ADAM)
    page = await adam.open(made.path)
    assert "invitation?token=" not in page.html
    assert f"{made.path}/withdraw" not in page.links
    assert (await adam.force(f"{made.path}/withdraw")).status == 403
    assert "Role Owner Status open" in (await olivia.open(made.path)).text


async def test_admin_cannot_invite_an_owner(dashboard: Dashboard) -> None:
    adam = await dashboard.sign_in(ADAM)
    assert '<option value="owner"' not in (await adam.open(INVITE)).html
    refused = await adam.force(INVITE, email="o@x.example", role="owner")
    assert (refused.status, "Your role can't give this role." in refused.text) == (422, True)


async def test_member_sees_no_invitations(dashboard: Dashboard) -> None:
    path = (await invited(dashboard)).path
    mia = await dashboard.sign_in(MIA)
    assert [(await mia.open(each)).status for each in (INVITATIONS, path, INVITE)] == [403] * 3


async def test_invitation_of_another_organization_is_not_found(dashboard: Dashboard) -> None:
    invitation_id = (await invited(dashboard)).path.rpartition("/")[2]
    berta = await dashboard.sign_in(BERTA)
    path = f"{AT_BETA}/settings/members/invitations/{invitation_id}"
    assert (await berta.open(path)).status == 404
    assert (await berta.force(f"{path}/withdraw")).status == 404


async def test_list_counts_and_finds_invitations_of_both_kinds(dashboard: Dashboard) -> None:
    path = (await invited(dashboard)).path
    await dashboard.call("POST", "/members", {"userId": "auth0|new", "role": "member"})
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(INVITATIONS)
    assert "Invitations 2" in page.text
    assert path in page.links
    assert "auth0|new" in page.text
    assert path not in (await olivia.open(f"{INVITATIONS}?search=auth0")).links
