"""The first page of a tenant, without a browser."""

from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
import pytest

from tests.support.dashboard import ACME, AT_ACME, BERTA, BETA, MIA, OLIVIA, Dashboard, Person
from tests.support.events import failed, updated

OVERVIEW: Final = f"{AT_ACME}/"


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def add_key(conninfo: str, name: str, *, expires_at: datetime | None = None, used: bool = True) -> None:
    """A key of the tenant as it would be after its use."""
    now = datetime.now(UTC)
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(
            "INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, expires_at, start, last4, "
            "created_at, created_by, last_used_at, pepper_id) "
            "VALUES (%s, %s, %s, %s, '{projects:read}', 'SCOPED', 'live', %s, 'svc_live_abcd', 'wxyz', %s, 'x', %s, "
            "'x')",
            (f"key_{name}", ACME, name.encode(), name, expires_at, now, now if used else None),
        )


async def test_a_new_tenant_is_told_its_first_steps(owner: Person) -> None:
    said = (await owner.open(OVERVIEW)).text
    assert "First steps Create an API key for your first program" in said
    assert "Plan Free Subscription No subscription" in said
    assert "Nothing needs attention." in said


async def test_a_tenant_in_use_is_not(dashboard: Dashboard, owner: Person) -> None:
    await add_key(dashboard.conninfo, "worker")
    assert "First steps" not in (await owner.open(OVERVIEW)).text
    await dashboard.deliver(updated())
    assert "First steps" not in (await owner.open(OVERVIEW)).text


async def test_what_needs_somebody_is_listed(dashboard: Dashboard, owner: Person) -> None:
    await add_key(dashboard.conninfo, "soon", expires_at=datetime.now(UTC) + timedelta(days=3))
    await add_key(dashboard.conninfo, "later", expires_at=datetime.now(UTC) + timedelta(days=30))
    await dashboard.deliver(updated(cancel=True))
    said = (await owner.open(OVERVIEW)).text
    assert "The subscription ends on 31 Jan 2026" in said
    assert "1 API key expires within 14 days" in said
    await dashboard.deliver(failed())
    assert "A payment failed. Open the invoice" in (await owner.open(OVERVIEW)).text


@pytest.mark.parametrize(
    ("status", "words"),
    [("unpaid", "has stopped collecting"), ("incomplete", "first payment is pending"), ("paused", "is paused")],
)
async def test_a_subscription_that_is_not_in_order_needs_somebody(
    dashboard: Dashboard, owner: Person, status: str, words: str
) -> None:
    await dashboard.deliver(updated(status=status))
    assert words in (await owner.open(OVERVIEW)).text


async def test_keys_are_shown_the_latest_used_first_and_ended_ones_not(owner: Person, dashboard: Dashboard) -> None:
    await add_key(dashboard.conninfo, "first")
    await add_key(dashboard.conninfo, "second")
    await add_key(dashboard.conninfo, "unused", used=False)
    await add_key(dashboard.conninfo, "ended", expires_at=datetime.now(UTC) - timedelta(days=1))
    said = (await owner.open(OVERVIEW)).text
    assert said.index("second svc_live_abcd…wxyz") < said.index("first svc_live") < said.index("unused svc_live")
    assert "ended svc_live" not in said
    assert "Active keys 3 of 10" in said


async def test_members_see_no_keys(dashboard: Dashboard) -> None:
    await add_key(dashboard.conninfo, "worker")
    said = (await (await dashboard.sign_in(MIA)).open(OVERVIEW)).text
    assert "Your role Member" in said
    assert "worker" not in said
    assert "API keys" not in said


async def test_another_tenants_people_find_nothing(dashboard: Dashboard) -> None:
    assert (await (await dashboard.sign_in(BERTA)).open(OVERVIEW)).status == 404


async def test_the_root_leads_to_the_tenant_that_was_looked_at_last(owner: Person) -> None:
    answer = await owner.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, OVERVIEW)


async def test_the_root_leads_past_a_tenant_that_is_suspended(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.call("POST", "/members", {"userId": "olivia", "role": "member"}, user=BERTA)
    await dashboard.accept_invitations()
    await owner.open(OVERVIEW)
    wishes = {"name": "Acme", "ownerEmail": "olivia@acme.example", "suspended": True}
    await dashboard.operate("PUT", f"/tenants/{ACME}", wishes)
    assert (await owner.open(OVERVIEW)).status == 403
    assert (await owner.open("/")).path == "/orgs/beta/"


async def test_the_root_and_the_menu_lead_to_no_tenant_that_only_invites_the_user(dashboard: Dashboard) -> None:
    await dashboard.operate("PUT", f"/tenants/{BETA}", {"name": "Aardvark", "ownerEmail": "berta@beta.example"})
    await dashboard.call("POST", "/members", {"userId": OLIVIA.sub, "role": "member"}, user=BERTA)
    page = await (await dashboard.sign_in(OLIVIA)).open("/")
    assert page.path.rstrip("/") == AT_ACME
    assert "Aardvark" not in page.text
    assert "/memberships" in page.links


async def test_an_address_that_cannot_be_meant_is_answered_with_a_page(dashboard: Dashboard) -> None:
    answer = await (await dashboard.sign_in(OLIVIA)).get(f"{AT_ACME}/settings/api-keys?status={'x' * 99}")
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/html")


async def test_each_limit_that_is_reached_is_named(dashboard: Dashboard, owner: Person) -> None:
    await fill(dashboard)
    said = (await owner.open(OVERVIEW)).text
    assert "At the limit The plan allows no more projects. Compare plans" in said
    assert "At the limit The plan allows no more API keys. Compare plans" in said


async def test_member_is_told_of_the_limit_of_projects_alone(dashboard: Dashboard) -> None:
    await fill(dashboard)
    said = (await (await dashboard.sign_in(MIA)).open(OVERVIEW)).text
    assert "The plan allows no more projects." in said
    assert "API keys" not in said


async def test_titles_say_whose_page_it_is(owner: Person) -> None:
    assert "<title>Overview · Acme · tenantry</title>" in (await owner.open(OVERVIEW)).html
    assert "<title>Projects · Acme · tenantry</title>" in (await owner.open(f"{AT_ACME}/projects")).html
    assert "<title>Organizations · tenantry</title>" in (await owner.open("/orgs")).html


async def fill(dashboard: Dashboard) -> None:
    """As many projects and keys as the plan allows."""
    for number in range(3):
        await dashboard.call("POST", "/projects", {"name": f"Project {number}"})
    for number in range(10):
        await add_key(dashboard.conninfo, str(number))
