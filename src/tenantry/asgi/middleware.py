"""The ASGI middleware. Method and path alone decide which scope a request needs; unclear cases are rejected."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol

from tenantry.asgi.tenantry import Tenantry
from tenantry.domain.errors import DomainError, MissingCredentialError, RateLimitedError
from tenantry.domain.permissions import ACCEPTED_MODES, ANYTHING, Mode, Principal, is_scope
from tenantry.domain.rate_limits import RateLimitStatus
from tenantry.server.asgi_types import REQUEST_ID, AsgiApp, Header, Receive, Scope, Send, header_of, request_id_of
from tenantry.server.problems import STATUSES, Refusal, internal_error, refuse_domain_error
from tenantry.server.rate_limit_headers import rate_headers
from tenantry.server.security_headers import SECURITY_HEADERS

ScopeRule = Callable[[str, str], str | None]
"""Returns the required scope for a method (``WEBSOCKET`` for a websocket) and path; None accepts any credential."""

WEBSOCKET: Final = "WEBSOCKET"
CONTEXT: Final = "tenantry.context"
_IDENTITY: Final = frozenset(
    {
        b"x-tenant-id",
        b"x-principal-id",
        b"x-principal-kind",
        b"x-mode",
        b"x-plan",
        b"x-subscription-status",
        b"x-access",
        b"x-effective-plan",
    }
)
"""Headers by which a gateway names the caller. Clients must not set them."""
_RESPONSE_STARTS: Final = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_POLICY_VIOLATION: Final = 1008
_INTERNAL_ERROR: Final = 1011

logger = logging.getLogger(__name__)


def entries_for(path: str) -> Iterator[str]:
    """Yield the entries of a table that match a path, the most specific first: itself, then prefixes that end in ``/``.

    ``/`` is no prefix. An ambiguous path (with ``.``, ``..``, an empty segment, backslash or NUL) is below no prefix.
    """
    yield path
    segments = path[1:].removesuffix("/").split("/")
    if any(segment in ("", ".", "..") or "\\" in segment or "\0" in segment for segment in segments):
        return
    end = len(path)
    while (end := path.rfind("/", 1, end)) > 0:
        yield path[: end + 1]


def scope_rule(scopes: Mapping[tuple[str, str], str | None] | ScopeRule | None) -> ScopeRule:
    """Make the rule of a table of methods and paths, or return a rule as it is.

    A path is exact, or a prefix that ends in ``/``; the longest prefix counts. HEAD uses the entry of GET unless the
    path has its own. Requests that the table does not list require ``*:*``. Raises `ValueError` for an invalid entry.
    """
    if scopes is None:
        return lambda _method, _path: None
    if callable(scopes):
        return scopes
    table = {(method.upper(), checked_path(path)): check_scope(scope) for (method, path), scope in scopes.items()}

    def rule(method: str, path: str) -> str | None:
        methods = ("HEAD", "GET") if method == "HEAD" else (method,)
        requests = ((wanted, entry) for entry in entries_for(path) for wanted in methods)
        return next((table[request] for request in requests if request in table), ANYTHING)

    return rule


def checked_path(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not a path: it must begin with /")
    return path


def check_scope(scope: str | None) -> str | None:
    if scope is not None and not is_scope(scope):
        raise ValueError(f"{scope!r} is not a scope: it must be <resource>:<action>")
    return scope


def accepted_modes(name: str) -> frozenset[Mode]:
    """Return the modes that ``live``, ``test`` or ``any`` accepts. Raises `ValueError` for another name."""
    modes = ACCEPTED_MODES.get(name)
    if modes is None:
        raise ValueError(f"{name!r} is not a mode: it must be live, test or any")
    return modes


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path below the application's mount point (``root_path``)."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


class HasScope(Protocol):
    """A request or websocket of a framework."""

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """The ASGI scope."""


@dataclass
class RequestContext:
    """The middleware's data of one request or websocket."""

    tenantry: Tenantry
    request_id: bytes
    principal: Principal | None = None
    rate_limit_status: RateLimitStatus = ()
    started: bool = False  # whether the response has started
    app: object = None
    """The framework's application around the middleware; None if the middleware wraps the application."""

    def headers_over(self, headers: Iterable[Header]) -> list[Header]:
        """Replace the request id and the rate limit headers of a response."""
        ours = [(b"x-request-id", self.request_id), *rate_headers(self.rate_limit_status)]
        names = {name for name, _ in ours}
        return [*((name, value) for name, value in headers if name.lower() not in names), *ours]

    async def admit(self, scope: Scope) -> Principal:
        """Authenticate and count the request once. Raises the service's refusals."""
        if self.principal is None:
            try:
                admitted = await self.tenantry.admit(scope)
            except RateLimitedError as error:
                self.rate_limit_status = error.rate_limits
                raise
            self.principal, self.rate_limit_status = admitted.principal, admitted.rate_limits
        return self.principal


def context_of(scope: Mapping[str, Any]) -> RequestContext | None:
    context = scope.get(CONTEXT)
    return context if isinstance(context, RequestContext) else None


def optional_principal_of(request: Mapping[str, Any] | HasScope) -> Principal | None:
    """Return the caller of a request (or its ASGI scope); None if it needed and had no credential."""
    context = context_of(request if isinstance(request, Mapping) else request.scope)
    return None if context is None else context.principal


def principal_of(request: Mapping[str, Any] | HasScope) -> Principal:
    """Return the caller of a request (or its ASGI scope). Raises `MissingCredentialError` (401) without one."""
    principal = optional_principal_of(request)
    if principal is None:
        raise MissingCredentialError("Send a credential: Authorization: Bearer <API key or token>.")
    return principal


class TenantryMiddleware:
    """ASGI middleware that accepts and rejects requests as the service does.

    ``public`` paths need no credential. With ``optional`` no path does, but an invalid credential is rejected.
    ``scopes`` is a table of required scopes (requests that it does not list require ``*:*``) or a function. Paths are
    below ``root_path``. ``mode`` selects the accepted keys: ``live``, ``test`` or ``any``. With ``on_demand`` the
    routes authenticate, not the middleware. With ``owns_lifespan`` the middleware starts and stops ``tenantry``, for an
    ``app`` without a lifespan.
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
        self._public = frozenset(map(checked_path, public))
        self._optional = optional
        self._scope_needed = scope_rule(scopes)
        self._accepted_modes = accepted_modes(mode)
        self._on_demand = on_demand
        self._owns_lifespan = owns_lifespan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" and self._owns_lifespan:
            await self._run_lifespan(receive, send)
        elif scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif (context := context_of(scope)) is not None and context.tenantry is self._tenantry:
            await self._pass(context, scope, receive, send)
        else:
            await self._begin(scope, receive, send)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = scope.get(REQUEST_ID)  # from an outer middleware with another database
        request_id = request_id_of(header_of(scope, b"x-request-id")) if known is None else str(known).encode()
        context = RequestContext(self._tenantry, request_id)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] in _RESPONSE_STARTS:
                context.started = True
                message = {**message, "headers": context.headers_over(message.get("headers", ()))}
            await send(message)

        # frameworks may treat underscores as hyphens
        headers = [(name, value) for name, value in scope["headers"] if name.replace(b"_", b"-") not in _IDENTITY]
        ours = {CONTEXT: context, REQUEST_ID: request_id.decode(), "headers": headers}
        await self._pass(context, {**scope, **ours}, receive, send_with_headers)

    async def _pass(self, context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        context.app = scope.get("app")
        request_id = context.request_id.decode()
        try:
            await self._check(context, scope)
        except DomainError as error:
            await _refuse(scope, send, refuse_domain_error(error, request_id))
            return
        except Exception:
            logger.exception("request %s failed", request_id)
            await _refuse(scope, send, internal_error(request_id))
            return
        try:
            await self._app(scope, receive, send)
        except DomainError as error:
            if type(error) not in STATUSES or (context.started and scope["type"] == "http"):
                raise
            await _refuse(scope, send, refuse_domain_error(error, request_id), begun=context.started)

    async def _check(self, context: RequestContext, scope: Scope) -> None:
        path = path_of(scope)
        if self._on_demand or not self._public.isdisjoint(entries_for(path)):
            return
        needed = check_scope(self._scope_needed(scope.get("method", WEBSOCKET), path))
        has_credential = any(name == b"authorization" for name, _ in scope["headers"])
        if needed is None and self._optional and not has_credential:
            return
        principal = await context.admit(scope)
        if needed is not None:
            principal.require(needed)
        principal.require_mode(self._accepted_modes)

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


async def _refuse(scope: Scope, send: Send, refusal: Refusal, *, begun: bool = False) -> None:
    headers = [*refusal.headers, *SECURITY_HEADERS, (b"content-length", b"%d" % len(refusal.body))]
    is_http = scope["type"] == "http"
    if is_http or (not begun and "websocket.http.response" in (scope.get("extensions") or {})):
        kind = "http.response" if is_http else "websocket.http.response"
        await send({"type": f"{kind}.start", "status": refusal.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": refusal.body})
    else:
        is_internal = refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        code = _INTERNAL_ERROR if is_internal else _POLICY_VIOLATION
        await send({"type": "websocket.close", "code": code, "reason": refusal.code})
