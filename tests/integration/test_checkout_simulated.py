"""Checkouts from the order to the tenant's record, with the simulated provider over HTTP."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

import httpx2
import pytest

from tenantry.domain.billing.state import SubscriptionRule
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import SECRET_KEY, CheckoutSession, Invoice, Simulator, Subscription
from tests.integration.test_checkout_routes import CHECKOUT, bearer
from tests.support.app import WEBHOOK_SECRET, client_of, lifespan, make_app
from tests.support.catalogs import catalog_file
from tests.support.emptying import SharedDatabase
from tests.support.truth import ProviderAddress

CATALOG: Final = """
[[plans]]
id = "free"
[[plans]]
id = "pro"
stripe_price_id = ["price_pro", "price_pro_yearly"]
trial_days = 14
[[plans]]
id = "team"
stripe_price_id = "price_team"
[[addons]]
id = "storage"
stripe_price_id = "price_storage_yearly"
[[plans]]
id = "usage"
stripe_price_id = "price_requests"
[[addons]]
id = "traffic"
stripe_price_id = "price_traffic"
"""
WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
PAGE: Final = "https://app.example/done"
TENANT: Final = "/api/v1/tenants/acme"


class Shop(NamedTuple):
    """The service, the provider, and a buyer's browser."""

    client: httpx2.AsyncClient
    provider: Simulator
    browser: httpx2.AsyncClient
    headers: dict[str, str]

    async def order(self, **order: Any) -> str:
        """Begin a checkout of the plan pro, and return its address."""
        body = {"plan": "pro", "successUrl": PAGE} | order
        answer = await self.client.post(CHECKOUT, json=body, headers=self.headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["url"])

    async def refusal(self, **order: Any) -> tuple[int, str]:
        """Begin a checkout that is refused; return the status and the code."""
        answer = await self.client.post(
            CHECKOUT, json={"plan": "pro"} | order, headers=self.headers
        )
        return answer.status_code, answer.json()["code"]

    async def pay(self, address: str, **form: str) -> None:
        answer = await self.browser.post(address, data={"card": "works"} | form)
        assert (answer.status_code, answer.headers["location"]) == (303, PAGE)
        await self.provider.deliver()

    async def tenant(self) -> dict[str, Any]:
        record: dict[str, Any] = (await self.client.get(TENANT, headers=self.headers)).json()
        return record

    @property
    def session(self) -> CheckoutSession:
        return list(self.provider.checkout_sessions.values())[-1]

    @property
    def subscription(self) -> Subscription:
        return list(self.provider.subscriptions.values())[-1]

    @property
    def invoice(self) -> Invoice:
        return list(self.provider.invoices.values())[-1]


class Site(NamedTuple):
    """The service with a setting of `SUBSCRIPTIONS`, and the address of its provider."""

    client: httpx2.AsyncClient
    address: ProviderAddress
    url: str


@pytest.fixture(scope="module")
async def sites(shared_database: SharedDatabase) -> AsyncIterator[dict[str, Site]]:
    made = {}
    async with AsyncExitStack() as stack:
        for mode in SubscriptionRule:
            address = await stack.enter_async_context(serving(ProviderAddress()))
            app = make_app(
                shared_database.conninfo,
                TENANTRY_PLANS=catalog_file(CATALOG),
                PROVIDER_SECRET_KEY=SECRET_KEY,
                PROVIDER_API_BASE=address.url,
                CHECKOUT_PROMOTION_CODES="true",
                CHECKOUT_TAX="true",
                SUBSCRIPTIONS=mode.value,
            )
            client = await stack.enter_async_context(client_of(app))
            await stack.enter_async_context(lifespan(app))
            made[mode.value] = Site(client, address, address.url)
        yield made


@pytest.fixture(params=["any"])
async def shop(
    sites: dict[str, Site], emptied: str, request: pytest.FixtureRequest
) -> AsyncIterator[Shop]:
    client, address, url = sites[request.param]
    headers = await bearer(emptied, "*:*")
    provider = Simulator(client=client)
    provider.url = url
    provider.add_endpoint(WEBHOOK, WEBHOOK_SECRET)
    provider.customer("cus_1", email="owner@acme.example")
    provider.price("price_pro_yearly", 29_000, interval="year")
    provider.price("price_team", 4_900)
    provider.price("price_storage_yearly", 1_000, interval="year")
    provider.price("price_requests", 1, usage_type="metered")
    provider.price("price_traffic", 1, usage_type="metered")
    address.simulator = provider
    async with httpx2.AsyncClient() as browser:
        yield Shop(client, provider, browser, headers)


async def test_yearly_price_with_seats_addons_a_code_and_tax(shop: Shop) -> None:
    address = await shop.order(
        price="price_pro_yearly", quantity=5, addons=[{"id": "storage", "quantity": 2}]
    )
    page = (await shop.browser.get(address)).text
    assert "1450.00 EUR every year" in page
    assert "20.00 EUR every year" in page
    assert "14 days" in page
    assert "Tax id" in page
    applied = await shop.browser.post(address, data={"promotion_code": "SAVE20", "applies": "true"})
    # 1470.00, less 20 %, and 19 % of that
    assert "-294.00 EUR" in applied.text
    assert "223.44 EUR" in applied.text
    assert "1399.44 EUR" in applied.text
    await shop.pay(address, tax_id="DE123456789")

    assert (shop.session.tax_id, shop.session.charge.total) == ("DE123456789", 139_944)
    items = [(item.price.id, item.quantity) for item in shop.subscription.items]
    assert items == [("price_pro_yearly", 5), ("price_storage_yearly", 2)]
    tenant = await shop.tenant()
    shown = tenant["plan"], tenant["subscriptionStatus"], tenant["seats"], tenant["access"]["state"]
    assert shown == ("pro", "trialing", 5, "full")

    await shop.provider.advance(days=15)
    assert (await shop.tenant())["subscriptionStatus"] == "active"
    assert (shop.invoice.status, shop.invoice.amount_paid) == ("paid", 139_944)
    assert (shop.invoice.discount, shop.invoice.tax) == (29_400, 22_344)


async def test_unknown_code_is_refused_on_the_page(shop: Shop) -> None:
    address = await shop.order()
    refused = await shop.browser.post(address, data={"promotion_code": "NOPE", "applies": "true"})
    assert "This code is invalid: NOPE" in refused.text
    assert shop.session.charge.discount == 0


async def test_trial_is_given_once_in_a_tenants_life(shop: Shop) -> None:
    await shop.pay(await shop.order())
    assert (await shop.tenant())["subscriptionStatus"] == "trialing"
    shop.provider.cancel(shop.subscription)
    await shop.provider.deliver()
    assert (await shop.tenant())["subscriptionStatus"] == "canceled"
    await shop.pay(await shop.order())
    assert shop.subscription.trial_end is None
    assert (await shop.tenant())["subscriptionStatus"] == "active"


async def test_trial_of_the_providers_own_making_counts_too(shop: Shop) -> None:
    made = shop.provider.subscribe("cus_1", "price_pro", metadata={"orgId": "acme"}, trial_days=3)
    shop.provider.cancel(made)
    await shop.provider.deliver()
    await shop.order()
    assert shop.session.trial_days == 0


async def test_abandoned_checkout_leaves_the_trial_to_the_next(shop: Shop) -> None:
    abandoned = await shop.order()
    await shop.pay(await shop.order())
    assert "is expired" in (await shop.browser.get(abandoned)).text
    assert (await shop.tenant())["subscriptionStatus"] == "trialing"


async def test_of_two_open_pages_one_can_be_paid(shop: Shop) -> None:
    first = await shop.order(plan="team")
    second = await shop.order(plan="pro")
    assert "is expired" in (await shop.browser.get(first)).text
    refused = await shop.browser.post(first, data={"card": "works"})
    assert refused.status_code != 303
    await shop.pay(second)
    assert len(shop.provider.subscriptions) == 1
    assert (await shop.tenant())["plan"] == "pro"


async def test_checkout_after_a_payment_that_no_event_has_told_is_refused(shop: Shop) -> None:
    first = await shop.order(plan="team")
    shop.provider.misbehave(drop=1.0)
    await shop.pay(first)
    assert (await shop.tenant())["subscriptionStatus"] == "none"
    assert await shop.refusal(plan="team") == (409, "subscription_exists")
    assert await shop.refusal(plan="pro") == (409, "subscription_exists")
    assert len(shop.provider.checkout_sessions) == 1
    shop.provider.cancel(shop.subscription)
    shop.provider.behave()
    await shop.pay(await shop.order(plan="pro"))
    assert (await shop.tenant())["subscriptionStatus"] == "trialing"


@pytest.mark.parametrize("shop", ["each"], indirect=True)
async def test_several_subscriptions_are_bought_on_open_pages(shop: Shop) -> None:
    first = await shop.order(plan="team")
    await shop.pay(await shop.order(plan="team"))
    await shop.pay(first)
    assert len(shop.provider.subscriptions) == 2


@pytest.mark.parametrize("shop", ["each"], indirect=True)
async def test_trial_that_no_event_has_told_yet_is_not_given_again(shop: Shop) -> None:
    """Where a tenant may have several subscriptions, the first one's events are lost."""
    first = await shop.order()
    shop.provider.misbehave(drop=1.0)
    await shop.pay(first)
    shop.provider.behave()
    assert (await shop.tenant())["subscriptionStatus"] == "none"
    second = await shop.order()
    assert shop.session.trial_days == 0
    await shop.pay(second)
    assert (await shop.tenant())["subscriptionStatus"] == "active"


async def test_metered_prices_are_sold_without_a_quantity(shop: Shop) -> None:
    address = await shop.order(plan="usage", addons=[{"id": "traffic", "quantity": 1}])
    await shop.pay(address)
    items = [(item.price.id, item.quantity) for item in shop.subscription.items]
    assert items == [("price_requests", None), ("price_traffic", None)]
    assert (await shop.tenant())["plan"] == "usage"


async def test_several_of_a_metered_price_are_refused(shop: Shop) -> None:
    await shop.order()
    order = {"plan": "usage", "quantity": 2, "addons": [{"id": "traffic", "quantity": 3}]}
    answer = await shop.client.post(CHECKOUT, json=order, headers=shop.headers)
    assert answer.status_code == 422
    faults = {fault["location"]: fault["message"] for fault in answer.json()["errors"]}
    assert faults.keys() == {"quantity", "addons[0].quantity"}
    assert all("metered" in message for message in faults.values())
    assert shop.session.status == "open"


@pytest.mark.parametrize("lost", [None, "customer.deleted", "customer.subscription.deleted"])
async def test_deleted_customer_checks_out_as_a_new_one(shop: Shop, lost: str | None) -> None:
    await shop.pay(await shop.order(plan="team"))
    former = (await shop.tenant())["stripeCustomerId"]
    if lost is not None:
        shop.provider.misbehave(drop=1.0, types=[lost])
    shop.provider.delete_customer(former)
    await shop.provider.deliver()
    present = former if lost == "customer.deleted" else None
    assert (await shop.tenant())["stripeCustomerId"] == present
    await shop.pay(await shop.order(plan="team"))
    after = await shop.tenant()
    assert after["stripeCustomerId"] not in (None, former)
    assert (after["plan"], after["subscriptionStatus"]) == ("team", "active")


def price_of_three_currencies(shop: Shop) -> None:
    shop.provider.price("price_team", 4_900, currency_options={"usd": 5_200, "jpy": 8_000})


async def test_checkout_in_a_currency_of_the_price_is_paid_in_it(shop: Shop) -> None:
    price_of_three_currencies(shop)
    address = await shop.order(plan="team", quantity=2, currency="jpy")
    assert "16000 JPY every month" in (await shop.browser.get(address)).text
    await shop.pay(address)
    assert (shop.invoice.currency, shop.invoice.amount_paid) == ("jpy", 19_040)
    assert (await shop.tenant())["plan"] == "team"


async def test_currency_that_the_price_does_not_have_is_refused(shop: Shop) -> None:
    price_of_three_currencies(shop)
    assert await shop.refusal(plan="team", currency="chf") == (422, "currency_not_available")
    assert await shop.refusal(plan="pro", currency="usd") == (422, "currency_not_available")


@pytest.mark.parametrize("shop", ["each"], indirect=True)
async def test_customer_stays_with_its_currency(shop: Shop) -> None:
    price_of_three_currencies(shop)
    await shop.pay(await shop.order(plan="team", currency="usd"))
    assert await shop.refusal(plan="team", currency="jpy") == (422, "currency_not_available")
    assert await shop.refusal(plan="usage") == (422, "currency_not_available")
    await shop.pay(await shop.order(plan="team"))
    assert shop.session.currency == "usd"


async def test_unpaid_checkout_in_another_currency_is_no_obstacle(shop: Shop) -> None:
    price_of_three_currencies(shop)
    await shop.order(plan="team", currency="usd")
    await shop.pay(await shop.order(plan="team", currency="jpy"))
    assert shop.invoice.currency == "jpy"


@pytest.mark.parametrize("currency", ["", "us", "USD", "usdt", "u$d", "usd\n", "ußd", 7, ["usd"]])
async def test_malformed_currency_is_a_fault_of_the_request(shop: Shop, currency: Any) -> None:
    assert await shop.refusal(currency=currency) == (422, "validation_failed")
    assert not shop.provider.checkout_sessions
