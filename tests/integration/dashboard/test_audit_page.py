"""The audit trail in the dashboard."""

import csv
import io
import json
import re
from typing import Final

import pytest

from tests.integration.dashboard.signing_in import USER, Browser
from tests.support.dashboard import ADAM, AT_ACME, BERTA, MIA, OLIVIA, Dashboard

AUDIT: Final = f"{AT_ACME}/settings/audit"
EXPORT: Final = f"{AUDIT}/export"


async def key(dashboard: Dashboard, name: str) -> str:
    made = await dashboard.call(
        "POST", "/api-keys", {"orgId": "acme", "name": name, "scopes": ["projects:read"]}
    )
    return str(made["id"])


async def test_entries_are_sentences_with_names(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id = await key(dashboard, "CI")
    await dashboard.call("PATCH", f"/api-keys/{key_id}", {"name": "Builds"})
    await dashboard.call("DELETE", f"/api-keys/{key_id}?reason=It+was+in+a+log")
    member = (await dashboard.add_member("adam")).rpartition("/")[2]
    await dashboard.call("PATCH", f"/members/{member}", {"role": "admin"})
    await dashboard.call("DELETE", f"/members/{member}")
    await dashboard.add_member("adam", "member")
    await dashboard.call("DELETE", f"/members/{member}")
    await dashboard.add_member("adam", "member")
    await (await dashboard.sign_in(ADAM)).get(f"{AT_ACME}/")
    contract = {"plan": "pro", "reason": "Contract 2027-014"}
    await dashboard.operate("PUT", "/tenants/acme/grants/contract-2027", contract)
    text = (await olivia.open(AUDIT)).text
    for sentence in (
        "The operator created the organization",
        "The operator set the grant contract-2027",
        "Olivia Owner created the key Builds",
        "Olivia Owner changed the key Builds",
        "Olivia Owner revoked the key Builds",
        "Reason It was in a log",
        "Olivia Owner invited Adam Admin as member",
        "Olivia Owner changed the role of Adam Admin to admin",
        "Olivia Owner removed Adam Admin",
    ):
        assert sentence in text
    assert (
        text.index("removed Adam")
        < text.index("revoked the key")
        < text.index("created the organization")
    )


async def test_user_names_cannot_imitate_the_operator_or_a_key(browser: Browser) -> None:
    await browser.sign_in(name="The operator")
    credential = browser.issuer.mint(
        claims={"sub": USER, "org_id": "acme", "org_role": "owner", **browser.times()}
    )
    for name, scope in (("CI", "*:*"), ("Builds", "projects:read")):
        made = await browser.client.post(
            "/api/v1/api-keys",
            json={"orgId": "acme", "name": name, "scopes": [scope]},
            headers={"Authorization": f"Bearer {credential}"},
        )
        credential = made.json()["secret"]
    page = (await browser.client.get(AUDIT)).text
    assert f"<strong><bdi>The operator</bdi></strong> <code>{USER}</code>" in page
    assert '<span class="tag ">The operator</span>' in page
    assert '<span class="tag ">The key</span> <a' in page


async def test_entry_shows_address_request_and_changes(dashboard: Dashboard) -> None:
    key_id = await key(dashboard, "CI")
    await dashboard.call("PATCH", f"/api-keys/{key_id}", {"name": "Builds"})
    page = await (await dashboard.sign_in(OLIVIA)).open(f"{AUDIT}?action=api_key.updated")
    [entry] = (await dashboard.call("GET", "/audit-events?action=api_key.updated"))["data"]
    assert f"from {entry['address']}" in page.text
    assert entry["requestId"] in page.text
    assert "Field Before After Name CI Builds" in page.text


async def test_page_filters_like_the_api(dashboard: Dashboard) -> None:
    key_id = await key(dashboard, "CI")
    await dashboard.add_member("adam")
    olivia = await dashboard.sign_in(OLIVIA)
    assert "the key" not in (await olivia.open(f"{AUDIT}?action=member.invited")).text
    by_olivia = (await olivia.open(f"{AUDIT}?actorId=olivia")).text
    assert "created the key" in by_olivia
    assert "The operator" not in by_olivia
    of_key = (await olivia.open(f"{AUDIT}?targetId={key_id}")).text
    assert "created the key CI" in of_key
    assert "adam" not in of_key
    assert "No entry matches." in (await olivia.open(f"{AUDIT}?until=2020-01-31")).text
    assert "No entry matches." in (await olivia.open(f"{AUDIT}?since=2999-01-31")).text
    today = (await dashboard.call("GET", "/audit-events"))["data"][0]["at"][:10]
    assert "created the key CI" in (await olivia.open(f"{AUDIT}?since={today}&until={today}")).text


async def test_actor_and_target_are_found_by_their_names(dashboard: Dashboard) -> None:
    await key(dashboard, "Nightly export")
    await key(dashboard, "Storefront")
    await dashboard.call("POST", "/projects", {"name": "Warehouse"})
    await dashboard.add_member("adam")
    await (await dashboard.sign_in(ADAM)).open(AT_ACME)
    olivia = await dashboard.sign_in(OLIVIA)
    by_olivia = (await olivia.open(f"{AUDIT}?actorId=olivia+owner")).text
    assert "Olivia Owner created the key Storefront" in by_olivia
    assert "The operator created the organization" not in by_olivia
    for target, entry in (
        ("export", "created the key Nightly export"),
        ("adam@acme.example", "invited Adam Admin"),
        ("warehouse", "created the project Warehouse"),
    ):
        page = await olivia.open(f"{AUDIT}?targetId={target}")
        assert entry in page.text
        assert len(re.findall(r"<summary>", page.html.partition("data-utc")[2])) == 1
    exported = await olivia.get(f"{EXPORT}?targetId=storefront&format=csv")
    assert len(list(csv.reader(io.StringIO(exported.text)))) == 2


async def test_of_several_with_one_name_people_choose(dashboard: Dashboard) -> None:
    keys = [await key(dashboard, "Storefront") for _ in range(2)]
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(f"{AUDIT}?targetId=storefront&action=api_key.created")
    assert "Target: several match. Choose one." in page.text
    assert "created the key" not in page.text
    for key_id in keys:
        assert f"Storefront (…{key_id[-6:]})" in page.text
        link = f"{AUDIT}?action=api_key.created&actorId=&targetId={key_id}&since=&until=&zone="
        assert link in page.links
        assert "created the key Storefront" in (await olivia.open(link)).text
    assert (await olivia.get(f"{EXPORT}?targetId=storefront")).status_code == 303


async def test_a_name_of_another_tenant_is_not_found(dashboard: Dashboard) -> None:
    await dashboard.call("POST", "/projects", {"name": "Secret plan"}, user=BERTA)
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(f"{AUDIT}?targetId=secret+plan")
    assert "No entry matches." in page.text


async def test_an_id_is_that_id_alone_although_another_contains_it(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO audit_events (id, org_id, at, action, actor_kind, target_id) "
        "VALUES ('aud_gone', 'acme', now(), 'project.deleted', 'operator', 'proj_1')"
    )
    await dashboard.execute(
        "INSERT INTO projects (id, org_id, mode, name, created_at, updated_at) "
        "VALUES ('proj_10', 'acme', 'live', 'Other', now(), now())"
    )
    page = await (await dashboard.sign_in(OLIVIA)).open(f"{AUDIT}?targetId=proj_1")
    assert "deleted the project" in page.text


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("action=api_key.stolen", "action"),
        ("since=yesterday", "since"),
        ("until=2027-02-30", "until"),
        (f"actorId={'a' * 256}", "actorId"),
    ],
)
async def test_invalid_filter_shows_an_error_beside_its_field(
    dashboard: Dashboard, query: str, field: str
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(f"{AUDIT}?{query}")
    assert (page.status, page.focused) == (422, [field])
    assert "<title>Error: Audit" in page.html
    too_far = (await olivia.open(f"{AUDIT}?until=10000-01-01")).text
    assert "This day is too far ahead. Enter an earlier one." in too_far
    assert (await olivia.open(f"{EXPORT}?{query}")).path == AUDIT


async def test_next_page_keeps_the_filters(dashboard: Dashboard) -> None:
    await dashboard.call("POST", "/projects", {"name": "Shop 0"})
    await dashboard.execute(
        "INSERT INTO audit_events SELECT (jsonb_populate_record(one, jsonb_build_object("
        "'id', 'aud_' || n, 'at', at + n * interval '1 ms', "
        "'after', replace(after::text, 'Shop 0', 'Shop ' || n)::jsonb))).* "
        "FROM audit_events AS one, generate_series(1, 25) AS n WHERE action = 'project.created'"
    )
    olivia = await dashboard.sign_in(OLIVIA)
    first = await olivia.open(f"{AUDIT}?action=project.created&actorId=olivia")
    assert "Name Shop 25" in first.text
    assert "Name Shop 0 " not in first.text
    assert "25 of 26 entries" in first.text
    [older] = [link for link in first.links if "cursor=" in link]
    last = await olivia.open(older)
    assert "Name Shop 0 " in last.text
    assert "operator" not in last.text
    [newer] = [link for link in last.links if "before=" in link]
    assert "Name Shop 25" in (await olivia.open(newer)).text
    assert len(first.html.encode()) < 75_000


async def test_export_equals_the_api_export(dashboard: Dashboard) -> None:
    await key(dashboard, "CI")
    await dashboard.add_member("adam")
    olivia = await dashboard.sign_in(OLIVIA)
    answer = await olivia.client.get(f"{EXPORT}?action=member.invited")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert answer.headers["content-disposition"].startswith('attachment; filename="audit-acme-')
    assert answer.headers["x-content-type-options"] == "nosniff"
    exported = [json.loads(line) for line in answer.text.splitlines()]
    assert exported == (await dashboard.call("GET", "/audit-events?action=member.invited"))["data"]


async def test_export_for_spreadsheets_runs_no_formula(dashboard: Dashboard) -> None:
    key_id = await key(dashboard, "=1+1")
    await dashboard.call("PATCH", f"/api-keys/{key_id}", {"externalId": "=2+2"})
    await dashboard.add_member("=3+3")
    olivia = await dashboard.sign_in(OLIVIA)
    answer = await olivia.client.get(f"{EXPORT}?format=csv&action=api_key.updated")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].endswith('.csv"')
    [row] = csv.DictReader(io.StringIO(answer.text, newline=""))
    [entry] = (await dashboard.call("GET", "/audit-events?action=api_key.updated"))["data"]
    assert list(row) == list(entry)
    assert (row["at"], row["targetId"], row["actorId"]) == (entry["at"], key_id, "olivia")
    assert json.loads(row["after"]) == entry["after"]
    await dashboard.operate("PUT", "/tenants/acme/grants/-x", {"plan": "pro", "reason": "x"})
    of_grant = (await olivia.client.get(f"{EXPORT}?format=csv&action=grant.set")).text
    [row] = csv.DictReader(io.StringIO(of_grant, newline=""))
    assert row["targetId"] == "'-x"


async def test_entries_are_grouped_by_day_in_the_zone_of_the_organization(
    dashboard: Dashboard,
) -> None:
    await dashboard.call("PATCH", "/tenants/acme", {"timeZone": "Asia/Tokyo"})
    for number, at in enumerate(("2026-03-01T14:59:00Z", "2026-03-01T15:01:00Z")):
        await dashboard.execute(
            "INSERT INTO audit_events (id, org_id, at, action, actor_kind, target_id, after) "
            "VALUES (%s, 'acme', %s, 'api_key.created', 'user', 'key_x', '{}')",
            (f"aud_{number}", at),
        )
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(f"{AUDIT}?until=2026-03-02")
    assert "Times are in Asia/Tokyo." in page.text
    assert page.text.index("Monday, 2 March 2026") < page.text.index("00:01:00")
    assert page.text.index("Sunday, 1 March 2026") < page.text.index("23:59:00")
    assert "00:01:00" not in (await olivia.open(f"{AUDIT}?until=2026-03-01")).text
    in_utc = await olivia.open(f"{AUDIT}?until=2026-03-01&zone=utc")
    assert "Times are in UTC." in in_utc.text
    assert in_utc.text.index("Sunday, 1 March 2026") < in_utc.text.index("15:01:00")
    assert "Monday" not in in_utc.text


async def test_entry_of_an_invitation_names_its_address(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO audit_events (id, org_id, at, action, actor_kind, actor_id, target_id, after) "
        "VALUES ('aud_x', 'acme', now(), 'invitation.created', 'user', 'olivia', 'inv_x', "
        """'{"email": "eve@x.example", "role": "member"}')"""
    )
    page = await (await dashboard.sign_in(OLIVIA)).open(AUDIT)
    assert "Olivia Owner invited eve@x.example by mail as member" in page.text


async def test_filter_of_actors_offers_the_names_on_the_page(dashboard: Dashboard) -> None:
    await key(dashboard, "CI")
    page = await (await dashboard.sign_in(OLIVIA)).open(AUDIT)
    assert '<option value="Olivia Owner"></option>' in page.html


async def test_members_and_other_tenants_are_rejected(dashboard: Dashboard) -> None:
    mia, berta = await dashboard.sign_in(MIA), await dashboard.sign_in(BERTA)
    assert AUDIT not in (await mia.open(AT_ACME)).links
    for page in (AUDIT, EXPORT):
        assert (await mia.open(page)).status == 403
        assert (await berta.open(page)).status == 404
    of_beta = await berta.open("/orgs/beta/settings/audit?actorId=olivia")
    assert "No entry matches." in of_beta.text


async def test_an_admin_reads_it(dashboard: Dashboard) -> None:
    assert (await (await dashboard.sign_in(ADAM)).open(AUDIT)).status == 200


async def test_markup_in_names_is_text(dashboard: Dashboard) -> None:
    await key(dashboard, "<img src=x onerror=alert(1)>")
    await dashboard.add_member("<s>user</s>")
    page = await (await dashboard.sign_in(OLIVIA)).open(f"{AUDIT}")
    assert not {"img", "s"} & set(page.tags)
    assert "created the key <img src=x onerror=alert(1)>" in page.text


async def test_project_and_billing_entries_are_sentences(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    made = await dashboard.call("POST", "/projects", {"name": "Shop", "description": "First"})
    await dashboard.call("PATCH", f"/projects/{made['id']}", {"name": "Store"})
    page = await olivia.open(AUDIT)
    assert "Olivia Owner created the project Store" in page.text
    assert "Olivia Owner changed the project Store" in page.text
    assert f"{AT_ACME}/projects/{made['id']}" in page.links
    await dashboard.call("DELETE", f"/projects/{made['id']}")
    page = await olivia.open(f"{AUDIT}?action=project.deleted")
    assert "Olivia Owner deleted the project Store" in page.text
    assert f"{AT_ACME}/projects/{made['id']}" not in page.links
