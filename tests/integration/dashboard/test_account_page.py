"""The account page: profile, organizations and sessions of the user."""

from typing import Final

import pytest

from tests.integration.dashboard.signing_in import Browser
from tests.support.dashboard import AT_ACME, BERTA, MIA, NOA, OLIVIA, Dashboard

ACCOUNT: Final = "/account"
CHROME: Final = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/140.0 Safari/537.36"
)


async def test_account_shows_the_user(dashboard: Dashboard) -> None:
    page = await (await dashboard.sign_in(MIA)).open(ACCOUNT)
    assert "Name Mia <i>Member</i>" in page.text
    assert "User id mia" in page.text
    assert "i" not in page.tags


async def test_restricted_owner_sees_the_restriction(browser: Browser) -> None:
    await browser.start()
    browser.give(access={"scope": "openid projects:read tenants:read"})
    await browser.open_callback()
    page = (await browser.client.get("/orgs/acme/settings/general")).text
    assert "Owner, restricted by your identity provider" in page


async def test_account_lists_organizations_with_the_role_in_each(dashboard: Dashboard) -> None:
    await dashboard.call("POST", "/members", {"userId": "olivia", "role": "member"}, user=BERTA)
    await dashboard.accept_invitations()
    page = await (await dashboard.sign_in(OLIVIA)).open(ACCOUNT)
    assert {"/orgs/acme/", "/orgs/beta/"} <= set(page.links)
    assert "Beta beta Member Leave Beta" in page.text


async def test_all_other_sessions_of_the_user_are_ended(dashboard: Dashboard) -> None:
    here, there = await dashboard.sign_in(OLIVIA), await dashboard.sign_in(OLIVIA, CHROME)
    mia = await dashboard.sign_in(MIA)
    page = await here.open(ACCOUNT)
    assert "Firefox on Linux this one" in page.text
    assert "Chrome on Windows 127.0.0.1" in page.text
    done = await here.send(page, f"{ACCOUNT}/end-other-sessions")
    assert "All other sessions are signed out." in done.text
    assert "Chrome on Windows" not in done.text
    assert (await there.open(ACCOUNT)).path == "/sign-in"
    assert (await mia.open(ACCOUNT)).status == 200


@pytest.mark.parametrize("path", ["/memberships", "/orgs", f"{AT_ACME}/profile"])
async def test_former_pages_are_gone(dashboard: Dashboard, path: str) -> None:
    assert (await (await dashboard.sign_in(OLIVIA)).open(path)).status == 404


async def test_user_without_an_organization_sees_the_account(dashboard: Dashboard) -> None:
    page = await (await dashboard.sign_in(NOA)).open(ACCOUNT)
    assert page.status == 200
    assert "You don't belong to an organization yet" in page.text
