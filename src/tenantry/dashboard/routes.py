"""All routes of the dashboard."""

from collections.abc import Sequence

import msgspec
from litestar import Request, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import HTTPRouteHandler
from litestar.types import Scope

from tenantry import __version__
from tenantry.accounts.members import MemberService
from tenantry.accounts.memberships import MembershipService
from tenantry.accounts.overview import OverviewService
from tenantry.accounts.owner_addresses import OwnerConfirmations
from tenantry.accounts.projects import ProjectService
from tenantry.accounts.tenants import TenantService
from tenantry.api.guards import AnyRequest
from tenantry.audit.trail import AuditService
from tenantry.auth.api_keys import ApiKeyService
from tenantry.auth.authentication import Authenticator
from tenantry.auth.sessions import SessionService
from tenantry.billing.checkout import CheckoutService
from tenantry.billing.event_feed import EventFeed
from tenantry.billing.ledger_queries import LedgerQueries
from tenantry.billing.replay import ReplayService
from tenantry.common.clock import Clock
from tenantry.dashboard.api_keys import api_key_pages
from tenantry.dashboard.audit import audit_pages
from tenantry.dashboard.billing import BillingPages
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.error_pages import ErrorPages, is_unanswered_page
from tenantry.dashboard.events import EventPages, event_stream
from tenantry.dashboard.flash_messages import Notices
from tenantry.dashboard.guards import (
    ForeignFormError,
    NotSignedInError,
    ProofNeededError,
    RoleTooLowError,
    SessionGuard,
    check_form,
    current_form,
    current_visitor,
)
from tenantry.dashboard.members import member_pages
from tenantry.dashboard.memberships import membership_pages
from tenantry.dashboard.overview import overview_pages
from tenantry.dashboard.ownership import owner_address_pages, transfer_pages
from tenantry.dashboard.profile import organization_pages, profile_pages
from tenantry.dashboard.projects import project_pages
from tenantry.dashboard.renderer import Renderer
from tenantry.dashboard.sign_in import SignInPages
from tenantry.domain.errors import DomainError
from tenantry.domain.plans import Catalog
from tenantry.domain.sessions import SessionSecret
from tenantry.integrations.oidc.sign_in import SignIn


class DashboardParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the pages are made of."""

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
    demo_pages: Sequence[tuple[str, str]]
    """The pages of the demo that are served beside this service: a name, and an address."""
    command: str
    """What people type to run ``tenantry``, for the commands on pages."""
    clock: Clock


class Dashboard:
    """The dashboard: its routes, and its pages for what no route answers."""

    def __init__(self, parts: DashboardParts) -> None:
        self._parts = parts
        secure = parts.base_url.startswith("https://")
        self._cookies = Cookies(parts.secret, parts.clock, secure=secure)
        self._notices = Notices(parts.secret)
        self.look = Renderer(
            self._cookies, self._notices, secure=secure, version=__version__, command=parts.command,
            demo_pages=parts.demo_pages,
        )  # fmt: skip
        away = parts.sign_in.is_away if parts.sign_in else lambda: False
        self._door = SessionGuard(parts.sessions, parts.authenticator, self._cookies, parts.secret, parts.clock, away)
        self._refusals = ErrorPages(self.look)
        self.page_of = self._refusals.page_of
        self.page_in_front = self._refusals.page_in_front

    async def before_page_of(self, error: Exception, scope: Scope) -> None:
        """What has to be waited for before `page_of`: who is signed in."""
        request: AnyRequest = Request(scope)
        if is_unanswered_page(request, error):
            await self._door.recognize(request)

    def routes(self) -> list[HTTPRouteHandler | Router]:
        """The routes."""
        refusals = self._refusals
        router = Router(
            "/",
            route_handlers=self._pages(),
            include_in_schema=False,
            before_request=check_form,
            dependencies={
                "visitor": Provide(current_visitor, sync_to_thread=False),
                "form": Provide(current_form, sync_to_thread=False),
            },
            exception_handlers={
                NotSignedInError: refusals.not_signed_in,
                ProofNeededError: refusals.proof_needed,
                RoleTooLowError: refusals.role_too_low,
                ForeignFormError: refusals.foreign_form,
                DomainError: refusals.domain_error,
                HTTPException: refusals.http_error,
                ValidationException: refusals.unreadable_address,
                Exception: refusals.fault,
            },
        )
        return [router, *self.look.routes()]

    def _pages(self) -> list[HTTPRouteHandler | Router]:
        parts, look, door = self._parts, self.look, self._door
        return [
            *SignInPages(
                parts.sign_in, parts.sessions, self._cookies, look, base_url=parts.base_url, people=parts.people
            ).routes(door),
            *organization_pages(parts.sessions, door, look),
            *membership_pages(parts.memberships, door, look),
            *overview_pages(
                parts.overview,
                parts.confirmations,
                parts.catalog,
                door,
                look,
                base_url=parts.base_url,
                clock=parts.clock,
            ),
            *BillingPages(
                parts.overview, parts.billing, parts.checkout, parts.catalog, self._notices, look, parts.base_url
            ).routes(door),
            *EventPages(parts.billing, parts.replay, parts.catalog, look).routes(door),
            *event_stream(parts.news, door, look),
            *api_key_pages(parts.api_keys, door, look, parts.base_url, parts.clock, parts.catalog),
            *project_pages(parts.projects, door, look, parts.catalog),
            *member_pages(parts.members, parts.tenants, parts.sessions, door, look),
            *transfer_pages(parts.members, parts.tenants, parts.sessions, door, look),
            *owner_address_pages(parts.confirmations, door, look),
            *audit_pages(parts.trail, parts.sessions, door, look, parts.clock),
            *profile_pages(parts.sessions, door, look),
        ]
