"""All routes of the dashboard."""

from collections.abc import Callable
from typing import Any

from litestar import Request, Response, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import Scope

from tenantry.api.guards import AnyRequest
from tenantry.api.routes import handlers_of
from tenantry.api.services import UseCases
from tenantry.auth.authentication import Authenticator
from tenantry.dashboard import (
    account,
    api_key_list,
    api_keys,
    audit,
    billing,
    events,
    general,
    guards,
    invitations,
    member_invitations,
    member_lists,
    members,
    overview,
    projects,
    search,
    sign_in,
)
from tenantry.dashboard.context import (
    PageComponents,
    PageContext,
    Renderer,
    page_components,
)
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.error_pages import ErrorPages, is_unrouted_page
from tenantry.dashboard.labels import ShownCatalog, role_names
from tenantry.domain.branding import Branding
from tenantry.domain.errors import DomainError, IdempotencyReplayError
from tenantry.domain.sessions import SessionSecret

_MODULES = (
    account,
    api_key_list,
    api_keys,
    audit,
    billing,
    events,
    general,
    invitations,
    member_invitations,
    member_lists,
    members,
    overview,
    projects,
    search,
    sign_in,
)


class Dashboard:
    """What the pages of one service use, and the error pages of requests without a route."""

    def __init__(
        self,
        services: UseCases,
        authenticator: Authenticator,
        secret: SessionSecret,
        product: Branding,
        **shown: object,
    ) -> None:
        """``shown`` are further variables of all templates."""
        base_url = services.base_url
        clock = services.clock
        cookies = Cookies(secret, clock, secure=base_url.startswith("https://"))
        catalog = ShownCatalog(services.catalog)
        renderer = Renderer(
            cookies,
            base_url,
            product,
            catalog=catalog,
            roles=role_names(services.catalog.roles),
            key_prefix=services.api_keys.key_format.prefix,
            **shown,
        )
        is_away = services.sign_in.is_away if services.sign_in else lambda: False
        sessions = guards.SessionGuard(
            services.sessions,
            authenticator,
            cookies,
            secret,
            clock,
            is_away,
            services.tenants.tenants_per_user,
        )
        self.components = PageComponents(services, cookies, sessions, renderer)
        self.assets = renderer.assets
        self.raw_page_of = ErrorPages(renderer).raw_page_of


def page_of(request: AnyRequest, error: HTTPException) -> Response[str] | None:
    """Return the page of a request that no route answers; None for programs."""
    return _error_pages(request).page_of(request, error)


async def before_page_of(error: Exception, scope: Scope) -> None:
    """Look up the user for `page_of`, which cannot await."""
    request: AnyRequest = Request(scope)
    if is_unrouted_page(request, error):
        await page_components(request).sessions.recognize(request)


def dashboard_routes() -> Router:
    """Return the routes of all pages."""
    return Router(
        "/",
        route_handlers=handlers_of(_MODULES),
        include_in_schema=False,
        before_request=guards.check_form,
        dependencies={"ctx": Provide(PageContext, sync_to_thread=False)},
        exception_handlers={
            guards.NotSignedInError: _by(ErrorPages.not_signed_in),
            guards.StaleSignInError: _by(ErrorPages.stale_sign_in),
            guards.RoleTooLowError: _by(ErrorPages.role_too_low),
            guards.CsrfError: _by(ErrorPages.csrf),
            IdempotencyReplayError: api_keys.repeated_form,
            DomainError: _by(ErrorPages.domain_error),
            HTTPException: _by(ErrorPages.http_error),
            ValidationException: _by(ErrorPages.invalid_address),
            Exception: _by(ErrorPages.internal_error),
        },
    )


def _by(
    method: Callable[[ErrorPages, AnyRequest, Any], Response[str]],
) -> Callable[[AnyRequest, Any], Response[str]]:
    """Return the exception handler that calls this method of the service's error pages."""

    def answer(request: AnyRequest, error: Exception) -> Response[str]:
        return method(_error_pages(request), request, error)

    return answer


def _error_pages(request: AnyRequest) -> ErrorPages:
    return ErrorPages(page_components(request).renderer)
