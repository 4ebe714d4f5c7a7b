"""Members of several directories of an identity provider: users of two directories may have the
same user id.
"""

from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.integration.dashboard.signing_in import USER, Browser, at_provider, issuer_of
from tests.support.dashboard_page import Page

MEMBERS = "/orgs/acme/settings/members"


@pytest.fixture
async def browser(conninfo: str) -> AsyncIterator[Browser]:
    """The owner of acme, of the directory a-1, and a member with the same user id, of the directory
    b-2.
    """
    async with at_provider(conninfo, directories=("a-1", "b-2")) as browser, browser.reset():
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            for directory, member_id, role in (
                ("a-1", "mbr_owner", "owner"),
                ("b-2", "mbr_namesake", "member"),
            ):
                await connection.execute(
                    "INSERT INTO memberships (id, issuer, subject, tenant_id, role) VALUES (%s, %s, %s, 'acme', %s)",
                    (member_id, issuer_of(browser.issuer, directory), USER, role),
                )
        assert (await browser.sign_in(name="Olivia Owner")).status_code == 303
        yield browser


async def opened(browser: Browser, path: str) -> Page:
    return Page(await browser.client.get(path))


async def test_only_the_owner_of_the_same_issuer_is_tagged(browser: Browser) -> None:
    said = (await opened(browser, MEMBERS)).text
    assert f"Olivia Owner you {USER} Owner primary owner just now" in said
    assert f"{USER} Member never" in said
    assert said.count("primary owner") == said.count("Olivia Owner you") == 1


async def test_namesake_can_be_changed_and_removed(browser: Browser) -> None:
    page = await opened(browser, f"{MEMBERS}/mbr_namesake")
    assert "primary owner" not in page.text
    assert "Olivia Owner" not in page.heading()
    assert page.form(f"{MEMBERS}/mbr_namesake/role").fields["role"] == ["member"]
    remove = page.form(f"{MEMBERS}/mbr_namesake/remove")
    answer = await browser.client.post(remove.action, data=remove.fields)
    assert (answer.status_code, answer.headers["location"]) == (303, MEMBERS)
    assert "Member removed." in (await opened(browser, MEMBERS)).text


async def test_own_membership_is_left_on_another_page(browser: Browser) -> None:
    page = await opened(browser, f"{MEMBERS}/mbr_owner")
    assert "/account/memberships/mbr_owner/leave" in page.links
    assert "primary owner" in page.text


async def test_transfer_offers_only_users_of_the_own_directory(browser: Browser) -> None:
    page = await opened(browser, "/orgs/acme/settings/transfer")
    assert "The current primary owner, Olivia Owner (you), becomes an admin." in page.text
    assert f'<option value="{USER}"' not in page.html
