"""The profile: user, role and sessions."""

from typing import Final

from tests.integration.dashboard.signing_in import Browser
from tests.support.dashboard import AT_ACME, BERTA, MIA, OLIVIA, Dashboard

PROFILE: Final = f"{AT_ACME}/profile"
CHROME: Final = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/140.0 Safari/537.36"
)


async def test_profile_shows_the_user_and_their_role(dashboard: Dashboard) -> None:
    page = await (await dashboard.sign_in(MIA)).open(PROFILE)
    assert "Name Mia <i>Member</i> User id mia" in page.text
    assert "Role in Acme Member" in page.text
    assert "i" not in page.tags


async def test_restricted_owner_sees_the_restriction(browser: Browser) -> None:
    await browser.start()
    browser.give(access={"scope": "openid projects:read"})
    await browser.open_callback()
    for path in ("/orgs/acme/", "/orgs/acme/profile"):
        assert (
            "Owner, restricted by your identity provider" in (await browser.client.get(path)).text
        )


async def test_profile_lists_organizations(dashboard: Dashboard) -> None:
    await dashboard.call("POST", "/members", {"userId": "olivia", "role": "member"}, user=BERTA)
    await dashboard.accept_invitations()
    page = await (await dashboard.sign_in(OLIVIA)).open(PROFILE)
    assert {"/orgs/acme/", "/orgs/beta/"} <= set(page.links)


async def test_all_other_sessions_of_the_user_are_ended(dashboard: Dashboard) -> None:
    here, there = await dashboard.sign_in(OLIVIA), await dashboard.sign_in(OLIVIA, CHROME)
    mia = await dashboard.sign_in(MIA)
    page = await here.open(PROFILE)
    assert "Firefox on Linux this one" in page.text
    assert "Chrome on Windows 127.0.0.1" in page.text
    done = await here.send(page, f"{PROFILE}/end-others")
    assert "All other sessions are signed out." in done.text
    assert "Chrome on Windows" not in done.text
    assert (await there.open(PROFILE)).path == "/sign-in"
    assert (await mia.open(PROFILE)).status == 200


async def test_profile_in_another_tenant_is_not_found(dashboard: Dashboard) -> None:
    berta = await dashboard.sign_in(BERTA)
    assert (await berta.open(PROFILE)).status == 404
    assert (await berta.force(f"{PROFILE}/end-others")).status == 404
