"""All routes of the dashboard."""

from litestar import Request, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import HTTPRouteHandler
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
from tenantry.dashboard.context import PageComponents, PageContext, Renderer
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
    """The dashboard: its routes, and the error pages of requests without a route."""

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
        self._errors = ErrorPages(renderer)
        self.assets = renderer.assets
        self.page_of = self._errors.page_of
        self.raw_page_of = self._errors.raw_page_of

    async def before_page_of(self, error: Exception, scope: Scope) -> None:
        """Look up the user for `page_of`, which cannot await."""
        request: AnyRequest = Request(scope)
        if is_unrouted_page(request, error):
            await self.components.sessions.recognize(request)

    def routes(self) -> list[HTTPRouteHandler | Router]:
        """Return the routes."""
        errors = self._errors
        router = Router(
            "/",
            route_handlers=handlers_of(_MODULES),
            include_in_schema=False,
            before_request=guards.check_form,
            dependencies={"ctx": Provide(PageContext, sync_to_thread=False)},
            exception_handlers={
                guards.NotSignedInError: errors.not_signed_in,
                guards.StaleSignInError: errors.stale_sign_in,
                guards.RoleTooLowError: errors.role_too_low,
                guards.CsrfError: errors.csrf,
                IdempotencyReplayError: api_keys.repeated_form,
                DomainError: errors.domain_error,
                HTTPException: errors.http_error,
                ValidationException: errors.invalid_address,
                Exception: errors.internal_error,
            },
        )
        return [router, self.assets.route()]
