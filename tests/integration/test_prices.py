"""What plans cost: the provider's prices in the list of plans, read in the background."""

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec
import pytest

from tenantry.billing.prices import PriceList
from tenantry.common.secret import Secret
from tenantry.domain.errors import DomainError
from tenantry.domain.plans import Catalog, parse_catalog
from tenantry.domain.prices import CurrencyAmount, PlanPrice
from tenantry.integrations.stripe.client import ProviderApi
from tests.support.catalogs import catalog_file
from tests.support.provider_api import KEY, ProviderServer, refusal, running_provider
from tests.support.service import running_service

PLANS: Final = "/api/v1/plans"
CATALOG: Final = """
[[plans]]
id = "free"
[[plans]]
id = "pro"
stripe_price_id = ["price_pro", "price_pro_yearly"]
"""
MONTHLY: Final = {
    "active": True,
    "currency": "eur",
    "unit_amount": 2900,
    "recurring": {"interval": "month"},
}
YEARLY: Final = {**MONTHLY, "unit_amount": 29000, "recurring": {"interval": "year"}}
PRICES: Final[dict[str, dict[str, Any]]] = {"price_pro": MONTHLY, "price_pro_yearly": YEARLY}


@pytest.fixture
async def provider() -> AsyncIterator[ProviderServer]:
    async with running_provider() as provider:
        provider.prices = dict(PRICES)
        yield provider


@pytest.fixture
async def api(provider: ProviderServer) -> AsyncIterator[ProviderApi]:
    async with aclosing(ProviderApi(Secret(KEY), provider.url)) as api:
        yield api


@pytest.fixture
def catalog() -> Catalog:
    return parse_catalog(CATALOG)


def pro(prices: PriceList, catalog: Catalog) -> list[tuple[str, int | None]] | None:
    found = prices.of_plan(catalog.plans[1])
    return None if found is None else [(price.id, price.amount) for price in found]


async def test_plans_have_their_prices(conninfo: str, provider: ProviderServer) -> None:
    values = {"PROVIDER_SECRET_KEY": KEY, "PROVIDER_API_BASE": provider.url}
    async with running_service(conninfo, TENANTRY_PLANS=catalog_file(CATALOG), **values) as service:
        org = await service.organization()
        listed: list[Any] = []
        while "prices" not in (listed or [{}])[0]:
            listed = (await org.owner.get(PLANS)).json()["data"]
    assert [plan["prices"] for plan in listed] == [
        [],
        [
            {
                "id": "price_pro",
                "interval": "month",
                "intervalCount": 1,
                "currency": "eur",
                "amount": 2900,
                "currencies": [{"currency": "eur", "amount": 2900}],
            },
            {
                "id": "price_pro_yearly",
                "interval": "year",
                "intervalCount": 1,
                "currency": "eur",
                "amount": 29000,
                "currencies": [{"currency": "eur", "amount": 29000}],
            },
        ],
    ]


async def test_provider_that_does_not_answer_delays_neither_start_nor_request(
    conninfo: str, provider: ProviderServer
) -> None:
    provider.prices_open.clear()
    values = {"PROVIDER_SECRET_KEY": KEY, "PROVIDER_API_BASE": provider.url}
    async with running_service(conninfo, PUBLIC_PLANS="true", **values) as service:
        await provider.until_asked_for_prices(1)
        org = await service.organization()
        listed = (await org.owner.get(PLANS)).json()["data"]
        public = await service.anonymous.get(PLANS)
    assert public.headers["cache-control"] == "no-store"
    assert listed
    assert all("prices" not in plan for plan in listed)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, ("month", 1, "eur", 2900)),
        ({"currency": "jpy", "unit_amount": 500}, ("month", 1, "jpy", 500)),
        ({"recurring": {"interval": "week", "interval_count": 2}}, ("week", 2, "eur", 2900)),
        ({"unit_amount": 0}, ("month", 1, "eur", 0)),
        ({"unit_amount": None, "billing_scheme": "tiered"}, ("month", 1, "eur", None)),
        ({"unit_amount": None, "unit_amount_decimal": "0.05"}, ("month", 1, "eur", None)),
        ({"recurring": {"interval": "month", "usage_type": "metered"}}, ("month", 1, "eur", None)),
        (
            {"transform_quantity": {"divide_by": 10, "round": "up"}},
            ("month", 1, "eur", None),
        ),
    ],
)
async def test_amount_is_known_only_where_it_does_not_depend_on_use(
    provider: ProviderServer, api: ProviderApi, told: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    provider.prices = {"price_pro": {**MONTHLY, **told}}
    found = await api.prices(["price_pro"])
    assert found is not None
    price = found["price_pro"]
    assert price is not None
    own = (CurrencyAmount(*expected[2:]),)
    known = PlanPrice("price_pro", *expected)
    assert price.recurring == msgspec.structs.replace(known, currencies=own)


OPTIONS: Final = {
    "usd": {"unit_amount": 3100},
    "bhd": {"unit_amount": 11500},
    "eur": {"unit_amount": 2900},
    "jpy": {"unit_amount": 4800},
    "gbp": {"unit_amount": None, "unit_amount_decimal": "2499.5"},
}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            {"currency_options": OPTIONS},
            [("eur", 2900), ("bhd", 11500), ("gbp", None), ("jpy", 4800), ("usd", 3100)],
        ),
        (
            {"currency_options": {"usd": {"tiers": [{"up_to": None, "unit_amount": 3100}]}}},
            [("eur", 2900), ("usd", None)],
        ),
        (
            {
                "currency_options": OPTIONS,
                "recurring": {"interval": "month", "usage_type": "metered"},
            },
            [("eur", None), ("bhd", None), ("gbp", None), ("jpy", None), ("usd", None)],
        ),
    ],
)
async def test_price_is_listed_in_every_currency_of_one_request(
    provider: ProviderServer,
    api: ProviderApi,
    told: dict[str, Any],
    expected: list[tuple[str, int | None]],
) -> None:
    provider.prices = {"price_pro": {**MONTHLY, **told}}
    found = await api.prices(["price_pro"])
    assert found is not None
    assert found["price_pro"] is not None
    price = found["price_pro"].recurring
    assert price is not None
    assert [(each.currency, each.amount) for each in price.currencies] == expected
    [asked] = provider.price_requests
    assert asked.params == {"expand[0]": "currency_options"}


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        (None, "the provider does not know"),
        ({**YEARLY, "active": False}, "is archived"),
        ({**YEARLY, "recurring": None}, "is not recurring"),
    ],
)
async def test_price_that_cannot_be_bought_is_left_out_and_logged_once(
    provider: ProviderServer,
    api: ProviderApi,
    catalog: Catalog,
    caplog: pytest.LogCaptureFixture,
    told: dict[str, Any] | None,
    fault: str,
) -> None:
    provider.prices = {"price_pro": MONTHLY, **({"price_pro_yearly": told} if told else {})}
    prices = PriceList(api, catalog)
    with caplog.at_level(logging.WARNING, "tenantry.billing.prices"):
        await prices.read()
        await prices.read()
    assert pro(prices, catalog) == [("price_pro", 2900)]
    assert [record.getMessage() for record in caplog.records] == [
        f"the plan catalog has the price price_pro_yearly, which {fault}: it is not shown"
    ]


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_failed_read_changes_nothing(
    provider: ProviderServer, api: ProviderApi, catalog: Catalog, status: int
) -> None:
    prices = PriceList(api, catalog)
    provider.price_answers.append(refusal(status))
    with suppress(DomainError):
        await prices.read()
    assert pro(prices, catalog) is None
    await prices.read()
    provider.prices["price_pro"] = {**MONTHLY, "unit_amount": 3900}
    provider.price_answers.append(refusal(status))
    with suppress(DomainError):
        await prices.read()
    assert pro(prices, catalog) == [("price_pro", 2900), ("price_pro_yearly", 29000)]
    await prices.read()
    assert pro(prices, catalog) == [("price_pro", 3900), ("price_pro_yearly", 29000)]


async def test_read_that_fails_midway_keeps_every_price(
    provider: ProviderServer, api: ProviderApi, catalog: Catalog
) -> None:
    prices = PriceList(api, catalog)
    await prices.read()
    provider.prices["price_pro"] = {**MONTHLY, "unit_amount": 3900}
    provider.prices["price_pro_yearly"] = {**YEARLY, "recurring": {}}
    with pytest.raises(DomainError):
        await prices.read()
    assert pro(prices, catalog) == [("price_pro", 2900), ("price_pro_yearly", 29000)]
