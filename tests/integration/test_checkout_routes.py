"""The routes for checkout and portal sessions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import httpx2
import psycopg
import pytest

from tenantry.auth import api_keys_store
from tenantry.auth.api_keys import key_of, with_secret
from tenantry.billing import customer_links_store
from tenantry.common.clock import system_clock
from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.domain.api_keys import KeyTerms, Pepper
from tests.support.app import OPERATOR_TOKEN, PEPPER, running_app
from tests.support.billing import rows, until_blocked
from tests.support.emptying import SharedDatabase
from tests.support.patience import patient_database
from tests.support.provider_api import KEY, ProviderServer, running_provider
from tests.support.tenants import add_acme

CHECKOUT: Final = "/api/v1/billing/checkout-sessions"
PORTAL: Final = "/api/v1/billing/portal-sessions"


@pytest.fixture(scope="module")
async def provider() -> AsyncIterator[ProviderServer]:
    async with running_provider() as server:
        yield server


@pytest.fixture
def server(provider: ProviderServer) -> ProviderServer:
    """The file's provider, without the requests of earlier tests."""
    provider.requests.clear()
    return provider


@pytest.fixture(scope="module")
async def app(
    shared_database: SharedDatabase, provider: ProviderServer
) -> AsyncIterator[httpx2.AsyncClient]:
    conninfo = shared_database.conninfo
    async with running_app(
        conninfo, PROVIDER_SECRET_KEY=KEY, PROVIDER_API_BASE=provider.url
    ) as client:
        yield client


@pytest.fixture
def client(app: httpx2.AsyncClient, server: ProviderServer) -> httpx2.AsyncClient:
    """A client of the file's service."""
    return app


async def set_status(conninfo: str, status: str) -> None:
    """Let the tenant acme have a subscription of this status."""
    await rows(
        conninfo,
        "UPDATE tenants SET plan = 'pro', subscription_status = %s WHERE id = 'acme'",
        status,
    )


async def bearer(conninfo: str, scope: str = "billing:write") -> dict[str, str]:
    """The credentials of a key of the tenant acme, who is customer cus_1."""
    now = system_clock()
    terms = KeyTerms(name="CI", scopes=(scope,))
    key = with_secret(key_of(terms, "acme", "operator", now))
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    async with database.change(of_tenant("acme")) as connection:
        await add_acme(connection, now)
        async with connection.within(ACROSS_TENANTS):
            await customer_links_store.link(connection, "cus_1", "acme", now)
        pepper = Pepper(PEPPER.encode())
        digest = pepper.digest(key.secret.encode())
        await api_keys_store.insert(connection, {digest: key.record}, pepper.id)
    await database.close()
    return {"Authorization": f"Bearer {key.secret}"}


async def test_a_checkout_begins(client: httpx2.AsyncClient, emptied: str) -> None:
    answer = await client.post(CHECKOUT, json={"plan": "pro"}, headers=await bearer(emptied))
    assert (answer.status_code, answer.json()) == (
        201,
        {"url": "https://checkout.provider.example/c/1"},
    )
    assert answer.headers["cache-control"] == "no-store"


async def test_a_checkout_begins_while_a_grant_gives_the_plan(
    client: httpx2.AsyncClient, emptied: str
) -> None:
    headers = await bearer(emptied)
    answer = await client.put(
        "/api/v1/tenants/acme/grants/contract",
        json={"plan": "business", "reason": "Contract 2027-014"},
        headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
    )
    assert answer.status_code == 200
    answer = await client.post(CHECKOUT, json={"plan": "pro"}, headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("body", "location"),
    [
        ({"price": "price_business"}, "price"),
        ({"price": ""}, "price"),
        ({"quantity": 0}, "quantity"),
        ({"quantity": 10_001}, "quantity"),
        ({"addons": [{"id": "storage", "quantity": 1}]}, "addons[0].id"),
        ({"addons": [{"id": "storage", "quantity": 0}]}, "addons[0].quantity"),
        ({"addons": [{"id": "storage"}]}, "addons[0].quantity"),
        ({"addons": 20 * [{"id": "storage", "quantity": 1}]}, "addons"),
        ({"amount": 1}, "amount"),
    ],
)
async def test_faulty_orders_name_the_field(
    client: httpx2.AsyncClient,
    emptied: str,
    server: ProviderServer,
    body: dict[str, object],
    location: str,
) -> None:
    headers = await bearer(emptied)
    answer = await client.post(CHECKOUT, json={"plan": "pro"} | body, headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["location"]) == (422, location)
    assert server.requests == []


async def test_the_portal_needs_no_body(client: httpx2.AsyncClient, emptied: str) -> None:
    answer = await client.post(PORTAL, headers=await bearer(emptied))
    assert (answer.status_code, answer.json()) == (
        201,
        {"url": "https://billing.provider.example/p/1"},
    )


async def test_addresses_are_handed_on(
    client: httpx2.AsyncClient, emptied: str, server: ProviderServer
) -> None:
    body = {"plan": "pro", "successUrl": "https://a.example/", "cancelUrl": "https://b.example/"}
    await client.post(CHECKOUT, json=body, headers=await bearer(emptied))
    params = server.requests[0].params
    assert (params["success_url"], params["cancel_url"]) == (
        "https://a.example/",
        "https://b.example/",
    )


@pytest.mark.parametrize(
    "status", ["active", "trialing", "past_due", "unpaid", "paused", "incomplete"]
)
async def test_tenant_with_a_living_subscription_buys_no_second_one(
    client: httpx2.AsyncClient, emptied: str, server: ProviderServer, status: str
) -> None:
    headers = await bearer(emptied)
    await set_status(emptied, status)
    answer = await client.post(CHECKOUT, json={"plan": "business"}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "subscription_exists")
    assert server.requests == []
    assert (await client.post(PORTAL, headers=headers)).status_code == 201


@pytest.mark.parametrize("status", ["canceled", "incomplete_expired", "none"])
async def test_tenant_without_a_living_subscription_buys_one(
    client: httpx2.AsyncClient, emptied: str, status: str
) -> None:
    headers = await bearer(emptied)
    await set_status(emptied, status)
    assert (
        await client.post(CHECKOUT, json={"plan": "business"}, headers=headers)
    ).status_code == 201


async def test_answer_of_a_checkout_stays_the_same_after_the_purchase(
    client: httpx2.AsyncClient, emptied: str
) -> None:
    headers = {**await bearer(emptied), "Idempotency-Key": "once"}
    first = await client.post(CHECKOUT, json={"plan": "pro"}, headers=headers)
    await set_status(emptied, "active")
    again = await client.post(CHECKOUT, json={"plan": "pro"}, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())


async def test_separate_subscriptions_may_be_several(emptied: str, server: ProviderServer) -> None:
    headers = await bearer(emptied)
    await set_status(emptied, "active")
    async with running_app(
        emptied, SUBSCRIPTIONS="each", PROVIDER_SECRET_KEY=KEY, PROVIDER_API_BASE=server.url
    ) as client:
        answer = await client.post(CHECKOUT, json={"plan": "business"}, headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize("path", [CHECKOUT, PORTAL])
async def test_read_scope_does_not_allow_checkout(
    client: httpx2.AsyncClient, emptied: str, path: str
) -> None:
    answer = await client.post(
        path, json={"plan": "pro"}, headers=await bearer(emptied, "billing:read")
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_scope")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHECKOUT, {}),
        (CHECKOUT, {"plan": "free"}),
        (CHECKOUT, {"plan": "pro", "price": "price_1"}),
        (CHECKOUT, {"plan": "pro", "successUrl": "javascript:alert(1)"}),
        (PORTAL, {"returnUrl": "nowhere"}),
    ],
)
async def test_what_is_not_acceptable(
    client: httpx2.AsyncClient, emptied: str, path: str, body: dict[str, str]
) -> None:
    answer = await client.post(path, json=body, headers=await bearer(emptied))
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")


async def test_the_idempotency_key_counts(client: httpx2.AsyncClient, emptied: str) -> None:
    headers = {**await bearer(emptied), "Idempotency-Key": "k1"}
    first = await client.post(CHECKOUT, json={"plan": "pro"}, headers=headers)
    again = await client.post(CHECKOUT, json={"plan": "pro"}, headers=headers)
    other = await client.post(CHECKOUT, json={"plan": "business"}, headers=headers)
    elsewhere = await client.post(PORTAL, json={}, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert elsewhere.status_code == 201


async def test_without_a_provider_key(emptied: str) -> None:
    headers = await bearer(emptied)
    async with running_app(emptied) as client:
        answer = await client.post(CHECKOUT, json={"plan": "pro"}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (501, "provider_not_configured")


async def test_a_provider_key_that_is_not_accepted(emptied: str, server: ProviderServer) -> None:
    headers = await bearer(emptied)
    async with running_app(
        emptied, PROVIDER_SECRET_KEY="sk_test_wrong", PROVIDER_API_BASE=server.url
    ) as client:
        answer = await client.post(CHECKOUT, json={"plan": "pro"}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (502, "provider_refused")
    assert "sk_test_wrong" not in answer.text


@pytest.mark.parametrize("path", [CHECKOUT, PORTAL])
async def test_operator_begins_a_session_for_a_tenant_that_is_not_suspended(
    client: httpx2.AsyncClient, emptied: str, path: str
) -> None:
    await bearer(emptied)
    operator = {
        "Authorization": f"Bearer {OPERATOR_TOKEN}",
        "X-Act-As-Organization": "acme",
        "X-On-Behalf-Of": "agent_7",
    }
    body = {"plan": "pro"} if path == CHECKOUT else {}
    begun = await client.post(path, json=body, headers=operator)
    assert (begun.status_code, begun.json()["url"][:8]) == (201, "https://")
    written = await rows(emptied, "SELECT actor_kind, on_behalf_of FROM audit_events")
    assert written == [{"actor_kind": "operator", "on_behalf_of": "agent_7"}]
    await rows(
        emptied, "UPDATE tenants SET suspended_at = now(), suspension = '' WHERE id = 'acme'"
    )
    refused = await client.post(path, json=body, headers=operator)
    assert (refused.status_code, refused.json()["code"]) == (403, "org_suspended")


async def test_operator_begins_no_session_for_a_tenant_suspended_meanwhile(
    client: httpx2.AsyncClient, emptied: str
) -> None:
    await bearer(emptied)
    operator = {"Authorization": f"Bearer {OPERATOR_TOKEN}", "X-Act-As-Organization": "acme"}
    async with await psycopg.AsyncConnection.connect(emptied) as other:
        await other.execute("SELECT FROM tenants WHERE id = 'acme' FOR NO KEY UPDATE")
        waiting = asyncio.create_task(client.post(CHECKOUT, json={"plan": "pro"}, headers=operator))
        await until_blocked(emptied)
        await other.execute(
            "UPDATE tenants SET suspended_at = now(), suspension = '' WHERE id = 'acme'"
        )
    refused = await waiting
    assert (refused.status_code, refused.json()["code"]) == (403, "org_suspended")
