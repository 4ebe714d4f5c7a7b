"""One client for many callers: what a checked caller consumes, and copies with another key."""

import asyncio
import json
import pickle
import traceback
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import pytest

from tenantry_sdk import Secret, errors
from tests.sdk.sdk_support import ASYNC, Flavour, Served, answered_by, serving
from tests.support.catalogs import catalog_file
from tests.support.feature_catalog import CATALOG, tenant_of
from tests.support.postgres import PostgresServer

SECRET: Final = "svc_live_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM"
PRINCIPAL: Final = {
    "X-Tenant-Id": "acme",
    "X-Principal-Id": "key_1",
    "X-Principal-Kind": "api_key",
    "X-Mode": "live",
    "X-Plan": "pro",
    "X-Access": "full",
    "X-Effective-Plan": "pro",
    "X-Subscription-Status": "active",
}
USED: Final = {"used": 3, "remaining": 7, "resetsAt": "2026-04-01T00:00:00Z"}


class Checking:
    """Accepts every check, and answers other requests in one way; None loses the connection."""

    def __init__(self, answer: httpx2.Response | None) -> None:
        self._answer = answer
        self.others: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if "/auth/verify/" in request.url.path:
            return httpx2.Response(200, headers=PRINCIPAL)
        self.others.append(request)
        if self._answer is None:
            raise httpx2.ReadError("lost")
        return httpx2.Response(self._answer.status_code, content=self._answer.content)


@pytest.fixture(scope="module")
async def selling(postgres: PostgresServer) -> AsyncIterator[Served]:
    """The service with features in its plan catalog."""
    with postgres.database() as conninfo:
        async with serving(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as running:
            yield running


async def test_callers_consume_by_their_own_credentials(selling: Served, flavour: Flavour) -> None:
    tenants = [await tenant_of(selling.service, "basic") for _ in range(2)]
    async with flavour.client(base_url=selling.url) as client:
        for used, tenant in enumerate(tenants, 1):
            headers = {"Authorization": f"Bearer {tenant.owner.credential}"}
            caller = await client.auth.verify(headers, None)
            counted = await consume(flavour, caller, "exports", used, idempotency_key="job-1")
            again = await consume(flavour, caller, "exports", used, idempotency_key="job-1")
            assert (counted.used, again.used, counted.remaining) == (used, used, 10 - used)
            with pytest.raises(errors.QuotaExceededError):
                await consume(flavour, caller, "exports", 11)
            with pytest.raises(errors.UnknownFeatureError):
                await consume(flavour, caller, "imports")


async def test_rejection_of_a_consuming_caller_is_for_them(
    selling: Served, flavour: Flavour
) -> None:
    tenant = await tenant_of(selling.service, "basic")
    key = await selling.service.key(tenant.owner, tenant.id, "a:b")
    async with flavour.client(base_url=selling.url) as client:
        caller = await client.auth.verify(
            {"Authorization": f"Bearer {key.caller.credential}"}, "a:b"
        )
        await tenant.owner.delete(key.path)
        with pytest.raises(errors.AuthenticationError) as rejected:
            await consume(flavour, caller, "exports", 1)
    assert rejected.value.is_for_caller
    async with flavour.client("svc_live_unknown", base_url=selling.url) as own:
        with pytest.raises(errors.AuthenticationError) as own_rejection:
            await own.entitlements.get("exports")
    assert not own_rejection.value.is_for_caller


async def test_user_consumes_for_the_organization_that_the_check_found(
    selling: Served, flavour: Flavour
) -> None:
    first, second = [await tenant_of(selling.service, "basic") for _ in range(2)]
    user = selling.service.user(f"una-{flavour.name}")
    headers = {"Authorization": f"Bearer {user.credential}"}
    for tenant in (first, second):
        async with flavour.client_of(selling, tenant) as owner:
            await owner.members.create(user_id=f"una-{flavour.name}", role="member")
    async with flavour.client(base_url=selling.url) as client:
        named = {**headers, "X-Organization-Id": second.id}
        caller = await client.auth.verify(named, None)
        assert (await consume(flavour, caller, "exports", 2)).used == 2
    async with flavour.client_of(selling, first) as owner:
        assert (await owner.entitlements.get("exports")).used == 0


async def consume(flavour: Flavour, caller: Any, *values: Any, **options: Any) -> Any:
    """Consume with either client."""
    if flavour is ASYNC:
        return await caller.consume(*values, **options)
    return await asyncio.to_thread(caller.consume, *values, **options)


async def test_consuming_request_has_what_the_check_was_sent(flavour: Flavour) -> None:
    upstream = Checking(httpx2.Response(200, json=USED))
    headers = {"Authorization": f"Bearer {SECRET}", "X-Request-Id": "4f2a"}
    async with answered_by(flavour, upstream, "own", organization="other") as client:
        caller = await client.auth.verify(headers, None, client_address="192.0.2.1")
        await consume(flavour, caller, "exports", 3, idempotency_key="job-1", headers={"X-A": "b"})
    [request] = upstream.others
    sent = request.headers
    assert (request.method, request.url.path) == ("POST", "/api/v1/entitlements/exports/consume")
    assert json.loads(request.content) == {"amount": 3}
    assert sent["authorization"] == f"Bearer {SECRET}"
    assert sent["x-organization-id"] == "acme"
    assert sent["x-forwarded-for"] == "192.0.2.1"
    assert (sent["x-request-id"], sent["idempotency-key"], sent["x-a"]) == ("4f2a", "job-1", "b")


async def test_key_of_another_header_is_sent_in_it(flavour: Flavour) -> None:
    upstream = Checking(httpx2.Response(200, json=USED))
    async with answered_by(flavour, upstream, "own") as client:
        caller = await client.auth.verify({"x-api-key": SECRET}, None, api_key_header="X-API-Key")
        await consume(flavour, caller, "exports")
    [request] = upstream.others
    assert request.headers["x-api-key"] == SECRET
    assert "authorization" not in request.headers


async def test_caller_consumes_or_not_while_the_service_is_unavailable(flavour: Flavour) -> None:
    async with answered_by(flavour, Checking(None), retries=0) as client:
        caller = await client.auth.verify({"Authorization": f"Bearer {SECRET}"}, None)
        allowed = await consume(flavour, caller, "exports", on_unavailable="allow")
        assert not allowed.counted
        with pytest.raises(errors.EntitlementDeniedError) as denied:
            await consume(flavour, caller, "exports", on_unavailable="deny")
        with pytest.raises(errors.UnavailableError) as away:
            await consume(flavour, caller, "exports")
    assert (away.value.status_code, away.value.is_for_caller) == (503, True)
    assert isinstance(away.value.__cause__, errors.ConnectionFailedError)
    shown = "".join(
        traceback.TracebackException.from_exception(denied.value, capture_locals=True).format()
    )
    for text in (repr(caller), str(vars(caller)), shown):
        assert SECRET not in text


async def test_limit_of_a_caller_is_not_waited_for(flavour: Flavour) -> None:
    limited = {"title": "x", "status": 429, "detail": "Wait.", "code": "rate_limited"}
    upstream = Checking(httpx2.Response(429, json=limited))
    async with answered_by(flavour, upstream) as client:
        caller = await client.auth.verify({"Authorization": f"Bearer {SECRET}"}, None)
        with pytest.raises(errors.RateLimitedError):
            await consume(flavour, caller, "exports")
    assert len(upstream.others) == 1


async def test_headers_of_the_client_are_not_sent_for_its_callers(flavour: Flavour) -> None:
    upstream = Checking(httpx2.Response(200, json=USED))
    async with answered_by(flavour, upstream) as client:
        copy = client.with_options(headers={"X-Team": "billing"})
        caller = await copy.auth.verify({"Authorization": f"Bearer {SECRET}"}, None)
        await consume(flavour, caller, "exports")
        await consume(flavour, caller, "exports", headers={"X-Team": "its own"})
    assert [each.headers.get("x-team") for each in upstream.others] == [None, "its own"]


async def test_cookie_of_one_caller_is_not_sent_for_another(flavour: Flavour) -> None:
    sent = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers.get("cookie"))
        return httpx2.Response(200, headers={**PRINCIPAL, "Set-Cookie": "session=1; Path=/"})

    async with answered_by(flavour, answer) as client:
        for _ in range(2):
            await client.auth.verify({"Authorization": f"Bearer {SECRET}"}, None)
    assert sent == [None, None]


async def test_stored_principal_has_no_credential(flavour: Flavour) -> None:
    async with answered_by(flavour, Checking(httpx2.Response(200, json=USED))) as client:
        caller = await client.auth.verify({"Authorization": f"Bearer {SECRET}"}, None)
    stored = pickle.dumps(caller)
    assert SECRET.encode() not in stored
    with pytest.raises(errors.ConfigurationError, match="needs a principal that verify"):
        await consume(flavour, pickle.loads(stored), "exports")  # noqa: S301  # our own


async def test_copy_with_another_key_acts_with_it_alone(flavour: Flavour) -> None:
    upstream = Checking(httpx2.Response(200, json={"data": []}))
    async with answered_by(flavour, upstream, "first", organization="one") as client:
        other = client.with_options(api_key=Secret(SECRET))
        named = client.with_options(api_key=SECRET, organization="two")
        for each in (client, other, named, other.with_options(timeout=5)):
            await each.request("GET", "/api/v1/entitlements")
        with pytest.raises(errors.ConfigurationError, match="the API key is empty"):
            client.with_options(api_key=" ")
    assert [request.headers["authorization"] for request in upstream.others] == [
        "Bearer first",
        *[f"Bearer {SECRET}"] * 3,
    ]
    assert [request.headers.get("x-organization-id") for request in upstream.others] == [
        "one",
        None,
        "two",
        None,
    ]


async def test_copy_of_the_operators_client_with_a_key_acts_for_no_tenant(
    flavour: Flavour,
) -> None:
    upstream = Checking(httpx2.Response(200, json={"data": []}))
    token = "operator-token-of-thirty-two-characters"
    async with answered_by(flavour, upstream, None, operator_token=token) as client:
        copy = client.tenant("acme").with_options(api_key=SECRET)
        await copy.request("GET", "/api/v1/entitlements")
        with pytest.raises(errors.ConfigurationError, match="pass operator_token="):
            copy.tenant("acme")
    [request] = upstream.others
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert "x-act-as-organization" not in request.headers
