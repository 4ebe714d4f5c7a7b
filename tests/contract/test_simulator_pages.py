"""The simulator's pages for buyers and its controls, without script: forms only."""

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
import pytest

from tenantry_devkit.simulator import Card, PortalFlow, Simulator
from tests.support.simulator import (
    SECRET,
    START,
    WEBHOOK,
    Receiver,
    a_simulator,
    simulator_with_receiver,
    types,
)


@pytest.fixture
def sim() -> Simulator:
    return a_simulator()


@pytest.fixture
async def browser(sim: Simulator) -> AsyncIterator[httpx2.AsyncClient]:
    async with visiting(sim) as client:
        yield client


def visiting(sim: Simulator) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(sim), base_url=sim.url)


async def page(browser: httpx2.AsyncClient, address: str, **form: str) -> str:
    """A page's text; with ``form`` it is what the form leads to."""
    answer = await (browser.post(address, data=form) if form else browser.get(address))
    if answer.status_code == 303:
        answer = await browser.get(answer.headers["location"])
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src" not in answer.headers["content-security-policy"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script" not in answer.text
    return answer.text


async def test_a_buyer_pays_and_is_sent_back(sim: Simulator, browser: httpx2.AsyncClient) -> None:
    session = sim.checkout(
        "price_pro", metadata={"orgId": "acme"}, success_url="https://app.example/done"
    )
    assert "29.00 EUR every month" in await page(browser, session.url or "")
    answer = await browser.post(session.url or "", data={"card": "works"})
    assert (answer.status_code, answer.headers["location"]) == (303, "https://app.example/done")
    assert types(sim.events())[-1] == "checkout.session.completed"
    assert "is complete" in await page(browser, f"/c/pay/{session.id}")


@pytest.mark.parametrize(("succeeds", "status"), [("true", "paid"), ("false", "unpaid")])
async def test_bank_debit_is_decided_by_a_form(
    sim: Simulator, browser: httpx2.AsyncClient, succeeds: str, status: str
) -> None:
    session = sim.checkout(
        "price_pro", customer_email="owner@acme.example", success_url=f"{sim.url}/"
    )
    assert "Pay by bank debit" in await page(browser, session.url or "")
    assert "Pending payments" in await page(browser, session.url or "", async_payment="true")
    assert sim.checkout_sessions[session.id].payment_status == "unpaid"
    shown = await page(browser, f"/_simulator/checkouts/{session.id}/payment", succeeds=succeeds)
    assert "Pending payments" not in shown
    assert sim.checkout_sessions[session.id].payment_status == status


async def test_bank_debit_is_decided_by_json(sim: Simulator, browser: httpx2.AsyncClient) -> None:
    session = sim.complete(sim.checkout("price_pro"), async_payment=True)
    command = f"/_simulator/checkouts/{session.id}/payment"
    answer = await browser.post(command, json={"succeeds": True})
    assert answer.json() == {"id": session.id, "payment_status": "paid"}
    assert (await browser.post(command, json={"succeeds": True})).status_code == 400


async def test_trial_begins_without_a_card(sim: Simulator, browser: httpx2.AsyncClient) -> None:
    session = sim.checkout("price_pro", trial_days=7)
    assert "Continue without a card" in await page(browser, session.url or "")
    await page(browser, session.url or "", card="missing")
    (subscription,) = sim.subscriptions.values()
    assert (subscription.status, subscription.default_payment_method) == ("trialing", None)


async def test_policy_allows_the_redirect_to_the_success_page(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    session = sim.checkout("price_pro", success_url="https://app.example/done?x=1")
    answer = await browser.get(session.url or "")
    assert "form-action 'self' https://app.example;" in answer.headers["content-security-policy"]


async def test_a_card_that_declines_leaves_the_session_open(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    session = sim.checkout("price_pro")
    assert "declined" in await page(browser, session.url or "", card="declines")
    assert sim.checkout_sessions[session.id].status == "open"
    assert not sim.subscriptions


async def test_a_customer_changes_the_plan_in_the_portal(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    subscription = sim.subscribe(sim.customer("cus_acme", name="Acme <Corp>"), "price_pro")
    portal = sim.portal("cus_acme", "https://app.example/").url
    assert "Acme &lt;Corp&gt;" in await page(browser, portal)
    await page(
        browser, portal, action="change", subscription=subscription.id, price="price_business"
    )
    assert sim.subscriptions[subscription.id].price == "price_business"


async def test_customer_cancels_and_resumes_in_the_portal(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    subscription = sim.subscribe(sim.customer("cus_acme"), "price_pro")
    portal = sim.portal("cus_acme").url
    shown = await page(browser, portal, action="cancel_at_period_end", subscription=subscription.id)
    assert "Keep the subscription" in shown
    await page(browser, portal, action="resume", subscription=subscription.id)
    assert not sim.subscriptions[subscription.id].cancel_at_period_end
    await page(browser, portal, action="cancel", subscription=subscription.id)
    assert sim.subscriptions[subscription.id].status == "canceled"


async def test_customer_confirms_an_update_and_is_sent_back(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    subscription = sim.subscribe(sim.customer("cus_acme"), "price_pro")
    flow = PortalFlow(
        type="subscription_update_confirm",
        subscription=subscription.id,
        item=subscription.items[0].id,
        price="price_business",
        quantity=2,
        return_url="https://app.example/done",
    )
    portal = sim.portal("cus_acme", flow=flow).url
    assert "2 x price_business" in await page(browser, portal)
    answer = await browser.post(portal, data={"action": "confirm"})
    assert (answer.status_code, answer.headers["location"]) == (303, "https://app.example/done")
    [item] = sim.subscriptions[subscription.id].items
    assert (item.price.id, item.quantity) == ("price_business", 2)


async def test_customer_cancels_in_a_flow(sim: Simulator, browser: httpx2.AsyncClient) -> None:
    subscription = sim.subscribe(sim.customer("cus_acme"), "price_pro")
    flow = PortalFlow(type="subscription_cancel", subscription=subscription.id)
    portal = sim.portal("cus_acme", flow=flow).url
    assert "Cancel the subscription" in await page(browser, portal)
    fields = {"action": "cancel_at_period_end", "subscription": subscription.id}
    answer = await browser.post(portal, data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, portal.removeprefix(sim.url))
    assert sim.subscriptions[subscription.id].cancel_at_period_end


async def test_customer_changes_the_card_in_a_flow(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    sim.customer("cus_acme", card=Card.DECLINES)
    portal = sim.portal("cus_acme", flow=PortalFlow(type="payment_method_update")).url
    assert "Change the card" in await page(browser, portal)
    await page(browser, portal, action="card", card="works")
    assert sim.customers["cus_acme"].card is Card.WORKS


async def test_portal_cancels_flexible_subscription_at_a_moment(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    subscription = sim.subscribe(sim.customer("cus_acme"), "price_pro", billing_mode="flexible")
    portal = sim.portal("cus_acme").url
    shown = await page(browser, portal, action="cancel_at_period_end", subscription=subscription.id)
    assert "Keep the subscription" in shown
    assert sim.subscriptions[subscription.id].cancel_at == subscription.period_end
    assert not sim.subscriptions[subscription.id].cancel_at_period_end
    await page(browser, portal, action="resume", subscription=subscription.id)
    assert sim.subscriptions[subscription.id].cancel_at is None


async def test_a_customer_changes_the_card_in_the_portal(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    sim.customer("cus_acme")
    await page(browser, sim.portal("cus_acme").url, action="card", card="declines")
    assert sim.customers["cus_acme"].card is Card.DECLINES


async def test_portal_changes_only_its_customers_subscriptions(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    of_another = sim.subscribe(sim.customer("cus_beta"), "price_pro")
    sim.customer("cus_acme")
    form = {"action": "cancel", "subscription": of_another.id}
    answer = await browser.post(sim.portal("cus_acme").url, data=form)
    assert answer.status_code == 404
    assert sim.subscriptions[of_another.id].status == "active"


async def test_an_open_invoice_is_paid_on_its_page(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    customer = sim.customer("cus_acme")
    sim.subscribe(customer, "price_pro")
    sim.card_declines(customer)
    await sim.advance(days=31)
    invoice = list(sim.invoices.values())[-1]
    assert "declined" in await page(browser, invoice.hosted_invoice_url or "", pay="1")
    sim.card_works(customer)
    assert "paid" in await page(browser, invoice.hosted_invoice_url or "", pay="1")
    assert sim.invoices[invoice.id].status == "paid"


@pytest.mark.parametrize("address", ["/c/pay/cs_x", "/p/session/bps_x", "/i/in_x", "/nothing"])
async def test_unknown_pages(browser: httpx2.AsyncClient, address: str) -> None:
    assert (await browser.get(address)).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "rebound.example"},
    ],
)
async def test_other_sites_cannot_send_forms(
    browser: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await browser.post("/_simulator/clock/advance", data={"days": "1"}, headers=headers)
    assert answer.status_code == 403


async def test_overview_shows_all_objects(sim: Simulator, browser: httpx2.AsyncClient) -> None:
    sim.subscribe(sim.customer(email="owner@acme.example"), "price_pro")
    sim.checkout("price_pro", customer_email="buyer@beta.example")
    sim.add_endpoint("https://app.example/hook", SECRET)
    sim.misbehave(drop=0.5)
    shown = await page(browser, "/")
    for text in (
        "owner@acme.example",
        "price_pro",
        "buyer@beta.example",
        "https://app.example/hook",
        "Bad delivery:",
    ):
        assert text in shown


async def test_the_style_sheet_is_served_and_has_the_dashboards_colours(
    browser: httpx2.AsyncClient,
) -> None:
    sheet = await browser.get("/simulator.css")
    assert sheet.headers["content-type"] == "text/css; charset=utf-8"
    assert "--paper: light-dark(" in sheet.text


async def test_delivery_rules_are_described(sim: Simulator, browser: httpx2.AsyncClient) -> None:
    sim.misbehave(drop=0.25, duplicates=2, reorder=True, delay=timedelta(seconds=5))
    sim.misbehave(duplicates=1, delay=(timedelta(0), timedelta(minutes=1)), types=["invoice.paid"])
    shown = " ".join((await page(browser, "/")).split())
    assert "Lost: 25%. Duplicates: 2. Seconds late: 5 to 5. In any order." in shown
    assert "Duplicates: 1. Seconds late: 0 to 60. Only invoice.paid." in shown


async def test_every_control_is_a_form_of_the_overview(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    sim.subscribe(sim.customer("cus_acme"), "price_pro")
    shown = await page(browser, "/")
    for command in (
        "clock/advance",
        "customers/cus_acme/card",
        "customers/cus_acme/portal",
        "misbehave",
        "behave",
        f"events/{sim.events()[0].id}/resend",
    ):
        assert f'<form method="post" action="/_simulator/{command}"' in shown


async def test_a_payment_fails_by_the_forms_of_the_overview(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    sim.subscribe(sim.customer("cus_acme"), "price_pro")
    await page(browser, "/_simulator/customers/cus_acme/card", card="declines")
    assert "past_due" in await page(browser, "/_simulator/clock/advance", days="31")
    assert "invoice.payment_failed" in types(sim.events())


async def test_invalid_form_gets_an_error_page(sim: Simulator, browser: httpx2.AsyncClient) -> None:
    refused = await browser.post("/_simulator/clock/advance", data={"days": "-1"})
    assert refused.status_code == 400
    assert "Time does not go back." in refused.text
    assert "<h1>This does not work</h1>" in refused.text
    assert sim.now == START


async def test_the_clock_is_moved_by_json(sim: Simulator, browser: httpx2.AsyncClient) -> None:
    answer = await browser.post("/_simulator/clock/advance", json={"days": 1, "hours": 2})
    assert answer.json() == {"now": int((START + timedelta(days=1, hours=2)).timestamp())}
    assert sim.now == START + timedelta(days=1, hours=2)


async def test_the_clock_is_moved_by_the_overviews_form(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    answer = await browser.post("/_simulator/clock/advance", data={"days": "1.5"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert sim.now == START + timedelta(days=1.5)


async def test_a_card_is_changed_by_json(sim: Simulator, browser: httpx2.AsyncClient) -> None:
    sim.customer("cus_acme")
    answer = await browser.post("/_simulator/customers/cus_acme/card", json={"card": "declines"})
    assert answer.json() == {"id": "cus_acme", "card": "declines"}
    assert sim.customers["cus_acme"].card is Card.DECLINES


async def test_the_overview_leads_to_a_customers_portal(
    sim: Simulator, browser: httpx2.AsyncClient
) -> None:
    sim.customer("cus_acme", email="owner@acme.example")
    assert "There is no subscription" in await page(
        browser, "/_simulator/customers/cus_acme/portal", x=""
    )


@pytest.mark.parametrize(
    ("address", "body", "status"),
    [
        ("/_simulator/clock/advance", {"days": -1}, 400),
        ("/_simulator/clock/advance", {"years": 1}, 400),
        ("/_simulator/customers/cus_x/card", {"card": "works"}, 404),
        ("/_simulator/customers/cus_x/card", {"card": "steals"}, 400),
        ("/_simulator/events/evt_x/resend", {}, 404),
        ("/_simulator/unknown", {}, 404),
    ],
)
async def test_invalid_commands(
    browser: httpx2.AsyncClient, address: str, body: dict[str, object], status: int
) -> None:
    answer = await browser.post(address, json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


async def test_event_is_sent_again_by_json() -> None:
    async with simulator_with_receiver() as (sim, receiver), visiting(sim) as browser:
        sim.customer("cus_acme")
        await sim.deliver()
        (event,) = receiver.ids
        await browser.post(f"/_simulator/events/{event}/resend")
        assert receiver.ids == [event] * 2


async def test_delivery_rules_by_json_and_by_form() -> None:
    async with simulator_with_receiver() as (sim, receiver), visiting(sim) as browser:
        body = {"duplicates": 1, "types": ["customer.created"], "delay_seconds": [0, 0]}
        assert (await browser.post("/_simulator/misbehave", json=body)).json() == {"rules": 1}
        sim.customer()
        await sim.deliver()
        assert len(receiver.ids) == 2
        form = {"drop": "1", "duplicates": "0", "delay_seconds": "", "reorder": "true"}
        assert (await browser.post("/_simulator/misbehave", data=form)).status_code == 303
        sim.customer()
        await sim.deliver()
        assert len(receiver.ids) == 2
        assert (await browser.post("/_simulator/behave")).json() == {"rules": 0}


async def test_events_of_a_request_are_delivered_after_its_response() -> None:
    async with simulator_with_receiver() as (sim, receiver), visiting(sim) as browser:
        session = sim.checkout("price_pro")
        await browser.post(session.url or "", data={"card": "works"})
        assert receiver.types[-1] == "checkout.session.completed"


async def test_new_endpoint_gets_no_earlier_events() -> None:
    receiver = Receiver()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(receiver)) as client:
        sim = a_simulator(client=client)
        sim.customer()
        sim.add_endpoint(WEBHOOK, SECRET)
        assert await sim.deliver() == 0
        assert receiver.ids == []
