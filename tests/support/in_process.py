"""Applications that share the service's database and answer with the caller that they
authenticated.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import flask
import httpx2
import msgspec
from django.core.handlers.asgi import ASGIHandler
from fastapi import Depends, FastAPI

from tenantry import wsgi
from tenantry.asgi import AsgiAuthenticator, RequestPrincipal, TenantryAsgiMiddleware, principal_of
from tenantry.asgi.fastapi import install, require
from tenantry.auth.admission import AuthenticationParts
from tenantry.common.clock import Timeouts
from tenantry.db.batcher import Batcher
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send
from tenantry.wsgi.flask import install as install_in_flask
from tenantry.wsgi.flask import requires
from tests.support.app import PEPPER, client_of, lifespan
from tests.support.django_project import SCOPES, django_app
from tests.support.issuer import AUDIENCE, CLIENT_ID
from tests.support.patience import PATIENT
from tests.support.principals import as_json
from tests.support.service import VERIFY, WHOAMI, Caller, Service
from tests.support.wsgi import wsgi_client

SERVICE: Final = "service"
MIDDLEWARE: Final = "middleware"
FASTAPI: Final = "fastapi"
WSGI: Final = "WSGI middleware"
FLASK: Final = "Flask"
DJANGO: Final = "Django"
DJANGO_ASGI: Final = "Django under ASGI"
CALLER: Final = "/caller/"
_PATIENCE: Final = 30.0


class AuthenticatedApp:
    """The service, or an application that authenticates in its own process. All must accept the
    same callers.
    """

    def __init__(self, kind: str, client: httpx2.AsyncClient) -> None:
        self.kind = kind
        self.client = client

    def path(self, scope: str | None = None) -> str:
        """The path that accepts a caller whose grants cover ``scope``."""
        if self.kind == SERVICE:
            return WHOAMI if scope is None else f"{VERIFY}{scope}"
        below = "/async/" if self.kind == DJANGO_ASGI else CALLER
        return f"{below}{scope or '-'}"

    def caller(self, credential: str | None, **headers: str) -> Caller:
        return Caller(self.client, credential, **headers)

    async def get(
        self, headers: list[tuple[bytes, bytes]], scope: str | None = None
    ) -> httpx2.Response:
        """The answer to a request with exactly these headers."""
        return await self.client.request("GET", self.path(scope), headers=headers)


def values_of(service: Service, **values: str) -> dict[str, str]:
    """The settings of an application beside this service."""
    shared = {"DATABASE_URL": service.conninfo, "API_KEY_PEPPER": PEPPER}
    identity = {
        "OIDC_ISSUER": service.issuer.url,
        "OIDC_AUDIENCE": AUDIENCE,
        "OIDC_CLIENT_ID": CLIENT_ID,
    }
    return {**shared, **identity, **values}


def tenantry_of(
    service: Service, timeouts: Timeouts = PATIENT, /, **values: str
) -> AsgiAuthenticator:
    """A connection to this service's database; ``values`` are settings."""
    return AsgiAuthenticator.from_values(
        values_of(service, **values), clock=service.clock, timeouts=timeouts
    )


@asynccontextmanager
async def running_app(
    kind: str, service: Service, timeouts: Timeouts = PATIENT, /, **values: str
) -> AsyncIterator[AuthenticatedApp]:
    """An app of this kind next to the service; ``values`` are settings of an application
    in-process.
    """
    if kind == SERVICE:
        yield AuthenticatedApp(kind, service.client)
        return
    if kind in (WSGI, FLASK, DJANGO, DJANGO_ASGI):
        threaded = threaded_tenantry_of(service, timeouts, **values)
        async with closing_in_thread(threaded):
            if kind == DJANGO_ASGI:
                client = client_of(django_app(threaded, ASGIHandler, ON_DEMAND=True))
            else:
                client = wsgi_client(_WSGI_APPS[kind](threaded))
            async with client:
                yield AuthenticatedApp(kind, client)
        return
    app = (plain_app if kind == MIDDLEWARE else fastapi_app)(
        tenantry_of(service, timeouts, **values)
    )
    async with lifespan(app), client_of(app) as client:
        yield AuthenticatedApp(kind, client)


def threaded_tenantry_of(
    service: Service, timeouts: Timeouts = PATIENT, /, **values: str
) -> wsgi.WsgiAuthenticator:
    """The same for an application without an event loop."""
    return wsgi.WsgiAuthenticator.from_values(
        values_of(service, **values), clock=service.clock, timeouts=timeouts
    )


@asynccontextmanager
async def closing_in_thread(
    tenantry: wsgi.WsgiAuthenticator,
) -> AsyncIterator[wsgi.WsgiAuthenticator]:
    """The connection, closed after the block: in a thread, since its database may be a link of this
    event loop.
    """
    try:
        yield tenantry
    finally:
        await asyncio.to_thread(tenantry.close)


def authentication_of(tenantry: wsgi.WsgiAuthenticator) -> AuthenticationParts:
    """What authenticates the requests of all threads of this process."""
    assert tenantry._thread is not None
    running = tenantry._thread.tenantry._running
    assert running is not None
    return running[1]


async def until_started(tenantry: wsgi.WsgiAuthenticator) -> None:
    """Return once the connection has a thread."""
    async with asyncio.timeout(_PATIENCE):
        while tenantry._thread is None:  # noqa: ASYNC110  # another thread sets it, and gives no notice
            await asyncio.sleep(0.01)


async def until_submitted(batcher: Batcher[Any, Any], count: int) -> None:
    """Return once so many items wait for their answers."""
    async with asyncio.timeout(_PATIENCE):
        while _submitted(batcher) < count:  # noqa: ASYNC110  # another thread submits, and gives no notice
            await asyncio.sleep(0.01)


def _submitted(batcher: Batcher[Any, Any]) -> int:
    return len(batcher._waiting) + sum(map(len, batcher._running.values()))


def plain_app(tenantry: AsgiAuthenticator) -> AsgiApp:
    """The caller as JSON; the scope that is needed is in the path."""
    return TenantryAsgiMiddleware(
        answer_caller, tenantry=tenantry, scopes=_scope_in_path, owns_lifespan=True
    )


def _scope_in_path(_method: str, path: str) -> str | None:
    scope = path.removeprefix(CALLER)
    return None if scope == "-" else scope


async def answer_caller(scope: Scope, receive: Receive, send: Send) -> None:
    """An application without a framework."""
    await receive()
    await answer(send, msgspec.json.encode(as_json(principal_of(scope))))


async def answer(send: Send, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """200, with a JSON body."""
    own = [(b"content-type", b"application/json"), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": own})
    await send({"type": "http.response.body", "body": body})


def fastapi_app(tenantry: AsgiAuthenticator) -> FastAPI:
    """The same with FastAPI: a route for each of `SCOPES`, and one that needs none."""
    app = FastAPI(lifespan=tenantry.lifespan)
    install(app, tenantry)
    for scope in (None, *SCOPES):
        _add_route(app, scope)
    return app


def _add_route(app: FastAPI, scope: str | None) -> None:
    @app.get(f"{CALLER}{scope or '-'}")
    async def caller(
        principal: Annotated[RequestPrincipal, Depends(require(scope))],
    ) -> dict[str, Any]:
        return as_json(principal)


def plain_wsgi_app(tenantry: wsgi.WsgiAuthenticator) -> WSGIApplication:
    """The caller as JSON, under WSGI."""
    return wsgi.TenantryWsgiMiddleware(answer_wsgi_caller, tenantry=tenantry, scopes=_scope_in_path)


def answer_wsgi_caller(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """A WSGI application without a framework."""
    body = msgspec.json.encode(as_json(wsgi.principal_of(environ)))
    start_response("200 OK", [("Content-Type", "application/json")])
    return [body]


def flask_app(tenantry: wsgi.WsgiAuthenticator) -> flask.Flask:
    """The same with Flask: a route for each of `SCOPES`, and one that needs none."""
    app = flask.Flask("tests")
    install_in_flask(app, tenantry)
    for scope in (None, *SCOPES):
        view = requires(scope)(lambda: as_json(flask.g.principal))
        app.add_url_rule(f"{CALLER}{scope or '-'}", f"caller with {scope}", view)
    return app


_WSGI_APPS: Final[dict[str, Callable[[wsgi.WsgiAuthenticator], WSGIApplication]]] = {
    WSGI: plain_wsgi_app,
    FLASK: flask_app,
    DJANGO: lambda tenantry: django_app(tenantry, ON_DEMAND=True),
}


async def owner_and_reader(service: Service, client: httpx2.AsyncClient) -> tuple[Caller, Caller]:
    """A new tenant's owner and a key that may read projects, as they meet this application."""
    org = await service.organization()
    reader = await service.key(org.owner, org.id, "projects:read")
    return Caller(client, org.owner.credential), Caller(client, reader.caller.credential)


IDENTITY_OF_THE_CLIENT: Final = {
    "X-Tenant-Id": "other",
    "X-Principal-Id": "root",
    "X-Principal-Kind": "user",
    "X-Plan": "business",
    "X-Mode": "live",
    "X_Mode": "live",
    "X-Subscription-Status": "active",
    "X_Tenant_Id": "other",
    "X-Access": "full",
    "X-Effective-Plan": "business",
    "X-Key-External-Id": "cus_other",
    "X-Features": "sso",
    "X-Mine": "1",
}
"""Headers by which a client pretends to be another caller, and a header that means nothing."""
