"""Django integration: a middleware with the setting ``TENANTRY``, and views that declare the scope
that they need.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import msgspec
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve

from tenantry.domain.errors import DomainError, InsufficientScopeError, NotFoundError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.requirements import Requirement
from tenantry.in_process.access_rules import AccessOptions, AccessRules, requirement_of
from tenantry.in_process.application_request import ApplicationRequest, wsgi_request
from tenantry.in_process.principals import WsgiPrincipal
from tenantry.server.problems import STATUSES
from tenantry.wsgi.middleware import TextRefusal, WsgiContext, begin, wsgi_context_in
from tenantry.wsgi.tenantry import WsgiAuthenticator

P = ParamSpec("P")
R = TypeVar("R")

_CONNECTION: Final = "CONNECTION"
_UPDATES_CACHE: Final = "_cache_update_cache"
"""The attribute of a request that tells Django's `UpdateCacheMiddleware` to store the response."""
_WITHHELD: Final = "_tenantry_update_cache"
"""The attribute that holds it until the response has the headers that a cache must know."""
_OPTIONS: Final = frozenset(map(str.upper, AccessOptions.__annotations__))


class AuthenticatedRequest(HttpRequest):
    """The type of a request behind the middleware, for annotations of views with `requires`."""

    tenantry: WsgiPrincipal


class TenantryDjangoMiddleware:
    """Django middleware that accepts and rejects requests as the service does.

    The setting ``TENANTRY`` has the options of the WSGI middleware in capitals, and ``CONNECTION``,
    a `WsgiAuthenticator`. By default that is made of the environment, once for the setting.
    ``request.tenantry`` is the caller, or None.
    """

    sync_capable = True
    async_capable = True

    def __init__(
        self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]
    ) -> None:
        """Raises `ImproperlyConfigured` for an invalid option, and `SettingsError`."""
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        self.process_view = self._before_view_async if self._is_async else self._before_view
        if not hasattr(settings, "TENANTRY"):
            settings.TENANTRY = {}
        options: dict[str, Any] = settings.TENANTRY
        if unknown := options.keys() - _OPTIONS - {_CONNECTION}:
            raise ImproperlyConfigured(
                f"TENANTRY has unknown options: {', '.join(sorted(unknown))}"
            )
        # kept, since Django makes several middlewares: each test client has one
        if options.get(_CONNECTION) is None:
            options[_CONNECTION] = WsgiAuthenticator.from_environment()
        self._tenantry: WsgiAuthenticator = options[_CONNECTION]
        try:
            self._rules = AccessRules(
                **{name.lower(): options[name] for name in _OPTIONS & options.keys()}
            )
        except ValueError as error:
            raise ImproperlyConfigured(f"TENANTRY: {error}") from error

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._is_async:
            return self._respond(request)
        context = self._begin(request)
        if (found := context.metadata_of(request.META)) is not None:
            return _with_headers(request, context, _own(found))
        try:
            needed = context.requirement(self._rules, _application_request(request))
            if needed is not None:
                _check(request, needed, _authenticate(request, context))
        except Exception as error:  # noqa: BLE001  # the context logs it
            return _with_headers(request, context, _refuse(request, context, error))
        return _complete(request, context, cast("HttpResponseBase", self._get_response(request)))

    async def _respond(self, request: HttpRequest) -> HttpResponseBase:
        context = self._begin(request)
        if (found := context.metadata_of(request.META)) is not None:
            return _with_headers(request, context, _own(found))
        try:
            needed = context.requirement(self._rules, _application_request(request))
            if needed is not None:
                _check(request, needed, await _authenticate_async(request, context))
        except Exception as error:  # noqa: BLE001  # the context logs it
            return _with_headers(request, context, _refuse(request, context, error))
        return _complete(
            request, context, await cast("Awaitable[HttpResponseBase]", self._get_response(request))
        )

    def _before_view(self, request: HttpRequest, *_view: object) -> None:
        context = wsgi_context_in(request.META)
        if context is not None and context.depends_on_caller:
            _withhold(request)

    async def _before_view_async(self, request: HttpRequest, *view: object) -> None:
        self._before_view(request, *view)  # Django would call it in a thread

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Refuse the request if the view does (`DomainError`)."""
        context = wsgi_context_in(request.META)
        if context is None or type(exception) not in STATUSES:
            return None
        return _refuse(request, context, exception)

    def _begin(self, request: HttpRequest) -> WsgiContext:
        context = wsgi_context_in(request.META)
        if context is None or context.tenantry is not self._tenantry:
            context = begin(self._tenantry, request.META, self._rules.client_address)
            # which Django has kept if an earlier middleware has read them
            request.__dict__.pop("headers", None)
        context.app = self
        _set_principal(request, context.principal)
        return context


def requires(
    scope: str | None = None, *, feature: str | None = None, mode: str = "live"
) -> Callable[
    [Callable[Concatenate[AuthenticatedRequest, P], R]], Callable[Concatenate[HttpRequest, P], R]
]:
    """Return a decorator of views: the caller needs ``scope``; None accepts any credential.

    With ``feature`` the tenant needs this feature of the plan catalog, too. ``mode`` is as in
    `TenantryDjangoMiddleware`. The caller is ``request.tenantry``. For a class-based view:
    ``@method_decorator(requires("projects:read"), name="dispatch")``. The middleware sends a
    rejection even if the project handles the exception. Raises `ValueError` for an invalid scope,
    feature or mode.
    """
    needed = requirement_of(scope, mode, feature)

    def decorate(
        view: Callable[Concatenate[AuthenticatedRequest, P], R],
    ) -> Callable[Concatenate[HttpRequest, P], R]:
        @wraps(view)
        def checked(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if _is_async_dispatch(request):
                return cast("R", checked_async(request, *args, **kwargs))
            context = _context_of(request)
            with _kept(context):
                needed.check(_authenticate(request, context))
            _withhold(request)
            return view(cast("AuthenticatedRequest", request), *args, **kwargs)

        @wraps(view)
        async def checked_async(
            request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs
        ) -> object:
            context = _context_of(request)
            with _kept(context):
                needed.check(await _authenticate_async(request, context))
            _withhold(request)
            return await cast(
                "Awaitable[object]", view(cast("AuthenticatedRequest", request), *args, **kwargs)
            )

        if iscoroutinefunction(view):
            return cast("Callable[Concatenate[HttpRequest, P], R]", checked_async)
        return checked

    return decorate


def _application_request(request: HttpRequest) -> ApplicationRequest:
    """Return a request as other middlewares have left it, under WSGI or ASGI."""
    return msgspec.structs.replace(
        wsgi_request(request.META), method=str(request.method), path=request.path_info
    )


def _check(request: HttpRequest, needed: Requirement, principal: RequestPrincipal) -> None:
    """Raise the service's refusals: a scope that is missing for a path without a view is
    `NotFoundError` (404).

    A table of scopes lists the project's paths, so any other path needs everything. A caller
    without that gets the answer that the path does not exist.
    """
    try:
        needed.check(principal)
    except InsufficientScopeError:
        if _has_view(request):
            raise
        raise NotFoundError("page") from None


def _has_view(request: HttpRequest) -> bool:
    try:
        resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return False
    return True


def _is_async_dispatch(request: HttpRequest) -> bool:
    """Whether an asynchronous class-based view calls `dispatch`, which returns a coroutine."""
    try:
        # there is none in the thread in which such a view calls a synchronous one
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return request.resolver_match is not None and iscoroutinefunction(request.resolver_match.func)


@contextmanager
def _kept(context: WsgiContext) -> Iterator[None]:
    """Keep a rejection for the middleware, which sends it even if the project handles the
    exception.
    """
    try:
        yield
    except DomainError as error:
        context.rejection = error
        raise


def _context_of(request: HttpRequest) -> WsgiContext:
    context = wsgi_context_in(request.META)
    if context is None or not isinstance(context.app, TenantryDjangoMiddleware):
        raise ImproperlyConfigured(
            "Add tenantry.wsgi.django.TenantryDjangoMiddleware to MIDDLEWARE."
        )
    return context


def _authenticate(request: HttpRequest, context: WsgiContext) -> WsgiPrincipal:
    principal = context.authenticate(request.META)
    _set_principal(request, principal)
    return principal


async def _authenticate_async(request: HttpRequest, context: WsgiContext) -> WsgiPrincipal:
    principal = await context.authenticate_async(request.META)
    _set_principal(request, principal)
    return principal


def _withhold(request: HttpRequest) -> None:
    """Keep Django's cache from storing the response before it has the headers of `_with_headers`.

    An `UpdateCacheMiddleware` between this middleware and the view sees it earlier. One around this
    middleware sees it later, and may store it for this caller if the view permits that.
    """
    if _UPDATES_CACHE in request.__dict__:
        request.__dict__.setdefault(_WITHHELD, request.__dict__[_UPDATES_CACHE])
        setattr(request, _UPDATES_CACHE, False)


def _set_principal(request: HttpRequest, principal: RequestPrincipal | None) -> None:
    cast("Any", request).tenantry = principal


def _refuse(request: HttpRequest, context: WsgiContext, error: Exception) -> HttpResponse:
    return _own(context.refuse(error, request.META))


def _own(answer: TextRefusal) -> HttpResponse:
    return HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))


def _complete(
    request: HttpRequest, context: WsgiContext, response: HttpResponseBase
) -> HttpResponseBase:
    answer = response if context.rejection is None else _refuse(request, context, context.rejection)
    return _with_headers(request, context, answer)


def _with_headers(
    request: HttpRequest, context: WsgiContext, response: HttpResponseBase
) -> HttpResponseBase:
    if _WITHHELD in request.__dict__:
        setattr(request, _UPDATES_CACHE, request.__dict__.pop(_WITHHELD))
    for name, value in context.complete(response.items()):
        response[name] = value
    return response
