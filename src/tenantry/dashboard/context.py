"""What handlers of pages get: the services, the signed-in user, and rendering."""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec
from litestar import Response
from litestar.di import NamedDependency

from tenantry.accounts.members import MemberService, MembershipService
from tenantry.accounts.overview import OverviewService
from tenantry.accounts.owner_addresses import OwnerConfirmations
from tenantry.accounts.projects import ProjectService
from tenantry.accounts.tenants import TenantService
from tenantry.api.guards import AnyRequest, claimant, principal_author
from tenantry.audit.trail import AuditService
from tenantry.auth.api_keys import ApiKeyService
from tenantry.auth.authentication import Authenticator
from tenantry.auth.sessions import SessionService
from tenantry.billing.checkout import CheckoutService
from tenantry.billing.event_feed import EventFeed
from tenantry.billing.ledger_queries import LedgerQueries
from tenantry.billing.replay import ReplayService
from tenantry.common.clock import Clock
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.forms import Form
from tenantry.dashboard.guards import DASHBOARD, DashboardUser, NotSignedInError, SessionGuard, current_user
from tenantry.dashboard.labels import FlashMessage
from tenantry.dashboard.renderer import Renderer
from tenantry.db.idempotency_store import Claim
from tenantry.domain.access import Principal
from tenantry.domain.audit import Author
from tenantry.domain.errors import InvalidIdempotencyKeyError
from tenantry.domain.plans import Catalog
from tenantry.domain.sessions import SessionSecret
from tenantry.integrations.oidc.sign_in import SignIn

_SHORTEST_ONCE: Final = 16
"""In bytes of randomness when created, and in letters when checked."""


class DashboardServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services behind the pages."""

    secret: SessionSecret
    sessions: SessionService
    authenticator: Authenticator
    sign_in: SignIn | None
    api_keys: ApiKeyService
    tenants: TenantService
    members: MemberService
    confirmations: OwnerConfirmations
    memberships: MembershipService
    projects: ProjectService
    trail: AuditService
    billing: LedgerQueries
    checkout: CheckoutService
    overview: OverviewService
    news: EventFeed
    replay: ReplayService
    catalog: Catalog
    base_url: str
    people: Sequence[tuple[str, str]]
    """Login hints and names of the demo's users."""
    demo_pages: Sequence[tuple[str, str]]
    """Names and addresses of the demo's other pages."""
    command: str
    """How users run ``tenantry``, for the commands on pages."""
    clock: Clock


class PageComponents(msgspec.Struct, frozen=True):
    """What all requests share."""

    services: DashboardServices
    cookies: Cookies
    sessions: SessionGuard
    renderer: Renderer

    def __deepcopy__(self, _memo: object) -> "PageComponents":
        """Return the same object: Litestar copies routers together with their options."""
        return self


class PageContext:
    """One request for a page."""

    def __init__(self, request: AnyRequest) -> None:
        self.request = request
        components: PageComponents = request.route_handler.opt[DASHBOARD]
        self.services = components.services
        self.cookies = components.cookies
        self.sessions = components.sessions
        self.renderer = components.renderer
        self.redirect = self.renderer.redirect

    @property
    def user(self) -> DashboardUser:
        """The user that the route's guard authorized. Raises `NotSignedInError`."""
        user = current_user(self.request)
        if user is None:
            raise NotSignedInError
        return user

    @property
    def principal(self) -> Principal:
        return self.user.principal

    @property
    def author(self) -> Author:
        """The user as the author of a change in the tenant of the address."""
        return principal_author(self.request, self.principal)

    @property
    def plan_name(self) -> str:
        return self.services.catalog.name(self.principal.plan)

    async def claim(self, form: Form) -> Claim:
        """Return the idempotency claim of a form. It covers all fields: a user may go back and change some.

        Raises `InvalidIdempotencyKeyError` for a form without a `once` token.
        """
        if len(form.text("once")) < _SHORTEST_ONCE:
            raise InvalidIdempotencyKeyError("The form is incomplete. Reload the page and submit it again.")
        digest = hashlib.sha256(await self.request.body())
        route = f"POST {self.request.url.path}"
        return Claim(claimant(self.principal), route, f"form:{digest.hexdigest()}", digest.digest())

    def render(self, template: str, status_code: int = 0, **context: object) -> Response[str]:
        """Render a page; by default with status 422 if the context has ``errors`` of a form, else 200."""
        context = {"errors": {}, "problem": "", "typed": "", "once": secrets.token_urlsafe(_SHORTEST_ONCE), **context}
        return self.renderer.page(
            template,
            status_code or (422 if context["errors"] else 200),
            user=current_user(self.request),
            now=self.services.clock(),
            **context,
        )

    def redirect_with(self, message: FlashMessage, path: str, query: str = "") -> Response[str]:
        """Redirect to the page at ``path``, which shows the message once."""
        response = self.redirect(path + query)
        response.set_cookie(self.cookies.with_flash(self.user.session, path, message))
        return response


Context = NamedDependency[PageContext]
"""The type of a handler's argument ``ctx``."""
