"""FastAPI integration: routes declare the scope that they need, in code and in the OpenAPI
document.
"""

from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Annotated, Any, Final, cast

import msgspec
from fastapi import FastAPI, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.requests import HTTPConnection
from fastapi.security import SecurityScopes
from fastapi.security.base import SecurityBase

from tenantry.asgi.middleware import TenantryAsgiMiddleware
from tenantry.domain.permissions import RequestPrincipal
from tenantry.in_process.access_rules import requirement_of
from tenantry.in_process.request import context_in
from tenantry.in_process.tenantry import AsgiAuthenticator
from tenantry.server.problems import MEDIA_TYPE, Problem

_SCHEME: Final = "tenantry"
_SCHEMA_PREFIX: Final = "Tenantry"
_REFERENCE: Final = f"#/components/schemas/{_SCHEMA_PREFIX}{{name}}"
_REFUSALS: Final = {
    401: ("The credential is missing or invalid.", ("WWW-Authenticate",)),
    403: ("The credential does not allow this.", ("WWW-Authenticate",)),
    429: (
        "A rate limit of the caller's plan is reached.",
        ("Retry-After", "RateLimit", "RateLimit-Policy"),
    ),
    503: ("Authentication is unavailable; try again.", ("Retry-After",)),
}
"""The refusals: meaning and headers."""

Dependency = Callable[..., Awaitable[RequestPrincipal]]


class _Scheme(SecurityBase):
    """The security scheme of the OpenAPI document. It authenticates nothing."""

    def __init__(self) -> None:
        self.model = HTTPBearer(
            description="An API key (`svc_...`), or an access token of the identity provider."
        )
        self.scheme_name = _SCHEME

    async def __call__(self) -> None:
        """Do nothing: the dependency with the scope authenticates."""


_scheme: Final = _Scheme()


def install(app: FastAPI, tenantry: AsgiAuthenticator) -> None:
    """Prepare an application, also each mounted one, for routes with `require`."""
    app.add_middleware(TenantryAsgiMiddleware, tenantry=tenantry, on_demand=True)
    describe = app.openapi
    # FastAPI's own way to extend the document
    app.openapi = lambda: _with_refusals(describe())  # type: ignore[method-assign]


def require(
    scope: str | None = None, *, feature: str | None = None, mode: str = "live"
) -> Dependency:
    """Return a dependency that is the caller, with ``scope``; None accepts any credential.

    ``principal: Annotated[RequestPrincipal, Depends(require("projects:read"))]``. With ``feature``
    the tenant needs this feature of the plan catalog, too. ``mode`` is as in
    `TenantryAsgiMiddleware`. Raises `ValueError` for an invalid scope, feature or mode.
    """
    needed = requirement_of(scope, mode, feature)

    async def principal(
        connection: HTTPConnection,
        asked: SecurityScopes,
        _scheme: Annotated[None, Security(_scheme, scopes=needed.scopes)],
    ) -> RequestPrincipal:
        context = context_in(connection.scope)
        if context is None or context.app is not connection.app:
            raise RuntimeError(
                "Call tenantry.asgi.fastapi.install(app, tenantry) on this application first."
            )
        tenantry = cast("AsgiAuthenticator", context.tenantry)
        caller = await context.authenticate_once(tenantry.credentials_of(connection.scope))
        for also in asked.scopes:
            caller.require(also)
        needed.check(caller)
        return caller

    return principal


def _with_refusals(document: dict[str, Any]) -> dict[str, Any]:
    """Add the refusals to every operation that needs a credential, unless it describes them
    itself.
    """
    _, schemas = msgspec.json.schema_components([Problem], ref_template=_REFERENCE)
    known = document.setdefault("components", {}).setdefault("schemas", {})
    known.update({_SCHEMA_PREFIX + name: schema for name, schema in schemas.items()})
    paths = document.get("paths", {}).values()
    for operation in chain.from_iterable(map(dict.values, paths)):
        if isinstance(operation, dict) and _needs_credential(operation):
            responses = operation.setdefault("responses", {})
            for status, (meaning, headers) in _REFUSALS.items():
                responses.setdefault(str(status), _response(meaning, headers))
    return document


def _needs_credential(operation: dict[str, Any]) -> bool:
    return any(_SCHEME in needed for needed in operation.get("security", ()))


def _response(meaning: str, headers: tuple[str, ...]) -> dict[str, Any]:
    return {
        "description": meaning,
        "headers": {name: {"schema": {"type": "string"}} for name in (*headers, "X-Request-Id")},
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(name=Problem.__name__)}}},
    }
