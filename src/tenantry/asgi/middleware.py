"""The middleware: nobody comes past it whom the service would refuse, and the refusals are the service's."""

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final

from tenantry.asgi import rules
from tenantry.asgi.rules import Paths, ScopeRule
from tenantry.asgi.tenantry import Tenantry
from tenantry.asgi.visit import PRINCIPAL, VISIT, Visit, visit_of
from tenantry.domain.errors import DomainError
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send, header_of, request_id_of
from tenantry.server.dispatch import REQUEST_ID, internal_error
from tenantry.server.problems import STATUSES, Refusal, refuse_domain_error
from tenantry.server.security_headers import SAFEGUARDS

_IDENTITY: Final = frozenset(
    {b"x-tenant-id", b"x-principal-id", b"x-principal-kind", b"x-mode", b"x-plan", b"x-subscription-status"}
)
"""What a gateway says of a caller after it has asked the service: here nobody but us may say it."""
_ANSWERS: Final = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_POLICY_VIOLATION: Final = 1008
_INTERNAL_ERROR: Final = 1011

logger = logging.getLogger(__name__)


class TenantryMiddleware:
    """An ASGI application in front of ``app`` that lets in whom the service would let in.

    ``public`` are paths that need no credential; with ``optional`` a request without one is let in everywhere (and one
    with a faulty credential nowhere). ``scopes`` says what each method and path needs beside a credential: a table
    (what it does not list needs everything, ``*:*``) or a function. Paths are those below ``root_path``.
    ``mode`` says whose credentials are accepted: ``live`` refuses test keys, ``test`` refuses all others, ``any``
    refuses none.
    With ``on_demand`` nobody is asked for a credential here: the routes ask.
    With ``owns_lifespan`` the middleware starts and stops ``tenantry`` itself and ``app`` sees no lifespan, for
    applications that have none.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        tenantry: Tenantry,
        public: Iterable[str] = (),
        optional: bool = False,
        scopes: Mapping[tuple[str, str], str | None] | ScopeRule | None = None,
        mode: str = "live",
        on_demand: bool = False,
        owns_lifespan: bool = False,
    ) -> None:
        self._app = app
        self._tenantry = tenantry
        self._public = Paths(public)
        self._optional = optional
        self._scope_needed = rules.scope_rule(scopes)
        self._accepted_modes = rules.accepted_modes(mode)
        self._on_demand = on_demand
        self._owns_lifespan = owns_lifespan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request or websocket through to the application, or refuse it."""
        if scope["type"] == "lifespan" and self._owns_lifespan:
            await self._live(receive, send)
        elif scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif (visit := visit_of(scope)) is not None and visit.tenantry is self._tenantry:
            await self._pass(visit, scope, receive, send)
        else:
            await self._begin(scope, receive, send)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = scope.get(REQUEST_ID)  # from a middleware in front that has another database
        visit = Visit(
            self._tenantry, request_id_of(header_of(scope, b"x-request-id")) if known is None else str(known).encode()
        )

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] in _ANSWERS:
                visit.started = True
                message = {**message, "headers": visit.headers_over(message.get("headers", ()))}
            await send(message)

        ours = {VISIT: visit, PRINCIPAL: None, REQUEST_ID: visit.request_id.decode()}
        marked = {**scope, **ours, "headers": _without_identity(scope)}
        await self._pass(visit, marked, receive, send_with_headers)

    async def _pass(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        visit.app = scope.get("app")
        try:
            await self._check(visit, scope)
        except DomainError as error:
            await _refuse(scope, send, refuse_domain_error(error, visit.request_id.decode()))
            return
        except Exception:
            logger.exception("request %s failed", visit.request_id.decode())
            await _refuse(scope, send, internal_error(visit.request_id.decode()))
            return
        try:
            await self._app(scope, receive, send)
        except DomainError as error:
            if type(error) not in STATUSES or (visit.started and scope["type"] == "http"):
                raise
            await _refuse(scope, send, refuse_domain_error(error, visit.request_id.decode()), begun=visit.started)

    async def _check(self, visit: Visit, scope: Scope) -> None:
        if self._on_demand:
            return
        path = rules.path_of(scope)
        if path in self._public:
            return
        needed = rules.check_scope(self._scope_needed(scope.get("method", rules.WEBSOCKET), path))
        if needed is None and self._optional and not _has_credential(scope):
            return
        principal = await visit.admit(scope)
        if needed is not None:
            principal.require(needed)
        principal.require_mode(self._accepted_modes)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Answer the lifespan (ASGI lifespan protocol)."""
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


def _has_credential(scope: Scope) -> bool:
    return any(name == b"authorization" for name, _ in scope["headers"])


def _without_identity(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The request's headers, but those by which a gateway names the caller: the client may have sent them.

    Underscores count as hyphens, which frameworks may not tell apart.
    """
    return [(name, value) for name, value in scope["headers"] if name.replace(b"_", b"-") not in _IDENTITY]


async def _refuse(scope: Scope, send: Send, refusal: Refusal, *, begun: bool = False) -> None:
    headers = [*refusal.headers, *SAFEGUARDS, (b"content-length", b"%d" % len(refusal.body))]
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": refusal.body})
    elif not begun and "websocket.http.response" in (scope.get("extensions") or {}):
        await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": refusal.body})
    else:
        ours = refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        code = _INTERNAL_ERROR if ours else _POLICY_VIOLATION
        await send({"type": "websocket.close", "code": code, "reason": refusal.code})
