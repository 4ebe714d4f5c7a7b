"""A Django project whose views answer with their caller."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import django
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test.utils import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_control, cache_page
from django.views.decorators.vary import vary_on_headers

from tenantry import wsgi
from tenantry.wsgi.django import AuthenticatedRequest, requires
from tests.support.principals import as_json

SCOPES: Final = ("projects:read", "projects:write", "api-keys:read", "*:*")
MIDDLEWARE: Final = "tenantry.wsgi.django.TenantryDjangoMiddleware"
UPDATE_CACHE: Final = "django.middleware.cache.UpdateCacheMiddleware"
FETCH_FROM_CACHE: Final = "django.middleware.cache.FetchFromCacheMiddleware"
VARY_ON_CALLER: Final = vary_on_headers("Authorization", "X-Organization-Id")
CACHE_CONTROL: Final = cache_control(max_age=60)


def caller(request: AuthenticatedRequest) -> HttpResponse:
    return JsonResponse(as_json(request.tenantry))


async def caller_async(request: AuthenticatedRequest) -> HttpResponse:
    return JsonResponse(as_json(request.tenantry))


def optional_caller(request: HttpRequest) -> HttpResponse:
    principal = wsgi.optional_principal_of(request)
    shown = sorted(name for name in request.headers if name.startswith("X-"))
    return JsonResponse({"caller": None if principal is None else principal.id, "headers": shown})


def optional_organization(request: HttpRequest) -> HttpResponse:
    principal = wsgi.optional_principal_of(request)
    return HttpResponse("nobody" if principal is None else principal.org_id)


def cached_above(request: HttpRequest) -> HttpResponse:
    """Keep the response in a cache that is asked before tenantry; the decorator needs the project's
    settings.
    """
    return cache_page(60)(requires(None)(optional_organization))(request)


def cached_below(request: HttpRequest) -> HttpResponse:
    return requires(None)(cache_page(60)(VARY_ON_CALLER(optional_organization)))(request)


def all_scopes(request: HttpRequest) -> HttpResponse:
    wsgi.principal_of(request).require("*:*")
    return JsonResponse({})


def stream(_request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"a", b"b"]))


def broken(_request: HttpRequest) -> HttpResponse:
    raise LookupError("a bug of the view")


@method_decorator(requires("projects:read"), name="dispatch")
class Projects(View):
    def get(self, request: AuthenticatedRequest, number: int) -> HttpResponse:
        return JsonResponse({"caller": request.tenantry.id, "number": number})


@method_decorator(requires("projects:read"), name="dispatch")
class AsyncProjects(View):
    async def get(self, request: AuthenticatedRequest) -> HttpResponse:
        return JsonResponse({"caller": request.tenantry.id})


def inline(request: HttpRequest) -> HttpResponse:
    """Check the caller within a view, whose result the view ignores."""
    requires("projects:read")(lambda _request: HttpResponse())(request)
    return HttpResponse("checked")


def catch_errors(request: HttpRequest) -> HttpResponse:
    with suppress(Exception):
        requires("projects:read")(lambda _request: HttpResponse())(request)
    return HttpResponse("not checked")


async def in_thread(request: HttpRequest) -> HttpResponse:
    """Run a synchronous view in a thread."""
    return await sync_to_async(requires("projects:read")(caller))(request)


class ErrorPages:
    """A middleware of the project that answers every exception of its views."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self._get_response(request)

    def process_exception(self, _request: HttpRequest, _exception: Exception) -> HttpResponse:
        return HttpResponse("the project's error page", status=500)


urlpatterns = [
    *(path(f"caller/{scope or '-'}", requires(scope)(caller)) for scope in (None, *SCOPES)),
    *(path(f"async/{scope or '-'}", requires(scope)(caller_async)) for scope in (None, *SCOPES)),
    path("feature/sso", requires("projects:read", feature="sso")(caller)),
    path("feature/unknown", requires("projects:read", feature="unknown")(caller)),
    path("async/feature/sso", requires("projects:read", feature="sso")(caller_async)),
    path("async/feature/unknown", requires("projects:read", feature="unknown")(caller_async)),
    path("any-mode", requires("projects:read", mode="any")(caller)),
    path("open", optional_caller),
    path("all", all_scopes),
    path("stream", stream),
    path("broken", broken),
    path("projects/<int:number>", Projects.as_view()),
    path("async-projects", AsyncProjects.as_view()),
    path("inline", inline),
    path("swallowing", catch_errors),
    path("in-thread", in_thread),
    path("plain", optional_organization),
    path("cached", CACHE_CONTROL(optional_organization)),
    path("on-demand", requires(None)(optional_organization)),
    path("cache-page-above", cached_above),
    path("cache-page-below", cached_below),
    path("cached-on-demand", CACHE_CONTROL(requires(None)(optional_organization))),
]


def configure_django() -> None:
    """Give this process the settings that all tests share."""
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__)
        django.setup()


def django_app(
    tenantry: wsgi.WsgiAuthenticator,
    handler: Callable[[], WSGIHandler | ASGIHandler] = WSGIHandler,
    inner: Sequence[str] = (),
    outer: Sequence[str] = (),
    **options: object,
) -> Any:
    """The application; ``inner`` and ``outer`` are further middlewares, ``options`` those of
    tenantry's.
    """
    configure_django()
    with override_settings(
        TENANTRY={"CONNECTION": tenantry, **options}, MIDDLEWARE=[*outer, MIDDLEWARE, *inner]
    ):
        return handler()
