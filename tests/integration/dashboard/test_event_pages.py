"""The pages of billing events, without a browser."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import events
from tests.support.dashboard import ACME, AT_ACME, MIA, Dashboard, Person, running_dashboard
from tests.support.events import failed, succeeded, updated

EVENTS: Final = f"{AT_ACME}/events"
MARKUP: Final = "<img src=x onerror=alert(1)>&quot;'"


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def test_empty_ledger_explains_how_events_arrive(owner: Person) -> None:
    assert f"metadata orgId={ACME}" in (await owner.open(EVENTS)).text


async def test_list_shows_type_changes_and_outcome(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated())
    said = (await owner.open(EVENTS)).text
    assert (
        "Subscription updated customer.subscription.updated "
        "Plan Free →, then Pro, Subscription No subscription →, then Active, Period ends" in said
    )
    assert "Applied" in said
    assert "Ends with the period" not in said


async def test_list_shows_the_reason_of_an_event_that_changed_nothing(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(succeeded())
    said = (await owner.open(EVENTS)).text
    assert "The payment is logged; the tenant was not past due. No change" in said


async def test_anomalies_are_tagged_and_explained(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated(event_id="evt_odd", price="price_nobody_knows"))
    assert "Unknown price" in (await owner.open(EVENTS)).text
    assert "until it is added to the plan catalog" in (await owner.open(f"{EVENTS}/evt_odd")).text
    assert "Unknown price: Subscription updated" in (await owner.open(f"{AT_ACME}/")).text


async def test_events_are_filtered_by_type_and_by_outcome(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt_updated", created=events.NOW))
    await dashboard.deliver(succeeded(event_id="evt_paid", created=events.NOW + 1))
    await dashboard.deliver(failed(event_id="evt_failed", created=events.NOW + 2))

    async def shown(query: str) -> list[str]:
        page = (await owner.open(f"{EVENTS}?{query}")).html
        return [
            name
            for name in ("evt_failed", "evt_paid", "evt_updated")
            if f'data-event="{name}"' in page
        ]

    assert await shown("") == ["evt_failed", "evt_paid", "evt_updated"]
    assert await shown("type=invoice.payment_failed") == ["evt_failed"]
    assert await shown("outcome=no_change") == ["evt_paid"]
    assert await shown("type=invoice.payment_failed&outcome=no_change") == []
    assert await shown("outcome=nonsense") == ["evt_failed", "evt_paid", "evt_updated"]
    assert await shown("type=%00%0a") == ["evt_failed", "evt_paid", "evt_updated"]


async def test_events_are_searched_by_id_type_subscription_and_invoice(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(
        updated(event_id="evt_Updated", created=events.NOW, subscription_id="sub_One")
    )
    await dashboard.deliver(
        succeeded(event_id="evt_paid", created=events.NOW + 1, invoice_id="in_First")
    )
    await dashboard.deliver(
        failed(event_id="evt_failed", created=events.NOW + 2, invoice_id="in_Second")
    )

    async def shown(text: str, more: str = "") -> list[str]:
        page = (await owner.open(f"{EVENTS}?search={text}{more}")).html
        return [
            name
            for name in ("evt_failed", "evt_paid", "evt_Updated")
            if f'data-event="{name}"' in page
        ]

    assert await shown("evt_paid") == ["evt_paid"]
    assert await shown("UPDATED") == ["evt_Updated"]
    assert await shown("sub_one") == ["evt_Updated"]
    assert await shown("in_f") == ["evt_paid"]
    assert await shown("invoice.payment") == ["evt_failed", "evt_paid"]
    assert await shown("payment failed") == ["evt_failed"]
    assert await shown("in_Second", "&type=invoice.payment_succeeded") == []
    assert await shown("evt_failed", "&outcome=late") == []
    assert await shown("in_Firstin_Second") == []
    assert await shown("%25") == []


async def test_event_of_an_invoice_links_its_page_and_the_events_of_its_subscription(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(failed(event_id="evt_1", invoice_id="in_First"))
    page = await owner.open(f"{EVENTS}/evt_1")
    assert "Amount 29.00 EUR Invoice in_First Subscription sub_acme" in page.text
    assert {
        events.INVOICE_URL,
        f"{EVENTS}?search=in_First",
        f"{EVENTS}?search=sub_acme",
    } <= set(page.links)
    page = await (await dashboard.sign_in(MIA)).open(f"{EVENTS}/evt_1")
    assert "Amount 29.00 EUR Invoice in_First Subscription sub_acme" in page.text
    assert events.INVOICE_URL not in page.links


async def test_paid_invoice_shows_its_whole_amount(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(succeeded(event_id="evt_1"))
    assert "Amount 29.00 EUR" in (await owner.open(f"{EVENTS}/evt_1")).text


async def test_invoice_address_that_is_a_script_is_no_link(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(failed(event_id="evt_1", url="javascript:alert(1)"))
    page = await owner.open(f"{EVENTS}/evt_1")
    assert "Amount 29.00 EUR" in page.text
    assert not [link for link in page.links if link.startswith("javascript:")]


async def test_next_page_keeps_the_filter(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.execute(
        "INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome) "
        "SELECT 'evt_' || lpad(n::text, 2, '0'), n, 'customer.subscription.updated', 2000000000 + n, "
        "now(), 'acme', 'applied' FROM generate_series(0, 29) AS n"
    )
    first = await owner.open(f"{EVENTS}?type=customer.subscription.updated")
    assert 'data-event="evt_05"' in first.html
    assert 'data-event="evt_04"' not in first.html
    assert "1\u201325 of 30 events" in first.text
    [address] = [link for link in first.links if "cursor=" in link]
    assert "type=customer.subscription.updated&" in address
    second = (await owner.open(address)).html
    assert 'data-event="evt_04"' in second
    assert 'data-event="evt_05"' not in second
    assert "data-live" not in second.partition('id="ledger"')[2]


async def test_event_shows_its_payload_formatted_and_original(
    dashboard: Dashboard, owner: Person
) -> None:
    event = updated(event_id="evt_1")
    await dashboard.deliver(event)
    page = await owner.open(f"{EVENTS}/evt_1")
    assert "&#34;id&#34;: &#34;evt_1&#34;,\n" in page.html
    file = await owner.get(f"{EVENTS}/evt_1/payload")
    assert file.content == events.body(event)
    assert file.headers["content-disposition"] == 'attachment; filename="evt_1.json"'
    assert file.headers["x-content-type-options"] == "nosniff"


async def test_deleted_payload_is_explained(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated(event_id="evt_1"))
    await dashboard.execute("DELETE FROM billing_bodies")
    assert "was deleted after its retention period" in (await owner.open(f"{EVENTS}/evt_1")).text
    assert (await owner.open(f"{EVENTS}/evt_1/payload")).status == 404


async def test_markup_in_payloads_ids_and_names_is_text(
    dashboard: Dashboard, owner: Person
) -> None:
    hostile = updated(event_id="evt_1", price=MARKUP)
    hostile["data"]["object"]["metadata"][MARKUP] = f"</code></pre>{MARKUP}"
    await dashboard.deliver(hostile)
    await dashboard.operate(
        "PUT", f"/tenants/{ACME}", {"name": MARKUP, "ownerEmail": "olivia@acme.example"}
    )
    for path in (
        EVENTS,
        f"{EVENTS}/evt_1",
        f"{AT_ACME}/",
        f"{AT_ACME}/billing",
        f"{EVENTS}?type={MARKUP}",
    ):
        page = await owner.open(path)
        assert page.status == 200
        assert "<img" not in page.html, path
        assert "&lt;img src=x onerror=alert(1)&gt;" in page.html, path


async def test_invisible_characters_are_escaped_in_payloads(
    dashboard: Dashboard, owner: Person
) -> None:
    hostile: dict[str, Any] = updated(event_id="evt_1")
    hostile["data"]["object"]["metadata"]["note"] = "user\u202etxt.exe"
    await dashboard.deliver(hostile)
    page = await owner.open(f"{EVENTS}/evt_1")
    assert "user\\u202etxt.exe" in page.html
    assert "\u202e" not in page.html
    assert json.loads((await owner.get(f"{EVENTS}/evt_1/payload")).content) == hostile


async def test_event_id_with_a_question_mark_is_linked_correctly(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt?a=1#b %41"))
    page = (await owner.open(EVENTS)).html
    address = page.partition("data-event=")[2].partition('href="')[2].partition('"')[0]
    assert (await owner.open(address)).status == 200


async def test_members_read_the_ledger_but_no_payloads(dashboard: Dashboard) -> None:
    await dashboard.deliver(updated(event_id="evt_1"))
    member = await dashboard.sign_in(MIA)
    page = await member.open(f"{EVENTS}/evt_1")
    assert page.status == 200
    assert "Only owners and admins can see" in page.text
    assert "Payload from the provider" not in page.text
    assert "cancel_at_period_end" not in page.html
    assert (await member.open(f"{EVENTS}/evt_1/payload")).status == 403


async def test_anonymous_visit_redirects_to_the_sign_in(dashboard: Dashboard) -> None:
    answer = await dashboard.api.get(EVENTS)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/sign-in?return_to=%2Forgs%2Facme%2Fevents",
    )


async def test_pages_stay_small(dashboard: Dashboard, owner: Person) -> None:
    for number in range(30):
        await dashboard.deliver(
            updated(event_id=f"evt_{number:02}", created=events.NOW + number, cancel=number % 2 > 0)
        )
    for path in ("/", "/events", "/events/evt_01", "/billing"):
        assert len((await owner.get(f"{AT_ACME}{path}")).content) < 50_000


async def test_applied_event_without_visible_changes_is_explained(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(events.completed(event_id="evt_link", customer="cus_another"))
    linked = (await owner.open(f"{EVENTS}/evt_link")).text
    assert "It linked a customer to the organization." in linked
    assert "It changed the organization's billing state." not in linked


async def test_applied_event_of_a_hidden_subscription_is_explained(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt_1", created=events.NOW))
    await dashboard.deliver(
        updated(event_id="evt_2", created=events.NOW + 1, subscription_id="sub_2")
    )
    said = (await owner.open(f"{EVENTS}/evt_2")).text
    assert "another subscription counts, or only later events depend on the change." in said
    assert "It changed the organization's billing state." not in said


async def test_event_of_a_subscription_that_does_not_count_is_explained(
    conninfo: str, people: Path
) -> None:
    async with running_dashboard(conninfo, people, SUBSCRIPTIONS="each") as dashboard:
        owner = await dashboard.sign_in()
        await dashboard.deliver(updated(event_id="evt_1", subscription_id="sub_1"))
        await dashboard.deliver(
            updated(event_id="evt_2", subscription_id="sub_2", price="price_nobody_knows")
        )
        said = (await owner.open(f"{EVENTS}/evt_2")).text
    assert "Outcome It changed a subscription, but not the organization's billing state" in said
    assert "price_nobody_knows is not in the plan catalog, which means plan free." in said
    assert "The price means the free plan until it is added to the plan catalog." in said
    for untrue in (
        "the subscription did not change",
        "Neither the plan nor the subscription",
        "so the plan is",
    ):
        assert untrue not in said


async def test_changed_moments_are_shown_by_the_second(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(
        updated(event_id="evt_1", created=events.NOW, period_end=events.NOW + 10)
    )
    await dashboard.deliver(
        updated(event_id="evt_2", created=events.NOW + 1, period_end=events.NOW + 20)
    )
    for path in (EVENTS, f"{EVENTS}/evt_2"):
        page = await owner.open(path)
        assert "1 Jan 2026, 12:00:10 UTC" in page.text
        assert "1 Jan 2026, 12:00:20 UTC" in page.text
