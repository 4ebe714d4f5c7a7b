"""What FastAPI adds: routes that say which scope they need, in the code and in the application's OpenAPI document."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from fastapi import FastAPI, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.requests import HTTPConnection
from fastapi.security import SecurityScopes
from fastapi.security.base import SecurityBase

from tenantry.asgi.middleware import TenantryMiddleware, accepted_modes, check_scope, visit_of
from tenantry.asgi.tenantry import Tenantry
from tenantry.domain.access import Principal
from tenantry.server.problems import MEDIA_TYPE, Problem

_SCHEME: Final = "tenantry"
_SCHEMA_PREFIX: Final = "Tenantry"
_REFERENCE: Final = f"#/components/schemas/{_SCHEMA_PREFIX}{{name}}"
_REFUSALS: Final = {
    HTTPStatus.UNAUTHORIZED: ("There is no credential, or it is not valid; `code` says which.", ("WWW-Authenticate",)),
    HTTPStatus.FORBIDDEN: ("The credential does not allow this; `code` says why.", ("WWW-Authenticate",)),
    HTTPStatus.TOO_MANY_REQUESTS: (
        "A limit of the caller's plan is reached; `Retry-After` says when to come again.",
        ("Retry-After", "RateLimit", "RateLimit-Policy"),
    ),
    HTTPStatus.SERVICE_UNAVAILABLE: (
        "Nobody can tell who is asking: the database or the identity provider is out of reach.",
        ("Retry-After",),
    ),
}
"""What may be answered instead: its meaning, and the headers that come with it."""

Dependency = Callable[..., Awaitable[Principal]]


class _Scheme(SecurityBase):
    """The security scheme of the OpenAPI document. It checks nothing itself."""

    def __init__(self) -> None:
        self.model = HTTPBearer(description="An API key (`svc_...`), or an access token of the identity provider.")
        self.scheme_name = _SCHEME

    async def __call__(self) -> None:
        """Nothing to do: the dependency that names the scope asks for the credential."""


_scheme: Final = _Scheme()


def install(app: FastAPI, tenantry: Tenantry) -> None:
    """Let the routes of ``app`` use `require`: refusals come out as the service's, and the document lists them.

    Call it on each application that has such routes, one that is mounted in another too. It asks nobody for a
    credential itself; `TenantryMiddleware` may be added besides, and then each request is authenticated once.
    """
    app.add_middleware(TenantryMiddleware, tenantry=tenantry, on_demand=True)
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        return _with_refusals(describe())

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document


def require(scope: str | None = None, *, mode: str = "live") -> Dependency:
    """A dependency that is the caller, whose grants cover ``scope``; None means any credential.

    ``mode`` is as in `TenantryMiddleware`: ``live`` refuses test keys, ``test`` all others, ``any`` none.
    ``principal: Annotated[Principal, Depends(require("projects:read"))]``. Raises `ValueError` for a text that is no
    scope, or no mode.
    """
    accepted = accepted_modes(mode)
    own = [] if scope is None else [str(check_scope(scope))]

    async def principal(
        connection: HTTPConnection, asked: SecurityScopes, _scheme: Annotated[None, Security(_scheme, scopes=own)]
    ) -> Principal:
        visit = visit_of(connection.scope)
        if visit is None or visit.app is not connection.app:
            raise RuntimeError("Call tenantry.asgi.fastapi.install(app, tenantry) on this application first.")
        caller = await visit.admit(connection.scope)
        for needed in [*asked.scopes, *own]:
            caller.require(needed)
        caller.require_mode(accepted)
        return caller

    return principal


def _with_refusals(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document, with what the service would answer at every operation that needs a credential.

    What an operation says of these statuses itself stays.
    """
    _, schemas = msgspec.json.schema_components([Problem], ref_template=_REFERENCE)
    known = document.setdefault("components", {}).setdefault("schemas", {})
    known.update({_SCHEMA_PREFIX + name: schema for name, schema in schemas.items()})
    for path in document.get("paths", {}).values():
        for operation in path.values():
            if isinstance(operation, dict) and any(_SCHEME in needed for needed in operation.get("security", ())):
                for status, (meaning, headers) in _REFUSALS.items():
                    operation.setdefault("responses", {}).setdefault(str(status.value), _response(meaning, headers))
    return document


def _response(meaning: str, headers: tuple[str, ...]) -> dict[str, Any]:
    return {
        "description": meaning,
        "headers": {name: {"schema": {"type": "string"}} for name in (*headers, "X-Request-Id")},
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(name=Problem.__name__)}}},
    }
