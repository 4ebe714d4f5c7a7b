"""The operator's pages about one customer: what they show, suspend, resume and verify."""

import asyncio
from typing import Final
from urllib.parse import urljoin

import pytest

from tenantry.domain.billing.events import SNAPSHOT
from tests.integration.dashboard.keys import add_key
from tests.integration.dashboard.operator_trails import check_trails, count_acts
from tests.integration.dashboard.test_links import fill_every_page
from tests.support.dashboard import ACME, AT_ACME, AT_BETA, OLGA, OLIVIA, Dashboard, Person
from tests.support.events import NOW, failed, updated

CUSTOMER: Final = f"/operator{AT_ACME}"
SUSPEND: Final = f"/operator{AT_ACME}/suspend"
RESUME: Final = f"/operator{AT_ACME}/resume"
VERIFY: Final = f"/operator{AT_ACME}/verify-owner-address"
MAILS: Final = f"/operator{AT_ACME}/mails"
REASON: Final = "Invoice 2026-114 is unpaid"


@pytest.fixture
async def olga(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in(OLGA)


async def suspend(olga: Person, reason: str = REASON) -> None:
    page = await olga.send(await olga.open(SUSPEND), reason=reason)
    assert page.path == CUSTOMER, page.text


async def unverify(dashboard: Dashboard, email: str = "new@acme.example") -> None:
    await dashboard.execute(
        "UPDATE tenants SET owner_email = %s, verified_email = '' WHERE id = %s", (email, ACME)
    )


async def is_verified(dashboard: Dashboard) -> bool:
    [(email, verified)] = await dashboard.execute(
        "SELECT owner_email, verified_email FROM tenants WHERE id = %s", (ACME,)
    )
    return bool(email == verified)


async def test_the_page_says_who_it_is_what_it_has_and_why(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.deliver(updated())
    page = await olga.open(CUSTOMER)
    assert page.heading() == "Acme"
    for text in (
        "olivia@acme.example Copy owner's address verified",
        "cus_acme",
        "Pro, in effect",
        "Subscription updated",
        "price price_pro means plan pro",
    ):
        assert text in page.text.replace("Pro Subscription", "Pro, in effect Subscription"), text


async def test_the_page_says_what_needs_attention(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.deliver(updated(price="price_unknown"))
    await dashboard.deliver(failed())
    _, secret = await add_key(dashboard, "Leaked")
    await dashboard.api.post("/api/v1/api-keys/report-leak", json={"secret": secret})
    await unverify(dashboard)
    page = await olga.open(CUSTOMER)
    for text in (
        "A payment failed.",
        "Open the invoice",
        "A key was reported as leaked.",
        "The owner's email address is not verified.",
        "Unknown price:",
    ):
        assert text in page.text
    for text in ("You ", "Your ", " you ", " your "):
        assert text not in page.text


async def test_parked_events_that_can_be_applied_are_counted(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt_waits"))
    await dashboard.execute(
        "UPDATE billing_events SET tenant_id = NULL, outcome = 'parked', parked_at = now()"
    )
    page = await olga.open(CUSTOMER)
    assert "1 parked event can be applied." in page.text


async def test_every_link_of_a_customers_pages_leads_to_a_page(
    dashboard: Dashboard, olga: Person
) -> None:
    await fill_every_page(dashboard, invoice=True)
    await unverify(dashboard)
    terms = {"plan": "pro", "reason": "Contract 2027"}
    await dashboard.operate("PUT", f"/tenants/{ACME}/grants/contract", terms)
    waiting, known = [f"{CUSTOMER}/"], set[str]()
    while waiting:
        path = waiting.pop()
        page = await olga.open(path)
        assert page.status == 200, path
        if not page.headers["content-type"].startswith("text/html"):
            continue
        links = {urljoin(path, href).partition("#")[0] for href in page.links}
        assert not [href for href in links if href.startswith("/orgs/")], path
        found = {
            href for href in links if href.startswith(CUSTOMER) and not is_left_out(href)
        } - known
        known |= found
        waiting += found
    assert {f"{CUSTOMER}/billing/grants/contract/end", SUSPEND, VERIFY} < known


def is_left_out(href: str) -> bool:
    """Whether another page shows the list with other rows, or tests of its own open the page."""
    return "?" in href or "/events" in href


async def test_an_ambiguous_order_is_shown_until_the_provider_has_answered(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt_1", created=NOW))
    await dashboard.deliver(updated(event_id="evt_2", created=NOW + 1))
    mark = "UPDATE billing_events SET anomalies = '{ambiguous_order}' WHERE id = %s"
    await dashboard.execute(mark, ("evt_1",))
    page = await olga.open(CUSTOMER)
    assert "Ambiguous order:" in page.text
    assert ("Reconcile", f"{CUSTOMER}/events/check") in page.anchors
    await dashboard.execute("UPDATE billing_events SET type = %s WHERE id = 'evt_2'", (SNAPSHOT,))
    assert "Ambiguous order:" not in (await olga.open(CUSTOMER)).text


async def test_a_failed_payment_is_said_on_the_pages_that_say_what_follows_alone(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.deliver(updated(status="past_due"))
    await dashboard.deliver(failed())
    for path, number in {"": 1, "/billing": 1, "/usage": 0, "/settings/members": 0}.items():
        page = await olga.open(f"{CUSTOMER}{path}")
        assert page.html.count("<strong>A payment failed.") == number, path


async def test_the_list_of_members_says_that_the_owner_has_not_signed_in(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.operate("PUT", "/tenants/new", {"name": "New", "ownerEmail": "o@new.example"})
    page = await olga.open("/operator/orgs/new/settings/members")
    assert "No members yet: the owner o@new.example has not signed in" in page.text
    assert "Show all members" not in page.text
    page = await olga.open("/operator/orgs/new/settings/members?search=x")
    assert "No member matches" in page.text


async def test_the_operator_is_not_told_to_send_a_request_with_a_customers_key(
    dashboard: Dashboard, olga: Person
) -> None:
    form = await olga.open(f"{CUSTOMER}/settings/api-keys/new")
    page = await olga.send(form, name="By support", scopes="projects:read")
    assert page.heading() == "Key created"
    [(key_id,)] = await dashboard.execute("SELECT id FROM api_keys WHERE name = 'By support'")
    for shown in (page, await olga.open(f"{CUSTOMER}/settings/api-keys/{key_id}")):
        assert "Send the first request" not in shown.text


async def test_the_customer_sees_the_reason_of_a_suspension(
    dashboard: Dashboard, olga: Person
) -> None:
    _, secret = await add_key(dashboard, "Export")
    await suspend(olga)
    await check_trails(dashboard, "tenant.updated", REASON)
    answer = await dashboard.request("GET", "/projects", secret)
    assert (answer.status_code, answer.json()["code"]) == (403, "org_suspended")
    assert answer.json()["reason"] == REASON
    page = await (await dashboard.sign_in(OLIVIA)).open(f"{AT_ACME}/")
    assert (page.status, page.heading()) == (403, "Organization suspended")
    assert REASON in page.text
    assert ("Open your account", "/account") in page.anchors
    assert "Open the overview" not in page.text
    page = await olga.open(CUSTOMER)
    assert f"The customer sees this reason: {REASON}" in page.text


async def test_a_suspension_says_beside_the_field_that_the_customer_sees_the_reason(
    olga: Person,
) -> None:
    page = await olga.open(SUSPEND)
    assert "The customer sees it: on all pages, in each refusal of the API" in page.text


@pytest.mark.parametrize("reason", ["", "x" * 501, "a\x07b"])
async def test_a_suspension_needs_a_valid_reason(
    dashboard: Dashboard, olga: Person, reason: str
) -> None:
    page = await olga.send(await olga.open(SUSPEND), reason=reason)
    assert (page.status, page.focused) == (422, ["reason"])
    assert await count_acts(dashboard) == 0


async def test_resuming_accepts_requests_again(dashboard: Dashboard, olga: Person) -> None:
    _, secret = await add_key(dashboard, "Export")
    await suspend(olga)
    page = await olga.send(await olga.open(RESUME), reason="It was paid")
    assert "Organization resumed." in page.text
    await check_trails(dashboard, "tenant.updated", "It was paid")
    assert (await dashboard.request("GET", "/projects", secret)).status_code == 200


async def test_double_submissions_have_one_effect(dashboard: Dashboard, olga: Person) -> None:
    form = await olga.open(SUSPEND)
    for _ in range(2):
        page = await olga.send(form, reason=REASON)
        assert page.path == CUSTOMER
    assert await count_acts(dashboard) == 1
    form = await olga.open(RESUME)
    for _ in range(2):
        page = await olga.send(form)
        assert page.path == CUSTOMER
    assert await count_acts(dashboard) == 2


async def test_two_operators_do_not_overwrite_each_others_reasons(
    dashboard: Dashboard, olga: Person
) -> None:
    other = await dashboard.sign_in(OLGA)
    form = await olga.open(SUSPEND)
    await suspend(other, "Abuse")
    page = await olga.send(form, reason=REASON)
    assert (page.status, page.focused) == (422, ["reason"])
    assert "It is now: Abuse." in page.text
    await olga.send(page, reason=REASON)
    await check_trails(dashboard, "tenant.updated", REASON)


async def test_a_resumed_organization_is_not_called_suspended(
    dashboard: Dashboard, olga: Person
) -> None:
    await suspend(olga)
    form = await olga.open(SUSPEND)
    other = await dashboard.sign_in(OLGA)
    await other.send(await other.open(RESUME))
    page = await olga.send(form)
    assert (page.status, page.focused) == (422, ["reason"])
    assert await count_acts(dashboard) == 2
    page = await olga.send(page)
    assert "Organization suspended." in page.text
    assert (await dashboard.operate("GET", f"/operator/tenants/{ACME}"))["suspended"] is True


async def test_a_suspension_for_another_reason_is_not_resumed(
    dashboard: Dashboard, olga: Person
) -> None:
    await suspend(olga)
    form = await olga.open(RESUME)
    await suspend(await dashboard.sign_in(OLGA), "Abuse")
    page = await olga.send(form)
    assert page.status == 422
    assert "It was suspended for another reason: Abuse" in page.text
    assert (await olga.send(page)).path == CUSTOMER


async def test_two_suspensions_at_once_leave_one_reason(dashboard: Dashboard, olga: Person) -> None:
    other = await dashboard.sign_in(OLGA)
    forms = [(olga, await olga.open(SUSPEND), "One"), (other, await other.open(SUSPEND), "Two")]
    pages = await asyncio.gather(*(who.send(form, reason=text) for who, form, text in forms))
    assert all(page.status in (200, 422) for page in pages)
    shown = await dashboard.operate("GET", f"/operator/tenants/{ACME}")
    assert shown["suspensionReason"] in ("One", "Two")


@pytest.mark.parametrize("path", [SUSPEND, RESUME, VERIFY])
async def test_an_organization_that_ended_meanwhile_is_not_changed(
    dashboard: Dashboard, olga: Person, path: str
) -> None:
    form = await olga.open(path)
    await dashboard.operate("DELETE", f"/tenants/{ACME}")
    page = await olga.send(form, reason=REASON)
    assert page.status == 404
    assert await count_acts(dashboard) == 0


async def test_the_owners_address_is_verified(dashboard: Dashboard, olga: Person) -> None:
    await unverify(dashboard)
    page = await olga.send(await olga.open(VERIFY), reason="Told on the phone")
    assert "The owner's address is verified." in page.text
    assert await is_verified(dashboard)
    await check_trails(dashboard, "tenant.updated", "Told on the phone")


async def test_an_address_is_verified_once(dashboard: Dashboard, olga: Person) -> None:
    await unverify(dashboard)
    form = await olga.open(VERIFY)
    for _ in range(2):
        await olga.send(form)
    assert await count_acts(dashboard) == 1


async def test_an_address_that_the_operator_did_not_see_is_not_verified(
    dashboard: Dashboard, olga: Person
) -> None:
    await unverify(dashboard)
    form = await olga.open(VERIFY)
    await unverify(dashboard, "thief@x.example")
    page = await olga.send(form)
    assert (page.status, page.focused) == (422, ["email"])
    assert "thief@x.example" in page.text
    assert not await is_verified(dashboard)


async def test_a_confirmation_is_mailed_again(dashboard: Dashboard, olga: Person) -> None:
    await unverify(dashboard)
    page = await olga.send(
        await olga.open(CUSTOMER), f"/operator{AT_ACME}/settings/owner-address/send-confirmation"
    )
    assert "Confirmation sent to the owner's address." in page.text
    mails = await olga.open(MAILS)
    assert "Confirm your e-mail address" in mails.text
    assert "new@acme.example" in mails.text
    acts = await dashboard.execute("SELECT action, org_id, subject FROM operator_acts")
    assert acts == [("confirmation.resent", ACME, OLGA.sub)]


async def test_a_confirmation_that_is_not_mailed_or_a_customer_s_is_no_act(
    dashboard: Dashboard, olga: Person
) -> None:
    path = f"{AT_ACME}/settings/owner-address/send-confirmation"
    await olga.force(f"/operator{path}")  # verified already
    await unverify(dashboard)
    await (await dashboard.sign_in(OLIVIA)).force(path)
    assert await count_acts(dashboard) == 0


@pytest.mark.parametrize(
    ("path", "act"),
    [
        ("/settings/audit/export?format=csv", ("audit.exported", "csv")),
        ("/settings/audit/export?format=ndjson", ("audit.exported", "ndjson")),
        ("/usage/export", ("usage.exported", "csv")),
    ],
)
async def test_an_export_is_an_act_of_the_operator(
    dashboard: Dashboard, olga: Person, path: str, act: tuple[str, str]
) -> None:
    await (await dashboard.sign_in(OLIVIA)).open(f"{AT_ACME}{path}")
    assert await count_acts(dashboard) == 0
    assert (await olga.open(f"{CUSTOMER}{path}")).status == 200
    acts = await dashboard.execute("SELECT action, target_id, org_id, subject FROM operator_acts")
    assert acts == [(*act, ACME, OLGA.sub)]


async def test_a_rejected_export_is_no_act(dashboard: Dashboard, olga: Person) -> None:
    for path in ("/settings/audit/export?since=x", "/usage/export?since=x"):
        await olga.get(f"{CUSTOMER}{path}")
    assert await count_acts(dashboard) == 0


@pytest.mark.parametrize("path", ["", "/acts", "/installation/events"])
async def test_an_invalid_place_in_a_list_leads_to_its_first_page(olga: Person, path: str) -> None:
    page = await olga.open(f"/operator{path}?cursor=x")
    assert page.status == 400
    assert ("Show the first page", f"/operator{path}") in page.anchors


async def test_an_operator_who_is_a_member_is_removed_as_another_member(
    dashboard: Dashboard, olga: Person
) -> None:
    path = f"/operator{await dashboard.add_member(OLGA.sub, 'admin')}"
    page = await olga.open(path)
    assert not [href for href in page.links if "/account/memberships/" in href]
    assert "own role" not in page.text
    changed = await olga.send(page, f"{path}/role", role="member")
    assert "own role" not in changed.text
    removed = await olga.send(await olga.open(f"{path}/remove"))
    assert "Member removed." in removed.text
    found = await dashboard.execute(
        "SELECT role, removed_at IS NULL FROM memberships WHERE subject = %s", (OLGA.sub,)
    )
    assert found == [("member", False)]


async def test_mails_are_shown_without_what_they_say(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.execute(
        "INSERT INTO mails (id, type, tenant_id, cause, recipient, data, status, last_error, created_at, due_at, "
        "ended_at) SELECT gen_random_uuid(), 'api_key.leaked', tenant, tenant || number, "
        "'to-' || number || '@' || tenant || '.example', '{\"keyName\": \"hidden-name\"}', 'failed', "
        "'550 no such mailbox', now(), now() + number * interval '1 s', now() "
        "FROM unnest(ARRAY['acme', 'beta']) AS tenant, generate_series(1, 26) AS number"
    )
    page = await olga.open(MAILS)
    assert page.text.count("@acme.example failed 550 no such mailbox") == 25
    assert "beta.example" not in page.text
    assert "hidden-name" not in page.html
    [older] = {href for text, href in page.anchors if text == "Next"}
    assert "to-1@acme.example" in (await olga.open(older)).text
    assert (await olga.open(f"{MAILS}?cursor=nonsense")).status == 400


async def test_an_operator_ends_an_organization(dashboard: Dashboard, olga: Person) -> None:
    path = f"/operator{AT_BETA}/settings/general/delete"
    page = await olga.send(await olga.open(path), name="Beta")
    assert page.path == "/operator"
    assert "Organization deleted." in page.text
    await check_trails(dashboard, "tenant.ended", None, "beta")


async def test_the_secret_of_a_key_says_whose_it_is(olga: Person) -> None:
    form = await olga.open(f"/operator{AT_ACME}/settings/api-keys/new")
    page = await olga.send(form, name="By support", scope="projects:read")
    assert page.heading() == "Key created"
    assert "It gives access to the data of Acme." in page.text
    again = await olga.open(page.path)
    assert "It gives access" not in again.text


@pytest.mark.parametrize(
    "path",
    [
        "settings/general",
        "settings/members",
        "settings/api-keys",
        "projects",
        "usage",
        "search?q=a",
    ],
)
async def test_shared_pages_do_not_speak_to_the_customer(olga: Person, path: str) -> None:
    page = await olga.open(f"/operator{AT_ACME}/{path}")
    assert page.status == 200
    for text in ("Your ", " your ", "you an admin", "Create your"):
        assert text not in page.text
