"""The page that the link of an invitation opens."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx2
import psycopg
import pytest

from tenantry.common.secret import Secret
from tenantry.domain.invitation_links import InvitationLinks
from tests.support.app import PEPPER
from tests.support.dashboard import (
    ACME,
    AT_ACME,
    NELL,
    NOA,
    OLIVIA,
    Dashboard,
    dashboard_of_file,
)
from tests.support.postgres import PostgresServer
from tests.support.service import JsonObject

PAGE: Final = "/invitation"
ACCEPT: Final = "/invitation/accept"
CONFIRMATION: Final = "/invitation/confirmation"
ENABLED: Final = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
}
DISCLAIMER: Final = "Nothing happens unless you accept."


@pytest.fixture(scope="module")
async def shared(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    async with dashboard_of_file(postgres, people, **ENABLED) as dashboard:
        yield dashboard


@pytest.fixture
async def dashboard(shared: Dashboard) -> AsyncIterator[Dashboard]:
    async with shared.reset():
        yield shared


async def invite(dashboard: Dashboard, email: str, role: str = "member") -> JsonObject:
    """An address invited to acme; returns the record with the path of its link."""
    invitation = await dashboard.call("POST", "/invitations", {"email": email, "role": role})
    link = await dashboard.call("GET", f"/invitations/{invitation['id']}/link")
    return {**invitation, "path": link["url"].removeprefix(dashboard.url)}


async def anonymous(dashboard: Dashboard, path: str) -> httpx2.Response:
    return await dashboard.api.get(path, headers={"Accept": "text/html"})


async def status_of(dashboard: Dashboard, invitation: JsonObject) -> str:
    record = await dashboard.call("GET", f"/invitations/{invitation['id']}")
    return str(record["status"])


def mailed_path(dashboard: Dashboard, invitation: JsonObject) -> str:
    """The path of the link in the mails about an invitation."""
    links = InvitationLinks([Secret(PEPPER)], dashboard.url)
    return links.mailed_link(str(invitation["id"])).removeprefix(dashboard.url)


async def test_signed_out_user_sees_the_invitation_and_signs_in_to_accept(
    dashboard: Dashboard,
) -> None:
    invitation = await invite(dashboard, str(NOA.email), "admin")
    answer = await anonymous(dashboard, invitation["path"])
    assert (answer.status_code, DISCLAIMER in answer.text) == (200, True)
    for shown in ("Acme", "Admin", NOA.email, "Sign in to accept"):
        assert str(shown) in answer.text
    noa = await dashboard.sign_in(NOA)
    start = dashboard.start_of(NOA, invitation["path"].replace("?", "%3F"))
    page = await noa.open(start)
    assert page.path == PAGE
    done = await noa.send(page, ACCEPT)
    assert done.path.rstrip("/") == AT_ACME
    assert "You are now a member of this organization." in done.text
    latest = (await (await dashboard.sign_in()).open(f"{AT_ACME}/")).text
    assert latest.count(" accepted the invitation") == 1
    assert await status_of(dashboard, invitation) == "accepted"
    again = await noa.open(invitation["path"])
    assert "You already belong to this organization." in again.text


async def test_opening_the_link_changes_nothing(dashboard: Dashboard) -> None:
    invitation = await invite(dashboard, str(NOA.email))
    noa = await dashboard.sign_in(NOA)
    for _ in range(3):
        await anonymous(dashboard, invitation["path"])
        await noa.open(invitation["path"])
    assert await status_of(dashboard, invitation) == "open"


async def test_member_is_shown_the_way_to_the_organization(dashboard: Dashboard) -> None:
    invitation = await invite(dashboard, str(NOA.email))
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(invitation["path"])
    assert "You already belong to this organization." in page.text
    assert AT_ACME in page.links


async def test_member_closes_an_invitation_by_opening_the_organization(
    dashboard: Dashboard,
) -> None:
    invitation = await invite(dashboard, str(NOA.email))
    await dashboard.add_member(NOA.sub)
    noa = await dashboard.sign_in(NOA)
    page = await noa.open(invitation["path"])
    assert "You already belong to this organization." in page.text
    assert await status_of(dashboard, invitation) == "open"
    assert (await noa.send(page, ACCEPT)).path.rstrip("/") == AT_ACME
    assert await status_of(dashboard, invitation) == "withdrawn"


async def test_user_with_another_address_is_told_what_to_do(dashboard: Dashboard) -> None:
    invitation = await invite(dashboard, "somebody@x.example")
    noa = await dashboard.sign_in(NOA)
    page = await noa.open(invitation["path"])
    assert "This invitation is for another address than yours." in page.text
    assert ACCEPT not in [form.action for form in page.forms]
    token = invitation["path"].partition("=")[2]
    for action in (ACCEPT, CONFIRMATION):
        forced = await noa.force(action, token=token, proof="")
        assert (forced.status, "for another email address" in forced.text) == (403, True)
    assert await status_of(dashboard, invitation) == "open"


async def test_user_with_another_address_accepts_by_the_mailed_link(dashboard: Dashboard) -> None:
    invitation = await invite(dashboard, "somebody@x.example")
    path = mailed_path(dashboard, invitation)
    assert "Sign in to accept." in (await anonymous(dashboard, path)).text
    noa = await dashboard.sign_in(NOA)
    page = await noa.open(path)
    assert (await noa.send(page, ACCEPT)).path.rstrip("/") == AT_ACME


async def test_user_without_a_verified_address_confirms_it_by_mail(dashboard: Dashboard) -> None:
    invitation = await invite(dashboard, "nell@x.example")
    nell = await dashboard.sign_in(NELL)
    page = await nell.open(invitation["path"])
    assert "Your identity provider has not verified an email address of yours." in page.text
    sent = await nell.send(page, CONFIRMATION)
    assert (sent.status, "Mail sent." in sent.text) == (200, True)
    async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as connection:
        cursor = await connection.execute(
            "SELECT recipient FROM mails WHERE type = 'member.invitation_confirmation'"
        )
        assert await cursor.fetchall() == [("nell@x.example",)]
    confirmed = await nell.open(mailed_path(dashboard, invitation))
    done = await nell.send(confirmed, ACCEPT)
    assert done.path.rstrip("/") == AT_ACME


async def test_link_with_a_wrong_proof_says_so(dashboard: Dashboard) -> None:
    invitation = await invite(dashboard, "nell@x.example")
    nell = await dashboard.sign_in(NELL)
    page = await nell.open(f"{invitation['path']}&proof=wrong")
    assert "This link is incomplete or no longer valid." in page.text
    assert ACCEPT not in [form.action for form in page.forms]


@pytest.mark.parametrize(
    ("ending", "text"),
    [("withdrawn", "was withdrawn"), ("expired", "has expired")],
)
async def test_closed_invitation_says_so(dashboard: Dashboard, ending: str, text: str) -> None:
    invitation = await invite(dashboard, str(NOA.email))
    noa = await dashboard.sign_in(NOA)
    open_page = await noa.open(invitation["path"])
    if ending == "withdrawn":
        await dashboard.call("DELETE", f"/invitations/{invitation['id']}")
    else:
        await dashboard.execute("UPDATE invitations SET expires_at = now()")
    page = await noa.open(invitation["path"])
    assert text in page.text
    assert "Ask an owner or admin of the organization for a new one." in page.text
    late = await noa.send(open_page, ACCEPT)
    assert (late.status, text in late.text) == (409, True)


async def test_invalid_link_says_so(dashboard: Dashboard) -> None:
    answer = await anonymous(dashboard, f"{PAGE}?token=inv_1.x")
    assert (answer.status_code, "This invitation link is invalid" in answer.text) == (404, True)


async def test_form_of_another_site_accepts_nothing(dashboard: Dashboard) -> None:
    invitation = await invite(dashboard, str(NOA.email))
    noa = await dashboard.sign_in(NOA)
    token = invitation["path"].partition("=")[2]
    answer = await noa.client.post(ACCEPT, data={"form_token": "made up", "token": token})
    assert answer.status_code == 403
    assert await status_of(dashboard, invitation) == "open"


async def test_name_of_the_tenant_is_plain_text(dashboard: Dashboard) -> None:
    name = '<a href="https://evil.example">Acme</a>'
    fields = {"name": name, "ownerEmail": "o@acme.example"}
    await dashboard.operate("PUT", f"/tenants/{ACME}", fields)
    invitation = await invite(dashboard, str(NOA.email))
    answer = await anonymous(dashboard, invitation["path"])
    assert 'href="https://evil.example"' not in answer.text


async def test_without_the_setting_no_link_is_valid(shared_dashboard: Dashboard) -> None:
    token = InvitationLinks([Secret(PEPPER)], "").token("inv_" + 32 * "0")
    async with shared_dashboard.reset():
        answer = await anonymous(shared_dashboard, f"{PAGE}?token={token}")
        assert answer.status_code == 404
        called = await shared_dashboard.request(
            "GET", "/invitations", shared_dashboard.token(OLIVIA)
        )
        assert called.json()["code"] == "invitations_not_enabled"
