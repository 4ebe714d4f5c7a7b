"""Features where requests are authenticated: at gateways, and in the process of applications."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import flask
import httpx2
import pytest
from django.core.handlers.asgi import ASGIHandler
from fastapi import Depends, FastAPI

from tenantry import wsgi
from tenantry.asgi import RequestPrincipal, TenantryAsgiMiddleware, principal_of
from tenantry.asgi.fastapi import install, require
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry.wsgi.flask import install as install_in_flask
from tenantry.wsgi.flask import requires
from tests.support.app import client_of, lifespan
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.django_project import django_app
from tests.support.emptying import SharedDatabase
from tests.support.feature_catalog import CATALOG, tenant_of
from tests.support.in_process import (
    answer,
    closing_in_thread,
    tenantry_of,
    threaded_tenantry_of,
)
from tests.support.service import VERIFY, Caller, Service, refusal, running_service
from tests.support.wsgi import wsgi_client

NEEDED: Final = "projects:read"
SSO: Final = "/feature/sso"
UNKNOWN: Final = "/feature/unknown"


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(
        shared_database.conninfo, TENANTRY_PLANS=catalog_file(CATALOG)
    ) as service:
        yield service


async def test_gateway_accepts_tenants_with_the_feature(service: Service) -> None:
    pro = await tenant_of(service, "pro")
    basic = await tenant_of(service, "basic")
    for feature in ("sso", "seats", "exports"):
        for scope in (NEEDED, "-"):
            path = f"{VERIFY}{scope}/feature:{feature}"
            assert (await pro.owner.get(path)).status_code == 200, path
    answer = await basic.owner.get(f"{VERIFY}{NEEDED}/feature:sso")
    assert refusal(answer) == (403, "feature_not_granted")
    assert answer.json()["detail"] == "The organization does not have the feature sso."
    assert answer.headers["x-problem"].encode() == answer.content
    assert "x-tenant-id" not in answer.headers


async def test_gateway_checks_the_scope_before_the_feature(service: Service) -> None:
    org = await tenant_of(service, "free")
    nothing = (await service.key(org.owner, org.id, "nothing:here")).caller
    path = f"{VERIFY}{NEEDED}/feature:sso"
    assert refusal(await nothing.get(path)) == (403, "insufficient_scope")
    assert refusal(await service.anonymous.get(path)) == (401, "missing_credential")


async def test_gateway_needs_every_feature_that_the_path_names(service: Service) -> None:
    pro = await tenant_of(service, "pro")
    two = f"{VERIFY}-/feature:sso/feature:seats"
    assert (await pro.owner.get(two)).status_code == 200
    for path in (f"{two}/feature:audit-log", f"{VERIFY}-/feature:audit-log/feature:sso"):
        assert refusal(await pro.owner.get(path)) == (403, "feature_not_granted")


async def test_gateway_reads_sixteen_features(service: Service) -> None:
    pro = await tenant_of(service, "pro")
    assert (await pro.owner.get(f"{VERIFY}-" + 16 * "/feature:sso")).status_code == 200
    answer = await pro.owner.get(f"{VERIFY}-" + 17 * "/feature:sso")
    assert refusal(answer) == (404, "not_found")


async def test_feature_that_the_catalog_does_not_declare_is_404_and_logged_once(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    pro = await tenant_of(service, "pro")
    free = await tenant_of(service, "free")
    for caller in (pro.owner, free.owner):
        for path in (f"{VERIFY}-/feature:sso-2/mode/any", "/api/v1/entitlements/sso-2"):
            answer = await caller.get(path)
            assert refusal(answer) == (404, "unknown_feature"), path
            assert answer.json()["detail"] == "The plan catalog has no feature 'sso-2'."
    assert caplog.text.count("sso-2") == 1


@cases("name", ["", "SSO", "sso%20", "%22sso%22", "sso%0A", "s%C3%A9o", "sso,seats"])
async def test_gateway_rejects_a_name_that_no_feature_has(service: Service, name: str) -> None:
    pro = await tenant_of(service, "pro")
    answer = await pro.owner.get(f"{VERIFY}-/feature:{name}")
    assert refusal(answer) == (404, "not_found")
    assert answer.headers["x-problem"].isascii()


async def test_mode_follows_the_features(service: Service) -> None:
    pro = await tenant_of(service, "pro")
    test = (await service.key(pro.owner, pro.id, NEEDED, mode="test")).caller
    with_feature = f"{VERIFY}{NEEDED}/feature:sso"
    for suffix in ("/mode/test", "/mode/any", "/feature:seats/mode/any"):
        assert (await test.get(with_feature + suffix)).status_code == 200, suffix
    others = ("", "/", "/mode/live", "/reports", "/mode/any/reports")
    for suffix in others:
        assert refusal(await test.get(with_feature + suffix)) == (403, "mode_mismatch"), suffix


async def test_feature_that_is_not_in_its_place_is_refused(service: Service) -> None:
    pro = await tenant_of(service, "pro")
    for path in ("FEATURE:sso", "mode/live/feature:sso", "/feature:sso", "%66eature:sso"):
        assert refusal(await pro.owner.get(f"{VERIFY}-/{path}")) == (404, "not_found"), path
    assert (await pro.owner.get(f"{VERIFY}-/mode/live/x/feature:audit-log")).status_code == 200


async def test_accepted_request_names_the_features(service: Service) -> None:
    expected = {"pro": "exports,seats,sso", "basic": "audit-log,exports", "free": ""}
    for plan, features in expected.items():
        org = await tenant_of(service, plan)
        assert (await org.owner.get(f"{VERIFY}-")).headers["x-features"] == features


class App:
    """An application with routes that need a feature."""

    def __init__(self, client: httpx2.AsyncClient, below: str = "") -> None:
        self._client = client
        self._below = below

    async def get(self, caller: Caller, path: str) -> httpx2.Response:
        return await Caller(self._client, caller.credential).get(self._below + path)


def asgi_app(tenantry: Any) -> Any:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        feature = scope["path"].rpartition("/")[2]
        principal_of(scope).require(NEEDED, feature=feature)
        await answer(send, b"{}")

    return TenantryAsgiMiddleware(app, tenantry=tenantry, owns_lifespan=True)


def fastapi_app(tenantry: Any) -> FastAPI:
    app = FastAPI(lifespan=tenantry.lifespan)
    install(app, tenantry)

    @app.get(SSO)
    async def sso(
        _caller: Annotated[RequestPrincipal, Depends(require(NEEDED, feature="sso"))],
    ) -> dict[str, str]:
        return {}

    @app.get(UNKNOWN)
    async def unknown(
        _caller: Annotated[RequestPrincipal, Depends(require(NEEDED, feature="unknown"))],
    ) -> dict[str, str]:
        return {}

    return app


def wsgi_app(tenantry: wsgi.WsgiAuthenticator) -> WSGIApplication:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        feature = environ["PATH_INFO"].rpartition("/")[2]
        wsgi.principal_of(environ).require(NEEDED, feature=feature)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [b"{}"]

    return wsgi.TenantryWsgiMiddleware(app, tenantry=tenantry)


def flask_app(tenantry: wsgi.WsgiAuthenticator) -> WSGIApplication:
    app = flask.Flask("features")
    install_in_flask(app, tenantry)
    for path in (SSO, UNKNOWN):
        view = requires(NEEDED, feature=path.rpartition("/")[2])(dict)
        app.add_url_rule(path, path, view)
    return app


@asynccontextmanager
async def running_asgi(make: Callable[[Any], Any], service: Service) -> AsyncIterator[App]:
    app = make(tenantry_of(service, TENANTRY_PLANS=catalog_file(CATALOG)))
    async with lifespan(app), client_of(app) as client:
        yield App(client)


@asynccontextmanager
async def running_wsgi(
    make: Callable[[wsgi.WsgiAuthenticator], WSGIApplication], service: Service
) -> AsyncIterator[App]:
    tenantry = threaded_tenantry_of(service, TENANTRY_PLANS=catalog_file(CATALOG))
    async with closing_in_thread(tenantry), wsgi_client(make(tenantry)) as client:
        yield App(client)


@asynccontextmanager
async def running_async_django(service: Service) -> AsyncIterator[App]:
    tenantry = threaded_tenantry_of(service, TENANTRY_PLANS=catalog_file(CATALOG))
    async with (
        closing_in_thread(tenantry),
        client_of(django_app(tenantry, ASGIHandler, ON_DEMAND=True)) as client,
    ):
        yield App(client, "/async")


RUNNING: Final[dict[str, Callable[[Service], AbstractAsyncContextManager[App]]]] = {
    "ASGI": partial(running_asgi, asgi_app),
    "FastAPI": partial(running_asgi, fastapi_app),
    "WSGI": partial(running_wsgi, wsgi_app),
    "Flask": partial(running_wsgi, flask_app),
    "Django": partial(running_wsgi, partial(django_app, ON_DEMAND=True)),
    "Django under ASGI": running_async_django,
}


@pytest.fixture(scope="module", params=RUNNING)
async def app(request: pytest.FixtureRequest, service: Service) -> AsyncIterator[App]:
    async with RUNNING[request.param](service) as app:
        yield app


async def test_route_accepts_tenants_with_its_feature(service: Service, app: App) -> None:
    pro = await tenant_of(service, "pro")
    basic = await tenant_of(service, "basic")
    assert (await app.get(pro.owner, SSO)).status_code == 200
    assert refusal(await app.get(basic.owner, SSO)) == (403, "feature_not_granted")
    nothing = (await service.key(basic.owner, basic.id, "nothing:here")).caller
    assert refusal(await app.get(nothing, SSO)) == (403, "insufficient_scope")


async def test_unknown_feature_in_code_is_404(service: Service, app: App) -> None:
    pro = await tenant_of(service, "pro")
    assert refusal(await app.get(pro.owner, UNKNOWN)) == (404, "unknown_feature")
