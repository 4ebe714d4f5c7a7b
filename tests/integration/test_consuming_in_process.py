"""Metered features that an application consumes in its own process, for its callers."""

import copy
import pickle
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, Final
from wsgiref.types import StartResponse, WSGIEnvironment

import httpx2
import msgspec
import psycopg
import pytest
from fastapi import Depends, FastAPI

from tenantry import wsgi
from tenantry.asgi import AsgiPrincipal
from tenantry.asgi.fastapi import install, require
from tenantry.domain.entitlements import Consumed
from tenantry.domain.permissions import RequestPrincipal, operator_principal
from tenantry.in_process.principals import Use, UsedKey
from tests.support.app import client_of, lifespan
from tests.support.catalogs import catalog_file
from tests.support.documentation import block_of
from tests.support.emptying import SharedDatabase
from tests.support.feature_catalog import CATALOG, tenant_of
from tests.support.in_process import closing_in_thread, tenantry_of, threaded_tenantry_of
from tests.support.service import Organization, Service, refusal, running_service
from tests.support.wsgi import wsgi_client

CONSUME: Final = "/api/v1/entitlements/exports/consume"


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(
        shared_database.conninfo, TENANTRY_PLANS=catalog_file(CATALOG)
    ) as service:
        yield service


def fastapi_app(tenantry: Any) -> FastAPI:
    app = FastAPI(lifespan=tenantry.lifespan)
    install(app, tenantry)

    @app.get("/{feature}/{amount}/{job}")
    async def consume(
        caller: Annotated[AsgiPrincipal, Depends(require())], feature: str, amount: int, job: str
    ) -> Any:
        used = await caller.consume(feature, amount, idempotency_key=job)
        return msgspec.to_builtins(used)

    return app


def wsgi_app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    _, feature, amount, job = environ["PATH_INFO"].split("/")
    caller = wsgi.principal_of(environ)
    used = caller.consume(feature, int(amount), idempotency_key=job)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [msgspec.json.encode(used)]


@asynccontextmanager
async def running_fastapi(service: Service, **values: str) -> AsyncIterator[httpx2.AsyncClient]:
    app = fastapi_app(tenantry_of(service, TENANTRY_PLANS=catalog_file(CATALOG), **values))
    async with lifespan(app), client_of(app) as client:
        yield client


@asynccontextmanager
async def running_wsgi(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    tenantry = threaded_tenantry_of(service, TENANTRY_PLANS=catalog_file(CATALOG))
    app = wsgi.TenantryWsgiMiddleware(wsgi_app, tenantry=tenantry)
    async with closing_in_thread(tenantry), wsgi_client(app) as client:
        yield client


RUNNING: Final[dict[str, Callable[[Service], AbstractAsyncContextManager[httpx2.AsyncClient]]]] = {
    "FastAPI": running_fastapi,
    "WSGI": running_wsgi,
}


@pytest.fixture(scope="module", params=RUNNING)
async def client(
    request: pytest.FixtureRequest, service: Service
) -> AsyncIterator[httpx2.AsyncClient]:
    async with RUNNING[request.param](service) as client:
        yield client


def by(org: Organization) -> dict[str, str]:
    return {"Authorization": f"Bearer {org.owner.credential}"}


async def test_application_consumes_for_its_caller(
    service: Service, client: httpx2.AsyncClient
) -> None:
    basic, other = await tenant_of(service, "basic"), await tenant_of(service, "basic")
    used = (await client.get("/exports/4/job-1", headers=by(basic))).json()
    assert (used["used"], used["remaining"]) == (4, 6)
    assert (await client.get("/exports/4/job-1", headers=by(other))).json() == used
    entitlement = (await basic.owner.get("/api/v1/entitlements/exports")).json()
    assert (entitlement["used"], entitlement["resetsAt"]) == (4, used["resetsAt"])


async def test_one_key_counts_once_in_the_process_and_over_http(
    service: Service, client: httpx2.AsyncClient
) -> None:
    basic = await tenant_of(service, "basic")
    here = await client.get("/exports/4/job-1", headers=by(basic))
    there = await service.client.post(
        CONSUME,
        headers={**by(basic), "Idempotency-Key": "job-1", "Content-Type": "application/json"},
        content=b'{"amount":4}',
    )
    assert there.json() == here.json()
    other_amount = await client.get("/exports/5/job-1", headers=by(basic))
    assert refusal(other_amount) == (422, "idempotency_mismatch")


async def test_refused_use_is_the_applications_answer(
    service: Service, client: httpx2.AsyncClient
) -> None:
    basic = await tenant_of(service, "basic")
    for path, expected in {
        "/exports/11/job-1": (403, "quota_exceeded"),
        "/seats/1/job-1": (409, "feature_not_metered"),
        "/imports/1/job-1": (404, "unknown_feature"),
    }.items():
        assert refusal(await client.get(path, headers=by(basic))) == expected, path


async def test_amount_and_key_are_checked(service: Service, client: httpx2.AsyncClient) -> None:
    basic = await tenant_of(service, "basic")
    for path in ("/exports/0/job-1", "/exports/1000000001/job-1", "/exports/1/job%201"):
        with pytest.raises(ValueError, match="must be 1 to "):
            await client.get(path, headers=by(basic))


@pytest.mark.parametrize("amount", [1.5, True, "1"])
def test_amount_is_a_whole_number(amount: Any) -> None:
    with pytest.raises(ValueError, match="must be 1 to"):
        Use("exports", amount, None)


async def refuse_to_consume(_caller: RequestPrincipal, _use: Use | UsedKey) -> Consumed:
    raise AssertionError


def test_stored_caller_is_one_who_cannot_consume() -> None:
    caller = operator_principal("acme")
    names = RequestPrincipal.__struct_fields__
    fields = {name: getattr(caller, name) for name in names}
    consuming = AsgiPrincipal(**fields, consumer=refuse_to_consume, returner=refuse_to_consume)
    for stored in (pickle.loads(pickle.dumps(consuming)), copy.deepcopy(consuming)):  # noqa: S301  # our own
        assert (type(stored), stored.org_id, stored.scopes) == (RequestPrincipal, "acme", ("*:*",))


async def test_used_quota_is_published(service: Service, client: httpx2.AsyncClient) -> None:
    basic = await tenant_of(service, "basic")
    assert (await client.get("/exports/10/job-1", headers=by(basic))).status_code == 200
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        found = await connection.execute(
            "SELECT type FROM outbound_events WHERE org_id = %s", (basic.id,)
        )
        types = [row[0] for row in await found.fetchall()]
    assert types.count("entitlement.quota_reached") == 1


async def test_documented_privileges_are_enough(service: Service) -> None:
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("CREATE ROLE app LOGIN")
        for block in ("GRANT SELECT ON tenantry_version", "GRANT SELECT, INSERT, UPDATE ON usage"):
            grants: Any = block_of("how-to/in-process.md", block)
            await connection.execute(grants)
    try:
        basic = await tenant_of(service, "basic")
        conninfo = psycopg.conninfo.make_conninfo(service.conninfo, user="app")
        async with running_fastapi(service, DATABASE_URL=conninfo) as client:
            answer = await client.get("/exports/10/job-1", headers=by(basic))
        assert answer.json()["remaining"] == 0
    finally:
        async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
            await connection.execute("DROP OWNED BY app")
            await connection.execute("DROP ROLE app")
