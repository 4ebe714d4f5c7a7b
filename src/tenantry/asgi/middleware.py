"""The ASGI middleware."""

import logging
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any, Final, Unpack, cast

from tenantry.domain.errors import DomainError
from tenantry.in_process.access_rules import AccessOptions, AccessRules
from tenantry.in_process.application_request import asgi_request
from tenantry.in_process.principals import AsgiPrincipal
from tenantry.in_process.request import (
    CONTEXT,
    IDENTITY_HEADERS,
    RequestContext,
    authenticated_principal,
    context_in,
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
    send_response,
)
from tenantry.server.problems import STATUSES, Refusal

_IDENTITY: Final = frozenset(name.encode() for name in IDENTITY_HEADERS)
_RESPONSE_STARTS: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)
_WEBSOCKET_RESPONSE: Final = "websocket.http.response"
_POLICY_VIOLATION: Final = 1008
_INTERNAL_ERROR: Final = 1011

logger = logging.getLogger(__name__)


class TenantryAsgiMiddleware:
    """ASGI middleware that accepts and rejects requests as the service does.

    ``public`` paths need no credential. With ``optional`` no path does, but an invalid credential
    is rejected. ``scopes`` is a table of required scopes (requests that it does not list require
    ``*:*``) or a function. Paths are below ``root_path``. ``mode`` selects the accepted keys:
    ``live``, ``test`` or ``any``. With ``on_demand`` the routes authenticate, not the middleware.
    ``client_address`` returns the client's address for the scope of a request, instead of the
    server's. With ``owns_lifespan`` the middleware starts and stops ``tenantry``, for an ``app``
    without a lifespan.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        tenantry: AsgiAuthenticator,
        owns_lifespan: bool = False,
        **options: Unpack[AccessOptions],
    ) -> None:
        self._app = app
        self._tenantry = tenantry
        self._rules = AccessRules(**options)
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
        context = RequestContext(
            self._tenantry, request_id, find_address=self._rules.client_address
        )

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
        if scope["type"] == "http" and (found := context.metadata(scope["method"], scope["path"])):
            await send_response(send_with_headers, found)
            return
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
            await _refuse(scope, send, context.refusal(error), begun=context.started)

    async def _check(self, context: RequestContext, scope: Scope) -> None:
        request = asgi_request(scope)
        needed = context.requirement(self._rules, request)
        if needed is not None:
            needed.check(await context.authenticate_once(request))

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


def optional_principal_of(request: object) -> AsgiPrincipal | None:
    """Return the caller of a framework's request, or of an ASGI scope; None if it needed and had
    no credential.
    """
    return cast("AsgiPrincipal | None", principal_in(request))


def principal_of(request: object) -> AsgiPrincipal:
    """Return the caller of a framework's request, or of an ASGI scope. Raises
    `MissingCredentialError` (401) without one.
    """
    return cast("AsgiPrincipal", authenticated_principal(request))


async def _refuse(
    scope: Scope,
    send: Send,
    refusal: Refusal,
    *,
    begun: bool = False,
) -> None:
    if scope["type"] == "http":
        await send_response(send, refusal)
    elif not begun and _WEBSOCKET_RESPONSE in (scope.get("extensions") or {}):
        await send_response(send, refusal, _WEBSOCKET_RESPONSE)
    else:
        is_internal = refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        code = _INTERNAL_ERROR if is_internal else _POLICY_VIOLATION
        await send({"type": "websocket.close", "code": code, "reason": refusal.code})
