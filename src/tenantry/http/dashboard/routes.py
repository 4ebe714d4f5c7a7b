"""All routes of the dashboard, and what becomes of refusals there: pages, too."""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec
from litestar import Response, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from tenantry import __version__
from tenantry.domain.errors import DomainError, NotFoundError
from tenantry.domain.plans import Catalog
from tenantry.domain.sessions import SessionSecret
from tenantry.gateways.identity.sign_in import SignIn
from tenantry.http.access import AnyRequest
from tenantry.http.dashboard.api_keys import api_key_pages
from tenantry.http.dashboard.audit import audit_pages
from tenantry.http.dashboard.billing import BillingPages
from tenantry.http.dashboard.cookies import Cookies
from tenantry.http.dashboard.event_stream import event_stream
from tenantry.http.dashboard.events import EventPages
from tenantry.http.dashboard.look import Look
from tenantry.http.dashboard.members import member_pages
from tenantry.http.dashboard.overview import overview_pages
from tenantry.http.dashboard.profile import profile_pages
from tenantry.http.dashboard.projects import project_pages
from tenantry.http.dashboard.sign_in import SignInPages, start_path
from tenantry.http.dashboard.transfer import transfer_pages
from tenantry.http.dashboard.visitor import (
    Door,
    ForeignFormError,
    NotSignedInError,
    ProofNeededError,
    check_form,
    current_form,
    current_visitor,
    is_navigation,
)
from tenantry.http.front import REQUEST_ID
from tenantry.http.problems import STATUSES
from tenantry.kit.clock import Clock
from tenantry.services.api_keys import ApiKeyService
from tenantry.services.audit import AuditService
from tenantry.services.authentication import Authenticator
from tenantry.services.billing import BillingService
from tenantry.services.checkout import CheckoutService
from tenantry.services.members import MemberService
from tenantry.services.news import LedgerNews
from tenantry.services.overview import OverviewService
from tenantry.services.projects import ProjectService
from tenantry.services.replay import ReplayService
from tenantry.services.sessions import SessionService
from tenantry.services.tenants import TenantService

_SERVER_ERROR: Final = 500

logger = logging.getLogger(__name__)


class DashboardParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the pages are made of."""

    secret: SessionSecret
    sessions: SessionService
    authenticator: Authenticator
    sign_in: SignIn | None
    api_keys: ApiKeyService
    tenants: TenantService
    members: MemberService
    projects: ProjectService
    trail: AuditService
    billing: BillingService
    checkout: CheckoutService
    overview: OverviewService
    news: LedgerNews
    replay: ReplayService
    catalog: Catalog
    base_url: str
    people: Sequence[tuple[str, str]]
    demo_pages: Sequence[tuple[str, str]]
    """The pages of the demo that are served beside this service: a name, and an address."""
    clock: Clock


def dashboard_routes(parts: DashboardParts) -> list[HTTPRouteHandler | Router]:
    """The routes of the dashboard."""
    secure = parts.base_url.startswith("https://")
    look = Look(secure=secure, version=__version__, demo_pages=parts.demo_pages)
    cookies = Cookies(parts.secret, parts.clock, secure=secure)
    door = Door(parts.sessions, parts.authenticator, cookies, parts.secret, parts.clock)
    pages: list[HTTPRouteHandler | Router] = [
        *SignInPages(parts.sign_in, parts.sessions, cookies, look, base_url=parts.base_url, people=parts.people).routes(
            door
        ),
        *overview_pages(parts.overview, parts.catalog, door, look, base_url=parts.base_url, clock=parts.clock),
        *BillingPages(parts.overview, parts.checkout, parts.catalog, look, parts.base_url).routes(door),
        *EventPages(parts.billing, parts.replay, parts.catalog, look).routes(door),
        *event_stream(parts.news, door, look),
        *api_key_pages(parts.api_keys, door, look, parts.base_url, parts.clock),
        *project_pages(parts.projects, door, look),
        *member_pages(parts.members, parts.tenants, parts.sessions, door, look),
        *transfer_pages(parts.members, parts.tenants, parts.sessions, door, look),
        *audit_pages(parts.trail, parts.sessions, door, look, parts.clock),
        *profile_pages(parts.sessions, door, look),
    ]
    refusals = _Refusals(look)
    router = Router(
        "/",
        route_handlers=pages,
        include_in_schema=False,
        before_request=check_form,
        dependencies={
            "visitor": Provide(current_visitor, sync_to_thread=False),
            "form": Provide(current_form, sync_to_thread=False),
        },
        exception_handlers={
            NotSignedInError: refusals.not_signed_in,
            ProofNeededError: refusals.proof_needed,
            ForeignFormError: refusals.foreign_form,
            DomainError: refusals.domain_error,
            HTTPException: refusals.http_error,
            Exception: refusals.fault,
        },
    )
    return [router, *look.routes()]


class _Refusals:
    """Refusals as pages."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def not_signed_in(self, request: AnyRequest, _error: NotSignedInError) -> Response[str]:
        if request.method == "GET" and is_navigation(request):
            return self._look.redirect(f"/sign-in?return_to={quote(_address(request), safe='')}")
        return self._page(request, 401, "Your session has ended", "Sign in again. What you sent was not carried out.")

    def proof_needed(self, request: AnyRequest, error: ProofNeededError) -> Response[str]:
        return self._look.redirect(start_path(_address(request), silent=True, hint=error.subject))

    def foreign_form(self, request: AnyRequest, _error: ForeignFormError) -> Response[str]:
        return self._page(
            request, 403, "This form is not from here",
            "It was made for another session, or another site sent it. Nothing was changed: open the page again.",
        )  # fmt: skip

    def domain_error(self, request: AnyRequest, error: DomainError) -> Response[str]:
        status = STATUSES[type(error)]
        title = "There is nothing here" if isinstance(error, NotFoundError) else status.phrase
        return self._page(request, status, title, error.detail)

    def http_error(self, request: AnyRequest, error: HTTPException) -> Response[str]:
        return self._page(request, error.status_code, HTTPStatus(error.status_code).phrase, error.detail)

    def fault(self, request: AnyRequest, error: Exception) -> Response[str]:
        logger.error("request %s failed", request.scope.get(REQUEST_ID, ""), exc_info=error)
        return self._page(request, _SERVER_ERROR, "Something went wrong", "It is our fault, and in our log.")

    def _page(self, request: AnyRequest, status: int, title: str, message: str) -> Response[str]:
        request_id = request.scope.get(REQUEST_ID, "") if status >= _SERVER_ERROR else ""
        return self._look.page("message.html", status_code=status, title=title, message=message, request_id=request_id)


def _address(request: AnyRequest) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")
