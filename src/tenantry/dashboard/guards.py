"""Authentication and authorization of pages: the session behind the cookie, and the user's role in
the tenant.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final, cast

import msgspec
from litestar import Request
from litestar.exceptions import ClientException
from litestar.handlers import BaseRouteHandler

from tenantry.api.guards import AnyRequest, Connection, Credential, RouteGuard, extras
from tenantry.api.services import UseCases
from tenantry.auth.authentication import Authenticator
from tenantry.auth.sessions import ActiveSession
from tenantry.auth.sessions_store import TenantOfUser
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import Form, has_token, is_cross_site, is_same_origin, read_form
from tenantry.dashboard.labels import shown_name
from tenantry.domain.api_keys import ApiKey, KeyStatus
from tenantry.domain.errors import DatabaseUnavailableError, DomainError, NotFoundError
from tenantry.domain.members import User
from tenantry.domain.operator_acts import OperatorPerson
from tenantry.domain.operators import SIGNED_IN_WITHIN, Operators
from tenantry.domain.permissions import AccessLevel, Mode, PrincipalKind, RequestPrincipal
from tenantry.domain.roles import MEMBER, OWNER, Role
from tenantry.domain.scopes import covers
from tenantry.domain.sessions import Session, SessionSecret
from tenantry.server.asgi_types import CALLER, IS_HEAD
from tenantry.server.service_app import state_of

ORGS: Final = "/orgs"
ORG: Final = ORGS + "/{org_id:str}"
"""Everything of a tenant is below this path: two tabs can show two tenants, and links name
theirs.
"""
OPERATOR_PAGES: Final = "/operator"
"""The operator's pages are below this path, among them those of tenants, at ``/operator/orgs/``."""
CONFIRMED: Final = OPERATOR_PAGES + "/confirmed"
"""The page that follows the sign-in of an operator who must authenticate again."""
# the router takes several slashes for one, but leaves the path of a wrong method as it is
_OPERATOR_PAGE: Final = re.compile(f"/*{OPERATOR_PAGES}(?:/|\\Z)")
_ORG_OF_PATH: Final = re.compile(f"(?:{OPERATOR_PAGES})?{ORGS}/(?P<org_id>[^/]+)")
SCRIPT_ONLY: Final = "tenantry.script_only"
"""The option of routes that only the dashboard's script requests."""
_USER: Final = "tenantry.dashboard_user"
_FORM: Final = "tenantry.form"
_TYPED: Final = "tenantry.typed_form"


class NotSignedInError(Exception):
    """The request has no valid session."""


class NoPageError(Exception):
    """No page has this address, as far as the user may know."""


class UnconfirmedOperatorError(Exception):
    """The operator must authenticate again before a change."""


class CsrfError(Exception):
    """The form does not carry this session's token."""


class StaleSignInError(Exception):
    """The identity provider must confirm the user again."""

    def __init__(self, subject: str) -> None:
        self.subject = subject


class RoleTooLowError(Exception):
    """The user's role does not cover ``scope``. ``owner_only`` describes an action that only owners
    may do.
    """

    def __init__(self, user: "DashboardUser", scope: str, owner_only: str | None) -> None:
        self.user = user
        self.scope = scope
        self.owner_only = owner_only


class DashboardUser(ActiveSession, frozen=True, kw_only=True):
    """A signed-in user, and what they are in the tenant of the address."""

    form_token: str
    flash: FlashMessage | None
    tenants_per_user: int
    """How many tenants a user may create."""
    tenant: TenantOfUser | None
    """The tenant of the address."""
    caller: RequestPrincipal | None = None
    """The user as a principal of that tenant."""
    role: Role = MEMBER
    """The role in that tenant. The token's scopes may restrict ``caller`` further."""
    is_operator: bool = False
    """Whether the user may open the operator's pages."""
    acts_as_operator: bool = False
    """Whether this is one of these pages, on which the user is the operator."""

    @property
    def name(self) -> str:
        return shown_name(self.session.name or "", self.session.subject)

    @property
    def principal(self) -> RequestPrincipal:
        """The user as a principal of the tenant of the address. Raises `NotFoundError` without a
        tenant.
        """
        if self.caller is None:
            raise NotFoundError("organization")
        return self.caller

    @property
    def may_create_tenants(self) -> bool:
        """Whether a new tenant could be the user's: the claim of one that exists decides."""
        return self.tenants_per_user > 0 and not self._has_claimed_tenant

    @property
    def _has_claimed_tenant(self) -> bool:
        return any(one.id == self.claims.org_id for one in self.tenants)

    @property
    def base(self) -> str:
        principal = self.principal
        above = OPERATOR_PAGES if principal.kind is PrincipalKind.OPERATOR else ""
        return f"{above}{ORGS}/{principal.org_id}"

    @property
    def home(self) -> str:
        """The path of the first page: of the tenant, else of the operator, else of the user."""
        if self.caller is not None:
            return f"{self.base}/"
        return OPERATOR_PAGES if self.acts_as_operator else "/"

    @property
    def person(self) -> OperatorPerson | None:
        """The user as the person behind the operator; None on pages of customers."""
        if not self.acts_as_operator:
            return None
        return OperatorPerson(self.session.issuer, self.session.subject, self.name)

    @property
    def as_member(self) -> User | None:
        """The user as a user of the tenant; None for the operator, who may be a member, too."""
        return None if self.acts_as_operator else self.session.user

    @property
    def is_owner(self) -> bool:
        return self.principal.access_level is AccessLevel.OWNER

    def may(self, scope: str) -> bool:
        return self.caller is not None and covers(self.caller.scopes, scope)

    def may_put_into_key(self, scope: str) -> bool:
        """Whether the user may give a key this scope."""
        return self.may(scope) and self.principal.may_put_into_key((scope,))

    def may_change(self, key: ApiKey) -> bool:
        return key.status is KeyStatus.ACTIVE and self._may_write(key)

    def may_replace(self, key: ApiKey) -> bool:
        return (
            key.leak_reported_at is not None and key.superseded_by is None and self._may_write(key)
        )

    def _may_write(self, key: ApiKey) -> bool:
        return (key.access_level is not AccessLevel.OWNER or self.is_owner) and self.may(
            "api-keys:write"
        )


class SessionGuard(msgspec.Struct, frozen=True):
    """Authenticates the users of pages by their session cookie."""

    services: UseCases
    authenticator: Authenticator
    cookies: Cookies
    secret: SessionSecret
    operators: Operators

    async def authenticate(
        self,
        connection: Connection,
        *,
        allow_stale_login: bool = False,
        follows_form: bool = False,
        org_id: str | None = None,
    ) -> DashboardUser:
        """Return the user of a request. A page that ``follows_form`` is as open as the form was.

        ``org_id`` is the tenant where no route has found it in the address. Raises
        `NotSignedInError`, `StaleSignInError`, `NotFoundError` for a tenant that is not theirs, and
        `NoPageError` for a page of the operator unless they are one.
        """
        org_id = org_id or connection.path_params.get("org_id")
        is_of_operator = is_operator_page(connection)
        is_visit = _is_visit(connection)
        # what extends the session: HEAD and the script's polling do not
        is_use = not is_head(connection) and (is_visit or _is_post(connection))
        own_org = None if is_of_operator else org_id
        with self._without_operators(is_of_operator=is_of_operator):
            visit = await self._look_up(connection, own_org, is_use=is_use)
            if not allow_stale_login:
                self._check_fresh(connection, visit, follows_form=follows_form)
        shows_flash = is_visit and is_use
        flash = self.cookies.flash(connection, visit.session) if shows_flash else None
        user = extras(connection)[_USER] = self._user_of(visit, own_org, flash)
        if is_of_operator:  # also the page of a tenant that is unknown is the operator's
            user = extras(connection)[_USER] = self._as_operator(user)
        if org_id is not None:
            user = extras(connection)[_USER] = await self._of_tenant(user, org_id)
        return user

    @contextmanager
    def _without_operators(self, *, is_of_operator: bool) -> Iterator[None]:
        """Without operators there is nothing to sign in for on their pages: raise `NoPageError`
        instead of the errors that ask for it.
        """
        try:
            yield
        except (NotSignedInError, StaleSignInError):
            if is_of_operator and not self.operators.any:
                raise NoPageError from None
            raise

    async def _of_tenant(self, user: DashboardUser, org_id: str) -> DashboardUser:
        """Return the user as a principal of the tenant of the address. Raises `NotFoundError`."""
        if user.acts_as_operator:
            return await self._acting_for(user, org_id)
        return await self._with_role(user)

    def has_signed_in(self, connection: Connection) -> bool:
        """Whether the cookie is that of a session, which may have ended."""
        token = self.cookies.session(connection)
        return token is not None and self.secret.digest(token) is not None

    async def _look_up(
        self, connection: Connection, org_id: str | None, *, is_use: bool
    ) -> ActiveSession:
        """Return the session of the connection's cookie. Raises `NotSignedInError`."""
        token = self.cookies.session(connection)
        visit = (
            await self.services.sessions.look_up(token, org_id, is_use=is_use) if token else None
        )
        if visit is None:
            raise NotSignedInError
        return visit

    def _user_of(
        self, visit: ActiveSession, org_id: str | None, flash: FlashMessage | None
    ) -> DashboardUser:
        return DashboardUser(
            **msgspec.structs.asdict(visit),
            form_token=self.secret.form_token(visit.session.digest),
            flash=flash,
            tenants_per_user=self.services.tenants.tenants_per_user,
            tenant=next((one for one in visit.tenants if one.id == org_id), None),
            is_operator=self._is_operator(visit),
        )

    def _is_operator(self, visit: ActiveSession) -> bool:
        claims = visit.claims
        return self.operators.include(claims.user, claims.email, claims.operator_role)

    def _as_operator(self, user: DashboardUser) -> DashboardUser:
        """Return the user as the operator. Raises `NoPageError` for another user."""
        if not user.is_operator:
            raise NoPageError
        return msgspec.structs.replace(user, acts_as_operator=True)

    async def _acting_for(self, user: DashboardUser, org_id: str) -> DashboardUser:
        """Return the operator as a principal of a tenant. Raises `NotFoundError` for an unknown
        one.
        """
        caller = await self.authenticator.as_operator(org_id, Mode.LIVE)
        shown = await self.services.tenants.show(org_id)
        tenant = TenantOfUser(shown.id, shown.name, shown.suspended, shown.time_zone or None)
        return msgspec.structs.replace(user, caller=caller, tenant=tenant, role=OWNER)

    async def _with_role(self, user: DashboardUser) -> DashboardUser:
        """Return the user as a principal of the tenant of the address. Raises `NotFoundError` if it
        is not theirs.
        """
        if user.tenant is None:
            raise NotFoundError("organization")
        caller, role = await self.authenticator.as_user(user.claims, user.tenant.id)
        return msgspec.structs.replace(user, caller=caller, role=role)

    def _check_fresh(
        self, connection: Connection, visit: ActiveSession, *, follows_form: bool
    ) -> None:
        """Raise unless the user was confirmed recently enough; for a form, and the page that
        follows it, less recently.

        Raises `StaleSignInError` for a page that a user visits, else `NotSignedInError`; for a page
        of the operator `NoPageError`, unless the user was one when last confirmed.
        """
        session = visit.session
        is_visit = _is_visit(connection)
        is_form = follows_form if is_visit else _is_post(connection)
        if self._is_fresh(session) or (is_form and session.may_send_forms(self.services.clock())):
            return
        if is_operator_page(connection) and not self._is_operator(visit):
            raise NoPageError
        raise StaleSignInError(session.subject) if is_visit else NotSignedInError

    async def recognize(self, connection: Connection) -> None:
        """Look up the user of a request that no guard has seen, for its error page."""
        named = _ORG_OF_PATH.match(extras(connection)["path"])
        with suppress(NotSignedInError, StaleSignInError, NoPageError, DomainError):
            await self.authenticate(connection, org_id=named["org_id"] if named else None)

    async def end_of_stream(self, connection: Connection, scope: str) -> str:
        """Check again whether a user may keep a stream open; return ``""``, ``renew`` or ``over``.

        ``renew`` means that the identity provider must confirm the user first. Raises
        `DatabaseUnavailableError`.
        """
        try:
            user = await self.authenticate(connection, allow_stale_login=True)
            user.principal.require(scope)
        except DatabaseUnavailableError:
            raise
        except (NotSignedInError, NoPageError, DomainError):
            return "over"
        return "" if self._is_fresh(user.session) else "renew"

    def is_confirmed(self, user: DashboardUser) -> bool:
        """Whether the identity provider authenticated the user recently enough for a change as the
        operator.
        """
        now = self.services.clock()
        return user.session.was_authenticated_within(SIGNED_IN_WITHIN, now)

    def _is_fresh(self, session: Session) -> bool:
        """Whether the identity provider confirmed the user recently enough to see pages."""
        now = self.services.clock()
        sign_in = self.services.sign_in
        is_provider_away = sign_in is not None and sign_in.is_away()
        return not session.needs_renewal(now) or (is_provider_away and session.may_continue(now))


def _is_post(connection: Connection) -> bool:
    return bool(extras(connection)["method"] != "GET")


def _is_visit(connection: Connection) -> bool:
    """Whether the browser is to show the answer as a page."""
    return not _is_post(connection) and is_navigation(connection)


@dataclass(frozen=True)
class PageGuard(RouteGuard):
    """A guard for signed-in users whose role in the tenant of the address covers ``scope``:
    ``guards=[PageGuard("billing:read")]``.

    ``owner_only`` restricts it to owners and describes the action, such as "replay the ledger".
    With ``allow_stale_login`` the identity provider need not have confirmed the user recently; with
    ``follows_form`` only as recently as for the form that led to the page.
    """

    credential: ClassVar = Credential.SESSION
    scope: str | None = None
    _: KW_ONLY
    allow_stale_login: bool = False
    follows_form: bool = False
    owner_only: str | None = None

    async def authorize(self, connection: Connection) -> None:
        sessions: SessionGuard = state_of(connection.scope)["pages"].sessions
        if sessions.has_signed_in(connection):
            await _keep_form(connection)  # before a database that hangs is asked
        try:
            user = await sessions.authenticate(
                connection,
                allow_stale_login=self.allow_stale_login,
                follows_form=self.follows_form,
            )
        except (NotSignedInError, DomainError):
            await _keep_form(connection)
            raise
        extras(connection)[CALLER] = user.caller
        if user.acts_as_operator and _is_post(connection):
            await self._check_confirmed(sessions, user, connection)
        if self.scope is not None and not self._is_covered(user, self.scope):
            await _keep_form(connection)
            raise RoleTooLowError(user, self.scope, self.owner_only)

    async def _check_confirmed(
        self, sessions: SessionGuard, user: DashboardUser, connection: Connection
    ) -> None:
        """Raise `UnconfirmedOperatorError` unless the operator has just authenticated."""
        if not sessions.is_confirmed(user):
            await _keep_form(connection)
            raise UnconfirmedOperatorError

    def _is_covered(self, user: DashboardUser, scope: str) -> bool:
        return user.may(scope) and (self.owner_only is None or user.is_owner)


async def check_form(request: AnyRequest) -> None:
    """Read the form of a POST request and check that it belongs to the sender's session. Raises
    `CsrfError`, and `NoPageError` for OPTIONS, which has no guard, of a page of the operator.
    """
    if request.method == "OPTIONS" and is_operator_page(request):
        sessions: SessionGuard = state_of(request.scope)["pages"].sessions
        await sessions.recognize(request)
        if not is_acting_operator(request):
            raise NoPageError
    if request.method != "POST":
        return
    user = current_user(request.scope)
    form = typed_form(request.scope) or await read_form(request)
    if user is None or is_cross_site(request) or not has_token(form, user.form_token):
        await _keep_form(request)
        raise CsrfError
    extras(request)[_FORM] = extras(request)[_TYPED] = form


async def _keep_form(connection: Connection) -> None:
    """Keep the form that a page of the dashboard sent, for `typed_form`. One of another site must
    not be offered for resubmission.

    The sender may have no right to send it. So this reads no more than `forms.MOST_BYTES`, and only
    a body whose length is sent first, as browsers do.
    """
    scope = extras(connection)
    if _TYPED in scope or not (isinstance(connection, Request) and _is_post(connection)):
        return
    if is_same_origin(connection):
        with suppress(ClientException):
            if connection.content_length is not None:
                scope[_TYPED] = await read_form(connection)


def current_user(scope: Mapping[str, object]) -> DashboardUser | None:
    """Return the signed-in user: in a handler, the one that its guard authorized."""
    return cast("DashboardUser | None", scope.get(_USER))


def current_form(scope: Mapping[str, object]) -> Form | None:
    """Return the form that `check_form` checked; None if the request has none."""
    return cast("Form | None", scope.get(_FORM))


def typed_form(scope: Mapping[str, object]) -> Form | None:
    """Return the form that the request's error page may show and offer again; None for one of
    another site.
    """
    return cast("Form | None", scope.get(_TYPED))


def is_operator_page(connection: Connection) -> bool:
    """Whether the address is one of the operator's pages."""
    return _OPERATOR_PAGE.match(extras(connection)["path"]) is not None


def is_acting_operator(connection: Connection) -> bool:
    """Whether the signed-in user is an operator on one of the operator's pages."""
    user = current_user(connection.scope)
    return user is not None and user.acts_as_operator


def is_navigation(connection: Connection) -> bool:
    """Whether the browser is to show the answer as a whole page (Fetch Metadata).

    For browsers that do not say so, the dashboard's script marks its requests.
    """
    handler = extras(connection).get("route_handler")  # missing if no route answers
    if isinstance(handler, BaseRouteHandler) and handler.opt.get(SCRIPT_ONLY):
        return False
    mode = connection.headers.get("sec-fetch-mode")
    return mode == "navigate" if mode is not None else "x-requested-with" not in connection.headers


def is_head(connection: Connection) -> bool:
    """Whether this is a HEAD request, which must have no effect."""
    return IS_HEAD in extras(connection)


def is_prefetch(connection: Connection) -> bool:
    """Whether the browser loads a page that the user may never see (Fetch standard,
    ``Sec-Purpose``).
    """
    return "prefetch" in connection.headers.get("sec-purpose", "")
