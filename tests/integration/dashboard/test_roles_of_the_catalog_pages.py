"""Pages for members with roles of the operator's own."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.dashboard import AT_ACME, NOA, OLIVIA, Dashboard, Person, dashboard_of_file
from tests.support.postgres import PostgresServer

MEMBERS: Final = f"{AT_ACME}/settings/members"
CATALOG: Final = """
[[plans]]
id = "free"

[[roles]]
id = "lead"
name = "Team lead"
scopes = ["projects:*", "tenants:read", "billing:read", "members:*", "api-keys:*"]
gives = ["support", "member"]

[[roles]]
id = "support"
name = "Support"
scopes = ["projects:read", "members:read"]

[[roles]]
id = "auditor"
scopes = ["audit:read"]
"""


@pytest.fixture(scope="module")
async def shared_dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    async with dashboard_of_file(postgres, people, CATALOG) as dashboard:
        yield dashboard


async def sign_in_with(dashboard: Dashboard, role: str) -> Person:
    """Let a user sign in who is an active member with this role."""
    member_id = (await dashboard.add_member(NOA.sub, role)).rpartition("/")[2]
    await dashboard.execute("UPDATE memberships SET invited = false WHERE id = %s", (member_id,))
    return await dashboard.sign_in(NOA)


async def test_user_gives_the_roles_of_the_own_role(dashboard: Dashboard) -> None:
    admin = await dashboard.add_member("adam", "admin")
    lead = await sign_in_with(dashboard, "lead")
    assert "Team lead" in (await lead.open(MEMBERS)).text
    form = await lead.open(f"{MEMBERS}/new")
    assert '<option value="support"' in form.html
    assert '<option value="member"' in form.html
    assert not [role for role in ("owner", "admin", "lead") if f'value="{role}"' in form.html]
    assert "Support: projects:read, members:read." in form.text
    page = await lead.send(form, f"{MEMBERS}/new", userId="sue", role="support")
    assert "Support" in page.text
    refused = await lead.force(f"{MEMBERS}/new", userId="eve", role="admin")
    assert refused.status == 422
    assert "can't add, change or remove members with the role admin" in refused.text
    assert "Your role can't change members with this role." in (await lead.open(admin)).text


async def test_user_whose_role_gives_some_roles_makes_no_key_that_manages_members(
    dashboard: Dashboard,
) -> None:
    lead = await sign_in_with(dashboard, "lead")
    path = f"{AT_ACME}/settings/api-keys/new"
    html = (await lead.open(path)).html
    assert 'id="scope-members:read"' in html
    assert 'id="scope-members:write"' not in html
    refused = await lead.force(
        path, name="x", access="scoped", scope="members:write", mode="live", expiry="never"
    )
    assert refused.status == 403
    listed = await dashboard.call("GET", "/api-keys")
    assert [key for key in listed["data"] if key["name"] == "x"] == []


async def test_page_shows_a_role_that_left_the_catalog(dashboard: Dashboard) -> None:
    path = await dashboard.add_member("old", "support")
    await dashboard.execute("UPDATE memberships SET role = 'gone' WHERE subject = 'old'")
    olivia = await dashboard.sign_in(OLIVIA)
    assert "gone (no longer a role)" in (await olivia.open(path)).text
    assert "gone (no longer a role)" in (await olivia.open(MEMBERS)).text


async def test_auditor_who_may_not_read_members_sees_their_ids_alone(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await dashboard.call("POST", "/projects", {"name": "Rocket"})
    audit = f"{AT_ACME}/settings/audit"
    assert "Olivia Owner" in (await olivia.open(f"{audit}?actorId={OLIVIA.sub}")).html
    auditor = await sign_in_with(dashboard, "auditor")
    for path in (audit, AT_ACME):
        page = await auditor.open(path)
        assert "Olivia Owner" not in page.html
        assert OLIVIA.sub in page.html
