"""Applications that share the service's database and answer with the caller that they authenticated."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import httpx2
import msgspec
from fastapi import Depends, FastAPI

from tenantry.asgi import Principal, Tenantry, TenantryMiddleware, principal_of
from tenantry.asgi.fastapi import install, require
from tenantry.common.clock import DEFAULT_TIMEOUTS, Timeouts
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send
from tests.support.app import PEPPER, client_of, lifespan
from tests.support.issuer import AUDIENCE, CLIENT_ID
from tests.support.service import VERIFY, WHOAMI, Caller, Service

SERVICE: Final = "service"
MIDDLEWARE: Final = "middleware"
FASTAPI: Final = "fastapi"
SCOPES: Final = ("projects:read", "projects:write", "api-keys:read", "*:*")
CALLER: Final = "/caller/"


class AuthenticatedApp:
    """The service, or an application that authenticates in its own process. All must accept the same callers."""

    def __init__(self, kind: str, client: httpx2.AsyncClient) -> None:
        self.kind = kind
        self.client = client

    def path(self, scope: str | None = None) -> str:
        """The path that accepts a caller whose grants cover ``scope``."""
        if self.kind == SERVICE:
            return WHOAMI if scope is None else f"{VERIFY}{scope}"
        return f"{CALLER}{scope or '-'}"

    def caller(self, credential: str | None, **headers: str) -> Caller:
        return Caller(self.client, credential, **headers)

    async def get(self, headers: list[tuple[bytes, bytes]], scope: str | None = None) -> httpx2.Response:
        """The answer to a request with exactly these headers."""
        return await self.client.request("GET", self.path(scope), headers=headers)


def values_of(service: Service, **values: str) -> dict[str, str]:
    """The settings of an application beside this service."""
    shared = {"DATABASE_URL": service.conninfo, "API_KEY_PEPPER": PEPPER}
    identity = {"OIDC_ISSUER": service.issuer.url, "OIDC_AUDIENCE": AUDIENCE, "OIDC_CLIENT_ID": CLIENT_ID}
    return {**shared, **identity, **values}


def tenantry_of(service: Service, timeouts: Timeouts = DEFAULT_TIMEOUTS, /, **values: str) -> Tenantry:
    """A connection to this service's database; ``values`` are settings."""
    return Tenantry.from_values(values_of(service, **values), clock=service.clock, timeouts=timeouts)


@asynccontextmanager
async def running_app(
    kind: str, service: Service, timeouts: Timeouts = DEFAULT_TIMEOUTS, /, **values: str
) -> AsyncIterator[AuthenticatedApp]:
    """An app of this kind next to the service; ``values`` are settings of an application in-process."""
    if kind == SERVICE:
        yield AuthenticatedApp(kind, service.client)
        return
    app = (plain_app if kind == MIDDLEWARE else fastapi_app)(tenantry_of(service, timeouts, **values))
    async with lifespan(app), client_of(app) as client:
        yield AuthenticatedApp(kind, client)


def plain_app(tenantry: Tenantry) -> AsgiApp:
    """The caller as JSON; the scope that is needed is in the path."""
    return TenantryMiddleware(answer_caller, tenantry=tenantry, scopes=_scope_in_path, owns_lifespan=True)


def _scope_in_path(_method: str, path: str) -> str | None:
    scope = path.removeprefix(CALLER)
    return None if scope == "-" else scope


async def answer_caller(scope: Scope, receive: Receive, send: Send) -> None:
    """An application without a framework."""
    await receive()
    await answer(send, msgspec.json.encode(principal_of(scope)))


async def answer(send: Send, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """200, with a JSON body."""
    own = [(b"content-type", b"application/json"), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": own})
    await send({"type": "http.response.body", "body": body})


def fastapi_app(tenantry: Tenantry) -> FastAPI:
    """The same with FastAPI: a route for each of `SCOPES`, and one that needs none."""
    app = FastAPI(lifespan=tenantry.lifespan)
    install(app, tenantry)
    for scope in (None, *SCOPES):
        _add_route(app, scope)
    return app


def _add_route(app: FastAPI, scope: str | None) -> None:
    @app.get(f"{CALLER}{scope or '-'}")
    async def caller(principal: Annotated[Principal, Depends(require(scope))]) -> dict[str, Any]:
        return as_json(principal)


def as_json(principal: Principal) -> dict[str, Any]:
    """The caller as `whoami` shows it."""
    shown: dict[str, Any] = json.loads(msgspec.json.encode(principal))
    return shown
