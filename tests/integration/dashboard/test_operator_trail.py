"""The operator's trail, and the people whom it names to operators alone."""

from typing import Final
from urllib.parse import quote, urlencode

import pytest

from tenantry.domain.audit import Action, TenantUpdate
from tenantry.domain.operator_acts import OperatorAction
from tenantry_devkit.identity_tokens import DemoUser
from tests.support.dashboard import ACME, AT_ACME, BETA, OLGA, OLIVIA, Dashboard, Person
from tests.support.dashboard_page import Page

ACTS: Final = "/operator/acts"
AUDIT: Final = f"{AT_ACME}/settings/audit"
KEYS: Final = "/settings/api-keys/new"
HOSTILE: Final = ("<script>alert(1)</script>", '"><img src=x>', "\u202eOlga", "\u05d0\u05d1\u05d2")


async def make_key(olga: Person, org_id: str = ACME, name: str = "By support") -> Page:
    """Create a key on the operator's pages of a tenant; return the page that follows."""
    form = await olga.open(f"/operator/orgs/{org_id}{KEYS}")
    return await olga.send(form, name=name, scopes="projects:read")


async def rename_person(dashboard: Dashboard, name: str | None) -> None:
    await dashboard.execute("UPDATE operator_acts SET name = %s", (name,))


async def test_trail_has_person_action_customer_and_request(dashboard: Dashboard) -> None:
    olga = await dashboard.sign_in(OLGA)
    await make_key(olga)
    [(target, request)] = await dashboard.execute("SELECT target_id, request_id FROM operator_acts")
    page = await olga.open(ACTS)
    assert "Olga Operator created the key By support Acme" in page.text
    assert ("By support", f"/operator/orgs/{ACME}/settings/api-keys/{target}") in page.anchors
    assert f"Request {request} Copy request id" in page.text
    [(issuer,)] = await dashboard.execute("SELECT issuer FROM operator_acts")
    query = urlencode({"person": OLGA.sub, "issuer": issuer}, quote_via=quote, safe="/")
    assert ("See all by this person", f"{ACTS}?{query}") in page.anchors
    assert ("Acme", f"/operator/orgs/{ACME}/") in page.anchors


async def test_both_trails_name_a_suspension_and_a_link(dashboard: Dashboard) -> None:
    olga = await dashboard.sign_in(OLGA)
    base = f"/operator/orgs/{ACME}"
    forms: dict[str, dict[str, str]] = {
        "/suspend": {"reason": "It floods"},
        "/resume": {},
        "/billing/customers/new": {"customer": "cus_9"},
        "/billing/customers/cus_9/unlink": {},
    }
    for path, fields in forms.items():
        await olga.send(await olga.open(base + path), **fields)
    for path in (ACTS, f"{base}/settings/audit"):
        text = (await olga.open(path)).text
        for words in (
            "suspended the organization",
            "resumed the organization",
            "linked the payment customer cus_9",
            "unlinked the payment customer cus_9",
        ):
            assert f"Olga Operator {words}" in text, (path, words)
        assert "changed the organization" not in text


async def test_changed_details_are_no_suspension(dashboard: Dashboard) -> None:
    olga = await dashboard.sign_in(OLGA)
    form = await olga.open(f"/operator/orgs/{ACME}/settings/general")
    await olga.send(form, name="Acme Corporation")
    page = await olga.open(ACTS)
    assert "Olga Operator changed the organization's details" in page.text


async def test_trail_names_a_dry_run(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO operator_acts (id, at, action, org_id, target_id, issuer, subject) VALUES "
        "('act_1', now(), 'ledger.checked', 'acme', 'replay', 'issuer', 'olga'), "
        "('act_2', now(), 'ledger.checked', 'acme', 'reconcile', 'issuer', 'olga')"
    )
    text = (await (await dashboard.sign_in(OLGA)).open(ACTS)).text
    assert "started a dry run of a replay" in text
    assert "started a dry run of a reconciliation" in text


async def test_trail_has_the_reason(dashboard: Dashboard) -> None:
    olga = await dashboard.sign_in(OLGA)
    await make_key(olga)
    await dashboard.execute("UPDATE operator_acts SET reason = 'Case <b>17</b>'")
    page = await olga.open(ACTS)
    assert "Case <b>17</b>" in page.text


async def test_act_without_a_tenant_and_of_an_ended_one_have_no_link(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO operator_acts (id, at, action, org_id, target_id, issuer, subject) VALUES "
        "('act_1', now(), 'webhook.tested', NULL, 'crm', 'issuer', 'olga'), "
        "('act_2', now(), 'tenant.ended', 'gone', 'gone', 'issuer', 'otto')"
    )
    page = await (await dashboard.sign_in(OLGA)).open(ACTS)
    assert "sent a test to the webhook crm" in page.text
    assert "otto deleted the organization gone" in page.text
    assert "gone, which has ended" in page.text
    assert not [href for href in page.links if "/orgs/" in href]


async def test_each_act_is_in_words_and_an_unknown_one_as_it_is(dashboard: Dashboard) -> None:
    actions = [*OperatorAction, *Action, *TenantUpdate]
    await dashboard.execute(
        "INSERT INTO operator_acts (id, at, action, target_id, issuer, subject) "
        "SELECT 'act_' || action, now(), action, 'x', 'issuer', 'olga' FROM unnest(%s::text[]) AS action",
        ([*actions, "later.release"],),
    )
    olga = await dashboard.sign_in(OLGA)
    text = "".join([(await olga.open(f"{ACTS}?page={number}")).text for number in (1, 2, 3)])
    assert "later.release x" in text
    assert [action for action in actions if f" {action} " in text] == []


async def test_trail_is_filtered_by_customer_and_person(dashboard: Dashboard) -> None:
    olga = await dashboard.sign_in(OLGA)
    await make_key(olga)
    await make_key(olga, BETA)
    await dashboard.execute(
        "INSERT INTO operator_acts (id, at, action, org_id, target_id, issuer, subject, name) "
        "VALUES ('act_1', now(), 'tenant.updated', 'acme', 'acme', 'issuer', 'otto', 'Otto')"
    )
    for query, number in {
        "": 3,
        "customer=acme": 2,
        "person=olga": 2,
        "customer=acme&person=olga": 1,
        "person=nobody": 0,
        "customer=%27%20OR%20true": 0,
    }.items():
        page = await olga.open(f"{ACTS}?{query}")
        assert page.html.count("<dt>Target</dt>") == number, query
    page = await olga.open(f"{ACTS}?person=nobody")
    assert page.heading("h2") == "No entry matches."


async def test_two_people_with_one_user_id_are_apart_and_each_act_has_its_name(
    dashboard: Dashboard,
) -> None:
    await dashboard.execute(
        "INSERT INTO operator_acts (id, at, action, org_id, target_id, issuer, subject, name) VALUES "
        "('act_1', now(), 'tenant.updated', 'acme', 'acme', 'https://a.example', 'otto', 'Otto One'), "
        "('act_2', now(), 'tenant.updated', 'acme', 'acme', 'https://b.example', 'otto', 'Otto Two'), "
        "('act_3', now(), 'tenant.updated', 'acme', 'acme', 'https://b.example', 'otto', 'Otto Wed')"
    )
    page = await (olga := await dashboard.sign_in(OLGA)).open(ACTS)
    for name in ("Otto One", "Otto Two", "Otto Wed"):
        assert page.text.count(f"{name} changed") == 1
    of_second = {href for text, href in page.anchors if "b.example" in href}
    page = await olga.open(of_second.pop())
    assert page.html.count("<dt>Target</dt>") == 2
    assert "Otto One" not in page.text


async def test_trail_has_numbered_pages(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO operator_acts (id, at, action, org_id, target_id, issuer, subject) "
        "SELECT 'act_' || n, now() - n * interval '1 hour', 'tenant.updated', 'acme', 'acme', 'issuer', 'olga' "
        "FROM generate_series(1, 60) AS n"
    )
    olga = await dashboard.sign_in(OLGA)
    page = await olga.open(f"{ACTS}?person=olga&page=3")
    assert "51\N{EN DASH}60 of 60 entries" in page.text
    assert (await olga.open(f"{ACTS}?cursor=x")).status == 400


async def test_empty_trail_says_what_adds_entries(dashboard: Dashboard) -> None:
    page = await (await dashboard.sign_in(OLGA)).open(ACTS)
    assert page.heading("h2") == "No entries yet"


@pytest.mark.parametrize("name", [*HOSTILE, " ", None])
async def test_hostile_names_are_text(dashboard: Dashboard, name: str | None) -> None:
    olga = await dashboard.sign_in(OLGA)
    await make_key(olga)
    await rename_person(dashboard, name)
    await dashboard.execute("UPDATE tenants SET name = %s WHERE id = 'acme'", (HOSTILE[0],))
    for path in (ACTS, f"/operator{AUDIT}"):
        page = await olga.open(path)
        assert (name or "").strip() in page.text
        assert page.tags.count("script") == 1
        assert "img" not in page.tags
        if not (name or "").strip():
            assert f"<bdi>{OLGA.sub}</bdi>" in page.html


async def test_audit_page_names_the_person_to_operators(dashboard: Dashboard) -> None:
    olga = await dashboard.sign_in(OLGA)
    await make_key(olga)
    page = await olga.open(f"/operator{AUDIT}")
    assert "Olga Operator created the key By support" in page.text
    assert [href for href in page.links if href.startswith(f"{ACTS}?person={OLGA.sub}&issuer=")]
    # what the operator's token did has no person
    assert "The operator created the organization" in page.text


async def test_audit_page_names_the_person_of_each_entry_of_one_request(
    dashboard: Dashboard,
) -> None:
    """A client chooses its request id, so two people may have sent the same one."""
    olga = await dashboard.sign_in(OLGA)
    olga.client.headers["X-Request-Id"] = "one-for-all"
    await make_key(olga, name="First")
    await rename_person(dashboard, "Otto")
    await make_key(olga, name="Second")
    text = (await olga.open(f"/operator{AUDIT}")).text
    assert "Otto created the key First" in text
    assert "Olga Operator created the key Second" in text


async def test_customers_never_see_the_person(dashboard: Dashboard) -> None:
    await make_key(await dashboard.sign_in(OLGA))
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(AUDIT)
    assert "The operator created the key By support" in page.text
    key = next(href for href in page.links if href.startswith(f"{AT_ACME}/settings/api-keys/key_"))
    exports = [f"{AUDIT}/export?format={kind}" for kind in ("csv", "ndjson")]
    pages = [page, *[await olivia.open(path) for path in (f"{AT_ACME}/", key, *exports)]]
    answers = [
        await dashboard.request("GET", path, dashboard.token(OLIVIA))
        for path in ("/audit-events", "/audit-events/export")
    ]
    feed = str(await dashboard.operate("GET", "/operator/events?limit=100"))
    seen = [*[page.html for page in pages], *[answer.text for answer in answers], feed]
    assert all("api_key.created" in content for content in seen[3:])
    for content in seen:
        for text in (OLGA.sub, "Olga", "vendor.example"):
            assert text not in content


async def test_export_has_no_person_even_for_operators(dashboard: Dashboard) -> None:
    olga = await dashboard.sign_in(OLGA)
    await make_key(olga)
    for kind in ("csv", "ndjson"):
        file = await olga.open(f"/operator{AUDIT}/export?format={kind}")
        assert file.status == 200
        assert "Olga" not in file.html


@pytest.mark.parametrize("user", [OLIVIA], ids=lambda user: user.sub)
async def test_users_who_are_no_operator_find_no_trail(
    dashboard: Dashboard, user: DemoUser
) -> None:
    assert (await (await dashboard.sign_in(user)).open(ACTS)).status == 404
