"""The Billing page with prices, and with what the provider knows of the customer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tenantry_devkit.simulator import Card, Simulator
from tests.support.catalogs import catalog_file
from tests.support.dashboard import (
    MIA,
    Dashboard,
    Person,
    dashboard_of_file,
    running_dashboard,
)
from tests.support.dashboard_page import Page
from tests.support.events import NOW, deleted, failed, updated
from tests.support.postgres import PostgresServer
from tests.support.selling import (
    BILLING,
    CATALOG,
    link,
    selling_settings,
    simulated_provider,
    subscribed,
    until_prices_are_shown,
)

INVOICES: Final = f"{BILLING}/invoices"
CHECKOUT: Final = f"{BILLING}/checkout"
PORTAL: Final = f"{BILLING}/portal"


@pytest.fixture(scope="module")
async def shared_simulator() -> AsyncIterator[Simulator]:
    async with simulated_provider() as sim:
        yield sim


@pytest.fixture(scope="module")
async def shared_dashboard(
    postgres: PostgresServer, people: Path, shared_simulator: Simulator
) -> AsyncIterator[Dashboard]:
    values = selling_settings(shared_simulator)
    async with dashboard_of_file(postgres, people, **values) as dashboard:
        async with dashboard.reset():
            await until_prices_are_shown(await dashboard.sign_in())
        yield dashboard


@pytest.fixture
def sim(shared_simulator: Simulator) -> Simulator:
    return shared_simulator


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def opened(owner: Person, sim: Simulator, page: Page, button: str, **fields: str) -> str:
    """Submit the form with this button, and return the simulator's session that it leads to."""
    answer = await owner.fill(page.form_of(button), **fields)
    assert answer.status == 200, answer.text
    return answer.headers["refresh"].removeprefix(f"0; url={sim.url}/").rpartition("/")[2]


async def test_cards_have_the_prices_of_the_shortest_period(owner: Person) -> None:
    said = (await owner.open(BILLING)).text
    assert "Pro 29.00 EUR a month" in said
    assert "Business 99.00 EUR a month" in said
    assert "Team 9.00 EUR a month, for each seat" in said


async def test_every_card_has_the_same_lines_in_the_same_order(owner: Person) -> None:
    said = (await owner.open(BILLING)).text
    assert "Projects 3 sso Not included calls Not included" in said
    assert "Projects 100 sso Included calls 10,000 a month" in said
    assert said.count("Projects Unlimited sso Not included calls Not included") == 2


async def test_another_period_is_a_link(owner: Person) -> None:
    page = await owner.open(BILLING)
    assert [text for text, href in page.anchors if "every=" in href] == ["Monthly", "Yearly"]
    [yearly] = [href for text, href in page.anchors if text == "Yearly"]
    said = (await owner.open(yearly.partition("#")[0])).text
    assert "Pro 290.00 EUR a year" in said
    assert "Team 9.00 EUR a month" in said  # it has no other


async def test_checkout_is_of_the_shown_price_and_the_seats(owner: Person, sim: Simulator) -> None:
    page = await owner.open(f"{BILLING}?every=year")
    session = sim.checkout_sessions[
        await opened(owner, sim, page, "Subscribe to Pro", quantity="5")
    ]
    assert [(price.id, quantity) for price, quantity in session.prices] == [("price_pro_yearly", 5)]


@pytest.mark.parametrize(("until", "is_offered"), [(None, False), ("2099-01-01T00:00:00Z", True)])
async def test_a_plan_that_a_grant_gives_until_a_time_can_be_bought(
    dashboard: Dashboard, owner: Person, until: str | None, is_offered: bool
) -> None:
    terms = {"plan": "pro", "until": until, "reason": "a contract"}
    await dashboard.operate("PUT", "/tenants/acme/grants/contract", terms)
    text = (await owner.open(BILLING)).text
    assert "your plan" in text
    assert ("Subscribe to Pro" in text) is is_offered


async def test_seats_that_follow_members_are_not_asked_for(owner: Person, sim: Simulator) -> None:
    page = await owner.open(BILLING)
    assert "quantity" not in page.form_of("Subscribe to Team").fields
    session = sim.checkout_sessions[await opened(owner, sim, page, "Subscribe to Team")]
    assert [(price.id, quantity) for price, quantity in session.prices] == [("price_team", 1)]


@pytest.mark.parametrize("quantity", ["0", "10001", "-1", "1.5", "many", "9" * 5000])
async def test_faulty_number_of_seats_is_explained(
    owner: Person, sim: Simulator, quantity: str
) -> None:
    sessions = len(sim.checkout_sessions)
    answer = await owner.force(CHECKOUT, plan="pro", quantity=quantity)
    assert answer.status == 422
    assert "the seats must be 1 to 10,000" in answer.text
    assert len(sim.checkout_sessions) == sessions


async def test_price_of_another_plan_is_refused(owner: Person) -> None:
    answer = await owner.force(CHECKOUT, plan="pro", price="price_business")
    assert answer.status == 422
    assert "is not a price of the plan pro" in answer.text


async def test_subscriber_sees_next_charge_card_and_invoices(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim, quantity=3)
    page = await owner.open(BILLING)
    assert "Next payment 87.00 EUR on" in page.text
    assert "Payment method Visa ending in 4242, expires 12/2040" in page.text
    invoice = sim.invoices[subscription.latest_invoice or ""]
    page = await owner.open(INVOICES)
    assert (invoice.number, invoice.hosted_invoice_url) in page.anchors
    assert f"{invoice.number} Paid" in page.text
    assert "87.00 EUR" in page.text
    overview = await owner.open(BILLING.removesuffix("billing"))
    assert "Next payment 87.00 EUR on" in overview.text


@pytest.mark.parametrize(
    ("price", "button", "wanted"),
    [
        ("price_pro", "Upgrade to Business", ("price_business", 1)),
        ("price_business", "Downgrade to Pro", ("price_pro", 1)),
    ],
)
async def test_plan_is_changed_by_a_link_into_the_portal(
    dashboard: Dashboard,
    owner: Person,
    sim: Simulator,
    price: str,
    button: str,
    wanted: tuple[str, int],
) -> None:
    subscription = await subscribed(dashboard, sim, price)
    session_id = await opened(owner, sim, await owner.open(BILLING), button)
    answer = await owner.client.post(
        f"{sim.url}/p/session/{session_id}", data={"action": "confirm"}
    )
    assert answer.headers["location"].startswith(f"{dashboard.url}{BILLING}/back?notice=")
    [item] = sim.subscriptions[subscription.id].items
    assert (item.price.id, item.quantity) == wanted


async def test_present_period_is_shown_first_and_another_one_can_be_chosen(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim, "price_pro_yearly")
    page = await owner.open(BILLING)
    assert "Pro your plan 290.00 EUR a year" in page.text
    page = await owner.open(f"{BILLING}?every=month")
    session_id = await opened(owner, sim, page, "Pay monthly")
    await owner.client.post(f"{sim.url}/p/session/{session_id}", data={"action": "confirm"})
    assert sim.subscriptions[subscription.id].price == "price_pro"


async def test_seats_are_changed_by_a_link_into_the_portal(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim, quantity=3)
    page = await owner.open(BILLING)
    form = page.form_of("Change the seats")
    assert form.fields["quantity"] == ["3"]
    session_id = await opened(owner, sim, page, "Change the seats", quantity="8")
    await owner.client.post(f"{sim.url}/p/session/{session_id}", data={"action": "confirm"})
    [item] = sim.subscriptions[subscription.id].items
    assert (item.price.id, item.quantity) == ("price_pro", 8)


async def test_change_to_seats_that_follow_members_takes_their_number(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim, quantity=3)
    session_id = await opened(owner, sim, await owner.open(BILLING), "Upgrade to Team")
    await owner.client.post(f"{sim.url}/p/session/{session_id}", data={"action": "confirm"})
    [item] = sim.subscriptions[subscription.id].items
    assert (item.price.id, item.quantity) == ("price_team", 1)


async def test_change_that_changes_nothing_is_the_providers_to_refuse(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    await subscribed(dashboard, sim)
    answer = await owner.force(PORTAL, action="change", price="price_pro")
    assert answer.status == 502
    assert "refused the request" in answer.text


async def test_subscription_is_canceled_by_a_link_into_the_portal(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim)
    session_id = await opened(owner, sim, await owner.open(BILLING), "Cancel the subscription")
    fields = {"action": "cancel_at_period_end", "subscription": subscription.id}
    await owner.client.post(f"{sim.url}/p/session/{session_id}", data=fields)
    assert sim.subscriptions[subscription.id].cancel_at_period_end


async def test_cards_without_a_button_say_why(dashboard: Dashboard, owner: Person) -> None:
    """The provider does not know the subscription of these events."""
    await dashboard.deliver(updated(created=NOW))
    await dashboard.deliver(failed(created=NOW + 1))
    assert "Pay the open invoice first." in (await owner.open(BILLING)).text
    said = (await (await dashboard.sign_in(MIA)).open(BILLING)).text
    assert "Only an owner or admin can change the plan." in said
    assert "Pay the open invoice first." not in said


async def test_ended_or_ending_subscription_offers_no_cancellation(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim)
    sim.cancel(subscription, at_period_end=True)
    page = await owner.open(BILLING)
    assert "Cancel the subscription" not in page.text
    assert "Next payment" not in page.text


async def test_card_is_changed_by_a_link_and_shown_after_the_return(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    await subscribed(dashboard, sim, card=Card.WORKS)
    page = await owner.open(BILLING)
    session_id = await opened(owner, sim, page, "Update payment method")
    answer = await owner.client.post(
        f"{sim.url}/p/session/{session_id}", data={"action": "card", "card": "declines"}
    )
    page = await owner.open(answer.headers["location"])
    assert "Visa ending in 0341" in page.text


async def test_subscription_with_several_items_is_changed_in_the_portal_alone(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    customer = sim.customer()
    await link(dashboard, customer.id)
    subscription = sim.subscribe(customer, [("price_pro", 1), ("price_team", 2)])
    await dashboard.deliver(updated(customer=customer.id, subscription_id=subscription.id))
    page = await owner.open(BILLING)
    assert "Upgrade to" not in page.text
    assert "Change or cancel the subscription" in page.text
    assert "Change this subscription at the payment provider, by the button above." in page.text
    answer = await owner.force(PORTAL, action="change", price="price_business")
    assert answer.status == 422
    assert "Nothing was changed: the subscription cannot be changed by this link" in answer.text


async def test_member_sees_amounts_and_nothing_that_is_the_payers(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    await subscribed(dashboard, sim)
    member = await dashboard.sign_in(MIA)
    page = await member.open(BILLING)
    assert "29.00 EUR a month" in page.text
    assert "Next payment 29.00 EUR" in page.text
    assert "ending in" not in page.text
    invoices = await member.open(INVOICES)
    assert "29.00 EUR" in invoices.text
    assert "Ask an owner or admin to open or pay an invoice." in invoices.text
    for each in (page, invoices):
        assert sim.url not in each.html
        assert [form.action for form in each.forms if "/billing/" in form.action] == []


async def test_text_of_the_provider_is_escaped(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim)
    invoice = sim.invoices[subscription.latest_invoice or ""]
    sim.account.change(
        invoice, number="<script>alert(1)</script>", hosted_invoice_url="javascript:alert(1)"
    )
    page = await owner.open(INVOICES)
    assert "<script>alert" not in page.html
    assert "&lt;script&gt;alert(1)" in page.html
    assert "javascript:" not in page.html


async def test_customer_is_read_once_a_minute(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim)
    assert "Next payment 29.00 EUR" in (await owner.open(BILLING)).text
    sim.change_plan(subscription, "price_business")
    assert "Next payment 29.00 EUR" in (await owner.open(BILLING)).text


async def test_open_invoice_is_paid_from_the_list(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    subscription = await subscribed(dashboard, sim)
    invoice = sim.invoices[subscription.latest_invoice or ""]
    sim.account.change(invoice, status="open")
    page = await owner.open(INVOICES)
    assert (f"Pay {invoice.number}", invoice.hosted_invoice_url) in page.anchors


async def test_tenant_without_invoices_is_told_so(owner: Person) -> None:
    assert "No invoices yet" in (await owner.open(INVOICES)).text


async def test_a_trial_is_shown_until_the_tenant_had_one(
    conninfo: str, people: Path, sim: Simulator
) -> None:
    catalog = f"{CATALOG}trial_days = 14\n"
    values = {**selling_settings(sim), "TENANTRY_PLANS": catalog_file(catalog)}
    async with running_dashboard(conninfo, people, **values) as dashboard:
        owner = await dashboard.sign_in()
        assert "14 days of trial, once" in (await owner.open(BILLING)).text
        ended = deleted(subscription_id="sub_trial")
        ended["data"]["object"]["trial_end"] = ended["created"]
        await dashboard.deliver(ended)
        text = (await owner.open(BILLING)).text
        assert "Subscribe to Team" in text
        assert "of trial" not in text
