"""The WSGI middleware (PEP 3333)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Protocol
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from tenantry.domain.errors import DomainError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.in_process.access_rules import AccessRules, Requirement, ScopeRule
from tenantry.in_process.request import (
    CONTEXT,
    IDENTITY_HEADERS,
    RequestContext,
    context_in,
    optional_principal_in,
    principal_in,
    request_id_in,
)
from tenantry.server.asgi_types import REQUEST_ID, Header
from tenantry.server.problems import STATUSES, Refusal
from tenantry.wsgi.tenantry import WsgiAuthenticator, header_in

ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None
PRINCIPAL: Final = "tenantry.principal"
_IDENTITY: Final = frozenset(f"HTTP_{name.upper().replace('-', '_')}" for name in IDENTITY_HEADERS)


class HasEnviron(Protocol):
    """A request of Flask, Werkzeug and others."""

    @property
    def environ(self) -> dict[str, Any]:
        """The WSGI environment."""


class HasMeta(Protocol):
    """A request of Django."""

    @property
    def META(self) -> dict[str, Any]:  # noqa: N802
        """The WSGI environment, or what Django makes of an ASGI scope."""


def optional_principal_of(
    request: Mapping[str, Any] | HasEnviron | HasMeta,
) -> RequestPrincipal | None:
    """Return the caller of a request (or its WSGI environment); None if it needed and had no
    credential.
    """
    return optional_principal_in(_environment_of(request))


def principal_of(request: Mapping[str, Any] | HasEnviron | HasMeta) -> RequestPrincipal:
    """Return the caller of a request (or its WSGI environment). Raises `MissingCredentialError`
    (401) without one.
    """
    return principal_in(_environment_of(request))


def _environment_of(request: Mapping[str, Any] | HasEnviron | HasMeta) -> Mapping[str, Any]:
    if isinstance(request, Mapping):
        return request
    environment: Mapping[str, Any] = request.META if hasattr(request, "META") else request.environ
    return environment


class TenantryWsgiMiddleware:
    """WSGI middleware that accepts and rejects requests as the service does.

    ``public`` paths need no credential. With ``optional`` no path does, but an invalid credential
    is rejected. ``scopes`` is a table of required scopes (requests that it does not list require
    ``*:*``) or a function. Paths are below ``SCRIPT_NAME``. ``mode`` selects the accepted keys:
    ``live``, ``test`` or ``any``. With ``on_demand`` the views authenticate, not the middleware.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        tenantry: WsgiAuthenticator,
        public: Iterable[str] = (),
        optional: bool = False,
        scopes: Mapping[tuple[str, str], str | None] | ScopeRule | None = None,
        mode: str = "live",
        on_demand: bool = False,
    ) -> None:
        self._app = app
        self._tenantry = tenantry
        self._rules = AccessRules(
            public=public, optional=optional, scopes=scopes, mode=mode, on_demand=on_demand
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        context = context_in(environ)
        if context is not None and context.tenantry is self._tenantry:
            return self._pass(context, environ, start_response)
        context = begin(self._tenantry, environ)

        def start_with_headers(
            status: str, headers: list[tuple[str, str]], exc_info: ExcInfo = None
        ) -> Callable[[bytes], object]:
            context.started = True
            return start_response(status, complete_headers(context, headers), exc_info)

        return self._pass(context, environ, start_with_headers)

    def _pass(
        self, context: RequestContext, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        def refuse(error: Exception) -> list[bytes]:
            refusal = context.refusal(error)
            phrase = HTTPStatus(refusal.status).phrase
            start_response(f"{refusal.status:d} {phrase}", text_headers(refusal.headers))
            return [body_for(environ, refusal)]

        try:
            needed = requirement_in(
                self._rules,
                context,
                environ["REQUEST_METHOD"],
                path_of(environ),
                has_credential=self._tenantry.has_credential(environ),
            )
            if needed is not None:
                needed.check(authenticate_environ(context, self._tenantry, environ))
        except Exception as error:  # noqa: BLE001  # the context logs it
            return refuse(error)
        try:
            body = self._app(environ, start_response)
        except DomainError as error:
            if type(error) not in STATUSES or context.started:
                raise
            return refuse(error)
        return body if context.started else _UnstartedBody(context, body, refuse)


class _UnstartedBody:
    """The body of an application that runs, and may refuse the request, when its first part is
    taken.
    """

    def __init__(
        self,
        context: RequestContext,
        body: Iterable[bytes],
        refuse: Callable[[Exception], list[bytes]],
    ) -> None:
        self._context = context
        self._body = body
        self._refuse = refuse

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except DomainError as error:
            if type(error) not in STATUSES or self._context.started:
                raise
            yield from self._refuse(error)

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


def path_of(environ: Mapping[str, Any]) -> str:
    """Return the path below the application's mount point (``SCRIPT_NAME``)."""
    return str(environ.get("PATH_INFO", "")).encode("latin-1", "replace").decode("utf-8", "replace")


def begin(tenantry: WsgiAuthenticator, environ: dict[str, Any]) -> RequestContext:
    """Make the context of a request, and remove from it what only a gateway may say."""
    for name in _IDENTITY:
        environ.pop(name, None)
    request_id = request_id_in(environ, header_in(environ, "HTTP_X_REQUEST_ID"))
    context = RequestContext(tenantry, request_id)
    environ.update({CONTEXT: context, REQUEST_ID: request_id.decode(), PRINCIPAL: None})
    return context


def requirement_in(
    rules: AccessRules,
    context: RequestContext,
    method: str,
    path: str,
    *,
    has_credential: bool,
) -> Requirement | None:
    context.depends_on_caller |= rules.depends_on_caller(path)
    return rules.requirement(method, path, has_credential=has_credential)


def authenticate_environ(
    context: RequestContext, tenantry: WsgiAuthenticator, environ: dict[str, Any]
) -> RequestPrincipal:
    """Authenticate and count a request once. Raises the service's refusals."""
    principal = context.principal
    if principal is None:
        principal = environ[PRINCIPAL] = tenantry.call(
            context.authenticate_once, tenantry.credentials_of(environ)
        )
    return principal


def complete_headers(
    context: RequestContext, headers: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the headers of a response with those of the middleware."""
    given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return text_headers(context.headers_over(given))


def text_headers(headers: Iterable[Header]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def body_for(environ: Mapping[str, Any], refusal: Refusal) -> bytes:
    """Return the body of a response: none to HEAD, whatever the server does."""
    return b"" if environ["REQUEST_METHOD"] == "HEAD" else refusal.body
