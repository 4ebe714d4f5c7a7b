"""The overview of a tenant, without a browser."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tests.support.dashboard import ACME, AT_ACME, BERTA, BETA, MIA, OLIVIA, Dashboard, Person
from tests.support.events import INVOICE_URL, failed, succeeded, updated

OVERVIEW: Final = f"{AT_ACME}/"


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def add_key(
    dashboard: Dashboard, name: str, *, expires_at: datetime | None = None, used: bool = True
) -> None:
    """Insert a used key."""
    now = datetime.now(UTC)
    await dashboard.execute(
        "INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, expires_at, start, last4, "
        "created_at, created_by, last_used_at, pepper_id) "
        "VALUES (%s, %s, %s, %s, '{projects:read}', 'SCOPED', 'live', %s, 'svc_live_abcd', 'wxyz', %s, 'x', %s, "
        "'x')",
        (f"key_{name}", ACME, name.encode(), name, expires_at, now, now if used else None),
    )


async def test_tenant_without_subscription_sees_the_free_plan_and_its_limits(owner: Person) -> None:
    limits = "3 projects, 10 API keys, 100 members, 6,000 requests a minute"
    page = await owner.open(OVERVIEW)
    assert "Active keys 0 of 10 Not used yet Plan Free No subscription" in page.text
    assert "Projects 0 of 3" in page.text
    assert 'class="alert' not in page.html
    assert (
        f"Free plan Subscription No subscription Limits {limits}"
        in (await owner.open(f"{AT_ACME}/billing")).text
    )


async def test_tenant_that_lost_its_access_sees_why(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated(status="unpaid"))
    said = (await owner.open(OVERVIEW)).text
    assert (
        "A payment failed. The subscription is unpaid. The limits of the plan Free apply. "
        "The provider has stopped collecting the last invoice." in said
    )
    assert said.count("The subscription is unpaid.") == 1


async def test_first_request_is_offered_until_a_key_has_been_used(
    dashboard: Dashboard, owner: Person
) -> None:
    await add_key(dashboard, "unused", used=False)
    await dashboard.deliver(updated())
    said = (await owner.open(OVERVIEW)).text
    assert "Make your first request" in said
    assert (
        f'curl -H "Authorization: Bearer $TENANTRY_API_KEY" {dashboard.url}/api/v1/auth/whoami'
        in said
    )
    await add_key(dashboard, "worker")
    await dashboard.call("DELETE", "/api-keys/key_worker")
    assert "Make your first request" not in (await owner.open(OVERVIEW)).text


async def test_member_who_may_create_no_keys_is_offered_no_first_request(
    dashboard: Dashboard,
) -> None:
    assert (
        "Make your first request" not in (await (await dashboard.sign_in(MIA)).open(OVERVIEW)).text
    )


async def test_what_needs_attention_is_listed(dashboard: Dashboard, owner: Person) -> None:
    await add_key(dashboard, "soon", expires_at=datetime.now(UTC) + timedelta(days=3))
    await add_key(dashboard, "later", expires_at=datetime.now(UTC) + timedelta(days=30))
    await dashboard.deliver(updated(cancel=True))
    said = (await owner.open(OVERVIEW)).text
    assert "The subscription ends on 31 Jan 2026." in said
    assert "1 API key stops working within 14 days. 1 expiring." in said
    await dashboard.deliver(failed())
    said = (await owner.open(OVERVIEW)).text
    assert "29.00 EUR, failed on 1 Jan 2026. Pay the invoice" in said
    assert said.count("A payment failed.") == 1
    assert said.index("A payment failed.") < said.index("The subscription ends on")
    assert said.index("The subscription ends on") < said.index("1 API key stops working")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("unpaid", "has stopped collecting"),
        ("incomplete", "first payment is pending"),
        ("paused", "is paused"),
    ],
)
async def test_problem_with_the_subscription_needs_attention(
    dashboard: Dashboard, owner: Person, status: str, words: str
) -> None:
    await dashboard.deliver(updated(status=status))
    assert words in (await owner.open(OVERVIEW)).text


async def test_active_keys_are_counted(owner: Person, dashboard: Dashboard) -> None:
    await add_key(dashboard, "first")
    await add_key(dashboard, "unused", used=False)
    await add_key(dashboard, "ended", expires_at=datetime.now(UTC) - timedelta(days=1))
    page = await owner.open(OVERVIEW)
    assert "Active keys 2 of 10 Last used just now" in page.text
    assert f"{AT_ACME}/settings/api-keys" in page.links


async def test_requests_of_the_last_day_are_drawn(dashboard: Dashboard, owner: Person) -> None:
    # Each minute the service adds the requests of earlier tests, which are acme's.
    await dashboard.join_many(OLIVIA, 1)
    await dashboard.execute("UPDATE memberships SET role = 'owner'")
    await dashboard.execute(
        "INSERT INTO usage_hours (hour, org_id, key_id, outcome, number) "
        "VALUES (date_trunc('hour', now() - interval '3 hours'), 'many-1', 'key_a', 'accepted', 1200), "
        "(date_trunc('hour', now() - interval '30 hours'), 'many-1', 'key_a', 'accepted', 7)"
    )
    page = await owner.open("/orgs/many-1/")
    assert "Requests, last 24 hours 1,200" in page.text
    assert 'aria-label="1,200 requests in 24 hours, by hour"' in page.html


async def test_latest_changes_are_those_of_events_and_of_people(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt_1"))
    await dashboard.deliver(succeeded(event_id="evt_2"))
    await dashboard.call("POST", "/projects", {"name": "Website"})
    page = await owner.open(OVERVIEW)
    latest = page.text.partition("Latest changes")[2]
    assert "Olivia Owner olivia created the project Website just now" in latest
    assert "Your subscription started. Your plan changed from Free to Pro. 1 Jan 2026" in latest
    assert latest.index("Website") < latest.index("Your subscription started")
    assert f"{AT_ACME}/events/evt_2" not in page.links


async def test_visit_of_the_audit_export_is_no_change(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.operate("GET", f"/tenants/{ACME}/export")
    assert "exported" not in (await owner.open(OVERVIEW)).text


async def test_member_sees_the_changes_of_events_alone(dashboard: Dashboard) -> None:
    await dashboard.deliver(updated())
    await dashboard.call("POST", "/projects", {"name": "Website"})
    latest = (await (await dashboard.sign_in(MIA)).open(OVERVIEW)).text
    assert "Your plan changed from Free to Pro." in latest
    assert "Website" not in latest


async def test_replaced_key_that_ends_soon_needs_attention(
    dashboard: Dashboard, owner: Person
) -> None:
    await add_key(dashboard, "old")
    await dashboard.call("POST", "/api-keys/key_old/rotate", {"overlapSeconds": 3600})
    page = await owner.open(OVERVIEW)
    assert (
        "1 API key stops working within 14 days. 1 replaced: use the new key before then."
        in page.text
    )
    [link] = [link for text, link in page.anchors if text == "1 replaced"]
    assert "old" in (await owner.open(link)).text
    assert "stops working" not in (await (await dashboard.sign_in(MIA)).open(OVERVIEW)).text


async def test_member_who_may_not_see_payloads_gets_no_link_to_the_invoice(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated())
    await dashboard.deliver(failed())
    mia = await dashboard.sign_in(MIA)
    for path in (OVERVIEW, f"{AT_ACME}/billing"):
        assert INVOICE_URL in (await owner.open(path)).links
        page = await mia.open(path)
        assert "A payment failed" in page.text
        assert not [link for link in page.links if "invoice.stripe.com" in link]
    assert (
        "Ask an owner or admin to pay, or to update the payment method."
        in (await mia.open(f"{AT_ACME}/billing")).text
    )


async def test_free_tenant_with_a_failed_payment_is_not_alarmed_about_its_limits(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(status="incomplete", price="price_nobody_knows"))
    await dashboard.deliver(failed())
    for path in (OVERVIEW, f"{AT_ACME}/billing", f"{AT_ACME}/projects"):
        said = (await owner.open(path)).text
        assert "A payment failed" in said
        assert "limits of the plan Free" not in said


async def test_anomalies_of_events_are_none_of_the_customers_business(
    dashboard: Dashboard, owner: Person
) -> None:
    later = int(datetime.now(UTC).timestamp()) + 86400
    for number, price in enumerate(("price_pro", "price_nobody_knows", None)):
        event_id = f"evt_{number}"
        await dashboard.deliver(updated(event_id=event_id, created=later + number, price=price))
    events = (await dashboard.call("GET", "/billing/events"))["data"]
    assert all(event["anomalies"] for event in events)
    for path in (OVERVIEW, f"{AT_ACME}/billing", f"{AT_ACME}/events", f"{AT_ACME}/events/evt_0"):
        said = (await owner.open(path)).text
        unsaid = (
            "Future date",
            "Unknown price:",
            "No price",
            "overrides earlier",
            "catalog",
            "counts",
        )
        assert [words for words in unsaid if words in said] == [], path


async def test_members_see_no_keys(dashboard: Dashboard) -> None:
    await add_key(dashboard, "worker")
    said = (await (await dashboard.sign_in(MIA)).open(OVERVIEW)).text
    assert "worker" not in said
    assert "active keys" not in said.lower()


async def test_start_page_redirects_to_the_last_visited_tenant(owner: Person) -> None:
    answer = await owner.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, OVERVIEW)


async def test_start_page_skips_a_suspended_tenant(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.call("POST", "/members", {"userId": "olivia", "role": "member"}, user=BERTA)
    await dashboard.accept_invitations()
    await owner.open(OVERVIEW)
    wishes = {"name": "Acme", "ownerEmail": "olivia@acme.example", "suspended": True}
    await dashboard.operate("PUT", f"/tenants/{ACME}", wishes)
    assert (await owner.open(OVERVIEW)).status == 403
    assert (await owner.open("/")).path == "/orgs/beta/"


async def test_start_page_and_menu_skip_tenants_with_a_pending_invitation(
    dashboard: Dashboard,
) -> None:
    await dashboard.operate(
        "PUT", f"/tenants/{BETA}", {"name": "Aardvark", "ownerEmail": "berta@beta.example"}
    )
    await dashboard.call("POST", "/members", {"userId": OLIVIA.sub, "role": "member"}, user=BERTA)
    page = await (await dashboard.sign_in(OLIVIA)).open("/")
    assert page.path.rstrip("/") == AT_ACME
    assert "Aardvark" not in page.text
    assert "/account#invitations" in page.links


async def test_invalid_address_gets_a_page(dashboard: Dashboard) -> None:
    answer = await (await dashboard.sign_in(OLIVIA)).get(f"{AT_ACME}/events/stream?after=x")
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/html")


async def test_reached_limits_are_one_alert(dashboard: Dashboard, owner: Person) -> None:
    await fill(dashboard)
    said = (await owner.open(OVERVIEW)).text
    assert "The plan allows no more. 3 of 3 projects. 10 of 10 API keys. Compare plans" in said


async def test_member_sees_only_the_limit_of_projects(dashboard: Dashboard) -> None:
    await fill(dashboard)
    said = (await (await dashboard.sign_in(MIA)).open(OVERVIEW)).text
    assert "The plan allows no more. 3 of 3 projects. Compare plans" in said
    assert "API keys" not in said


async def test_titles_name_the_organization(owner: Person) -> None:
    assert "<title>Overview · Acme · tenantry</title>" in (await owner.open(OVERVIEW)).html
    assert (
        "<title>Projects · Acme · tenantry</title>"
        in (await owner.open(f"{AT_ACME}/projects")).html
    )
    assert "<title>Account · tenantry</title>" in (await owner.open("/account")).html


async def fill(dashboard: Dashboard) -> None:
    """Create as many projects and keys as the plan allows."""
    for number in range(3):
        await dashboard.call("POST", "/projects", {"name": f"Project {number}"})
    for number in range(10):
        await add_key(dashboard, str(number))
