"""Members of several directories of an identity provider: users of two directories may have the
same user id.
"""

from collections.abc import AsyncIterator

import httpx2
import psycopg
import pytest

from tests.integration.dashboard.signing_in import USER, Browser, at_provider, issuer_of
from tests.support.dashboard_page import Page

MEMBERS = "/orgs/acme/settings/members"
INVITING = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
}


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


@pytest.fixture
async def operator(conninfo: str) -> AsyncIterator[httpx2.AsyncClient]:
    """An operator of the directory vendor. The members of acme are of the directory customer: the
    owner Olivia, Ada, Bea, and Vic, of whom the vendor has a namesake; Vic has invited Ida by mail.
    """
    async with (
        at_provider(conninfo, directories=("vendor", "customer")) as browser,
        browser.reset(),
    ):
        vendor, customer = (issuer_of(browser.issuer, name) for name in ("vendor", "customer"))
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            for subject, role in (
                (USER, "owner"),
                ("ada", "admin"),
                ("bea", "member"),
                ("vic", "admin"),
            ):
                await connection.execute(
                    "INSERT INTO memberships (id, issuer, subject, tenant_id, role) "
                    "VALUES ('mbr_' || %(subject)s::text, %(issuer)s, %(subject)s, 'acme', %(role)s)",
                    {"subject": subject, "issuer": customer, "role": role},
                )
                await connection.execute(
                    "INSERT INTO user_profiles (org_id, issuer, subject, name, email, seen_at) "
                    "VALUES ('acme', %(issuer)s, %(subject)s, initcap(%(subject)s) || ' Customer', "
                    "%(subject)s || '@customer.example', now())",
                    {"subject": subject, "issuer": customer},
                )
            await connection.execute(
                "INSERT INTO audit_events (id, org_id, at, action, actor_kind, actor_id, target_id) "
                "VALUES ('aud_1', 'acme', now(), 'member.removed', 'user', 'vic', 'mbr_x')"
            )
            await connection.execute(
                "INSERT INTO invitations (id, org_id, email, address, role, binds_owner, invited_by, sends, "
                "created_at, expires_at) VALUES ('inv_1', 'acme', 'ida@x.example', 'ida@x.example', 'member', false, "
                "'vic', 1, now(), now())"
            )
        now = int(browser.clock.now.timestamp())
        answer = await browser.sign_in(name="Otto Operator", auth_time=now)
        assert answer.status_code == 303
        settings = {"OPERATORS": f"{vendor} {USER}", **INVITING}
        async with browser.at_another_process(**settings) as client:
            yield client


async def submitted(client: httpx2.AsyncClient, path: str, **fields: str) -> Page:
    """Fill in and submit the form of a page of the operator; return the page that follows."""
    form = Page(await client.get(f"/operator{path}")).form()
    data = {**form.fields, **fields}
    return Page(
        await client.post(form.action or f"/operator{path}", data=data, follow_redirects=True)
    )


async def directories_of(conninfo: str, subject: str) -> list[str]:
    """Return the directories of whose users with this subject acme has memberships."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        found = await connection.execute(
            "SELECT split_part(issuer, '/', 4) FROM memberships WHERE subject = %s", (subject,)
        )
        return [directory for (directory,) in await found.fetchall()]


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


async def test_operator_transfers_to_a_member_of_the_customer_s_directory(
    operator: httpx2.AsyncClient, conninfo: str
) -> None:
    path = "/orgs/acme/settings/transfer"
    page = Page(await operator.get(f"/operator{path}"))
    assert "(you)" not in page.text
    assert "Ada Customer" in page.text
    page = await submitted(operator, path, userId="ada", name="Acme")
    assert page.path == "/operator/orgs/acme/settings/members", page.text
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        found = await connection.execute(
            "SELECT owner_id, owner_email FROM tenants WHERE id = 'acme'"
        )
        assert await found.fetchall() == [("ada", "ada@customer.example")]


async def test_operator_does_not_choose_among_members_with_one_user_id(
    operator: httpx2.AsyncClient, conninfo: str
) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(
            "INSERT INTO memberships (id, issuer, subject, tenant_id, role) "
            "SELECT 'mbr_namesake', replace(issuer, '/customer/', '/vendor/'), subject, tenant_id, role "
            "FROM memberships WHERE subject = 'ada'"
        )
    page = await submitted(operator, "/orgs/acme/settings/transfer", userId="ada", name="Acme")
    assert page.status == 422
    assert "Members of several directories have this user id." in page.text


async def test_operator_sees_the_names_of_the_customer_s_users(
    operator: httpx2.AsyncClient,
) -> None:
    for path in ("audit", "members/invitations/inv_1"):
        page = Page(await operator.get(f"/operator/orgs/acme/settings/{path}"))
        assert "Vic Customer" in page.text, path


async def test_operator_does_not_name_a_user_of_one_of_two_directories(
    operator: httpx2.AsyncClient, conninfo: str
) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(
            "INSERT INTO user_profiles (org_id, issuer, subject, name, seen_at) "
            "SELECT org_id, replace(issuer, '/customer/', '/vendor/'), subject, 'Vic Vendor', now() "
            "FROM user_profiles WHERE subject = 'vic'"
        )
    page = Page(await operator.get("/operator/orgs/acme/settings/audit"))
    assert "Vic" not in page.text
    assert "vic" in page.text


async def test_operator_who_invites_by_user_id_learns_why_it_is_not_enough(
    operator: httpx2.AsyncClient, conninfo: str
) -> None:
    page = await submitted(operator, f"{MEMBERS}/new", userId="new-user", role="member")
    assert page.status == 422
    assert "Users of several directories can be members" in page.text
    assert await directories_of(conninfo, "new-user") == []


async def test_operator_adds_a_user_whom_the_customer_knows(
    operator: httpx2.AsyncClient, conninfo: str
) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("DELETE FROM memberships WHERE subject = 'bea'")
    page = await submitted(operator, f"{MEMBERS}/new", userId="bea", role="member")
    assert page.status == 200, page.text
    assert await directories_of(conninfo, "bea") == ["customer"]


async def test_operator_is_not_taken_for_the_customer_s_user_with_the_same_user_id(
    operator: httpx2.AsyncClient,
) -> None:
    page = Page(await operator.get(f"/operator{MEMBERS}/new?userId={USER}"))
    assert "my own role" not in page.text
