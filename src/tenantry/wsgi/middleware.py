"""The WSGI middleware (PEP 3333)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, NamedTuple, Unpack, cast
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from tenantry.domain.errors import DomainError
from tenantry.in_process.access_rules import AccessOptions, AccessRules
from tenantry.in_process.application_request import ClientAddress, wsgi_request
from tenantry.in_process.principals import WsgiPrincipal
from tenantry.in_process.request import (
    CONTEXT,
    IDENTITY_HEADERS,
    RequestContext,
    authenticated_principal,
    context_in,
    principal_in,
    request_id_in,
)
from tenantry.server.asgi_types import REQUEST_ID, Header, HotResponse
from tenantry.wsgi.tenantry import WsgiAuthenticator

ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None
PRINCIPAL: Final = "tenantry.principal"
_IDENTITY: Final = frozenset(f"HTTP_{name.upper().replace('-', '_')}" for name in IDENTITY_HEADERS)


class TextRefusal(NamedTuple):
    """The middleware's own answer, such as to a refused request, as WSGI and its frameworks take
    it.
    """

    status: HTTPStatus
    headers: list[tuple[str, str]]
    body: bytes
    """None to HEAD, whatever the server does."""


@dataclass
class WsgiContext(RequestContext):
    """The context of a request in threads."""

    tenantry: WsgiAuthenticator

    def authenticate(self, environ: dict[str, Any]) -> WsgiPrincipal:
        """Authenticate and count the request once, and set the caller in its environment. Raises
        the service's refusals.
        """
        if self.principal is None:
            self.tenantry.call(self.authenticate_once, wsgi_request(environ))
        environ[PRINCIPAL] = self.principal
        return principal_of(environ)

    async def authenticate_async(self, environ: dict[str, Any]) -> WsgiPrincipal:
        """Do the same in a process that has an event loop, too, without blocking it."""
        if self.principal is None:
            await self.tenantry.call_async(self.authenticate_once, wsgi_request(environ))
        environ[PRINCIPAL] = self.principal
        return principal_of(environ)

    def complete(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers of a response with those of the middleware."""
        given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return _as_text(self.headers_over(given))

    def metadata_of(self, environ: Mapping[str, Any]) -> TextRefusal | None:
        """Return the response as `metadata`."""
        if self.tenantry.resource is None:
            return None
        path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
        response = self.metadata(environ["REQUEST_METHOD"], path)
        return None if response is None else _as_answer(response, environ)

    def refuse(self, error: Exception, environ: Mapping[str, Any]) -> TextRefusal:
        """Return the response as `refusal`."""
        return _as_answer(self.refusal(error), environ)


class TenantryWsgiMiddleware:
    """WSGI middleware that accepts and rejects requests as the service does.

    ``public`` paths need no credential. With ``optional`` no path does, but an invalid credential
    is rejected. ``scopes`` is a table of required scopes (requests that it does not list require
    ``*:*``) or a function. Paths are below ``SCRIPT_NAME``. ``mode`` selects the accepted keys:
    ``live``, ``test`` or ``any``. With ``on_demand`` the views authenticate, not the middleware.
    ``client_address`` returns the client's address for the environment of a request, instead of the
    server's.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        tenantry: WsgiAuthenticator,
        **options: Unpack[AccessOptions],
    ) -> None:
        self._app = app
        self._tenantry = tenantry
        self._rules = AccessRules(**options)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        context = wsgi_context_in(environ)
        if context is not None and context.tenantry is self._tenantry:
            return self._pass(context, environ, start_response)
        context = begin(self._tenantry, environ, self._rules.client_address)
        if (found := context.metadata_of(environ)) is not None:
            start_response(
                f"{found.status:d} {found.status.phrase}", context.complete(found.headers)
            )
            return [found.body]

        def start_with_headers(
            status: str, headers: list[tuple[str, str]], exc_info: ExcInfo = None
        ) -> Callable[[bytes], object]:
            context.started = True
            return start_response(status, context.complete(headers), exc_info)

        return self._pass(context, environ, start_with_headers)

    def _pass(
        self, context: WsgiContext, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        def refuse(error: Exception) -> list[bytes]:
            refusal = context.refuse(error, environ)
            start_response(f"{refusal.status:d} {refusal.status.phrase}", refusal.headers)
            return [refusal.body]

        try:
            needed = context.requirement(self._rules, wsgi_request(environ))
            if needed is not None:
                needed.check(context.authenticate(environ))
        except Exception as error:  # noqa: BLE001  # the context logs it
            return refuse(error)
        try:
            body = self._app(environ, start_response)
        except DomainError as error:
            if not context.may_refuse(error):
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
            if not self._context.may_refuse(error):
                raise
            yield from self._refuse(error)

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


def optional_principal_of(request: object) -> WsgiPrincipal | None:
    """Return the caller of a framework's request, or of a WSGI environment; None if it needed and
    had no credential.
    """
    return cast("WsgiPrincipal | None", principal_in(request))


def principal_of(request: object) -> WsgiPrincipal:
    """Return the caller of a framework's request, or of a WSGI environment. Raises
    `MissingCredentialError` (401) without one.
    """
    return cast("WsgiPrincipal", authenticated_principal(request))


def begin(
    tenantry: WsgiAuthenticator, environ: dict[str, Any], find_address: ClientAddress | None = None
) -> WsgiContext:
    """Make the context of a request, and remove from it what only a gateway may say."""
    for name in _IDENTITY:
        environ.pop(name, None)
    request_id = request_id_in(environ, wsgi_request(environ).header(b"x-request-id"))
    context = WsgiContext(tenantry, request_id, find_address=find_address)
    environ.update({CONTEXT: context, REQUEST_ID: request_id.decode(), PRINCIPAL: None})
    return context


def wsgi_context_in(environ: Mapping[str, Any]) -> WsgiContext | None:
    """Return the context of a WSGI environment; None if no middleware has set it."""
    context = context_in(environ)
    return context if isinstance(context, WsgiContext) else None


def _as_answer(response: HotResponse, environ: Mapping[str, Any]) -> TextRefusal:
    body = b"" if environ["REQUEST_METHOD"] == "HEAD" else response.body
    return TextRefusal(HTTPStatus(response.status), _as_text(response.headers), body)


def _as_text(headers: Iterable[Header]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
