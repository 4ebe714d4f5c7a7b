"""The pages of the billing history, without a browser."""

import re
from typing import Final

import pytest

from tests.support import events
from tests.support.dashboard import ACME, AT_ACME, MIA, Dashboard, Person
from tests.support.events import completed, deleted, failed, succeeded, updated
from tests.support.reversals import charge_refunded, disputed, refunded

EVENTS: Final = f"{AT_ACME}/events"
MARKUP: Final = "<img src=x onerror=alert(1)>&quot;'"


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def test_empty_history_says_what_appears(owner: Person) -> None:
    assert "Payments and changes of your plan appear here." in (await owner.open(EVENTS)).text


async def test_history_says_in_sentences_what_happened_and_what_it_changed(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(created=events.NOW))
    await dashboard.deliver(updated(created=events.NOW + 1, price="price_business"))
    await dashboard.deliver(failed(created=events.NOW + 2))
    await dashboard.deliver(succeeded(created=events.NOW + 3))
    await dashboard.deliver(deleted(created=events.NOW + 4))
    said = (await owner.open(EVENTS)).text
    for sentences in (
        "Your subscription started. Your plan changed from Free to Pro.",
        "Your plan changed from Pro to Business.",
        "The payment of 29.00 EUR failed. Your subscription is past due.",
        "The payment of 29.00 EUR was received. Your subscription is active again.",
        "Your subscription ended. Your plan changed from Business to Free.",
    ):
        assert sentences in said
    for word in ("Applied", "No subscription", "Outcome", "ledger", "No change", "invoice.payment"):
        assert word not in said


async def test_entries_that_changed_nothing_are_behind_a_switch(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt_new", created=events.NOW + 2))
    await dashboard.deliver(updated(event_id="evt_same", created=events.NOW + 3))
    await dashboard.deliver(
        updated(event_id="evt_late", created=events.NOW, price="price_business")
    )
    await dashboard.deliver(succeeded(event_id="evt_paid", created=events.NOW + 4))
    await dashboard.deliver(completed(event_id="evt_link", created=events.NOW + 5))

    async def shown(query: str) -> list[str]:
        page = (await owner.open(f"{EVENTS}{query}")).html
        return re.findall('data-event="(.*?)"', page)

    assert await shown("") == ["evt_paid", "evt_new"]
    assert await shown("?all=yes") == ["evt_link", "evt_paid", "evt_same", "evt_new", "evt_late"]
    assert await shown("?all=%00%0a&type=nonsense") == ["evt_paid", "evt_new"]


async def test_invoice_of_nothing_is_shown_if_it_changed_something(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(created=events.NOW, status="past_due"))
    await dashboard.deliver(succeeded(event_id="evt_more", created=events.NOW + 1, amount=0))
    await dashboard.deliver(succeeded(event_id="evt_same", created=events.NOW + 2, amount=0))
    page = await owner.open(EVENTS)
    assert "Nothing was to be paid. Your subscription is active again." in page.text
    assert "evt_same" not in page.html


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

    async def shown(text: str) -> list[str]:
        page = (await owner.open(f"{EVENTS}?search={text}")).html
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
    assert await shown("in_Firstin_Second") == []
    assert await shown("%25") == []


async def test_entry_of_an_invoice_links_its_page_for_who_may_pay(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(failed(event_id="evt_1", invoice_id="in_First"))
    page = await owner.open(f"{EVENTS}/evt_1")
    assert "Amount 29.00 EUR Invoice in_First Open the invoice Subscription sub_acme" in page.text
    assert events.INVOICE_URL in page.links
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
    first = await owner.open(f"{EVENTS}?all=yes")
    assert 'data-event="evt_05"' in first.html
    assert 'data-event="evt_04"' not in first.html
    assert "1\u201325 of 30 entries" in first.text
    [address] = [link for link in first.links if "cursor=" in link]
    assert "all=yes&" in address
    second = (await owner.open(address)).html
    assert 'data-event="evt_04"' in second
    assert 'data-event="evt_05"' not in second
    assert "data-live" not in second.partition('id="ledger"')[2]


async def test_markup_in_ids_and_names_is_text(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(failed(event_id="evt_1", invoice_id=MARKUP, subscription_id=MARKUP))
    await dashboard.operate(
        "PUT", f"/tenants/{ACME}", {"name": MARKUP, "ownerEmail": "olivia@acme.example"}
    )
    for path in (
        EVENTS,
        f"{EVENTS}/evt_1",
        f"{AT_ACME}/",
        f"{AT_ACME}/billing",
        f"{EVENTS}?search={MARKUP}",
    ):
        page = await owner.open(path)
        assert page.status == 200
        assert "<img" not in page.html, path
        assert "&lt;img src=x onerror=alert(1)&gt;" in page.html, path


async def test_event_id_with_a_question_mark_is_linked_correctly(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt?a=1#b %41"))
    page = (await owner.open(EVENTS)).html
    address = page.partition("data-event=")[2].partition('href="')[2].partition('"')[0]
    assert (await owner.open(address)).status == 200


async def test_entries_show_nothing_of_the_ledger(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated(event_id="evt_1"))
    page = await owner.open(f"{EVENTS}/evt_1")
    assert "Your subscription started." in page.text
    for words in ("Payload", "Outcome", "customer.subscription", "price_pro"):
        assert words not in page.text
    for path in ("/evt_1/payload", "/replay"):
        assert (await owner.open(f"{EVENTS}{path}")).status == 404


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


async def test_renewal_says_until_when(dashboard: Dashboard, owner: Person) -> None:
    for number in (1, 2):
        moved = updated(created=events.NOW + number, period_end=events.NOW + number * events.MONTH)
        await dashboard.deliver(moved)
    assert "Your subscription was renewed until 2 Mar 2026." in (await owner.open(EVENTS)).text


async def test_refunds_and_disputes_are_told_in_a_customers_words(
    dashboard: Dashboard, owner: Person
) -> None:
    at = events.NOW
    await dashboard.deliver(updated(created=at))
    await dashboard.deliver(charge_refunded(1250, at=at + 1))
    failed_refund = refunded(
        "refund.failed", event_id="evt_back", amount=1250, status="failed", at=at + 2
    )
    for event in (failed_refund, disputed(at=at + 3), disputed(status="lost", at=at + 4)):
        await dashboard.deliver(event)
    page = await owner.open(EVENTS)
    for sentence in (
        "A refund of 12.50 EUR was paid to you.",
        "The refund of 12.50 EUR failed. The money did not reach you.",
        "A payment of 29.00 EUR was disputed with your bank.",
        "Your bank returned the disputed payment of 29.00 EUR to you.",
    ):
        assert sentence in page.text
    assert '<data value="12.50" data-currency="EUR">' in page.html
    assert "Amount 12.50 EUR" in (await owner.open(f"{EVENTS}/evt_back")).text
    assert "evt_back" in (await owner.open(f"{EVENTS}?search=re_1")).html
