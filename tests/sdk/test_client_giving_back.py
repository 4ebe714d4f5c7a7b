"""Giving back in the clients: the call, and blocks that give back when they fail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import psycopg
import pytest

from tenantry_sdk import AsyncTenantry, Tenantry, errors
from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.sdk.sdk_support import Flavour, Served, answered_by, serving
from tests.support.app import OPERATOR_TOKEN
from tests.support.catalogs import catalog_file
from tests.support.feature_catalog import CATALOG, tenant_of
from tests.support.postgres import PostgresServer
from tests.support.service import Organization


class WorkFailedError(Exception):
    """What a block raises."""


@pytest.fixture(scope="module")
async def selling(postgres: PostgresServer) -> AsyncIterator[Served]:
    with postgres.database() as conninfo:
        async with serving(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as served:
            yield served


@pytest.fixture
async def basic(selling: Served) -> Organization:
    return await tenant_of(selling.service, "basic")


async def used(org: Organization) -> int:
    number: int = (await org.owner.get("/api/v1/entitlements/exports")).json()["used"]
    return number


@asynccontextmanager
async def acting(flavour: Flavour, url: str, org: Organization) -> AsyncIterator[Any]:
    """What the operator's client has of the tenant's entitlements."""
    async with flavour.client(operator_token=OPERATOR_TOKEN, base_url=url) as client:
        yield client.tenant(org.id).entitlements


def forget(selling: Served, org: Organization) -> None:
    """Remove what a consumption left, as age does."""
    with psycopg.connect(selling.service.conninfo) as connection:
        connection.execute("DELETE FROM consumption_keys WHERE org_id = %s", (org.id,))


async def test_operator_gives_back(selling: Served, basic: Organization, flavour: Flavour) -> None:
    key = "jobs/7%2F?#"
    async with acting(flavour, selling.url, basic) as entitlements:
        await entitlements.consume("exports", 4, idempotency_key=key)
        for _ in range(2):
            returned = await entitlements.give_back("exports", idempotency_key=key)
            assert (returned.used, returned.remaining, returned.counted) == (0, 10, True)
        with pytest.raises(errors.ConflictError) as refused:
            await entitlements.consume("exports", 4, idempotency_key=key)
        assert refused.value.code == "consumption_given_back"
        with pytest.raises(errors.NotFoundError) as unknown:
            await entitlements.give_back("exports", idempotency_key="other")
        assert unknown.value.code == "unknown_consumption"
    assert await used(basic) == 0


async def test_lost_answers_of_giving_back_give_back_once(
    selling: Served, basic: Organization, flavour: Flavour
) -> None:
    await basic.owner.post("/api/v1/entitlements/exports/consume", {"amount": 3})
    failures = iter([Failure.RESET_AFTER, Failure.UNAVAILABLE_AFTER, Failure.TRUNCATED])
    async with acting(flavour, selling.url, basic) as entitlements:
        await entitlements.consume("exports", 4, idempotency_key="job-1")
    async with (
        faulty_proxy(selling.url, lambda: next(failures, Failure.NONE)) as (url, _),
        acting(flavour, url, basic) as entitlements,
    ):
        returned = await entitlements.give_back("exports", idempotency_key="job-1")
    assert (returned.used, await used(basic)) == (3, 3)


async def test_other_clients_give_nothing_back(
    selling: Served, basic: Organization, flavour: Flavour
) -> None:
    async with flavour.client_of(selling, basic) as client:
        await client.entitlements.consume("exports", 4, idempotency_key="job-1")
        with pytest.raises(errors.PermissionDeniedError) as refused:
            await client.entitlements.give_back("exports", idempotency_key="job-1")
    assert refused.value.code == "operator_required"
    assert await used(basic) == 4


async def test_what_is_no_key_is_not_sent(flavour: Flavour) -> None:
    def fail(request: httpx2.Request) -> httpx2.Response:
        raise AssertionError(request.url)

    async with answered_by(flavour, fail, None, operator_token="op") as client:
        for key in ("", "a b", ".", "..", "x" * 256):
            with pytest.raises(ValueError, match=r"must be 1 to 255|is not an id"):
                await client.tenant("acme").entitlements.give_back("exports", idempotency_key=key)


async def test_block_that_fails_gives_back(selling: Served, basic: Organization) -> None:
    async def work(client: AsyncTenantry) -> None:
        async with client.tenant(basic.id).entitlements.consuming("exports", 4) as consumed:
            assert consumed.used == 4
            raise WorkFailedError

    async with AsyncTenantry(operator_token=OPERATOR_TOKEN, base_url=selling.url) as client:
        with pytest.raises(WorkFailedError) as raised:
            await work(client)
        assert not hasattr(raised.value, "__notes__")
        assert await used(basic) == 0
        async with client.tenant(basic.id).entitlements.consuming("exports", 3):
            pass
    assert await used(basic) == 3


async def test_block_that_is_canceled_gives_back(selling: Served, basic: Organization) -> None:
    entered = asyncio.Event()

    async def work(client: AsyncTenantry) -> None:
        async with client.tenant(basic.id).entitlements.consuming("exports", 4):
            entered.set()
            await asyncio.Event().wait()

    async with AsyncTenantry(operator_token=OPERATOR_TOKEN, base_url=selling.url) as client:
        task = asyncio.create_task(work(client))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await used(basic) == 0


async def test_block_in_a_canceled_scope_gives_back(selling: Served, basic: Organization) -> None:
    async with AsyncTenantry(operator_token=OPERATOR_TOKEN, base_url=selling.url) as client:
        with anyio.CancelScope() as scope:
            async with client.tenant(basic.id).entitlements.consuming("exports", 4):
                scope.cancel()
                await anyio.sleep_forever()
    assert await used(basic) == 0


async def test_error_of_the_block_is_raised_if_giving_back_fails(
    selling: Served, basic: Organization, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        with (
            Tenantry(operator_token=OPERATOR_TOKEN, base_url=selling.url) as client,
            client.tenant(basic.id).entitlements.consuming("exports", 4),
        ):
            forget(selling, basic)
            raise WorkFailedError

    with pytest.raises(WorkFailedError) as raised:
        await asyncio.to_thread(work)
    [note] = raised.value.__notes__
    assert note.startswith("The use of exports could not be given back: 404 unknown_consumption")
    assert note in caplog.text


async def test_synchronous_block_that_fails_gives_back(
    selling: Served, basic: Organization
) -> None:
    def work() -> None:
        with (
            Tenantry(operator_token=OPERATOR_TOKEN, base_url=selling.url) as client,
            client.tenant(basic.id).entitlements.consuming("exports", 4),
        ):
            raise WorkFailedError

    with pytest.raises(WorkFailedError):
        await asyncio.to_thread(work)
    assert await used(basic) == 0


def test_block_of_another_client_consumes_nothing() -> None:
    def fail(request: httpx2.Request) -> httpx2.Response:
        raise AssertionError(request.url)

    with httpx2.Client(transport=httpx2.MockTransport(fail)) as http_client:
        for client in (
            Tenantry("key", http_client=http_client),
            Tenantry(operator_token="op", http_client=http_client),
        ):
            with pytest.raises(errors.ConfigurationError), client.entitlements.consuming("exports"):
                pass


def test_block_that_consumes_nothing_does_not_begin() -> None:
    requests = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        requests.append(request.method)
        return httpx2.Response(403, json={"code": "quota_exceeded", "detail": "Why."})

    with httpx2.Client(transport=httpx2.MockTransport(refuse)) as http_client:
        client = Tenantry(operator_token="op", http_client=http_client).tenant("acme")
        with pytest.raises(errors.QuotaExceededError), client.entitlements.consuming("exports"):
            raise AssertionError
    assert requests == ["POST"]
