"""Which requests need a credential, and which scope: decided by method and path alone, refusing where in doubt."""

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from tenantry.asgi.tenantry import Tenantry
from tenantry.domain.access import ACCEPTED_MODES, ANYTHING, Mode, Principal, is_scope
from tenantry.domain.errors import DomainError, MissingCredentialError, RateLimitedError
from tenantry.domain.rate_limits import RateLimitStatus
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send, header_of, request_id_of
from tenantry.server.dispatch import REQUEST_ID, internal_error
from tenantry.server.problems import STATUSES, Header, Refusal, refuse_domain_error
from tenantry.server.rate_limits import rate_headers
from tenantry.server.security_headers import SECURITY_HEADERS

ScopeRule = Callable[[str, str], str | None]
"""From method (``WEBSOCKET`` for a websocket) and path to the scope needed, or None for any credential."""

WEBSOCKET: Final = "WEBSOCKET"


class PathSet:
    """PathSet given exactly, or by a prefix that ends in ``/``; ``/`` alone is the root and nothing below it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._exact = frozenset(_checked(path) for path in paths)
        self._prefixes = tuple(path for path in self._exact if is_prefix(path))

    def __contains__(self, path: str) -> bool:
        return path in self._exact or (path.startswith(self._prefixes) and is_plain(path))


def is_prefix(path: str) -> bool:
    """Whether a path in a table stands for all below it."""
    return path.endswith("/") and path != "/"


def is_plain(path: str) -> bool:
    """Whether a path can only mean what it says: no ``..``, empty segment, backslash or NUL leads elsewhere."""
    segments = path[1:].removesuffix("/").split("/")
    return not any(segment in ("", ".", "..") or "\\" in segment or "\0" in segment for segment in segments)


def scope_rule(scopes: Mapping[tuple[str, str], str | None] | ScopeRule | None) -> ScopeRule:
    """The rule that ``scopes`` stands for.

    A table maps method and path (exact, or a prefix that ends in ``/``) to a scope; the longest prefix counts, and
    HEAD goes by GET where the same path has no entry for HEAD. What the table does not list needs everything, ``*:*``.
    Raises `ValueError` for a table with a faulty entry.
    """
    if scopes is None:
        return lambda _method, _path: None
    if callable(scopes):
        return scopes
    return _Table(scopes)


def check_scope(scope: str | None) -> str | None:
    """The scope, as it is; raises `ValueError` for a text that is none."""
    if scope is not None and not is_scope(scope):
        raise ValueError(f"{scope!r} is not a scope: it must be <resource>:<action>")
    return scope


def accepted_modes(name: str) -> frozenset[Mode]:
    """The modes that ``live``, ``test`` or ``any`` accepts; raises `ValueError` for any other name."""
    modes = ACCEPTED_MODES.get(name)
    if modes is None:
        raise ValueError(f"{name!r} is not a mode: it must be live, test or any")
    return modes


def path_of(scope: Mapping[str, Any]) -> str:
    """The path below the address at which the application is mounted (``root_path``)."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


class _Table:
    def __init__(self, scopes: Mapping[tuple[str, str], str | None]) -> None:
        self._exact = {(method.upper(), _checked(path)): check_scope(scope) for (method, path), scope in scopes.items()}
        self._prefixes = sorted({path for _, path in self._exact if is_prefix(path)}, key=len, reverse=True)

    def __call__(self, method: str, path: str) -> str | None:
        methods = ("HEAD", "GET") if method == "HEAD" else (method,)
        prefixes = [prefix for prefix in self._prefixes if path.startswith(prefix)] if is_plain(path) else []
        for listed in (path, *prefixes):
            for wanted in methods:
                if (wanted, listed) in self._exact:
                    return self._exact[wanted, listed]
        return ANYTHING


def _checked(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not a path: it must begin with /")
    return path


# One request on its way through the application: its id, and who sends it, as soon as that is known


PRINCIPAL: Final = "tenantry.principal"
"""Where the ASGI scope holds the caller; None where nobody was asked for."""
VISIT: Final = "tenantry.visit"


class HasScope(Protocol):
    """A request or websocket of a framework."""

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """The ASGI scope."""


class RequestContext:
    """A request or websocket that came through the middleware."""

    __slots__ = ("app", "principal", "request_id", "standing", "started", "tenantry")

    def __init__(self, tenantry: Tenantry, request_id: bytes) -> None:
        self.tenantry = tenantry
        self.request_id = request_id
        self.principal: Principal | None = None
        self.standing: RateLimitStatus = ()
        self.started = False
        """Whether the answer has begun."""
        self.app: object = None
        """The framework's application whose refusals the middleware sees; None for one that wraps it from outside."""

    def headers_over(self, headers: Iterable[Header]) -> list[Header]:
        """The headers of an answer, with the request's id and the caller's limits in place of any of these names."""
        ours = [(b"x-request-id", self.request_id), *rate_headers(self.standing)]
        names = {name for name, _ in ours}
        return [*((name, value) for name, value in headers if name.lower() not in names), *ours]

    async def admit(self, scope: Scope) -> Principal:
        """Who sends this. Asked once: whoever asks again gets the same answer. Raises the refusals of the service."""
        if self.principal is None:
            try:
                admitted = await self.tenantry.admit(scope)
            except RateLimitedError as error:
                self.standing = error.standing
                raise
            self.principal, self.standing = admitted.principal, admitted.standing
        scope[PRINCIPAL] = self.principal
        return self.principal


def visit_of(scope: Mapping[str, Any]) -> RequestContext | None:
    """The visit that a middleware has begun."""
    visit = scope.get(VISIT)
    return visit if isinstance(visit, RequestContext) else None


def optional_principal_of(request: Mapping[str, Any] | HasScope) -> Principal | None:
    """The caller of a request (or its ASGI scope); None where no credential was needed and none was sent."""
    scope = request if isinstance(request, Mapping) else request.scope
    principal = scope.get(PRINCIPAL)
    return principal if isinstance(principal, Principal) else None


def principal_of(request: Mapping[str, Any] | HasScope) -> Principal:
    """The caller of a request (or its ASGI scope). Without one it raises `MissingCredentialError`: 401."""
    principal = optional_principal_of(request)
    if principal is None:
        raise MissingCredentialError("Send a credential: Authorization: Bearer <API key or token>.")
    return principal


# The middleware: nobody comes past it whom the service would refuse, and the refusals are the service's


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
    (what it does not list needs everything, ``*:*``) or a function. PathSet are those below ``root_path``.
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
        self._public = PathSet(public)
        self._optional = optional
        self._scope_needed = scope_rule(scopes)
        self._accepted_modes = accepted_modes(mode)
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
        visit = RequestContext(
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

    async def _pass(self, visit: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
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

    async def _check(self, visit: RequestContext, scope: Scope) -> None:
        if self._on_demand:
            return
        path = path_of(scope)
        if path in self._public:
            return
        needed = check_scope(self._scope_needed(scope.get("method", WEBSOCKET), path))
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
    headers = [*refusal.headers, *SECURITY_HEADERS, (b"content-length", b"%d" % len(refusal.body))]
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
