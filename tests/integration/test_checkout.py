"""Checkout and portal sessions at the payment provider."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from tenantry.accounts import tenants_store as tenants
from tenantry.auth.api_keys import operator_principal
from tenantry.billing.checkout import CheckoutService, provider_key
from tenantry.common.secret import Secret
from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import (
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    NoCustomerError,
    NotFoundError,
    ProviderNotConfiguredError,
    ProviderRefusedError,
    ValidationError,
)
from tenantry.domain.plans import parse_catalog
from tenantry.integrations.stripe.client import ProviderApi
from tests.support.emptying import SharedDatabase
from tests.support.provider_api import KEY, ProviderServer, refusal
from tests.support.tenants import add_acme

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BASE_URL = "https://api.example"
CATALOG = parse_catalog(
    """
    [[plans]]
    id = "free"
    stripe_price_id = "price_free"
    [[plans]]
    id = "pro"
    stripe_price_id = ["price_pro_new", "price_pro_old"]
    [[plans]]
    id = "internal"
    """
)
CHECKOUT = "POST /api/v1/billing/checkout-sessions"


@pytest.fixture(scope="module")
async def opened(shared_database: SharedDatabase) -> AsyncIterator[Database]:
    database = Database(shared_database.conninfo, pool_size=1)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def database(opened: Database, emptied: str) -> Database:
    """The file's database with a single connection; all that is in it is the tenant acme."""
    async with opened.transaction(of_tenant("acme")) as connection:
        await add_acme(connection, NOW)
    return opened


@pytest.fixture
async def provider(server: ProviderServer) -> AsyncIterator[ProviderApi]:
    async with aclosing(ProviderApi(Secret(KEY), server.url)) as provider:
        yield provider


@pytest.fixture
def service(database: Database, provider: ProviderApi) -> CheckoutService:
    return service_at(NOW, database, provider)


def service_at(now: datetime, database: Database, provider: ProviderApi) -> CheckoutService:
    return CheckoutService(database, provider, BillingPolicy(CATALOG), BASE_URL, lambda: now)


ACME = operator_principal("acme")


def claim(key: str = "k1", body: bytes = b"body") -> Claim:
    return Claim("api_key:acme:key_1", CHECKOUT, key, body)


async def checkout(service: CheckoutService, plan: str = "pro", claim: Claim | None = None) -> str:
    return await service.create_checkout(
        ACME, BY_OPERATOR, plan=plan, success_url=None, cancel_url=None, claim=claim
    )


async def link(database: Database, customer_id: str) -> None:
    async with database.transaction(of_tenant("acme")) as connection:
        await tenants.link_customer(connection, "acme", customer_id, "operator", NOW)


async def test_a_first_checkout_is_for_the_owner(
    service: CheckoutService, server: ProviderServer
) -> None:
    assert await checkout(service) == "https://checkout.provider.example/c/1"
    params = server.requests[0].params
    assert params["customer_email"] == "owner@acme.example"
    assert params["subscription_data[metadata][orgId]"] == "acme"


async def test_a_later_checkout_is_for_the_customer(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    await link(database, "cus_1")
    await checkout(service)
    assert server.requests[0].params["customer"] == "cus_1"


async def test_the_first_price_of_a_plan_is_the_one_to_buy(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service)
    assert server.requests[0].params["line_items[0][price]"] == "price_pro_new"


async def test_return_urls_default_to_the_base_url(
    service: CheckoutService, server: ProviderServer
) -> None:
    await service.create_checkout(
        ACME,
        BY_OPERATOR,
        plan="pro",
        success_url="http://app.example/ok",
        cancel_url=None,
        claim=None,
    )
    params = server.requests[0].params
    assert (params["success_url"], params["cancel_url"]) == ("http://app.example/ok", BASE_URL)


@pytest.mark.parametrize("plan", ["free", "internal", "unheard-of", ""])
async def test_plans_that_cannot_be_bought(
    service: CheckoutService, server: ProviderServer, plan: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        await checkout(service, plan)
    assert [location for location, _ in refused.value.faults] == ["plan"]
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "ftp://app.example/",
        "//app.example/",
        "https:app.example",
        "https://",
        "https://app.example:port/",
        "https://[::1",
        "https://app.example/a b",
        "https://app.example/\n",
        "https://app.example/" + 2048 * "a",
        "",
    ],
)
async def test_addresses_that_are_refused(
    service: CheckoutService, server: ProviderServer, url: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        await service.create_checkout(
            ACME, BY_OPERATOR, plan="pro", success_url=url, cancel_url=url, claim=None
        )
    assert [location for location, _ in refused.value.faults] == ["successUrl", "cancelUrl"]
    with pytest.raises(ValidationError) as refused:
        await service.create_portal(ACME, BY_OPERATOR, return_url=url, claim=None)
    assert [location for location, _ in refused.value.faults] == ["returnUrl"]
    assert server.requests == []


async def test_the_portal_is_the_customers(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    await link(database, "cus_1")
    url = await service.create_portal(ACME, BY_OPERATOR, return_url=None, claim=None)
    assert url == "https://billing.provider.example/p/1"
    assert server.requests[0].params == {"customer": "cus_1", "return_url": BASE_URL}


async def test_there_is_no_portal_before_the_first_checkout(
    service: CheckoutService, server: ProviderServer
) -> None:
    with pytest.raises(NoCustomerError):
        await service.create_portal(ACME, BY_OPERATOR, return_url=None, claim=None)
    assert server.requests == []


async def test_a_missing_tenant(service: CheckoutService) -> None:
    with pytest.raises(NotFoundError):
        await service.create_portal(
            operator_principal("other"), BY_OPERATOR, return_url=None, claim=None
        )


async def test_without_a_provider_key_the_setting_is_named(database: Database) -> None:
    service = CheckoutService(database, None, BillingPolicy(CATALOG), BASE_URL)
    with pytest.raises(ProviderNotConfiguredError, match="PROVIDER_SECRET_KEY"):
        await checkout(service)
    with pytest.raises(ProviderNotConfiguredError, match="PROVIDER_SECRET_KEY"):
        await service.create_portal(ACME, BY_OPERATOR, return_url=None, claim=None)


async def test_no_database_connection_is_held_while_the_provider_is_asked(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    server.open.clear()
    waiting = asyncio.create_task(checkout(service, claim=claim()))
    await server.until_requested(1)
    async with database.transaction(ACROSS_TENANTS) as connection:  # the pool's only one
        await connection.execute("SELECT 1")
    server.open.set()
    assert await waiting


async def test_the_same_request_again_gets_the_first_answer(
    service: CheckoutService, server: ProviderServer
) -> None:
    first = await checkout(service, claim=claim())
    assert await checkout(service, claim=claim()) == first
    assert len(server.requests) == 1


async def test_the_same_portal_request_again_gets_the_first_answer(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    await link(database, "cus_1")
    first = await service.create_portal(ACME, BY_OPERATOR, return_url=None, claim=claim())
    assert await service.create_portal(ACME, BY_OPERATOR, return_url=None, claim=claim()) == first
    assert len(server.requests) == 1


async def test_the_first_answer_is_kept_when_the_tenant_becomes_a_customer(
    service: CheckoutService, database: Database
) -> None:
    first = await checkout(service, claim=claim())
    await link(database, "cus_1")
    assert await checkout(service, claim=claim()) == first


async def test_an_answer_that_was_lost_is_got_from_the_provider(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    first = await checkout(service, claim=claim())
    async with database.transaction(ACROSS_TENANTS) as connection:
        await connection.execute("DELETE FROM idempotency_keys")
    assert await checkout(service, claim=claim()) == first
    assert len(server.requests) == 2


async def test_another_body_under_the_same_key(service: CheckoutService) -> None:
    await checkout(service, claim=claim())
    with pytest.raises(IdempotencyMismatchError):
        await checkout(service, claim=claim(body=b"another"))


async def test_the_same_key_at_the_same_time(
    service: CheckoutService, server: ProviderServer
) -> None:
    server.open.clear()
    first = asyncio.create_task(checkout(service, claim=claim()))
    await server.until_requested(1)
    with pytest.raises(IdempotencyInFlightError):
        await checkout(service, claim=claim())
    server.open.set()
    assert await first


async def test_answers_are_kept_for_a_day(
    database: Database, provider: ProviderApi, server: ProviderServer
) -> None:
    await checkout(service_at(NOW, database, provider), claim=claim())
    await checkout(service_at(NOW + timedelta(days=1), database, provider), claim=claim())
    assert len(server.requests) == 2


async def test_a_refusal_is_not_kept(service: CheckoutService, server: ProviderServer) -> None:
    server.answers.append(refusal(404, code="resource_missing"))
    with pytest.raises(ProviderRefusedError):
        await checkout(service, claim=claim())
    assert await checkout(service, claim=claim())


def test_the_providers_idempotency_key_differs_by_caller_and_route() -> None:
    claims = [
        Claim("api_key:acme:key_1", CHECKOUT, "k", b""),
        Claim("api_key:acme:key_2", CHECKOUT, "k", b""),
        Claim("api_key:acme:key_1", "POST /api/v1/billing/portal-sessions", "k", b""),
        Claim("api_key:acme:key_1", CHECKOUT, 255 * "k", b""),
    ]
    keys = [provider_key(claim) for claim in claims]
    assert len(set(keys)) == 4
    assert all(key and len(key) <= 255 for key in keys)


def test_the_providers_key_is_the_same_for_any_body() -> None:
    assert provider_key(claim(body=b"one")) == provider_key(claim(body=b"two"))
