"""All routes of the dashboard."""

from functools import partial

from litestar import Router
from litestar.di import Provide
from litestar.exceptions import HTTPException, ValidationException

from tenantry.api.routes import handlers_of
from tenantry.api.services import UseCases
from tenantry.auth.authentication import Authenticator
from tenantry.dashboard import (
    account,
    api_key_list,
    api_keys,
    audit,
    billing,
    error_pages,
    events,
    general,
    guards,
    invitations,
    member_invitations,
    member_lists,
    members,
    operator_acts,
    operator_billing,
    operator_customer,
    operator_customers,
    operator_installation,
    operator_ledger,
    overview,
    projects,
    rejections,
    search,
    sign_in,
    usage,
)
from tenantry.dashboard.billing_history import sentences
from tenantry.dashboard.context import PageComponents, PageContext, Renderer
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.labels import ShownCatalog, role_names
from tenantry.domain.branding import Branding
from tenantry.domain.errors import DomainError, IdempotencyReplayError
from tenantry.domain.operators import Operators
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
    operator_acts,
    operator_billing,
    operator_customer,
    operator_customers,
    operator_installation,
    operator_ledger,
    overview,
    projects,
    rejections,
    search,
    sign_in,
    usage,
)
_FOR_OPERATORS = (
    account,
    api_key_list,
    api_keys,
    audit,
    general,
    member_invitations,
    member_lists,
    members,
    projects,
    rejections,
    search,
    usage,
)
"""The modules whose pages of tenants the operator has, too."""


def build_pages(
    services: UseCases,
    authenticator: Authenticator,
    secret: SessionSecret,
    product: Branding,
    operators: Operators,
    **shown: object,
) -> PageComponents:
    """Build what the pages of one service share. ``operators`` have pages of their own; ``shown``
    are further variables of all templates.
    """
    base_url = services.base_url
    cookies = Cookies(secret, services.clock, secure=base_url.startswith("https://"))
    renderer = Renderer(
        cookies,
        base_url,
        product,
        catalog=ShownCatalog(services.catalog),
        sentences=partial(sentences, catalog=services.catalog),
        roles=role_names(services.catalog.roles),
        key_prefix=services.api_keys.key_format.prefix,
        **shown,
    )
    sessions = guards.SessionGuard(services, authenticator, cookies, secret, operators)
    return PageComponents(services, cookies, sessions, renderer)


def dashboard_routes() -> Router:
    """Return the routes of all pages. Those of tenants are the operator's, too, below another
    path.
    """
    of_tenants = [
        handler
        for handler in handlers_of(_FOR_OPERATORS)
        if all(path.startswith(guards.ORG) for path in handler.paths)
    ]
    return Router(
        "/",
        route_handlers=[
            *handlers_of(_MODULES),
            Router(guards.OPERATOR_PAGES, route_handlers=of_tenants),
        ],
        include_in_schema=False,
        before_request=guards.check_form,
        dependencies={"ctx": Provide(PageContext, sync_to_thread=False)},
        exception_handlers={
            guards.NotSignedInError: error_pages.not_signed_in,
            guards.StaleSignInError: error_pages.stale_sign_in,
            guards.RoleTooLowError: error_pages.role_too_low,
            guards.NoPageError: error_pages.no_page,
            guards.UnconfirmedOperatorError: error_pages.unconfirmed_operator,
            guards.CsrfError: error_pages.csrf,
            IdempotencyReplayError: api_keys.repeated_form,
            DomainError: error_pages.domain_error,
            HTTPException: error_pages.http_error,
            ValidationException: error_pages.invalid_address,
            Exception: error_pages.internal_error,
        },
    )
