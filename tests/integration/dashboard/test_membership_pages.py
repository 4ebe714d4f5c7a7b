"""The user's own memberships: invitations, and leaving."""

import pytest

from tenantry.domain.api_keys import Pepper
from tenantry.domain.erased_ids import rejected_alias
from tenantry.domain.members import User
from tests.support.app import PEPPER
from tests.support.dashboard import ACME, ADAM, AT_ACME, BERTA, BETA, MIA, NOA, OLIVIA, Dashboard

PATH = "/account"
MEMBERSHIPS = "/account/memberships"
HOSTILE = '<a href="https://evil.example">Acme</a><script>1</script>'


async def invite(dashboard: Dashboard, user_id: str, role: str = "member") -> str:
    """Invite a user to beta; return the path of the membership."""
    made = await dashboard.call("POST", "/members", {"userId": user_id, "role": role}, user=BERTA)
    return f"{MEMBERSHIPS}/{made['id']}"


async def test_user_without_an_organization_sees_and_accepts_the_invitation(
    dashboard: Dashboard,
) -> None:
    one = await invite(dashboard, NOA.sub, "admin")
    user = await dashboard.sign_in(NOA)
    page = await user.open("/")
    assert (page.path, "invited as admin" in page.text) == (PATH, True)
    assert (await user.open(f"/orgs/{BETA}/")).status == 404
    done = await user.send(page, f"{one}/accept")
    assert done.path.rstrip("/") == f"/orgs/{BETA}"
    assert "You are now a member of this organization." in done.text


async def test_invitation_is_declined(dashboard: Dashboard) -> None:
    one = await invite(dashboard, NOA.sub)
    user = await dashboard.sign_in(NOA)
    page = await user.open(PATH)
    assert "Invitation declined." in (await user.send(page, f"{one}/decline")).text
    assert "You don't belong to an organization yet" in (await user.open("/")).text
    late = await user.send(page, f"{one}/accept")
    assert (late.status, "This membership has ended" in late.text) == (409, True)


async def test_member_of_another_tenant_sees_the_invitation_without_a_redirect(
    dashboard: Dashboard,
) -> None:
    one = await invite(dashboard, OLIVIA.sub)
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open("/")
    assert page.path.rstrip("/") == AT_ACME
    assert "You have an invitation." in page.text
    assert (await olivia.open(f"/orgs/{BETA}/projects")).status == 404
    await olivia.send(await olivia.open(PATH), f"{one}/decline")
    assert "You have an invitation." not in (await olivia.open("/")).text


async def test_name_of_the_inviting_tenant_is_plain_text(dashboard: Dashboard) -> None:
    await dashboard.operate(
        "PUT", f"/tenants/{BETA}", {"name": HOSTILE, "ownerEmail": "berta@beta.example"}
    )
    await invite(dashboard, NOA.sub)
    user = await dashboard.sign_in(NOA)
    page = await user.open(PATH)
    assert HOSTILE in page.text
    assert not [link for link in page.links if "evil" in link or BETA in link]
    assert 'evil.example"' not in page.html


async def test_other_users_cannot_accept_decline_or_leave(dashboard: Dashboard) -> None:
    one = await invite(dashboard, NOA.sub)
    mia = await dashboard.sign_in(MIA)
    for action in ("accept", "decline", "leave"):
        assert (await mia.force(f"{one}/{action}", leaving="yes")).status == 404
    assert (await mia.open(f"{one}/leave")).status == 404


async def test_form_of_another_site_accepts_no_invitation(dashboard: Dashboard) -> None:
    one = await invite(dashboard, NOA.sub)
    user = await dashboard.sign_in(NOA)
    answer = await user.client.post(f"{one}/accept", data={"form_token": "made up"})
    assert answer.status_code == 403
    assert "invited as member" in (await user.open(PATH)).text


async def test_plain_member_leaves(dashboard: Dashboard) -> None:
    path = await dashboard.add_member(MIA.sub)
    mia = await dashboard.sign_in(MIA)
    leave = f"{MEMBERSHIPS}/{path.rpartition('/')[2]}/leave"
    assert leave in (await mia.open(PATH)).links
    done = await mia.send(await mia.open(leave), leaving="yes")
    assert "You left the organization." in done.text
    assert (await mia.open(f"{AT_ACME}/")).status == 404


async def test_user_with_access_by_claim_confirms_before_declining(dashboard: Dashboard) -> None:
    path = await dashboard.add_member(ADAM.sub, "member", accepted=False)
    one = f"{MEMBERSHIPS}/{path.rpartition('/')[2]}"
    adam = await dashboard.sign_in(ADAM)
    page = await adam.open(PATH)
    assert "Your identity provider already gives you access to this organization." in page.text
    asked = await adam.send(page, f"{one}/decline")
    assert asked.path == f"{one}/leave"
    assert (await adam.open(f"{AT_ACME}/projects")).status == 200
    assert "You left the organization." in (await adam.send(asked, leaving="yes")).text
    assert (await adam.open(f"{AT_ACME}/projects")).status == 404


async def test_owner_by_claim_cannot_come_back_after_leaving(dashboard: Dashboard) -> None:
    await dashboard.operate(
        "PUT", "/tenants/acme", {"name": "Acme", "ownerEmail": "x@x.example", "ownerId": "other"}
    )
    await dashboard.execute("DELETE FROM memberships WHERE subject = %s", (OLIVIA.sub,))
    made = await dashboard.call(
        "POST", "/members", {"userId": OLIVIA.sub, "role": "member"}, user=ADAM
    )
    olivia = await dashboard.sign_in(OLIVIA)
    asked = await olivia.send(await olivia.open(PATH), f"{MEMBERSHIPS}/{made['id']}/decline")
    assert "You left the organization." in (await olivia.send(asked, leaving="yes")).text
    assert (await olivia.open(f"{AT_ACME}/")).status == 404


async def test_user_without_an_organization_sees_their_user_id_beside_an_invitation(
    dashboard: Dashboard,
) -> None:
    await invite(dashboard, NOA.sub)
    page = await (await dashboard.sign_in(NOA)).open("/")
    assert f"Send your user id, {NOA.sub}, to an owner or admin" in page.text


async def test_user_with_access_by_claim_alone_sees_its_source(dashboard: Dashboard) -> None:
    page = await (await dashboard.sign_in(ADAM)).open(PATH)
    assert "Acme acme By your identity provider" in page.text
    assert "You don't belong to an organization yet" not in page.text


async def test_owner_by_claim_removed_by_an_admin_keeps_access(dashboard: Dashboard) -> None:
    path = await dashboard.page_of("olivia")
    await dashboard.execute(
        "UPDATE memberships SET removed_at = now(), updated_at = now(), binds_owner = false WHERE id = %s",
        (path.rpartition("/")[2],),
    )
    olivia = await dashboard.sign_in(OLIVIA)
    assert (await olivia.open(f"{AT_ACME}/settings/members")).status == 200


@pytest.mark.parametrize("field", ["userId", "transfer"])
async def test_email_address_is_rejected_as_user_id(dashboard: Dashboard, field: str) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    if field == "userId":
        form = await olivia.open(f"{AT_ACME}/settings/members/new")
        page = await olivia.send(form, userId="grace@acme.example", role="member")
    else:
        form = await olivia.open(f"{AT_ACME}/settings/transfer")
        page = await olivia.send(
            form, userId="grace@acme.example", ownerEmail="grace@acme.example", name="Acme"
        )
    assert (page.status, page.focused) == (422, ["userId"])
    assert "This is an email address. Enter the user id" in page.text


async def test_overview_of_a_member_links_permitted_pages_only(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    page = await mia.open(f"{AT_ACME}/")
    for link in page.links:
        if link.startswith(AT_ACME):
            assert (await mia.open(link)).status == 200, link


async def test_a_member_who_was_removed_before_an_erasure_opens_no_page(
    dashboard: Dashboard,
) -> None:
    alias = rejected_alias(User(dashboard._issuer, MIA.sub), Pepper(PEPPER.encode()))
    await dashboard.execute(
        "INSERT INTO memberships (issuer, subject, tenant_id, role, removed_at) VALUES (%s, %s, %s, 'member', now())",
        (dashboard._issuer, alias, ACME),
    )
    await dashboard.execute("UPDATE tenants SET rejects_erased = true WHERE id = %s", (ACME,))
    mia = await dashboard.sign_in(MIA)
    page = await mia.open(AT_ACME)
    assert (page.status, "does not belong to this organization any more" in page.text) == (
        403,
        True,
    )
