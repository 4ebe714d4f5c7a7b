"""Giving back what an application consumed in its own process, a failed block included."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from tenantry.asgi import AsgiAuthenticator, AsgiPrincipal
from tenantry.domain.errors import ConsumptionGivenBackError, UnknownConsumptionError
from tenantry.wsgi import WsgiAuthenticator, WsgiPrincipal
from tests.support.app import OPERATOR_TOKEN
from tests.support.catalogs import catalog_file
from tests.support.documentation import block_of
from tests.support.emptying import SharedDatabase
from tests.support.feature_catalog import CATALOG, tenant_of
from tests.support.in_process import closing_in_thread, tenantry_of, threaded_tenantry_of
from tests.support.service import Organization, Service, running_service

ENTITLEMENT = "/api/v1/entitlements/exports"


class WorkFailedError(Exception):
    """What a block raises."""


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(
        shared_database.conninfo, TENANTRY_PLANS=catalog_file(CATALOG)
    ) as service:
        yield service


@pytest.fixture(scope="module")
async def tenantry(service: Service) -> AsyncIterator[AsgiAuthenticator]:
    async with tenantry_of(service, TENANTRY_PLANS=catalog_file(CATALOG)) as tenantry:
        yield tenantry


@pytest.fixture(scope="module")
async def threaded(service: Service) -> AsyncIterator[WsgiAuthenticator]:
    threaded = threaded_tenantry_of(service, TENANTRY_PLANS=catalog_file(CATALOG))
    async with closing_in_thread(threaded):
        yield threaded


@pytest.fixture
async def basic(service: Service) -> Organization:
    return await tenant_of(service, "basic")


@pytest.fixture
async def caller(tenantry: AsgiAuthenticator, basic: Organization) -> AsgiPrincipal:
    return await caller_of(tenantry, basic)


async def caller_of(tenantry: AsgiAuthenticator, org: Organization) -> AsgiPrincipal:
    headers = [(b"authorization", f"Bearer {org.owner.credential}".encode())]
    admitted = await tenantry.admit({"type": "http", "path": "/", "headers": headers})
    assert isinstance(admitted.principal, AsgiPrincipal)
    return admitted.principal


def threaded_caller(tenantry: WsgiAuthenticator, org: Organization) -> WsgiPrincipal:
    environ = {"REQUEST_METHOD": "GET", "HTTP_AUTHORIZATION": f"Bearer {org.owner.credential}"}
    principal = tenantry.admit(environ).principal
    assert isinstance(principal, WsgiPrincipal)
    return principal


async def used(org: Organization) -> int:
    number: int = (await org.owner.get(ENTITLEMENT)).json()["used"]
    return number


async def forget(service: Service, org: Organization) -> None:
    """Remove what a consumption left, as age does."""
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("DELETE FROM consumption_keys WHERE org_id = %s", (org.id,))


async def test_application_gives_back_for_its_caller(
    basic: Organization, caller: AsgiPrincipal
) -> None:
    await caller.consume("exports", 4, idempotency_key="job-1")
    for _ in range(2):
        returned = await caller.give_back("exports", idempotency_key="job-1")
        assert (returned.used, returned.remaining) == (0, 10)
    assert await used(basic) == 0
    with pytest.raises(ConsumptionGivenBackError):
        await caller.consume("exports", 4, idempotency_key="job-1")
    with pytest.raises(UnknownConsumptionError):
        await caller.give_back("exports", idempotency_key="job-2")
    with pytest.raises(ValueError, match="must be 1 to"):
        await caller.give_back("exports", idempotency_key="job 1")


async def test_it_and_the_operator_give_back_once(
    service: Service, basic: Organization, caller: AsgiPrincipal
) -> None:
    operator = service.caller(OPERATOR_TOKEN, X_Act_As_Organization=basic.id)
    key = "svc_live_abcdefghijklmnopqrstuvwxyz"  # like a credential, and stored as its digest
    await caller.consume("exports", 4, idempotency_key=key)
    here = await caller.give_back("exports", idempotency_key=key)
    there = await operator.delete(f"{ENTITLEMENT}/consumptions/{key}")
    assert (there.json()["used"], here.used, await used(basic)) == (0, 0, 0)


async def test_block_that_fails_gives_back(basic: Organization, caller: AsgiPrincipal) -> None:
    async def work() -> None:
        async with caller.consuming("exports", 4) as consumed:
            assert consumed.used == 4
            raise WorkFailedError

    with pytest.raises(WorkFailedError) as raised:
        await work()
    assert not hasattr(raised.value, "__notes__")
    assert await used(basic) == 0


async def test_block_that_succeeds_has_consumed(basic: Organization, caller: AsgiPrincipal) -> None:
    async with caller.consuming("exports", 4, idempotency_key="job-1"):
        pass
    assert (await caller.consume("exports", 4, idempotency_key="job-1")).used == 4
    assert await used(basic) == 4


async def test_block_that_is_canceled_gives_back(
    basic: Organization, caller: AsgiPrincipal
) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with caller.consuming("exports", 4):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await used(basic) == 0


async def test_error_of_the_block_is_raised_if_giving_back_fails(
    service: Service,
    basic: Organization,
    caller: AsgiPrincipal,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with caller.consuming("exports", 4):
            await forget(service, basic)
            raise WorkFailedError

    with pytest.raises(WorkFailedError) as raised:
        await work()
    [note] = raised.value.__notes__
    assert note.startswith("The use of exports could not be given back: The organization consumed")
    assert note in caplog.text


async def test_threads_give_back(
    service: Service, basic: Organization, threaded: WsgiAuthenticator
) -> None:
    loop = asyncio.get_running_loop()

    def work(*, forgets: bool) -> None:
        with threaded_caller(threaded, basic).consuming("exports", 4):
            if forgets:
                asyncio.run_coroutine_threadsafe(forget(service, basic), loop).result()
            raise WorkFailedError

    def fail(*, forgets: bool = False) -> BaseException:
        with pytest.raises(WorkFailedError) as raised:
            work(forgets=forgets)
        return raised.value

    assert not hasattr(await asyncio.to_thread(fail), "__notes__")
    assert await used(basic) == 0
    assert len((await asyncio.to_thread(fail, forgets=True)).__notes__) == 1
    caller = await asyncio.to_thread(threaded_caller, threaded, basic)
    await asyncio.to_thread(caller.consume, "exports", 3, idempotency_key="job-1")
    returned = await asyncio.to_thread(caller.give_back, "exports", idempotency_key="job-1")
    assert returned.used == 4


async def test_documented_privileges_are_enough(service: Service, basic: Organization) -> None:
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("CREATE ROLE giver LOGIN")
        for block in ("GRANT SELECT ON tenantry_version", "GRANT SELECT, INSERT, UPDATE ON usage"):
            grants = block_of("how-to/in-process.md", block).replace(" TO app;", " TO giver;")
            await connection.execute(grants.encode())
    try:
        conninfo = psycopg.conninfo.make_conninfo(service.conninfo, user="giver")
        catalog = catalog_file(CATALOG)
        async with tenantry_of(service, TENANTRY_PLANS=catalog, DATABASE_URL=conninfo) as tenantry:
            caller = await caller_of(tenantry, basic)
            await caller.consume("exports", 4, idempotency_key="job-1")
            assert (await caller.give_back("exports", idempotency_key="job-1")).used == 0
    finally:
        async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
            await connection.execute("DROP OWNED BY giver")
            await connection.execute("DROP ROLE giver")
