"""Checkout and portal sessions at the payment provider."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest

from tenantry.accounts.tenants import TenantService
from tenantry.billing import customer_links_store
from tenantry.billing.checkout import CheckoutOptions, CheckoutService, provider_key
from tenantry.billing.checkout_store import remember_checkout
from tenantry.billing.provider_refusals import ProviderRefusals
from tenantry.common.secret import Secret
from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import get_tenant
from tenantry.domain.audit import BY_OPERATOR, Action
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.checkout import AddonOrder, CheckoutOrder
from tenantry.domain.errors import (
    CurrencyNotAvailableError,
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    NoCustomerError,
    NotFoundError,
    ProviderNotConfiguredError,
    ProviderRefusedError,
    ProviderUnavailableError,
    SubscriptionExistsError,
    ValidationError,
)
from tenantry.domain.permissions import operator_principal
from tenantry.domain.plans import parse_catalog
from tenantry.installation.findings import CheckedDatabase
from tenantry.installation.ledger_checks import check_refusals
from tenantry.integrations.stripe.client import ProviderApi
from tests.support.emptying import SharedDatabase
from tests.support.events import subscription
from tests.support.findings import checked_settings
from tests.support.guarded_events import written_by_test
from tests.support.patience import patient_database
from tests.support.provider_api import KEY, Answer, ProviderServer, refusal
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
    [[plans]]
    id = "team"
    stripe_price_id = ["price_team", "price_team_yearly"]
    trial_days = 14
    seats = "members"
    [[addons]]
    id = "storage"
    stripe_price_id = ["price_storage", "price_storage_yearly"]
    [[addons]]
    id = "support"
    stripe_price_id = "price_support"
    [[addons]]
    id = "unsold"
    """
)
CHECKOUT = "POST /api/v1/billing/checkout-sessions"


@pytest.fixture(scope="module")
async def opened(shared_database: SharedDatabase) -> AsyncIterator[Database]:
    database = patient_database(shared_database.conninfo, pool_size=1)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def database(opened: Database, emptied: str) -> Database:
    """The file's database with a single connection; all that is in it is the tenant acme."""
    async with opened.change(of_tenant("acme")) as connection:
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


def each(service: CheckoutService) -> CheckoutService:
    """The same where a tenant may have several subscriptions."""
    return replace(service, policy=BillingPolicy(CATALOG, SubscriptionRule.EACH))


def claim(key: str = "k1", body: bytes = b"body") -> Claim:
    return Claim("api_key:acme:key_1", CHECKOUT, key, body)


async def checkout(
    service: CheckoutService, order: str | CheckoutOrder = "pro", claim: Claim | None = None
) -> str:
    wanted = CheckoutOrder(order) if isinstance(order, str) else order
    return await service.create_checkout(
        ACME, BY_OPERATOR, wanted, success_url=None, cancel_url=None, claim=claim
    )


async def link(database: Database, customer_id: str) -> None:
    async with database.transaction(ACROSS_TENANTS) as connection:
        await written_by_test(connection)
        await customer_links_store.link(connection, customer_id, "acme", NOW)


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
        CheckoutOrder("pro"),
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
            ACME, BY_OPERATOR, CheckoutOrder("pro"), success_url=url, cancel_url=url, claim=None
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


async def test_a_link_into_the_portal_does_not_wait_for_changes_of_the_tenant(
    service: CheckoutService, server: ProviderServer, database: Database, emptied: str
) -> None:
    await link(database, "cus_1")
    server.open.clear()
    opening = asyncio.create_task(
        service.create_portal(ACME, BY_OPERATOR, return_url=None, claim=claim())
    )
    await server.until_requested(1)
    async with await psycopg.AsyncConnection.connect(emptied) as change:
        await change.execute("SELECT FROM tenants WHERE id = 'acme' FOR NO KEY UPDATE")
        server.open.set()
        assert await opening


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
    async with database.transaction(of_tenant("acme")) as connection:
        await connection.execute("UPDATE tenants SET last_checkout = NULL")
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
    assert len(trials(server)) == 2


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


async def test_price_quantity_and_addons_are_those_of_the_order(
    service: CheckoutService, server: ProviderServer
) -> None:
    addons = AddonOrder("storage", 2), AddonOrder("support", 1)
    await checkout(service, CheckoutOrder("pro", "price_pro_old", 5, addons))
    params = server.requests[0].params
    items = [
        (params[f"line_items[{number}][price]"], params[f"line_items[{number}][quantity]"])
        for number in range(3)
    ]
    assert items == [("price_pro_old", "5"), ("price_storage", "2"), ("price_support", "1")]


@pytest.mark.parametrize(
    ("order", "locations"),
    [
        (CheckoutOrder("pro", "price_team"), ["price"]),
        (CheckoutOrder("pro", "price_storage"), ["price"]),
        (CheckoutOrder("pro", "price_unknown"), ["price"]),
        (CheckoutOrder("pro", addons=(AddonOrder("pro", 1),)), ["addons[0].id"]),
        (CheckoutOrder("pro", addons=(AddonOrder("unsold", 1),)), ["addons[0].id"]),
        (CheckoutOrder("team", quantity=3), ["quantity"]),
        (
            CheckoutOrder("pro", addons=(AddonOrder("storage", 1), AddonOrder("storage", 2))),
            ["addons[0].id", "addons[1].id"],
        ),
        (CheckoutOrder("free", addons=(AddonOrder("other", 1),)), ["plan", "addons[0].id"]),
    ],
)
async def test_orders_that_the_catalog_does_not_sell(
    service: CheckoutService, server: ProviderServer, order: CheckoutOrder, locations: list[str]
) -> None:
    with pytest.raises(ValidationError) as refused:
        await checkout(service, order)
    assert [location for location, _ in refused.value.faults] == locations
    assert server.requests == []


async def test_the_audit_trail_has_what_was_ordered(
    service: CheckoutService, database: Database
) -> None:
    order = CheckoutOrder("pro", "price_pro_old", 5, (AddonOrder("storage", 2),))
    await checkout(service, order)
    async with database.transaction(of_tenant("acme")) as connection:
        [(after,)] = await connection.fetch("SELECT after FROM audit_events")
    assert after == {
        "plan": "pro",
        "price": "price_pro_old",
        "quantity": 5,
        "addons": [{"id": "storage", "quantity": 2}],
    }


NEW_PARAMETERS = (
    "allow_promotion_codes",
    "automatic_tax[enabled]",
    "tax_id_collection[enabled]",
    "customer_update[address]",
    "customer_update[name]",
    "subscription_data[trial_period_days]",
)


def optional_parameters(server: ProviderServer) -> dict[str, str]:
    params = server.requests[0].params
    return {name: params[name] for name in NEW_PARAMETERS if name in params}


async def test_without_the_options_the_page_offers_neither_codes_nor_tax(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service)
    assert optional_parameters(server) == {}


async def test_promotion_codes_are_offered(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(replace(service, options=CheckoutOptions(promotion_codes=True)))
    assert optional_parameters(server) == {"allow_promotion_codes": "true"}


async def test_tax_is_calculated_for_a_new_customer(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(replace(service, options=CheckoutOptions(tax=True)))
    assert optional_parameters(server) == {
        "automatic_tax[enabled]": "true",
        "tax_id_collection[enabled]": "true",
    }


async def test_tax_of_a_known_customer_may_update_its_name_and_address(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    await link(database, "cus_1")
    await checkout(replace(service, options=CheckoutOptions(tax=True)))
    assert optional_parameters(server) == {
        "automatic_tax[enabled]": "true",
        "tax_id_collection[enabled]": "true",
        "customer_update[address]": "auto",
        "customer_update[name]": "auto",
    }


def trials(server: ProviderServer) -> list[str | None]:
    """The days of trial of each session that was created."""
    return [
        request.params.get("subscription_data[trial_period_days]")
        for request in server.requests
        if (request.method, request.path) == ("POST", "/v1/checkout/sessions")
    ]


async def test_a_plan_with_trial_days_begins_with_a_trial(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service, "team")
    assert trials(server) == ["14"]


async def test_the_session_that_offered_the_trial_ends_before_another_offers_it(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service, "team")
    await checkout(service, "team")
    assert trials(server) == ["14", "14"]
    assert list(server.checkouts.values()) == ["expired", "open"]


async def test_an_abandoned_checkout_keeps_no_trial(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service, "team")
    server.checkouts["cs_1"] = "expired"
    await checkout(service, "team")
    assert trials(server) == ["14", "14"]


async def test_a_completed_session_took_the_trial_before_its_events_arrive(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(each(service), "team")
    server.checkouts["cs_1"] = "complete"
    await checkout(each(service), "team")
    assert trials(server) == ["14", None]


async def test_a_session_that_the_provider_does_not_know_took_no_trial(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service, "team")
    server.checkouts.clear()
    await checkout(service, "team")
    assert trials(server) == ["14", "14"]


async def test_a_provider_that_cannot_end_sessions_sells_again(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service)
    server.answers.append(refusal(404))
    await checkout(service)
    assert len(server.checkouts) == 2


@pytest.mark.parametrize(
    ("plan", "is_each", "days"),
    [("pro", False, None), ("team", False, "14"), ("team", True, "14")],
)
async def test_two_checkouts_at_once_leave_one_open_session(
    service: CheckoutService, server: ProviderServer, plan: str, is_each: bool, days: str | None
) -> None:
    service = each(service) if is_each else service
    server.open.clear()
    both = asyncio.gather(
        checkout(service, plan, claim("k1")), checkout(service, plan, claim("k2"))
    )
    await server.until_requested(2)
    server.open.set()
    await both
    assert trials(server) == [days, days]
    assert sorted(server.checkouts.values()) == ["expired", "open"]


async def test_no_session_is_offered_beside_one_that_was_completed_meanwhile(
    service: CheckoutService, server: ProviderServer
) -> None:
    server.open.clear()
    slow = asyncio.create_task(checkout(service, "team", claim("k1")))
    await server.until_requested(1)
    async with service.database.transaction(of_tenant("acme")) as connection:
        await remember_checkout(connection, "acme", "cs_other", None)
    server.checkouts["cs_other"] = "complete"
    server.open.set()
    with pytest.raises(SubscriptionExistsError):
        await slow


async def test_an_earlier_session_ends_before_another_begins(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service, "pro")
    await checkout(service, "team")
    await checkout(service, "pro")
    assert list(server.checkouts.values()) == ["expired", "expired", "open"]


async def test_sessions_of_several_subscriptions_stay_open(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(each(service), "pro")
    await checkout(each(service), "pro")
    assert list(server.checkouts.values()) == ["open", "open"]


@pytest.mark.parametrize(
    "made",
    [None, subscription(), subscription(org=None), subscription(status="past_due")],
    ids=["being paid", "active", "active without the tenant", "past due"],
)
async def test_no_checkout_begins_after_one_that_was_completed(
    service: CheckoutService, server: ProviderServer, made: dict[str, Any] | None
) -> None:
    await checkout(service)
    server.checkouts["cs_1"] = "complete"
    if made is not None:
        server.purchases["cs_1"] = made
    with pytest.raises(SubscriptionExistsError):
        await checkout(service)
    assert len(server.checkouts) == 1


@pytest.mark.parametrize(
    "made",
    [subscription(status="canceled"), subscription(org="other")],
    ids=["ended", "moved to another tenant"],
)
async def test_a_subscription_that_is_over_for_the_tenant_allows_another(
    service: CheckoutService, server: ProviderServer, made: dict[str, Any]
) -> None:
    await checkout(service)
    server.checkouts["cs_1"] = "complete"
    server.purchases["cs_1"] = made
    await checkout(service, "team")
    assert trials(server) == [None, "14"]


async def test_a_trial_that_ended_before_its_events_arrive_is_not_given_again(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service, "team")
    server.checkouts["cs_1"] = "complete"
    server.purchases["cs_1"] = {**subscription(status="canceled"), "trial_end": 1_800_000_000}
    await checkout(service, "team")
    assert trials(server) == ["14", None]


async def test_a_malformed_subscription_of_a_session(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service)
    server.checkouts["cs_1"] = "complete"
    server.purchases["cs_1"] = {"object": "subscription"}
    with pytest.raises(ProviderUnavailableError):
        await checkout(service)


async def end_acme(database: Database, provider: ProviderApi | None) -> None:
    """End the tenant as its owner does."""
    service = TenantService(
        database, BillingPolicy(CATALOG), Outbox(), lambda: NOW, provider=provider
    )
    await service.end_own(ACME, BY_OPERATOR, "acme", name="Acme")


async def is_ended(database: Database) -> bool:
    async with database.transaction(of_tenant("acme")) as connection:
        return (await get_tenant(connection, "acme", even_ended=True)).deleted


async def test_an_open_checkout_ends_with_its_tenant(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service)
    await end_acme(service.database, service.provider)
    assert list(server.checkouts.values()) == ["expired"]
    assert await is_ended(service.database)


async def test_a_tenant_does_not_end_after_a_checkout_that_no_event_has_told(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service)
    server.checkouts["cs_1"] = "complete"
    server.purchases["cs_1"] = subscription()
    with pytest.raises(SubscriptionExistsError):
        await end_acme(service.database, service.provider)
    assert not await is_ended(service.database)


@pytest.mark.parametrize(
    "made", [subscription(cancel=True), subscription(status="canceled")], ids=["later", "ended"]
)
async def test_a_tenant_ends_after_a_checkout_whose_subscription_does_not_renew(
    service: CheckoutService, server: ProviderServer, made: dict[str, Any]
) -> None:
    await checkout(service)
    server.checkouts["cs_1"] = "complete"
    server.purchases["cs_1"] = made
    await end_acme(service.database, service.provider)
    assert await is_ended(service.database)


@pytest.mark.parametrize("status", [403, 500])
async def test_a_tenant_ends_while_the_provider_cannot_end_its_checkout(
    service: CheckoutService, server: ProviderServer, status: int
) -> None:
    await checkout(service)
    server.answers.append(refusal(status))
    await end_acme(service.database, service.provider)
    assert await is_ended(service.database)


async def test_doctor_shows_what_the_provider_said_to_refused_requests(
    service: CheckoutService, server: ProviderServer
) -> None:
    await link(service.database, "cus_1")
    said = "You cannot combine currencies of owner@acme.example"
    server.answers += 2 * [refusal(400, code="invalid", message=said)]
    for _ in range(2):
        with pytest.raises(ProviderRefusedError):
            await checkout(service)
    server.answers.append(refusal(403))
    with pytest.raises(ProviderRefusedError):
        await service.create_portal(ACME, BY_OPERATOR, return_url=None, claim=None)
    await checkout(service)
    async with service.database.transaction(ACROSS_TENANTS) as connection:
        database = CheckedDatabase(connection, checked_settings(), NOW)
        found = await check_refusals(database)
        assert await check_refusals(database._replace(now=NOW + timedelta(days=1))) == []
    shown = "You cannot combine currencies of (mail address)"
    moment, tenant = "2026-01-01 00:00 UTC", "for the tenant acme"
    assert {each.message for each in found} == {
        f"checkout refused, last at {moment} {tenant} (2 times since {moment}, code invalid): {shown}",
        f"portal session refused, last at {moment} {tenant} (1 time since {moment}, code unknown): no message",
    }


COMBINED: Final = (
    "You cannot combine currencies on a single customer. This customer has an active subscription "
    "with currency gbp."
)
UNSUPPORTED: Final = (
    "The price specified only supports `eur`. This doesn't match the expected currency: `usd`."
)


async def test_checkout_asks_for_its_currency(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    await checkout(service, CheckoutOrder("pro", currency="jpy"))
    assert server.requests[0].params["currency"] == "jpy"
    async with database.transaction(of_tenant("acme")) as connection:
        statement = "SELECT after->>'currency' FROM audit_events WHERE action = %s"
        assert await connection.fetch_value(statement, (Action.BILLING_CHECKOUT,)) == "jpy"


async def test_checkout_without_a_currency_leaves_it_to_the_provider(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service)
    assert "currency" not in server.requests[0].params


@pytest.mark.parametrize(
    ("currency", "told", "words"),
    [
        ("usd", refusal(400, message=COMBINED), "pays in another currency"),
        (None, refusal(400, message=COMBINED), "pays in another currency"),
        ("usd", refusal(400, message=UNSUPPORTED, param="line_items"), "not sold in USD"),
        ("zzz", refusal(400, message="Invalid: zzz", param="currency"), "not sold in ZZZ"),
    ],
)
async def test_currency_that_the_provider_refuses_is_not_available(
    service: CheckoutService,
    server: ProviderServer,
    currency: str | None,
    told: Answer,
    words: str,
) -> None:
    server.answers.append(told)
    with pytest.raises(CurrencyNotAvailableError) as refused:
        await checkout(service, CheckoutOrder("pro", currency=currency))
    assert words in refused.value.detail
    assert "gbp" not in refused.value.detail
    async with service.database.transaction(ACROSS_TENANTS) as connection:
        database = CheckedDatabase(connection, checked_settings(), NOW)
        [found] = await check_refusals(database)
    assert isinstance(told.body, dict)
    assert told.body["error"]["message"] in found.message


@pytest.mark.parametrize(
    ("currency", "message"),
    [(None, UNSUPPORTED), ("usd", "No such price: 'price_pro_new'"), ("usd", "")],
)
async def test_other_refusals_are_not_of_the_currency(
    service: CheckoutService, server: ProviderServer, currency: str | None, message: str
) -> None:
    server.answers.append(refusal(400, message=message))
    with pytest.raises(ProviderRefusedError):
        await checkout(service, CheckoutOrder("pro", currency=currency))


async def test_refusal_that_cannot_be_kept_is_raised_all_the_same() -> None:
    refusals = ProviderRefusals(Database("", pool_size=1), lambda: NOW)
    with pytest.raises(ProviderRefusedError, match="no"):
        async with refusals.kept("checkout", tenant_id="acme"):
            raise ProviderRefusedError("no")


async def test_a_tenant_ends_without_a_provider_key(service: CheckoutService) -> None:
    await checkout(service)
    await end_acme(service.database, None)
    assert await is_ended(service.database)


async def test_a_checkout_begins_no_session_for_a_tenant_that_ends_meanwhile(
    service: CheckoutService, server: ProviderServer
) -> None:
    server.open.clear()
    slow = asyncio.create_task(checkout(service, claim=claim()))
    await server.until_requested(1)
    await end_acme(service.database, service.provider)
    server.open.set()
    with pytest.raises(NotFoundError):
        await slow


async def test_while_the_provider_is_away_no_second_trial_is_offered(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service, "team")
    server.answers.append(refusal(500))
    with pytest.raises(ProviderUnavailableError):
        await checkout(service, "team")
    assert trials(server) == ["14"]


async def record_event(database: Database, outcome: str, document: str) -> None:
    async with database.transaction(ACROSS_TENANTS) as connection:
        await connection.execute(
            "INSERT INTO billing_events (id, arrival, received_at, type, created, tenant_id, outcome, document) "
            "VALUES ('evt_1', 1, now(), 'customer.subscription.created', 1, 'acme', %s, %s)",
            (outcome, document),
        )


TRIAL = '{"status": "trialing", "details": {"trial_end": 1800000000}}'


@pytest.mark.parametrize(
    ("outcome", "document", "days"),
    [
        ("applied", TRIAL, None),
        ("late", TRIAL, None),
        ("no_change", TRIAL, None),
        ("ignored", TRIAL, "14"),
        ("invalid", TRIAL, "14"),
        ("applied", '{"status": "active", "details": {}}', "14"),
        ("applied", "{}", "14"),
    ],
    ids=["applied", "late", "no change", "ignored", "invalid", "no trial", "no facts"],
)
async def test_the_ledger_remembers_a_trial_of_any_subscription(
    service: CheckoutService,
    server: ProviderServer,
    database: Database,
    outcome: str,
    document: str,
    days: str | None,
) -> None:
    await record_event(database, outcome, document)
    await checkout(service, "team")
    assert trials(server) == [days]


ADD_MEMBER = """
INSERT INTO memberships
       (id, tenant_id, issuer, subject, role, invited, created_at, updated_at, removed_at)
VALUES (%(name)s, 'acme', 'https://idp.example', %(name)s, 'member', %(invited)s, now(), now(),
        CASE WHEN %(removed)s THEN now() END)
"""


async def test_seats_that_follow_members_begin_with_the_active_ones(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    async with database.change(of_tenant("acme")) as connection:
        await written_by_test(connection)
        for name in ("active", "also active", "invited", "removed"):
            values = {"name": name, "invited": name == "invited", "removed": name == "removed"}
            await connection.execute(ADD_MEMBER, values)
    await checkout(service, "team")
    assert server.requests[0].params["line_items[0][quantity]"] == "2"


async def test_seats_that_follow_members_are_at_least_one(
    service: CheckoutService, server: ProviderServer
) -> None:
    await checkout(service, "team")
    assert server.requests[0].params["line_items[0][quantity]"] == "1"


async def test_a_customer_of_the_other_mode_is_kept(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    await link(database, "cus_1")
    said = (
        "No such customer: 'cus_1'; a similar object exists in live mode, but a test mode key "
        "was used to make this request."
    )
    server.answers.append(refusal(400, code="resource_missing", param="customer", message=said))
    with pytest.raises(ProviderRefusedError, match="in another mode, live or test"):
        await checkout(service)
    async with database.transaction(of_tenant("acme")) as connection:
        assert (await get_tenant(connection, "acme")).record.stripe_customer_id == "cus_1"


async def test_the_portal_of_a_deleted_customer_asks_for_a_checkout(
    service: CheckoutService, server: ProviderServer, database: Database
) -> None:
    await link(database, "cus_1")
    server.answers.append(refusal(400, code="resource_missing", param="customer"))
    with pytest.raises(NoCustomerError):
        await service.create_portal(ACME, BY_OPERATOR, return_url=None, claim=claim())
