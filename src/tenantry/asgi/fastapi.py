"""FastAPI integration: routes declare the scope that they need, in code and in the OpenAPI
document.
"""

from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import Annotated, Any, Final

import msgspec
from fastapi import FastAPI, Security
from fastapi.openapi.models import APIKey, HTTPBearer
from fastapi.requests import HTTPConnection
from fastapi.security import SecurityScopes
from fastapi.security.base import SecurityBase

from tenantry.asgi.middleware import TenantryAsgiMiddleware
from tenantry.auth.credentials import CredentialFinder
from tenantry.domain.api_keys import DEFAULT_PREFIX
from tenantry.domain.permissions import RequestPrincipal
from tenantry.in_process.access_rules import requirement_of
from tenantry.in_process.application_request import ClientAddress, asgi_request
from tenantry.in_process.request import context_in
from tenantry.in_process.tenantry import AsgiAuthenticator
from tenantry.server.problems import MEDIA_TYPE, Problem

_SCHEME: Final = "tenantry"
_KEY_SCHEME: Final = "tenantryApiKey"
_DESCRIPTION: Final = "An API key (`{}_...`), or an access token of the identity provider."
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
        self.model = HTTPBearer(description=_DESCRIPTION.format(DEFAULT_PREFIX))
        self.scheme_name = _SCHEME

    async def __call__(self) -> None:
        """Do nothing: the dependency with the scope authenticates."""


_scheme: Final = _Scheme()


def install(
    app: FastAPI, tenantry: AsgiAuthenticator, *, client_address: ClientAddress | None = None
) -> None:
    """Prepare an application, also each mounted one, for routes with `require`. ``client_address``
    is as in `TenantryAsgiMiddleware`.
    """
    app.add_middleware(
        TenantryAsgiMiddleware, tenantry=tenantry, on_demand=True, client_address=client_address
    )
    describe = app.openapi
    # FastAPI's own way to extend the document
    app.openapi = lambda: _completed(describe(), tenantry.finder)  # type: ignore[method-assign]


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
        caller = await context.authenticate_once(asgi_request(connection.scope))
        for also in asked.scopes:
            caller.require(also)
        needed.check(caller)
        return caller

    return principal


def _completed(document: dict[str, Any], finder: CredentialFinder) -> dict[str, Any]:
    """Add the refusals, and where the credential may be."""
    _add_refusals(document)
    schemes = document["components"].get("securitySchemes", {})
    if _SCHEME in schemes:
        schemes[_SCHEME]["description"] = _DESCRIPTION.format(finder.key_format.prefix)
    if _SCHEME in schemes and finder.api_key_header is not None:
        header = APIKey.model_validate({"in": "header", "name": finder.api_key_header})
        schemes[_KEY_SCHEME] = header.model_dump(by_alias=True, mode="json", exclude_none=True)
        _add_alternatives(document)
    return document


def _add_alternatives(document: dict[str, Any]) -> None:
    """Let every operation that needs a credential take a key in its header; the document may have
    that already.
    """
    for operation in _operations(document):
        needed = operation.get("security", [])
        keys = [{_KEY_SCHEME: each[_SCHEME]} for each in needed if _SCHEME in each]
        needed += [each for each in keys if each not in needed]


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the operations that need a credential."""
    for operation in chain.from_iterable(map(dict.values, document.get("paths", {}).values())):
        if isinstance(operation, dict) and _needs_credential(operation):
            yield operation


def _add_refusals(document: dict[str, Any]) -> None:
    """Add the refusals to every operation that needs a credential, unless it describes them
    itself.
    """
    _, schemas = msgspec.json.schema_components([Problem], ref_template=_REFERENCE)
    known = document.setdefault("components", {}).setdefault("schemas", {})
    known.update({_SCHEMA_PREFIX + name: schema for name, schema in schemas.items()})
    for operation in _operations(document):
        responses = operation.setdefault("responses", {})
        for status, (meaning, headers) in _REFUSALS.items():
            responses.setdefault(str(status), _response(meaning, headers))


def _needs_credential(operation: dict[str, Any]) -> bool:
    return any(_SCHEME in needed for needed in operation.get("security", ()))


def _response(meaning: str, headers: tuple[str, ...]) -> dict[str, Any]:
    return {
        "description": meaning,
        "headers": {name: {"schema": {"type": "string"}} for name in (*headers, "X-Request-Id")},
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(name=Problem.__name__)}}},
    }
