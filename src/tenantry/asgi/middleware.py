"""The ASGI middleware."""

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from tenantry.domain.errors import DomainError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.in_process.access_rules import WEBSOCKET, AccessRules, ScopeRule
from tenantry.in_process.request import (
    CONTEXT,
    IDENTITY_HEADERS,
    RequestContext,
    context_in,
    optional_principal_in,
    principal_in,
    request_id_in,
)
from tenantry.in_process.tenantry import AsgiAuthenticator
from tenantry.server.asgi_types import (
    REQUEST_ID,
    AsgiApp,
    Receive,
    Scope,
    Send,
    header_of,
)
from tenantry.server.problems import STATUSES, Refusal

_IDENTITY: Final = frozenset(name.encode() for name in IDENTITY_HEADERS)
_RESPONSE_STARTS: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)
_POLICY_VIOLATION: Final = 1008
_INTERNAL_ERROR: Final = 1011

logger = logging.getLogger(__name__)


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path below the application's mount point (``root_path``)."""
    path = str(scope["path"])
    root = str(scope.get("root_path", ""))
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) :]
    return path


class HasScope(Protocol):
    """A request or websocket of a framework."""

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """The ASGI scope."""


def optional_principal_of(request: Mapping[str, Any] | HasScope) -> RequestPrincipal | None:
    """Return the caller of a request (or its ASGI scope); None if it needed and had no
    credential.
    """
    return optional_principal_in(request if isinstance(request, Mapping) else request.scope)


def principal_of(request: Mapping[str, Any] | HasScope) -> RequestPrincipal:
    """Return the caller of a request (or its ASGI scope). Raises `MissingCredentialError` (401)
    without one.
    """
    return principal_in(request if isinstance(request, Mapping) else request.scope)


class TenantryAsgiMiddleware:
    """ASGI middleware that accepts and rejects requests as the service does.

    ``public`` paths need no credential. With ``optional`` no path does, but an invalid credential
    is rejected. ``scopes`` is a table of required scopes (requests that it does not list require
    ``*:*``) or a function. Paths are below ``root_path``. ``mode`` selects the accepted keys:
    ``live``, ``test`` or ``any``. With ``on_demand`` the routes authenticate, not the middleware.
    With ``owns_lifespan`` the middleware starts and stops ``tenantry``, for an ``app`` without a
    lifespan.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        tenantry: AsgiAuthenticator,
        public: Iterable[str] = (),
        optional: bool = False,
        scopes: Mapping[tuple[str, str], str | None] | ScopeRule | None = None,
        mode: str = "live",
        on_demand: bool = False,
        owns_lifespan: bool = False,
    ) -> None:
        self._app = app
        self._tenantry = tenantry
        self._rules = AccessRules(
            public=public, optional=optional, scopes=scopes, mode=mode, on_demand=on_demand
        )
        self._owns_lifespan = owns_lifespan

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if scope["type"] == "lifespan" and self._owns_lifespan:
            await self._run_lifespan(receive, send)
        elif scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif (context := context_in(scope)) is not None and context.tenantry is self._tenantry:
            await self._pass(context, scope, receive, send)
        else:
            await self._begin(scope, receive, send)

    async def _begin(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        request_id = request_id_in(scope, header_of(scope, b"x-request-id"))
        context = RequestContext(self._tenantry, request_id)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] in _RESPONSE_STARTS:
                context.started = True
                message = {**message, "headers": context.headers_over(message.get("headers", ()))}
            await send(message)

        # frameworks may treat underscores as hyphens
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if name.replace(b"_", b"-") not in _IDENTITY
        ]
        ours = {CONTEXT: context, REQUEST_ID: request_id.decode(), "headers": headers}
        await self._pass(context, {**scope, **ours}, receive, send_with_headers)

    async def _pass(
        self, context: RequestContext, scope: Scope, receive: Receive, send: Send
    ) -> None:
        context.app = scope.get("app")
        try:
            await self._check(context, scope)
        except Exception as error:  # noqa: BLE001  # the context logs it
            await _refuse(scope, send, context.refusal(error))
            return
        try:
            await self._app(scope, receive, send)
        except DomainError as error:
            if type(error) not in STATUSES or (context.started and scope["type"] == "http"):
                raise
            await _refuse(
                scope,
                send,
                context.refusal(error),
                begun=context.started,
            )

    async def _check(self, context: RequestContext, scope: Scope) -> None:
        has_credential = self._tenantry.has_credential(scope)
        method = scope.get("method", WEBSOCKET)
        path = path_of(scope)
        context.depends_on_caller |= self._rules.depends_on_caller(path)
        needed = self._rules.requirement(method, path, has_credential=has_credential)
        if needed is not None:
            needed.check(await context.authenticate_once(self._tenantry.credentials_of(scope)))

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._tenantry.start()
        except Exception as error:
            logger.exception("the application does not start")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._tenantry.stop()
        await send({"type": "lifespan.shutdown.complete"})


async def _refuse(
    scope: Scope,
    send: Send,
    refusal: Refusal,
    *,
    begun: bool = False,
) -> None:
    is_http = scope["type"] == "http"
    if is_http or (not begun and "websocket.http.response" in (scope.get("extensions") or {})):
        kind = "http.response" if is_http else "websocket.http.response"
        await send(
            {
                "type": f"{kind}.start",
                "status": refusal.status,
                "headers": refusal.headers,
            }
        )
        await send({"type": f"{kind}.body", "body": refusal.body})
    else:
        is_internal = refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        code = _INTERNAL_ERROR if is_internal else _POLICY_VIOLATION
        await send({"type": "websocket.close", "code": code, "reason": refusal.code})
