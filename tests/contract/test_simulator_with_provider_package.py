"""The provider's own package, unchanged, with the simulator at the other end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Unpack

import pytest
import stripe
from stripe.params import EventListParams, SubscriptionListParams

from tenantry.common.secret import Secret
from tenantry.domain.checkout import CheckoutItem, CheckoutRequest
from tenantry.domain.errors import IdempotencyMismatchError, ProviderRefusedError
from tenantry.integrations.stripe.client import ProviderApi, ProviderEndpoint
from tenantry_devkit.simulator import NEW_VERSION, OLD_VERSION, Card, Simulator
from tests.support.simulator import DAY, START, a_simulator, types
from tests.support.stripe_transport import Transport


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with a_simulator().serving() as sim:
        yield sim


@pytest.fixture
async def client(sim: Simulator) -> AsyncIterator[stripe.StripeClient]:
    async with connected(sim) as client:
        yield client


@asynccontextmanager
async def connected(
    sim: Simulator, *, key: str | None = None, version: str = NEW_VERSION
) -> AsyncIterator[stripe.StripeClient]:
    """The package's client, with a key and a version of the API."""
    transport = Transport(10.0)
    try:
        yield stripe.StripeClient(
            sim.secret_key if key is None else key,
            base_addresses={"api": sim.url},
            http_client=transport,
            max_network_retries=0,
            stripe_version=version,
        )
    finally:
        await transport.close_async()


def plain(thing: stripe.StripeObject | None) -> Any:
    """An object of the package's as plain data."""
    return None if thing is None else thing.to_dict()


async def test_prices(client: stripe.StripeClient) -> None:
    listed = (await client.v1.prices.list_async({"limit": 2})).data
    assert [price.id for price in listed] == ["price_business", "price_pro"]
    price = await client.v1.prices.retrieve_async("price_pro")
    assert price.recurring is not None
    assert (price.unit_amount, price.recurring.interval) == (2900, "month")


async def test_customers(client: stripe.StripeClient) -> None:
    made = await client.v1.customers.create_async(
        {"email": "a@acme.example", "metadata": {"orgId": "acme"}}
    )
    assert (made.email, plain(made.metadata)) == ("a@acme.example", {"orgId": "acme"})
    changed = await client.v1.customers.update_async(
        made.id, {"name": "Acme", "metadata": {"orgId": ""}}
    )
    assert (changed.name, changed.email, plain(changed.metadata)) == ("Acme", "a@acme.example", {})
    assert (await client.v1.customers.retrieve_async(made.id)).name == "Acme"
    assert len((await client.v1.customers.list_async({"email": "a@acme.example"})).data) == 1
    assert (await client.v1.customers.delete_async(made.id)).deleted
    assert (await client.v1.customers.retrieve_async(made.id)).deleted
    assert (await client.v1.customers.list_async()).data == []


async def test_subscriptions(client: stripe.StripeClient, sim: Simulator) -> None:
    customer = sim.customer()
    made = await client.v1.subscriptions.create_async(
        {"customer": customer.id, "items": [{"price": "price_pro"}], "metadata": {"orgId": "acme"}}
    )
    assert (made.status, plain(made.metadata)) == ("active", {"orgId": "acme"})
    item = made["items"].data[0]
    assert item.price.id == "price_pro"
    changed = await client.v1.subscriptions.update_async(
        made.id,
        {"items": [{"id": item.id, "price": "price_business"}], "cancel_at_period_end": True},
    )
    assert changed["items"].data[0].price.id == "price_business"
    assert changed.cancel_at_period_end
    assert changed.cancel_at == changed["items"].data[0].current_period_end
    canceled = await client.v1.subscriptions.cancel_async(made.id)
    assert canceled.status == "canceled"
    assert (await client.v1.subscriptions.retrieve_async(made.id)).status == "canceled"


async def test_a_subscription_may_begin_with_a_trial(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    made = await client.v1.subscriptions.create_async(
        {"customer": sim.customer().id, "items": [{"price": "price_pro"}], "trial_period_days": 7}
    )
    assert (made.status, made.trial_end) == ("trialing", int(START.timestamp()) + 7 * DAY)
    ended = await client.v1.subscriptions.update_async(made.id, {"trial_end": "now"})
    assert ended.status == "active"


@pytest.mark.parametrize("version", [OLD_VERSION, NEW_VERSION])
async def test_subscription_is_canceled_at_a_moment(sim: Simulator, version: str) -> None:
    moment = int(START.timestamp()) + 10 * DAY
    async with connected(sim, version=version) as client:
        made = await client.v1.subscriptions.create_async(
            {"customer": sim.customer().id, "items": [{"price": "price_pro"}], "cancel_at": moment}
        )
        assert (made.cancel_at, made.cancel_at_period_end) == (moment, False)
        revoked = await client.v1.subscriptions.update_async(made.id, {"cancel_at": ""})
        assert (revoked.cancel_at, revoked.canceled_at) == (None, None)
        changed = await client.v1.subscriptions.update_async(made.id, {"cancel_at": moment + DAY})
        assert changed.cancel_at == moment + DAY
        with pytest.raises(stripe.InvalidRequestError) as past:
            await client.v1.subscriptions.update_async(made.id, {"cancel_at": moment - 20 * DAY})
        assert past.value.param == "cancel_at"


@pytest.mark.parametrize("version", [OLD_VERSION, NEW_VERSION])
async def test_collection_is_paused_and_resumed(sim: Simulator, version: str) -> None:
    made = sim.subscribe(sim.customer(), "price_pro")
    async with connected(sim, version=version) as client:
        paused = await client.v1.subscriptions.update_async(
            made.id, {"pause_collection": {"behavior": "mark_uncollectible"}}
        )
        assert plain(paused.pause_collection) == {
            "behavior": "mark_uncollectible",
            "resumes_at": None,
        }
        assert paused.status == "active"
        resumed = await client.v1.subscriptions.update_async(made.id, {"pause_collection": ""})
        assert resumed.pause_collection is None


async def test_paused_subscription_is_resumed(client: stripe.StripeClient, sim: Simulator) -> None:
    customer = sim.customer(card=Card.MISSING)
    made = await client.v1.subscriptions.create_async(
        {
            "customer": customer.id,
            "items": [{"price": "price_pro"}],
            "trial_period_days": 7,
            "trial_settings": {"end_behavior": {"missing_payment_method": "pause"}},
        }
    )
    assert made.trial_settings is not None
    assert made.trial_settings.end_behavior.missing_payment_method == "pause"
    await sim.advance(days=7)
    (paused,) = (await client.v1.subscriptions.list_async({"status": "paused"})).data
    assert paused.id == made.id
    with pytest.raises(stripe.InvalidRequestError, match="payment method"):
        await client.v1.subscriptions.resume_async(made.id)
    sim.card_works(customer)
    assert (await client.v1.subscriptions.resume_async(made.id)).status == "active"


async def test_end_behavior_of_a_trial_is_changed(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    made = sim.subscribe(sim.customer(), "price_pro", trial_days=7)
    changed = await client.v1.subscriptions.update_async(
        made.id, {"trial_settings": {"end_behavior": {"missing_payment_method": "pause"}}}
    )
    assert changed.trial_settings is not None
    assert changed.trial_settings.end_behavior.missing_payment_method == "pause"


async def test_billing_mode_of_subscriptions_and_checkouts(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    classic = sim.subscribe(sim.customer(), "price_pro")
    flexible = await client.v1.subscriptions.create_async(
        {
            "customer": sim.customer().id,
            "items": [{"price": "price_pro"}],
            "billing_mode": {"type": "flexible"},
        }
    )
    session = await client.v1.checkout.sessions.create_async(
        {
            "mode": "subscription",
            "line_items": [{"price": "price_pro", "quantity": 1}],
            "success_url": "https://app.example/",
            "subscription_data": {"billing_mode": {"type": "flexible"}},
        }
    )
    bought = sim.complete(session.id).subscription or ""
    shown = [
        await client.v1.subscriptions.retrieve_async(wanted)
        for wanted in (classic.id, flexible.id, bought)
    ]
    assert [subscription.billing_mode.type for subscription in shown] == [
        "classic",
        "flexible",
        "flexible",
    ]


async def test_items_of_a_subscription(client: stripe.StripeClient, sim: Simulator) -> None:
    made = await client.v1.subscriptions.create_async(
        {
            "customer": sim.customer().id,
            "items": [{"price": "price_pro"}, {"price": "price_business", "quantity": 3}],
        }
    )
    base, seats = made["items"].data
    assert (base.quantity, seats.quantity) == (1, 3)
    changed = await client.v1.subscriptions.update_async(
        made.id,
        {
            "items": [
                {"id": base.id, "deleted": True},
                {"id": seats.id, "quantity": 5},
                {"price": "price_free", "quantity": 2},
            ]
        },
    )
    assert [(item.price.id, item.quantity) for item in changed["items"].data] == [
        ("price_business", 5),
        ("price_free", 2),
    ]


async def test_subscriptions_are_listed_by_customer_status_and_age(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    acme, beta = sim.customer("cus_acme"), sim.customer("cus_beta")
    canceled = sim.cancel(sim.subscribe(acme, "price_pro"))
    active = sim.subscribe(acme, "price_pro")
    await sim.advance(days=1)
    newer = sim.subscribe(beta, "price_free")

    async def listed(**params: Unpack[SubscriptionListParams]) -> list[str]:
        page = await client.v1.subscriptions.list_async(params)
        return [subscription.id for subscription in page.data]

    assert await listed() == [newer.id, active.id]
    assert await listed(customer="cus_acme") == [active.id]
    assert await listed(customer="cus_acme", status="all") == [active.id, canceled.id]
    assert await listed(status="canceled") == [canceled.id]
    assert await listed(price="price_free") == [newer.id]
    assert await listed(created={"gt": active.created}) == [newer.id]


async def test_lists_are_read_to_the_last_page(client: stripe.StripeClient, sim: Simulator) -> None:
    made = [sim.customer().id for _ in range(25)]
    page = await client.v1.customers.list_async({"limit": 10})
    assert [customer.id async for customer in page.auto_paging_iter()] == made[::-1]


async def test_invoices(client: stripe.StripeClient, sim: Simulator) -> None:
    customer = sim.customer("cus_acme")
    subscription = sim.subscribe(customer, "price_pro")
    sim.card_declines(customer)
    await sim.advance(days=31)
    (unpaid,) = (
        await client.v1.invoices.list_async({"customer": "cus_acme", "status": "open"})
    ).data
    assert unpaid.parent is not None
    assert unpaid.parent.subscription_details is not None
    assert unpaid.parent.subscription_details.subscription == subscription.id
    assert unpaid.hosted_invoice_url == f"{sim.url}/i/{unpaid.id}"
    with pytest.raises(stripe.CardError) as declined:
        await client.v1.invoices.pay_async(unpaid.id)
    assert (declined.value.http_status, declined.value.code) == (402, "card_declined")
    sim.card_works(customer)
    assert (await client.v1.invoices.pay_async(unpaid.id)).status == "paid"
    assert (await client.v1.invoices.retrieve_async(unpaid.id)).amount_remaining == 0


async def test_invoices_are_voided_and_marked_uncollectible(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    customer = sim.customer("cus_acme")
    unpaid = []
    for _ in range(2):
        sim.card_works(customer)
        subscription = sim.subscribe(customer, "price_pro")
        sim.card_declines(customer)
        await sim.advance(days=31)
        unpaid.append(sim.subscriptions[subscription.id].latest_invoice or "")
    marked = await client.v1.invoices.mark_uncollectible_async(unpaid[0])
    assert (marked.status, marked.next_payment_attempt) == ("uncollectible", None)
    assert marked.status_transitions.marked_uncollectible_at == int(sim.now.timestamp())
    voided = await client.v1.invoices.void_invoice_async(unpaid[1])
    assert (voided.status, voided.status_transitions.voided_at) == (
        "void",
        int(sim.now.timestamp()),
    )
    with pytest.raises(stripe.InvalidRequestError) as again:
        await client.v1.invoices.void_invoice_async(unpaid[1])
    assert again.value.code == "invoice_not_editable"


TAXED: Any = {
    "mode": "subscription",
    "line_items": [{"price": "price_pro", "quantity": 1}],
    "success_url": "https://app.example/",
    "automatic_tax": {"enabled": True},
    "tax_id_collection": {"enabled": True},
}


async def test_tax_of_a_known_customer_needs_customer_update(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    known: Any = TAXED | {"customer": sim.customer().id}
    for update in ({}, {"name": "auto"}, {"address": "auto"}):
        with pytest.raises(stripe.InvalidRequestError, match="customer_update"):
            await client.v1.checkout.sessions.create_async(known | {"customer_update": update})
    update = {"name": "auto", "address": "auto"}
    session = await client.v1.checkout.sessions.create_async(known | {"customer_update": update})
    assert session.automatic_tax.enabled
    assert session.total_details
    assert (session.amount_total, session.total_details.amount_tax) == (3451, 551)


async def test_prices_of_a_checkout_have_one_interval(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    sim.price("price_yearly", 29_000, interval="year")
    items = [{"price": price, "quantity": 1} for price in ("price_pro", "price_yearly")]
    with pytest.raises(stripe.InvalidRequestError, match="billing intervals"):
        await client.v1.checkout.sessions.create_async(TAXED | {"line_items": items})


async def test_checkout_sessions(client: stripe.StripeClient, sim: Simulator) -> None:
    session = await client.v1.checkout.sessions.create_async(
        {
            "mode": "subscription",
            "line_items": [{"price": "price_pro", "quantity": 2}],
            "success_url": "https://app.example/done?session={CHECKOUT_SESSION_ID}",
            "metadata": {"orgId": "acme"},
            "subscription_data": {"metadata": {"orgId": "acme"}, "trial_period_days": 7},
        }
    )
    assert session.url == f"{sim.url}/c/pay/{session.id}"
    assert session.success_url == f"https://app.example/done?session={session.id}"
    sim.complete(session.id)
    done = await client.v1.checkout.sessions.retrieve_async(
        session.id, {"expand": ["subscription"]}
    )
    assert (done.status, done.payment_status) == ("complete", "no_payment_required")
    assert isinstance(done.subscription, stripe.Subscription)
    assert plain(done.subscription.metadata) == {"orgId": "acme"}
    assert done.subscription["items"].data[0].quantity == 2


async def test_checkout_session_with_a_pending_payment(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    session = sim.complete(sim.checkout("price_pro"), async_payment=True)
    pending = await client.v1.checkout.sessions.retrieve_async(session.id)
    assert (pending.status, pending.payment_status) == ("complete", "unpaid")
    assert "payment_pending" not in pending
    sim.async_payment_succeeds(session)
    page = await client.v1.events.list_async({"type": "checkout.session.*"})
    assert [event.type for event in page.data] == [
        "checkout.session.async_payment_succeeded",
        "checkout.session.completed",
    ]


async def test_portal_sessions(client: stripe.StripeClient, sim: Simulator) -> None:
    session = await client.v1.billing_portal.sessions.create_async(
        {"customer": sim.customer().id, "return_url": "https://app.example/"}
    )
    assert session.url == f"{sim.url}/p/session/{session.id}"


async def test_portal_session_with_an_update_to_confirm(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    subscription = sim.subscribe(sim.customer("cus_acme"), "price_pro")
    session = await client.v1.billing_portal.sessions.create_async(
        {
            "customer": "cus_acme",
            "flow_data": {
                "type": "subscription_update_confirm",
                "subscription_update_confirm": {
                    "subscription": subscription.id,
                    "items": [
                        {
                            "id": subscription.items[0].id,
                            "price": "price_business",
                            "quantity": 3,
                        }
                    ],
                },
                "after_completion": {
                    "type": "redirect",
                    "redirect": {"return_url": "https://app.example/done"},
                },
            },
        }
    )
    assert session.flow is not None
    assert session.flow.type == "subscription_update_confirm"


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        ({"type": "subscription_cancel"}, "Missing required param"),
        (
            {"type": "subscription_cancel", "subscription_cancel": {"subscription": "sub_x"}},
            "No such subscription",
        ),
        (
            {
                "type": "subscription_update_confirm",
                "subscription_update_confirm": {"subscription": "own", "items": [{"id": "si_x"}]},
            },
            "No such subscription item",
        ),
        (
            {
                "type": "subscription_update_confirm",
                "subscription_update_confirm": {"subscription": "own", "items": [{"id": "own"}]},
            },
            "would change nothing",
        ),
    ],
)
async def test_portal_flow_that_does_not_fit_is_refused(
    client: stripe.StripeClient, sim: Simulator, flow: Any, message: str
) -> None:
    subscription = sim.subscribe(sim.customer("cus_acme"), "price_pro")
    ids = {"subscription": subscription.id, "id": subscription.items[0].id}

    def own(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: own(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [own(each) for each in value]
        return ids[name] if value == "own" else value

    with pytest.raises(stripe.InvalidRequestError, match=message):
        await client.v1.billing_portal.sessions.create_async(
            {"customer": "cus_acme", "flow_data": own(flow)}
        )


async def test_card_of_a_customer_is_expanded(client: stripe.StripeClient, sim: Simulator) -> None:
    sim.customer("cus_acme")
    found = await client.v1.customers.retrieve_async(
        "cus_acme", {"expand": ["invoice_settings.default_payment_method"]}
    )
    assert found.invoice_settings is not None
    method = found.invoice_settings.default_payment_method
    assert isinstance(method, stripe.PaymentMethod)
    assert method.card is not None
    assert (method.card.brand, method.card.last4) == ("visa", "4242")


async def test_next_invoice_is_previewed_and_not_kept(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    subscription = sim.subscribe(sim.customer("cus_acme"), [("price_pro", 3)])
    invoice = await client.v1.invoices.create_preview_async({"subscription": subscription.id})
    assert (invoice.amount_due, invoice.currency) == (8700, "eur")
    assert invoice.next_payment_attempt == subscription.period_end
    assert len(sim.invoices) == 1
    sim.cancel(subscription, at_period_end=True)
    with pytest.raises(stripe.InvalidRequestError) as refused:
        await client.v1.invoices.create_preview_async({"subscription": subscription.id})
    assert refused.value.code == "invoice_upcoming_none"


async def test_events_are_listed_newest_first(client: stripe.StripeClient, sim: Simulator) -> None:
    sim.subscribe(sim.customer(), "price_pro")
    await sim.advance(days=2)
    sim.customer()
    now = int(sim.now.timestamp())

    async def listed(**params: Unpack[EventListParams]) -> list[str]:
        page = await client.v1.events.list_async(params)
        return [event.type async for event in page.auto_paging_iter()]

    assert await listed(limit=3) == types(sim.events())[::-1]
    assert await listed(type="customer.created") == ["customer.created"] * 2
    assert await listed(types=["invoice.paid", "customer.subscription.*"]) == [
        "customer.subscription.updated",
        "invoice.paid",
        "customer.subscription.created",
    ]
    assert await listed(created={"gte": now}) == ["customer.created"]
    assert await listed(created={"gte": now - DAY, "lt": now}) == []


async def test_events_are_known_for_30_days(client: stripe.StripeClient, sim: Simulator) -> None:
    sim.customer()
    event = sim.events()[-1]
    await sim.advance(days=30)
    assert (await client.v1.events.list_async()).data == []
    with pytest.raises(stripe.InvalidRequestError):
        await client.v1.events.retrieve_async(event.id)


async def test_the_version_of_a_request_decides_the_shape(sim: Simulator) -> None:
    made = sim.subscribe(sim.customer(), "price_pro")
    async with connected(sim, version=OLD_VERSION) as client:
        old = await client.v1.subscriptions.retrieve_async(made.id)
    async with connected(sim, version=NEW_VERSION) as client:
        new = await client.v1.subscriptions.retrieve_async(made.id, {"expand": ["customer"]})
    assert old["current_period_end"] == made.period_end
    assert "current_period_end" not in new
    assert isinstance(new.customer, stripe.Customer)


async def test_answers_carry_the_simulated_date(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    await sim.advance(days=400)
    answer = (await client.v1.prices.list_async()).last_response
    assert answer is not None
    assert parsedate_to_datetime(answer.headers["date"]) == sim.now


async def test_a_repeated_request_is_answered_as_the_first(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    first = await client.v1.customers.create_async({"name": "Acme"}, {"idempotency_key": "k1"})
    again = await client.v1.customers.create_async({"name": "Acme"}, {"idempotency_key": "k1"})
    assert again.id == first.id
    assert len(sim.customers) == 1
    with pytest.raises(stripe.IdempotencyError):
        await client.v1.customers.create_async({"name": "Beta"}, {"idempotency_key": "k1"})


@pytest.mark.parametrize("key", ["sk_test_wrong", "sk_live_wrong"])
async def test_wrong_key_is_rejected(sim: Simulator, key: str) -> None:
    async with connected(sim, key=key) as client:
        with pytest.raises(stripe.AuthenticationError) as refused:
            await client.v1.prices.list_async()
    assert refused.value.http_status == 401
    assert key not in str(refused.value)


async def test_error_names_unknown_objects(client: stripe.StripeClient, sim: Simulator) -> None:
    with pytest.raises(stripe.InvalidRequestError) as unknown:
        await client.v1.subscriptions.retrieve_async("sub_unknown")
    assert (unknown.value.http_status, unknown.value.code) == (404, "resource_missing")
    with pytest.raises(stripe.InvalidRequestError) as no_price:
        await client.v1.subscriptions.create_async(
            {"customer": sim.customer().id, "items": [{"price": "price_unknown"}]}
        )
    assert (no_price.value.http_status, no_price.value.code) == (400, "resource_missing")
    assert no_price.value.param == "items[0][price]"
    with pytest.raises(stripe.InvalidRequestError) as no_customer:
        await client.v1.subscriptions.create_async({"items": [{"price": "price_pro"}]})
    assert (no_customer.value.code, no_customer.value.param) == ("parameter_missing", "customer")
    with pytest.raises(stripe.InvalidRequestError, match="Unrecognized request URL"):
        await client.v1.coupons.list_async()


async def test_lists_of_unknown_and_deleted_customers(
    client: stripe.StripeClient, sim: Simulator
) -> None:
    for listed in (client.v1.subscriptions.list_async, client.v1.invoices.list_async):
        with pytest.raises(stripe.InvalidRequestError) as unknown:
            await listed({"customer": "cus_unknown"})
        refused = unknown.value
        assert (refused.http_status, refused.code, refused.param) == (
            400,
            "resource_missing",
            "customer",
        )
    customer = sim.customer()
    sim.subscribe(customer, "price_pro")
    sim.delete_customer(customer)
    assert (
        len(
            (
                await client.v1.subscriptions.list_async({"customer": customer.id, "status": "all"})
            ).data
        )
        == 1
    )


async def test_the_packages_own_http_client_works_too(sim: Simulator) -> None:
    http_client = stripe.UrllibClient()
    client = stripe.StripeClient(
        sim.secret_key, base_addresses={"api": sim.url}, http_client=http_client
    )
    made = await asyncio.to_thread(client.v1.customers.create, {"name": "Acme"})
    assert made.id in sim.customers


async def checkout(api: ProviderApi, price: str) -> str:
    request = CheckoutRequest(
        tenant_id="acme",
        items=[CheckoutItem(price, 1)],
        customer_id=None,
        customer_email="owner@acme.example",
        success_url="https://app.example/done",
        cancel_url="https://app.example/",
    )
    return (await api.create_checkout_session(request, "k1")).url


async def test_tenantrys_provider_client_works_with_it(sim: Simulator) -> None:
    sim.add_endpoint("https://app.example/hook", "whsec_x", enabled_events=["invoice.paid"])
    async with aclosing(ProviderApi(Secret(sim.secret_key), sim.url)) as api:
        assert await checkout(api, "price_pro") == await checkout(api, "price_pro")
        with pytest.raises(IdempotencyMismatchError):
            await checkout(api, "price_business")
        with pytest.raises(ProviderRefusedError):
            await api.create_portal_session(
                customer_id="cus_unknown", return_url="https://x.example", idempotency_key=None
            )
        (endpoint,) = await api.webhook_endpoints() or []
        assert endpoint == ProviderEndpoint(
            "https://app.example/hook", ("invoice.paid",), "enabled"
        )
