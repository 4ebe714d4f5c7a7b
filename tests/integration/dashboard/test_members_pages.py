"""The pages of members, and the transfer of ownership."""

from typing import Final

import pytest

from tenantry_devkit.identity_tokens import DemoUser
from tests.support.dashboard import (
    ADAM,
    AT_ACME,
    AT_BETA,
    BERTA,
    MIA,
    OLIVIA,
    Dashboard,
    Person,
)

MEMBERS: Final = f"{AT_ACME}/settings/members"
TRANSFER: Final = f"{AT_ACME}/settings/transfer"


async def roles(dashboard: Dashboard, status: str = "active") -> dict[str, str]:
    found = (await dashboard.call("GET", f"/members?status={status}"))["data"]
    return {member["userId"]: member["role"] for member in found}


async def visit(dashboard: Dashboard, user: DemoUser, path: str = AT_ACME) -> Person:
    """Sign a user in and open a page, from which the organization knows their name."""
    person = await dashboard.sign_in(user)
    assert (await person.get(f"{path}/")).status_code == 200
    return person


def leave_path(member_page: str) -> str:
    """Return the path on which a user leaves, from the path of their membership's page."""
    return f"/account/memberships/{member_page.rpartition('/')[2]}/leave"


async def test_list_shows_roles_the_user_and_the_owner(dashboard: Dashboard) -> None:
    await dashboard.add_member("mia")
    await visit(dashboard, MIA)
    page = await (await visit(dashboard, OLIVIA)).open(MEMBERS)
    assert "Olivia Owner you olivia@acme.example Owner primary owner just now" in page.text
    assert "Mia <i>Member</i> mia@acme.example Member just now" in page.text
    assert "i" not in page.tags


async def test_name_is_shown_to_tenants_that_the_user_visited(dashboard: Dashboard) -> None:
    await visit(dashboard, BERTA, AT_BETA)
    await dashboard.add_member("berta")
    page = await (await dashboard.sign_in(OLIVIA)).open(MEMBERS)
    assert "berta" in page.text
    assert "Berta Beta" not in page.text


async def test_name_is_known_after_the_user_signed_out(dashboard: Dashboard) -> None:
    await dashboard.add_member("mia")
    mia = await dashboard.sign_in(MIA)
    await mia.send(await mia.open(AT_ACME), "/sign-out")
    page = await (await dashboard.sign_in(OLIVIA)).open(MEMBERS)
    assert "Mia <i>Member</i> mia@acme.example" in page.text


async def test_an_owner_has_an_address_before_the_first_sign_in(dashboard: Dashboard) -> None:
    await dashboard.add_member(ADAM.sub, "admin")
    viewer = await visit(dashboard, ADAM)
    members = await viewer.open(MEMBERS)
    assert "olivia@acme.example olivia primary owner" in members.text.replace("Owner ", "")
    own = await viewer.open(await dashboard.page_of(OLIVIA.sub))
    assert "<title>olivia@acme.example" in own.html
    assert OLIVIA.sub in (await viewer.open(f"{MEMBERS}?search=OLIVIA@acme")).text
    await visit(dashboard, OLIVIA)
    assert "Olivia Owner olivia@acme.example" in (await viewer.open(MEMBERS)).text


async def test_the_list_is_filtered(dashboard: Dashboard) -> None:
    adam = await dashboard.add_member("adam", "admin")
    await dashboard.add_member("mia")
    olivia = await dashboard.sign_in(OLIVIA)
    await olivia.send(await olivia.open(f"{await dashboard.page_of('mia')}/remove"))
    found = await olivia.open(f"{MEMBERS}?role=admin")
    assert [link for link in found.links if link.startswith(f"{MEMBERS}/mbr")] == [adam]
    removed = await olivia.open(f"{MEMBERS}?status=removed")
    assert "mia Member never just now" in removed.text
    assert "olivia" not in removed.text
    assert adam in (await olivia.open(f"{MEMBERS}?search=ADA")).links
    assert "No member matches" in (await olivia.open(f"{MEMBERS}?search=nobody")).text


async def test_member_is_found_by_a_part_of_the_address(dashboard: Dashboard) -> None:
    mia = await dashboard.add_member("mia")
    adam = await dashboard.add_member("adam", "admin")
    await visit(dashboard, MIA)
    page = await (await dashboard.sign_in(OLIVIA)).open(f"{MEMBERS}?search=IA@acme")
    assert mia in page.links
    assert adam not in page.links


async def test_tabs_count_members_invitations_and_users_by_claim(dashboard: Dashboard) -> None:
    await visit(dashboard, ADAM)
    olivia = await dashboard.sign_in(OLIVIA)
    await olivia.send(await olivia.open(f"{MEMBERS}/new"), userId="new", role="member")
    page = await olivia.open(MEMBERS)
    assert "Members 1 Invitations 1 By provider 1" in page.text
    assert "new by user id Member open" in (await olivia.open(f"{MEMBERS}/invitations")).text
    claimed = await olivia.open(f"{MEMBERS}/identity-provider")
    assert "Adam Admin adam@acme.example Admin just now" in claimed.text


async def test_user_is_invited_once_by_a_resubmitted_form(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    form = await olivia.open(f"{MEMBERS}/new")
    added = await olivia.send(form, userId="auth0|new", role="admin")
    assert "Invitation created." in added.text
    assert (await olivia.send(form, userId="auth0|new", role="admin")).path == added.path
    assert await roles(dashboard, "invited") == {"auth0|new": "admin"}


@pytest.mark.parametrize(
    ("user_id", "role", "field", "fault"),
    [
        ("", "member", "userId", "Fill in this field."),
        ("two words", "member", "userId", "without blanks"),
        ("new", "emperor", "role", "Choose one of the roles."),
        ("mia", "admin", "userId", "already a member or invited"),
        ("olivia", "member", "sure", "This is your own role."),
    ],
)
async def test_invalid_invitation_shows_an_error_beside_the_field(
    dashboard: Dashboard, user_id: str, role: str, field: str, fault: str
) -> None:
    await dashboard.add_member("mia")
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.send(await olivia.open(f"{MEMBERS}/new"), userId=user_id, role=role)
    assert (page.status, page.focused) == (422, [field])
    assert fault in page.text


async def test_owner_cannot_be_invited_with_a_lower_role(dashboard: Dashboard) -> None:
    adam = await dashboard.sign_in(ADAM)
    page = await adam.send(await adam.open(f"{MEMBERS}/new"), userId="olivia", role="admin")
    assert page.status == 422


async def test_a_role_is_changed(dashboard: Dashboard) -> None:
    path = await dashboard.add_member("mia")
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.send(await olivia.open(path), f"{path}/role", role="admin")
    assert "Role changed." in page.text
    assert (await roles(dashboard))["mia"] == "admin"


async def test_admin_cannot_assign_the_owner_role(dashboard: Dashboard) -> None:
    mia, olivia = await dashboard.add_member("mia"), await dashboard.page_of("olivia")
    adam = await dashboard.sign_in(ADAM)
    assert '<option value="owner"' not in (await adam.open(mia)).html
    refused = await adam.force(f"{mia}/role", role="owner")
    assert refused.status == 422
    assert "Only an owner can add, change or remove owners." in refused.text
    assert f"{olivia}/remove" not in (await adam.open(olivia)).links
    assert (await adam.force(f"{olivia}/remove")).status == 422
    assert (await adam.force(f"{olivia}/role", role="member")).status == 422
    assert (await adam.force(f"{MEMBERS}/new", userId="eve", role="owner")).status == 422
    assert (await adam.open(TRANSFER)).status == 403
    assert (
        await adam.force(TRANSFER, userId="mia", ownerEmail="a@b.example", name="Acme")
    ).status == 403
    assert await roles(dashboard) == {"olivia": "owner", "mia": "member"}


async def test_admin_sees_why_a_concurrent_change_was_rejected(dashboard: Dashboard) -> None:
    path = await dashboard.add_member("mia")
    adam, olivia = await dashboard.sign_in(ADAM), await dashboard.sign_in(OLIVIA)
    form, asked = await adam.open(path), await adam.open(f"{path}/remove")
    await olivia.send(await olivia.open(path), f"{path}/role", role="owner")
    why = "Only an owner can add, change or remove owners."
    for refused, said in (
        (await adam.send(form, f"{path}/role", role="admin"), "Nothing was changed."),
        (await adam.send(asked), "The member was not removed."),
    ):
        assert refused.status == 422
        assert f'tabindex="-1" autofocus role="alert">{said} {why}' in refused.html
    assert (await roles(dashboard))["mia"] == "owner"


async def test_organization_owner_cannot_be_removed_without_a_transfer(
    dashboard: Dashboard,
) -> None:
    path = await dashboard.page_of("olivia")
    olivia = await dashboard.sign_in(OLIVIA)
    assert TRANSFER in (await olivia.open(path)).links
    asked, refused = (
        await olivia.open(leave_path(path)),
        await olivia.force(leave_path(path), leaving="yes"),
    )
    assert (asked.status, refused.status) == (200, 409)
    for page in (asked, refused):
        assert "You can't leave, because the organization would lose its owner." in page.text
        assert TRANSFER in page.links
        assert not [form for form in page.forms if form.action == leave_path(path)]
    why = "Nothing was changed, because this is the primary owner."
    for fields in ({"role": "admin"}, {"role": "admin", "sure": "yes"}):
        assert f'role="alert">{why}' in (await olivia.force(f"{path}/role", **fields)).html
    assert await roles(dashboard) == {"olivia": "owner"}


async def test_last_owner_cannot_be_removed(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await olivia.send(await olivia.open(f"{await dashboard.add_member('away')}/remove"))
    await dashboard.operate(
        "PUT", "/tenants/acme", {"name": "Acme", "ownerEmail": "x@x.example", "ownerId": "away"}
    )
    path = await dashboard.page_of("olivia")
    left = await olivia.force(leave_path(path), leaving="yes")
    assert (left.status, "make another member an owner" in left.text) == (409, True)
    lowered = await olivia.send(await olivia.open(path), f"{path}/role", role="member", sure="yes")
    assert (lowered.status, "The organization would lose its owner." in lowered.text) == (422, True)
    fields = lowered.form(f"{path}/role").fields
    assert (fields["role"], fields["sure"]) == (["member"], ["yes"])
    assert await roles(dashboard) == {"olivia": "owner"}


async def test_member_is_removed_after_a_confirmation_and_invited_again(
    dashboard: Dashboard,
) -> None:
    path = await dashboard.add_member("mia")
    olivia, mia = await dashboard.sign_in(OLIVIA), await visit(dashboard, MIA)
    asked = await olivia.open(f"{path}/remove")
    assert "The very next request of Mia <i>Member</i> is rejected" in asked.text
    assert "API keys that they created keep working" in asked.text
    assert "Member removed." in (await olivia.send(asked)).text
    assert (await mia.open(f"{AT_ACME}/projects")).status == 404
    removed = await olivia.open(path)
    [invite] = [link for link in removed.links if "/new?userId=mia" in link]
    back = await olivia.send(await olivia.open(invite), role="admin")
    assert (back.status, "Invitation created." in back.text) == (200, True)
    assert await roles(dashboard, "invited") == {"mia": "admin"}
    assert (await mia.open(f"{AT_ACME}/projects")).status == 200


async def test_accepted_invitation_is_not_withdrawn_without_confirmation(
    dashboard: Dashboard,
) -> None:
    path = await dashboard.add_member("mia", accepted=False)
    olivia = await dashboard.sign_in(OLIVIA)
    asked = await olivia.open(f"{path}/remove")
    assert "Withdraw this invitation?" in asked.text
    await dashboard.accept_invitations()
    again = await olivia.send(asked)
    assert again.status == 422
    assert "The member was not removed. The user has accepted the invitation." in again.text
    assert "Remove this member?" in again.text
    assert "mia" in await roles(dashboard)
    assert "Member removed." in (await olivia.send(again)).text
    assert "mia" not in await roles(dashboard)


async def test_own_invitation_is_accepted_or_declined_not_withdrawn(dashboard: Dashboard) -> None:
    path = await dashboard.add_member("adam", "admin", accepted=False)
    page = await (await dashboard.sign_in(ADAM)).open(path)
    assert ("Accept or decline", "/account") in page.anchors
    assert f"{path}/remove" not in page.links


async def test_admin_sees_that_provider_owners_are_not_blocked(dashboard: Dashboard) -> None:
    path = await dashboard.add_member("mia")
    said = "even if the identity provider grants access, unless it assigns them the role owner."
    for person, is_told in ((ADAM, True), (OLIVIA, False)):
        page = await (await dashboard.sign_in(person)).open(f"{path}/remove")
        assert (said in page.text) is is_told


async def test_user_id_that_resembles_an_email_address_is_accepted(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    good = {"ownerEmail": "billing@acme.example", "name": "Acme"}
    page = await olivia.send(
        await olivia.open(TRANSFER), userId="samlp|acme|ada@acme.example", **good
    )
    assert "This user is not an active member. Invite them first." in page.text
    page = await olivia.send(await olivia.open(TRANSFER), userId="ada@acme.example", **good)
    assert "This is an email address." in page.text


async def test_removing_oneself_redirects_to_leaving(dashboard: Dashboard) -> None:
    path = await dashboard.add_member("adam", "admin")
    adam = await dashboard.sign_in(ADAM)
    own = await adam.open(path)
    assert f"{path}/remove" not in own.links
    leave = leave_path(path)
    assert leave in own.links
    assert (await adam.open(f"{path}/remove")).path == leave
    assert (await adam.force(f"{path}/remove")).path == leave
    assert "adam" in await roles(dashboard)
    asked = await adam.open(leave)
    unsure = await adam.send(asked)
    assert (unsure.status, unsure.focused) == (422, ["leaving"])
    assert "adam" in await roles(dashboard)
    gone = await adam.send(asked, leaving="yes")
    assert "You left the organization." in gone.text
    assert "adam" not in await roles(dashboard)
    assert "You don't belong to an organization yet" in (await adam.open("/")).text


async def test_lowering_the_own_role_needs_the_box(dashboard: Dashboard) -> None:
    path = await dashboard.add_member("adam", "admin")
    adam = await dashboard.sign_in(ADAM)
    page = await adam.open(path)
    unsure = await adam.send(page, f"{path}/role", role="member")
    assert (unsure.status, unsure.focused) == (422, ["sure"])
    assert "you can't raise it again" in unsure.text
    assert unsure.form(f"{path}/role").fields["role"] == ["member"]
    await adam.send(page, f"{path}/role", role="member", sure="yes")
    assert (await roles(dashboard))["adam"] == "member"


async def test_admin_by_claim_is_warned_before_lowering_their_own_role(
    dashboard: Dashboard,
) -> None:
    adam = await dashboard.sign_in(ADAM)
    form = await adam.open(f"{MEMBERS}/new")
    unsure = await adam.send(form, userId="adam", role="member")
    assert (unsure.status, unsure.focused) == (422, ["sure"])
    assert "adam" not in await roles(dashboard)
    assert (await adam.send(form, userId="adam", role="admin")).status == 200


async def test_organization_is_transferred(dashboard: Dashboard) -> None:
    await dashboard.add_member("adam", "admin")
    olivia = await dashboard.sign_in(OLIVIA)
    form = await olivia.open(TRANSFER)
    assert "The current primary owner, Olivia Owner (you), becomes an admin." in form.text
    assert "<bdi>adam</bdi>" in form.html
    done = await olivia.send(form, userId="adam", ownerEmail="billing@acme.example", name="Acme")
    assert (done.status, done.path) == (200, MEMBERS)
    assert "Ownership transferred." in done.text
    assert await roles(dashboard) == {"olivia": "admin", "adam": "owner"}
    [entry] = (await dashboard.call("GET", "/audit-events?action=tenant.transferred"))["data"]
    assert entry["after"] == {
        "ownerId": "adam",
        "ownerEmail": "billing@acme.example",
        "ownerEmailVerified": False,
    }


async def test_new_owner_is_picked_by_name_and_brings_their_address(dashboard: Dashboard) -> None:
    await dashboard.add_member("adam", "admin")
    await (await dashboard.sign_in(ADAM)).open(MEMBERS)  # records his name and address
    olivia = await dashboard.sign_in(OLIVIA)
    form = await olivia.open(TRANSFER)
    assert "Adam Admin" in form.text
    assert "adam@acme.example" in form.text
    assert "olivia" not in form.html.partition("<fieldset>")[2].partition("</fieldset>")[0]
    done = await olivia.send(form, userId="adam", name="Acme")
    assert "Ownership transferred." in done.text
    [entry] = (await dashboard.call("GET", "/audit-events?action=tenant.transferred"))["data"]
    assert entry["after"]["ownerEmail"] == ADAM.email


async def test_every_fault_of_a_transfer_is_shown_at_once(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    typed = {"userId": "unknown", "ownerEmail": "nowhere", "name": "acme"}
    page = await olivia.send(await olivia.open(TRANSFER), **typed)
    for fault in ("not an active member", "Enter one email address", "The name does not match"):
        assert fault in page.text
    assert page.html.count('class="fault"') == 3
    assert "3 fields need a change" in page.text
    assert {"#userId", "#ownerEmail", "#name"} <= set(page.links)
    typed.pop("userId")  # offered no more
    assert {name: page.form().fields[name] for name in typed} == {
        name: [text] for name, text in typed.items()
    }


async def test_new_owner_found_by_a_search_stays_chosen_after_a_fault(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO memberships (issuer, subject, tenant_id, role) "
        "SELECT issuer, 'user-' || number, tenant_id, 'member' "
        "FROM memberships, generate_series(10, 62) AS number "
        "WHERE subject = 'olivia' AND tenant_id = 'acme'"
    )
    olivia = await dashboard.sign_in(OLIVIA)
    everyone = (await olivia.open(TRANSFER)).html
    [hidden, *_] = [f"user-{n}" for n in range(10, 63) if f'value="user-{n}"' not in everyone]
    searched = f"{TRANSFER}?search={hidden}"
    assert f'value="{hidden}"' in (await olivia.open(searched)).html
    # a form without an action goes to the page's address with its query
    typed = {"userId": hidden, "ownerEmail": "billing@acme.example", "name": "acme"}
    refused = await olivia.force(searched, **typed)
    assert (refused.status, refused.focused) == (422, ["name"])
    assert refused.form().fields["userId"] == [hidden]


async def test_every_fault_of_an_invitation_is_shown_at_once(dashboard: Dashboard) -> None:
    adam = await dashboard.sign_in(ADAM)
    page = await adam.send(
        await adam.open(f"{MEMBERS}/new"), userId="ada@acme.example", role="emperor"
    )
    assert "This is an email address." in page.text
    assert "Choose one of the roles." in page.text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"userId": ""}, "userId"),
        ({"userId": "unknown"}, "userId"),
        ({"ownerEmail": "nowhere"}, "ownerEmail"),
        ({"name": "acme"}, "name"),
    ],
)
async def test_invalid_transfer_changes_nothing(
    dashboard: Dashboard, changes: dict[str, str], field: str
) -> None:
    await dashboard.add_member("adam", "admin")
    olivia = await dashboard.sign_in(OLIVIA)
    good = {"userId": "adam", "ownerEmail": "billing@acme.example", "name": "Acme"}
    page = await olivia.send(await olivia.open(TRANSFER), **{**good, **changes})
    assert (page.status, page.focused) == (422, [field])
    assert (await roles(dashboard))["olivia"] == "owner"


async def test_member_sees_no_link_to_members(dashboard: Dashboard) -> None:
    assert MEMBERS not in (await (await dashboard.sign_in(MIA)).open(AT_ACME)).links


async def test_markup_in_input_is_escaped(dashboard: Dashboard) -> None:
    await dashboard.operate(
        "PUT", "/tenants/acme", {"name": "<b>Acme</b>", "ownerEmail": "o@x.example"}
    )
    path = await dashboard.add_member('<img/src="x">')
    olivia = await dashboard.sign_in(OLIVIA)
    for page in (MEMBERS, path, f"{path}/remove", TRANSFER):
        shown = await olivia.open(page)
        assert not {"img", "b"} & set(shown.tags)
    assert "<b>Acme</b>" in (await olivia.open(TRANSFER)).text
    refused = await olivia.send(
        await olivia.open(f"{MEMBERS}/new"), userId='"><img src=x>', role="member"
    )
    assert "img" not in refused.tags
