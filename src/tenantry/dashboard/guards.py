"""Authentication and authorization of pages: the session behind the cookie, and the user's role in
the tenant.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, cast

import msgspec
from litestar import Request
from litestar.exceptions import ClientException
from litestar.handlers import BaseRouteHandler

from tenantry.api.guards import AnyRequest, Connection, Credential, RouteGuard, extras
from tenantry.auth.authentication import Authenticator
from tenantry.auth.sessions import ActiveSession, SessionService
from tenantry.auth.sessions_store import TenantOfUser
from tenantry.common.clock import Clock
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import Form, has_token, is_cross_site, is_same_origin, read_form
from tenantry.dashboard.labels import shown_name
from tenantry.domain.api_keys import ApiKey, KeyStatus
from tenantry.domain.errors import DatabaseUnavailableError, DomainError, NotFoundError
from tenantry.domain.permissions import AccessLevel, RequestPrincipal
from tenantry.domain.roles import MEMBER, Role
from tenantry.domain.scopes import covers
from tenantry.domain.sessions import Session, SessionSecret
from tenantry.server.asgi_types import CALLER, IS_HEAD
from tenantry.server.service_app import state_of

ORGS: Final = "/orgs"
ORG: Final = ORGS + "/{org_id:str}"
"""Everything of a tenant is below this path: two tabs can show two tenants, and links name
theirs.
"""
_ORG_OF_PATH: Final = re.compile(f"{ORGS}/(?P<org_id>[^/]+)")
SCRIPT_ONLY: Final = "tenantry.script_only"
"""The option of routes that only the dashboard's script requests."""
_USER: Final = "tenantry.dashboard_user"
_FORM: Final = "tenantry.form"


class UnsentFormError(Exception):
    """A request is rejected before its form is processed. ``form`` is what a page of the dashboard
    sent.
    """

    def __init__(self, form: Form | None = None) -> None:
        self.form = form


class NotSignedInError(UnsentFormError):
    """The request has no valid session."""


class CsrfError(UnsentFormError):
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
        return f"/orgs/{self.principal.org_id}"

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

    sessions: SessionService
    authenticator: Authenticator
    cookies: Cookies
    secret: SessionSecret
    clock: Clock
    is_provider_away: Callable[[], bool]
    """Whether the identity provider is unreachable."""
    tenants_per_user: int

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
        `NotSignedInError`, `StaleSignInError`, and `NotFoundError` for a tenant that is not theirs.
        """
        org_id = org_id or connection.path_params.get("org_id")
        purpose = _purpose_of(connection)
        visit = await self._look_up(connection, org_id, is_use=purpose.is_use)
        if not allow_stale_login:
            self._check_fresh(visit.session, purpose, follows_form=follows_form)
        shows_flash = purpose.is_visit and purpose.is_use
        flash = self.cookies.flash(connection, visit.session) if shows_flash else None
        user = self._user_of(visit, org_id, flash)
        extras(connection)[_USER] = user
        if org_id is not None:
            user = extras(connection)[_USER] = await self._with_role(user)
        return user

    async def _look_up(
        self, connection: Connection, org_id: str | None, *, is_use: bool
    ) -> ActiveSession:
        """Return the session of the connection's cookie. Raises `NotSignedInError`."""
        token = self.cookies.session(connection)
        visit = await self.sessions.look_up(token, org_id, is_use=is_use) if token else None
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
            tenants_per_user=self.tenants_per_user,
            tenant=next((one for one in visit.tenants if one.id == org_id), None),
        )

    async def _with_role(self, user: DashboardUser) -> DashboardUser:
        """Return the user as a principal of the tenant of the address. Raises `NotFoundError` if it
        is not theirs.
        """
        if user.tenant is None:
            raise NotFoundError("organization")
        caller, role = await self.authenticator.as_user(user.claims, user.tenant.id)
        return msgspec.structs.replace(user, caller=caller, role=role)

    def _check_fresh(self, session: Session, purpose: "_Purpose", *, follows_form: bool) -> None:
        """Raise unless the user was confirmed recently enough; for a form, and the page that
        follows it, less recently.

        Raises `StaleSignInError` for a page that a user visits, else `NotSignedInError`.
        """
        is_form = follows_form if purpose.is_visit else purpose.is_post
        if self._is_fresh(session) or (is_form and session.may_send_forms(self.clock())):
            return
        raise StaleSignInError(session.subject) if purpose.is_visit else NotSignedInError

    async def recognize(self, connection: Connection) -> None:
        """Look up the user of a request that no guard has seen, for its error page."""
        named = _ORG_OF_PATH.match(extras(connection)["path"])
        with suppress(NotSignedInError, StaleSignInError, DomainError):
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
        except (NotSignedInError, DomainError):
            return "over"
        return "" if self._is_fresh(user.session) else "renew"

    def _is_fresh(self, session: Session) -> bool:
        """Whether the identity provider confirmed the user recently enough to see pages."""
        now = self.clock()
        return not session.needs_renewal(now) or (
            self.is_provider_away() and session.may_continue(now)
        )


class _Purpose(NamedTuple):
    """What a request is for."""

    is_post: bool
    is_visit: bool
    """Whether the browser is to show the answer as a page."""
    is_use: bool
    """Whether it extends the session. HEAD and the script's polling do not."""


def _purpose_of(connection: Connection) -> _Purpose:
    is_post = extras(connection)["method"] != "GET"
    is_visit = not is_post and is_navigation(connection)
    return _Purpose(is_post, is_visit, not is_head(connection) and (is_visit or is_post))


class _PageGuard(RouteGuard):
    credential = Credential.SESSION

    def __init__(
        self,
        scope: str | None,
        owner_only: str | None,
        *,
        allow_stale_login: bool,
        follows_form: bool,
    ) -> None:
        self.scope = scope
        self._owner_only = owner_only
        self._allow_stale_login = allow_stale_login
        self._follows_form = follows_form

    async def authorize(self, connection: Connection) -> None:
        sessions: SessionGuard = state_of(connection.scope)["pages"].sessions
        try:
            user = await sessions.authenticate(
                connection,
                allow_stale_login=self._allow_stale_login,
                follows_form=self._follows_form,
            )
        except NotSignedInError as error:
            raise NotSignedInError(await _same_origin_form(connection)) from error
        extras(connection)[CALLER] = user.caller
        if self.scope is not None and not self._is_covered(user, self.scope):
            raise RoleTooLowError(user, self.scope, self._owner_only)

    def _is_covered(self, user: DashboardUser, scope: str) -> bool:
        return user.may(scope) and (self._owner_only is None or user.is_owner)


def needs(
    scope: str | None = None,
    *,
    allow_stale_login: bool = False,
    follows_form: bool = False,
    owner_only: str | None = None,
) -> RouteGuard:
    """Return a guard for signed-in users whose role in the tenant of the address covers ``scope``.

    ``owner_only`` restricts it to owners and describes the action, such as "replay the ledger".
    With ``allow_stale_login`` the identity provider need not have confirmed the user recently; with
    ``follows_form`` only as recently as for the form that led to the page.
    """
    return _PageGuard(
        scope,
        owner_only,
        allow_stale_login=allow_stale_login,
        follows_form=follows_form,
    )


async def check_form(request: AnyRequest) -> None:
    """Read the form of a POST request and check that it belongs to the sender's session. Raises
    `CsrfError`.
    """
    if request.method != "POST":
        return
    user = current_user(request.scope)
    form = await read_form(request)
    if user is None or is_cross_site(request) or not has_token(form, user.form_token):
        raise CsrfError(form if is_same_origin(request) else None)
    extras(request)[_FORM] = form


async def _same_origin_form(connection: Connection) -> Form | None:
    """Return the form that a page of the dashboard sent. One of another site must not be offered
    for resubmission.
    """
    if (
        isinstance(connection, Request)
        and connection.method == "POST"
        and is_same_origin(connection)
    ):
        with suppress(ClientException):
            return await read_form(connection)
    return None


def current_user(scope: Mapping[str, object]) -> DashboardUser | None:
    """Return the signed-in user: in a handler, the one that its guard authorized."""
    return cast("DashboardUser | None", scope.get(_USER))


def current_form(request: AnyRequest) -> Form:
    """Return the form that `check_form` checked. Raises `CsrfError`."""
    form = extras(request).get(_FORM)
    if not isinstance(form, Form):
        raise CsrfError
    return form


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
