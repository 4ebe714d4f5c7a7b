"""Caches must not answer one caller with the response to another: `Vary` and `Cache-Control` of
every response.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import httpx2
import pytest
from django.core.cache import cache
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler

from tenantry.asgi import TenantryAsgiMiddleware
from tenantry.wsgi import WsgiAuthenticator
from tests.support.app import client_of
from tests.support.cases import cases
from tests.support.django_project import (
    FETCH_FROM_CACHE,
    UPDATE_CACHE,
    configure_django,
    django_app,
)
from tests.support.in_process import (
    DJANGO,
    DJANGO_ASGI,
    FASTAPI,
    FLASK,
    MIDDLEWARE,
    SERVICE,
    WSGI,
    answer,
    closing_in_thread,
    running_app,
    tenantry_of,
    threaded_tenantry_of,
)
from tests.support.service import PROJECTS, WHOAMI, Caller, Service, running_service
from tests.support.wsgi import wsgi_client

KINDS: Final = (SERVICE, MIDDLEWARE, FASTAPI, WSGI, FLASK, DJANGO, DJANGO_ASGI)
CLIENTS: Final[dict[Any, Callable[[Any], httpx2.AsyncClient]]] = {
    WSGIHandler: wsgi_client,
    ASGIHandler: client_of,
}
ORDERS: Final[dict[str, dict[str, Any]]] = {
    "cache around tenantry": {"outer": [UPDATE_CACHE], "inner": [FETCH_FROM_CACHE]},
    "cache inside of tenantry": {"inner": [UPDATE_CACHE, FETCH_FROM_CACHE]},
    "cache outside of tenantry": {"outer": [UPDATE_CACHE, FETCH_FROM_CACHE]},
}
MODES: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "required": ({}, ("/plain", "/cached")),
    "optional": ({"OPTIONAL": True}, ("/plain", "/cached")),
    "on demand": (
        {"ON_DEMAND": True},
        ("/on-demand", "/cached-on-demand", "/cache-page-above", "/cache-page-below"),
    ),
}
"""The options of tenantry's middleware, and paths of the project; only the first one does not
permit to be cached.
"""


def varying(response: httpx2.Response) -> set[str]:
    """The names in ``Vary``, which must be one line."""
    lines = response.headers.get_list("vary")
    assert len(lines) <= 1, lines
    return {name.strip().lower() for line in lines for name in line.split(",")}


CALLER: Final = {"authorization", "x-organization-id"}


@cases("kind", KINDS)
async def test_response_names_what_it_depends_on(service: Service, kind: str) -> None:
    async with running_app(kind, service) as app:
        org = await service.organization()
        reader = await service.key(org.owner, org.id, "projects:read")
        for credential, scope, status in (
            (org.owner.credential, None, 200),
            (reader.caller.credential, "projects:write", 403),
            ("svc_live_x", None, 401),
            (None, None, 401),
        ):
            response = await app.caller(credential).get(app.path(scope))
            assert response.status_code == status
            assert varying(response) >= CALLER, credential
            assert response.headers["cache-control"] in {"private", "no-store"}, credential


async def test_service_names_it_beside_other_request_headers(conninfo: str) -> None:
    async with running_service(conninfo, CORS_ORIGINS="https://app.example") as service:
        org = await service.organization()
        for path in (WHOAMI, PROJECTS):
            response = await service.caller(org.owner.credential, Origin="https://app.example").get(
                path
            )
            assert varying(response) == {"origin", *CALLER}
        assert varying(await org.owner.get("/api/v1/nothing")) == {"accept", "origin", *CALLER}
        assert (
            varying(await service.anonymous.call("POST", "/api/v1/webhooks/payment-provider"))
            == set()
        )


@cases(
    ("own", "vary", "cache_control"),
    [
        ([], CALLER, "private"),
        ([(b"vary", b"Accept-Encoding, authorization")], {"accept-encoding", *CALLER}, "private"),
        ([(b"vary", b"Cookie"), (b"Vary", b"Accept")], {"cookie", "accept", *CALLER}, "private"),
        ([(b"vary", b"*")], {"*"}, "private"),
        ([(b"cache-control", b"public, max-age=5")], CALLER, "public, max-age=5"),
        ([(b"Cache-Control", b"no-cache")], CALLER, "no-cache"),
    ],
)
async def test_middleware_keeps_what_the_application_says(
    service: Service, own: list[tuple[bytes, bytes]], vary: set[str], cache_control: str
) -> None:
    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await answer(send, b"{}", *own)

    org = await service.organization()
    async with tenantry_of(service) as tenantry:
        app = TenantryAsgiMiddleware(
            application, tenantry=tenantry, public=["/open"], optional=True
        )
        async with client_of(app) as client:
            for credential in (None, org.owner.credential):
                response = await Caller(client, credential).get("/")
                assert varying(response) == vary
                assert response.headers["cache-control"] == cache_control
            assert "X-Organization-Id" not in (await client.get("/open")).headers.get("vary", "")


@pytest.fixture(scope="module")
async def connection(service: Service) -> AsyncIterator[WsgiAuthenticator]:
    async with closing_in_thread(threaded_tenantry_of(service)) as tenantry:
        yield tenantry


@cases("mode", MODES)
@cases("order", ORDERS)
@cases("handler", CLIENTS)
async def test_per_site_cache_of_django_keeps_callers_apart(
    service: Service, connection: WsgiAuthenticator, handler: Any, order: str, mode: str
) -> None:
    configure_django()
    cache.clear()
    options, paths = MODES[mode]
    async with CLIENTS[handler](
        django_app(connection, handler, **ORDERS[order], **options)
    ) as client:
        first, second = [await service.organization() for _ in range(2)]
        for org in (first, second):
            await org.owner.post("/api/v1/members", {"userId": "both", "role": "member"})
        token = service.user("both").credential
        callers = {
            first.id: Caller(client, first.owner.credential),
            second.id: Caller(client, second.owner.credential),
        }
        of_both = {
            first.id: Caller(client, token, X_Organization_Id=first.id),
            second.id: Caller(client, token, X_Organization_Id=second.id),
        }
        anonymous = Caller(client, None)
        for path in paths:
            for asked in (callers, of_both, callers, of_both):
                for org_id, caller in asked.items():
                    assert (await caller.get(path)).text == org_id, path
                response = await anonymous.get(path)
                assert (response.status_code, response.text) == (
                    200,
                    "nobody",
                ) or response.status_code == 401


async def test_per_site_cache_of_django_stores_what_a_view_permits(
    service: Service, connection: WsgiAuthenticator
) -> None:
    configure_django()
    cache.clear()
    org = await service.organization()
    app = django_app(connection, PUBLIC=["/cached"], **ORDERS["cache inside of tenantry"])
    async with wsgi_client(app) as client:
        first, again = [await client.get("/cached") for _ in range(2)]
        assert (varying(first), first.headers["cache-control"]) == (set(), "max-age=60")
        assert again.headers["expires"] == first.headers["expires"]
    app = django_app(connection, **ORDERS["cache around tenantry"])
    async with wsgi_client(app) as client:
        owner = Caller(client, org.owner.credential)
        first, again = [await owner.get("/cached?of=owner") for _ in range(2)]
        assert varying(first) == CALLER
        assert again.headers["expires"] == first.headers["expires"]
